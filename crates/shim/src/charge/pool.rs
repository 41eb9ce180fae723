//! The memory pools of this process: the device of each pool, and whether it still exists.
//!
//! `driver_cache` charges a pool. A pool that is destroyed while the program has allocations of it stays charged until the
//! last of them is freed and its stream has reached that point, for only then does the driver release the memory. If all
//! were freed before, the charge ends at once: the streams of a living pool's frees are not recorded, because that would
//! cost each free an event.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use divvy_driver::sys::cuda::{CUdevice, CUmemoryPool, CUresult};
use divvy_ledger::AllocationKind;

use crate::account::GpuAccount;
use crate::charge::breakdown::Breakdown;
use crate::charge::driver_cache::{CacheSource, DriverCache, Growth};
use crate::charge::memory_charge::MemoryCharge;
use crate::charge::pointers::AddressHasher;
use crate::charge::stream::StreamMarker;
use crate::device::ORDINALS;

type Known = HashMap<usize, PoolLocation, BuildHasherDefault<AddressHasher>>;

#[derive(Default)]
pub struct Pools {
    /// Whether any pool was ever seen: all that a view looks at in a program without pools.
    any: AtomicBool,
    /// Pools whose creation or use was seen, by handle.
    known: Mutex<Known>,
    /// The default pool of each device, where it is the device's current one.
    defaults: DefaultPools,
    /// Whether something was freed since all pools agreed with the driver.
    any_freed: AtomicBool,
    /// Whether there are such.
    any_fading: AtomicBool,
    /// Destroyed ones that the driver gives up when it has come so far.
    fading: Mutex<Vec<(Arc<Pool>, StreamMarker)>>,
}

