//! The memory pools of this process: the device of each pool, and whether it still exists.
//!
//! `driver_cache` charges a pool. A pool that is destroyed while the program has allocations of it stays charged until the
//! last of them is freed and its stream has reached that point, for only then does the driver release the memory. If all
//! were freed before, the charge ends at once: the streams of a living pool's frees are not recorded, because that would
//! cost each free an event.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use divvy_driver::sys::cuda::{CUmemoryPool, CUresult};
use divvy_ledger::AllocationKind;

use crate::account::GpuAccount;
use crate::charge::breakdown::Breakdown;
use crate::charge::driver_cache::{CacheSource, DriverCache, Growth};
use crate::charge::memory_charge::MemoryCharge;
use crate::charge::stream::StreamMarker;

#[derive(Default)]
pub struct Pools {
    /// Whether any pool was ever seen: all that a view looks at in a program without pools.
    any: AtomicBool,
    /// Pools whose creation or use was seen, by handle.
    known: Mutex<HashMap<usize, PoolLocation>>,
    /// Destroyed ones that the driver gives up when it has come so far.
    fading: Mutex<Vec<(Arc<Pool>, StreamMarker)>>,
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
    life: Mutex<Life>,
}

#[derive(Default)]
struct Life {
    /// Allocations not freed yet.
    live: u64,
    destroyed: bool,
}

impl Pools {
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
    }

    /// Gives back the charges of those that are gone by now.
    fn release_destroyed(&self) {
        let mut fading = self.fading.lock().unwrap_or_else(PoisonError::into_inner);
        fading.retain(|(pool, mark)| {
            let gone = mark.is_reached();
            if gone {
                pool.end();
            }
            !gone
        });
    }

    /// Brings the charges of a GPU's pools up to date.
    pub fn reconcile(&self, gpu: usize) {
        if !self.any.load(Acquire) {
            return;
        }
        self.release_destroyed();
        for pool in self.on(gpu) {
            pool.cache.reconcile();
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

    fn known(&self) -> MutexGuard<'_, HashMap<usize, PoolLocation>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    pub fn new(handle: CUmemoryPool, place: GpuAccount) -> Arc<Self> {
        Arc::new(Pool {
            cache: DriverCache::new(CacheSource::pool(handle), place),
            life: Mutex::default(),
        })
    }

    pub fn place(&self) -> &GpuAccount {
        self.cache.place()
    }

    /// Charges what an allocation may make the pool grow by, or counts on what it has left; `None` when neither will do.
    pub fn begin(&self, bytes: u64) -> Option<Growth> {
        self.cache
            .begin(bytes)
            .or_else(|| self.cache.begin_within(bytes))
    }

    /// Ends what `begin` began. Returns whether the driver took more than could be charged within the limit.
    pub fn finish(&self, growth: Growth) -> bool {
        self.cache.finish(growth)
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
        self.life().live += 1;
    }

    /// One allocation of this pool was freed. Returns whether that was all there was of a destroyed pool.
    #[must_use = "a pool that is gone gives back its charge"]
    pub fn freed(&self) -> bool {
        let mut life = self.life();
        life.live = life.live.saturating_sub(1);
        let (destroyed, gone) = (life.destroyed, life.destroyed && life.live == 0);
        drop(life);
        if !destroyed {
            self.cache.changed();
        }
        gone
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
        if result == CUresult::SUCCESS {
            let mut life = self.life();
            life.destroyed = true;
            if life.live == 0 {
                self.cache.end();
            }
        }
        result
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