/// By ordinal: pools that cannot be destroyed, and whether the device's allocations come from them.
struct DefaultPools([(OnceLock<&'static Arc<Pool>>, AtomicBool); ORDINALS]);

impl Default for DefaultPools {
    fn default() -> Self {
        DefaultPools(std::array::from_fn(|_| Default::default()))
    }
}

/// Where a pool's memory is.
#[derive(Clone)]
pub enum PoolLocation {
    /// On a GPU of the slice.
    Here(Arc<Pool>),
    /// On another GPU, where nothing may be allocated.
    Elsewhere,
    /// Not on a GPU.
    Host,
    /// Another process's: nothing is allocated from it here.
    Imported,
}

/// One pool on a GPU of the slice.
pub struct Pool {
    cache: DriverCache,
    /// A device's default pool, which cannot be destroyed: so its allocations need not be known.
    is_default: OnceLock<bool>,
    /// Allocations not freed yet, and [`DESTROYED`].
    life: AtomicU64,
}

/// The program has destroyed the pool. The highest bit: no program has so many allocations.
const DESTROYED: u64 = 1 << 63;

impl Pools {
    /// The pool that a device's allocations come from, if that is known to be its default one.
    #[inline]
    pub fn current_default(&self, device: CUdevice) -> Option<&'static Arc<Pool>> {
        let (pool, is_current) = self.defaults.0.get(usize::try_from(device).ok()?)?;
        is_current
            .load(Acquire)
            .then(|| pool.get().copied())
            .flatten()
    }

    /// A device's allocations come from its default pool, which is this one.
    pub fn note_default(&self, device: CUdevice, pool: &Arc<Pool>) {
        let place = usize::try_from(device)
            .ok()
            .and_then(|ordinal| self.defaults.0.get(ordinal));
        if let Some((kept, is_current)) = place {
            kept.get_or_init(|| Box::leak(Box::new(pool.clone())));
            is_current.store(true, Release);
        }
    }

    /// The current pool of some device may be another one from now on.
    pub fn forget_current(&self) {
        for (_, is_current) in &self.defaults.0 {
            is_current.store(false, Release);
        }
    }

    /// The pool of that handle, if it was seen before.
    pub fn get(&self, handle: CUmemoryPool) -> Option<PoolLocation> {
        self.known().get(&(handle as usize)).cloned()
    }

    /// Remembers a pool's home, unless another thread has just done so.
    pub fn insert(&self, handle: CUmemoryPool, home: PoolLocation) -> PoolLocation {
        self.any.store(true, Release);
        self.known().entry(handle as usize).or_insert(home).clone()
    }

    /// Takes a pool out, before the driver destroys it: its handle may be another's at once.
    pub fn take(&self, handle: CUmemoryPool) -> Option<PoolLocation> {
        self.known().remove(&(handle as usize))
    }

    /// The last allocation of a destroyed pool was freed in the order of a stream.
    pub fn fade(&self, pool: Arc<Pool>, mark: StreamMarker) {
        let mut fading = self.fading.lock().unwrap_or_else(PoisonError::into_inner);
        fading.push((pool, mark));
        self.any_fading.store(true, Release);
    }

    /// Gives back the charges of those that are gone by now.
    fn release_destroyed(&self) {
        if !self.any_fading.load(Acquire) {
            return;
        }
        let mut fading = self.fading.lock().unwrap_or_else(PoisonError::into_inner);
        fading.retain(|(pool, mark)| {
            let gone = mark.is_reached();
            if gone {
                pool.end();
            }
            !gone
        });
        self.any_fading.store(!fading.is_empty(), Release);
    }

    /// Brings the charges of a GPU's pools up to date.
    pub fn reconcile(&self, gpu: usize) {
        if !self.any.load(Acquire) {
            return;
        }
        self.release_destroyed();
        self.settle(|pool| pool.place().gpu == gpu);
    }

    /// The program's own call takes a pool out before it ends it. So a pool that is found here is open meanwhile.
    fn settle(&self, which: impl Fn(&Pool) -> bool) {
        for home in self.known().values() {
            if let PoolLocation::Here(pool) = home
                && which(pool)
            {
                pool.cache.settle_open();
            }
        }
    }

    /// Something was freed, perhaps of a pool. The driver keeps it until a stream, a context or an event is
    /// synchronised.
    #[inline]
    pub fn note_freed(&self) {
        if self.any.load(Relaxed) {
            self.any_freed.store(true, Relaxed);
        }
    }

    /// The program has synchronised: brings the charges of all pools up to date, if something was freed.
    pub fn synchronised(&self) {
        if self.any_freed.load(Relaxed) && self.any_freed.swap(false, Relaxed) {
            self.settle(|_| true);
        }
    }

    /// Has the driver give back what the pools on a GPU keep without need.
    pub fn trim_caches(&self, gpu: usize) {
        for pool in self.on(gpu) {
            if pool.cache.charged() > 0 {
                pool.cache.trim();
            }
        }
        self.release_destroyed();
    }

    /// Says what the pools on a GPU are charged.
    pub fn add_to_breakdown(&self, gpu: usize, tally: &mut Breakdown) {
        for pool in self.on(gpu) {
            tally.add(AllocationKind::Pool, pool.cache.charged());
        }
    }

    fn on(&self, gpu: usize) -> Vec<Arc<Pool>> {
        let ours = |home: &PoolLocation| match home {
            PoolLocation::Here(pool) if pool.place().gpu == gpu => Some(pool.clone()),
            _ => None,
        };
        self.known().values().filter_map(ours).collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    pub fn new(handle: CUmemoryPool, place: GpuAccount) -> Arc<Self> {
        Arc::new(Pool {
            cache: DriverCache::new(CacheSource::pool(handle), place),
            is_default: OnceLock::new(),
            life: AtomicU64::new(0),
        })
    }

    /// Whether its allocations need not be known, because it ends with the process.
    pub fn is_default(&self) -> bool {
        self.is_default.get() == Some(&true)
    }

    /// The same, for a pool of which the driver has not been asked yet.
    pub fn is_default_or_ask(&self, ask: impl FnOnce() -> bool) -> bool {
        *self.is_default.get_or_init(ask)
    }

    pub fn place(&self) -> &GpuAccount {
        self.cache.place()
    }

    /// Charges what an allocation may make the pool grow by, or counts on what it has left; `None` when neither will do.
    #[inline]
    pub fn begin(&self, bytes: u64) -> Option<Growth> {
        self.cache
            .begin(bytes)
            .or_else(|| self.cache.begin_within(bytes))
    }

    /// Ends what `begin` began. Returns whether the driver took more than could be charged within the limit.
    pub fn finish(&self, growth: Growth) -> bool {
        if self.is_default() {
            self.cache.finish_open(growth)
        } else {
            self.cache.finish(growth)
        }
    }

    pub fn trim(&self) {
        self.cache.trim();
    }

    /// The program trimmed the pool.
    pub fn trimmed(&self) {
        self.cache.changed();
    }

    /// One more allocation of this pool is with the program.
    pub fn allocated(&self) {
        self.life.fetch_add(1, SeqCst);
    }

    /// One allocation of this pool was freed. Returns whether that was all there was of a destroyed pool. The driver
    /// keeps the memory at least until the program synchronises ([`Pools::synchronised`]).
    #[must_use = "a pool that is gone gives back its charge"]
    pub fn freed(&self) -> bool {
        let before = self.life.fetch_sub(1, SeqCst);
        if before & DESTROYED == 0 {
            self.place().account.pools.note_freed();
        }
        before == DESTROYED + 1
    }

    /// One allocation of that size is to be shared with other processes. Its bytes are counted by themselves until it is
    /// freed; `None` when the pool is not charged as much.
    pub fn lend(&self, bytes: u64) -> Option<Arc<MemoryCharge>> {
        self.cache
            .lend(bytes)
            .then(|| MemoryCharge::new(*self.place(), bytes, 0))
    }

    /// As [`Pool::freed`], of one that was shared.
    #[must_use = "a pool that is gone gives back its charge"]
    pub fn freed_lent(&self, bytes: u64) -> bool {
        self.cache.take_back(bytes);
        self.freed()
    }

    /// The driver has given it up.
    pub fn end(&self) {
        self.cache.end();
    }

    /// The program destroys the pool by that call. The driver frees it with its last allocation.
    pub fn destroy(&self, call: impl FnOnce() -> CUresult) -> CUresult {
        let result = self.cache.closing(call);
        if result == CUresult::SUCCESS && self.life.fetch_or(DESTROYED, SeqCst) == 0 {
            self.cache.end();
        }
        result
    }
}
