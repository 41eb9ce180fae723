//! The driver cache: memory that the driver keeps between allocations, in a memory pool or for the graphs of a device.
//!
//! A cache takes more of the GPU than the sum of its allocations, so its charge is the driver's figure of its reserved
//! memory. The most that a call may make it grow is reserved before the call, and afterwards the charge is set to the
//! driver's figure. A cache also shrinks by itself; the next call that matters finds that out.
//!
//! ```text
//! charged + lent ≥ reserved by the driver, at all times        in_flight: part of charged, for calls not settled yet
//! ```

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use divvy_driver::sys::cuda::{
    CUdevice, CUgraphMem_attribute, CUmemPool_attribute, CUmemoryPool, CUresult,
    CUstreamCaptureMode,
};
use divvy_ledger::{DRIVER_RELEASE_TIMEOUT_NS, boot_time_ns};

use crate::account::GpuAccount;
use crate::oom_report;
use crate::route::function::driver;
use crate::table::real;

/// Stocks grow by multiples of this (inferred: a fresh pool reports 32 MiB reserved after a small allocation, and graph
/// memory is taken for the same allocator). A driver that takes less is charged less in the end; the last part of a limit
/// that is smaller than this is of no use to a cache.
const SEGMENT: u64 = 32 << 20;
/// How often a settlement starts over because another thread's came between. The last to finish settles for all.
const TRIES: usize = 8;
/// How often a call lets other threads run before it sleeps between two looks whether their calls have finished. Calls
/// of the driver are short, so most end during these. A sleep first would cost 50 µs at least (timer slack, prctl(2)).
const YIELDS: usize = 1000;
/// A call that is still under way is a long one, such as a trim of a pool; shorter sleeps would take its processor.
const PATIENCE: Duration = Duration::from_millis(1);

/// No figure of the driver: no GPU has so many bytes.
const UNSETTLED: u64 = u64::MAX;

/// Whose figures the driver is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSource {
    /// A pool, by handle (`CUmemoryPool`).
    Pool(usize),
    /// The memory of this process's graphs on a device.
    Graphs(CUdevice),
}

impl CacheSource {
    pub fn pool(handle: CUmemoryPool) -> Self {
        CacheSource::Pool(handle as usize)
    }

    /// Bytes that the driver has taken of the GPU for it; `None` when it knows no such thing, or cannot be asked.
    pub fn reserved(self) -> Option<u64> {
        match self {
            CacheSource::Pool(pool) => {
                let attribute = CUmemPool_attribute::RESERVED_MEM_CURRENT;
                attribute_of(pool as CUmemoryPool, attribute, 0u64)
            }
            CacheSource::Graphs(device) => {
                graph_attribute_of(device, CUgraphMem_attribute::RESERVED_MEM_CURRENT)
            }
        }
    }

    /// Bytes of those that allocations, or graphs, have.
    fn used(self) -> Option<u64> {
        match self {
            CacheSource::Pool(pool) => {
                let attribute = CUmemPool_attribute::USED_MEM_CURRENT;
                attribute_of(pool as CUmemoryPool, attribute, 0u64)
            }
            CacheSource::Graphs(device) => {
                graph_attribute_of(device, CUgraphMem_attribute::USED_MEM_CURRENT)
            }
        }
    }

    /// Has the driver give back what is not in use.
    fn trim(self) {
        match self {
            CacheSource::Pool(pool) => {
                let Some(trim) = real::cuMemPoolTrimTo.get() else {
                    return;
                };
                // SAFETY: a pool that the program has not destroyed; the driver keeps what is in use.
                relaxed(|| unsafe { trim(pool as CUmemoryPool, 0) });
            }
            CacheSource::Graphs(device) => {
                let Some(trim) = real::cuDeviceGraphMemTrim.get() else {
                    return;
                };
                // SAFETY: a device of this process; the driver keeps what scheduled graphs and unfreed allocations use.
                relaxed(|| unsafe { trim(device) });
            }
        }
    }
}

/// One cache on a GPU of the slice.
pub struct DriverCache {
    source: CacheSource,
    place: GpuAccount,
    balance: Mutex<Balance>,
    /// What the driver reserved when the charge agreed with it and no call was under way; [`UNSETTLED`] otherwise.
    settled: AtomicU64,
    turn: Mutex<()>,
    shrinks: AtomicU64,
    /// Whether the driver may not be asked any more. Held shared while it is asked.
    closed: RwLock<bool>,
}

#[derive(Default)]
struct Balance {
    charged: u64,
    /// Its bytes in allocations that are shared with other processes; those are counted by themselves.
    lent: u64,
    in_flight: u64,
    /// Bytes that in-flight, uncharged calls expect to take from the cached memory.
    promised: u64,
    /// The driver's figure when it was last asked.
    reserved: u64,
    /// Counts everything that may have changed what the driver reserves.
    changes: u64,
    /// How often the charge had to grow after the driver.
    forced: u64,
}

/// The claim of a call on a cache while the driver works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrowthClaim {
    /// Charged: the most that the cache may grow by.
    Reserved(u64),
    /// Not charged: there is room for so much, and the cache should not grow.
    Promised(u64),
}

/// A call that the driver is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a growth that was begun has to be finished"]
pub struct Growth {
    claim: GrowthClaim,
    /// [`Balance::forced`] and [`Balance::changes`] when it began.
    forced: u64,
    changes: u64,
}

/// The most that a cache grows by when so many bytes of it are needed.
pub fn most(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(SEGMENT).unwrap_or(u64::MAX)
}

/// The correction that makes the charge agree with the driver.
#[derive(Debug, PartialEq, Eq)]
enum Correction {
    None,
    Release(u64),
    Force(u64),
}

impl Balance {
    /// The driver reserves `reserved`, read when `changes` was `seen`. A stale figure is worth another look: it never lowers the charge, and
    /// raises it only when it is the last that there is.
    fn reconcile(&mut self, reserved: u64, seen: u64, is_last: bool) -> Correction {
        let reserved = reserved.saturating_sub(self.lent);
        let most = reserved.saturating_add(self.in_flight);
        let is_fresh = self.changes == seen;
        if self.charged < reserved && (is_fresh || is_last) {
            let missing = reserved - self.charged;
            self.charged = reserved;
            self.forced += 1;
            Correction::Force(missing)
        } else if self.charged > most && is_fresh {
            let excess = self.charged - most;
            self.charged = most;
            Correction::Release(excess)
        } else {
            Correction::None
        }
    }

    fn begin(&mut self, part: GrowthClaim) -> Growth {
        match part {
            GrowthClaim::Reserved(bytes) => {
                self.charged += bytes;
                self.in_flight += bytes;
            }
            GrowthClaim::Promised(bytes) => self.promised += bytes,
        }
        self.changes += 1;
        Growth {
            claim: part,
            forced: self.forced,
            changes: self.changes,
        }
    }

    fn finish(&mut self, growth: Growth) {
        match growth.claim {
            GrowthClaim::Reserved(bytes) => self.in_flight -= bytes,
            GrowthClaim::Promised(bytes) => self.promised -= bytes,
        }
        self.changes += 1;
    }

    /// Whether the driver took more than was charged since the call began, in any thread: with concurrent calls, the
    /// growth belongs to no single one.
    fn has_outgrown(&self, growth: Growth) -> bool {
        self.forced != growth.forced
    }
}

impl DriverCache {
    pub fn new(source: CacheSource, place: GpuAccount) -> Self {
        DriverCache {
            source,
            place,
            balance: Mutex::default(),
            settled: AtomicU64::new(UNSETTLED),
            turn: Mutex::default(),
            shrinks: AtomicU64::new(0),
            closed: RwLock::default(),
        }
    }

    pub fn place(&self) -> &GpuAccount {
        &self.place
    }

    pub fn charged(&self) -> u64 {
        self.balance().charged
    }

    /// How often the driver was seen to have given something back, or told to.
    pub fn shrinks(&self) -> u64 {
        self.shrinks.load(SeqCst)
    }

    fn balance(&self) -> MutexGuard<'_, Balance> {
        self.balance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leave to ask the driver, which will not end the cache meanwhile; `None` when it has.
    fn open(&self) -> Option<RwLockReadGuard<'_, bool>> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        (!*closed).then_some(closed)
    }

    /// Agrees with the driver.
    pub fn reconcile(&self) {
        if let Some(_open) = self.open() {
            self.settle_open();
        }
    }

    /// The same, for a caller that keeps the cache from being closed meanwhile.
    pub fn settle_open(&self) {
        let Some(reserved) = self.source.reserved() else {
            return self.place.slot.alarm();
        };
        // Nearly always: nothing has happened since the charge agreed with the same figure.
        if self.settled.load(SeqCst) != reserved {
            self.settle(None);
        }
    }

    /// Sets the charge to the driver's figure, after the end of that call. Returns [`Balance::has_outgrown`].
    fn settle(&self, mut ended: Option<Growth>) -> bool {
        let place = &self.place;
        let call = ended;
        // Unless another thread changes something meanwhile, the driver's figure is that of after the call.
        let mut seen = call.map_or_else(|| self.balance().changes, |growth| growth.changes);
        for tries_left in (0..TRIES).rev() {
            let Some(reserved) = self.source.reserved() else {
                place.slot.alarm();
                break;
            };
            let mut balance = self.balance();
            let is_fresh = balance.changes == seen;
            if let Some(growth) = ended.take() {
                balance.finish(growth);
            }
            let now = balance.changes;
            if reserved < balance.reserved {
                self.shrinks.fetch_add(1, SeqCst);
            }
            let grew = reserved > balance.reserved;
            balance.reserved = reserved;
            let seen_now = if is_fresh { now } else { seen };
            let correction = balance.reconcile(reserved, seen_now, tries_left == 0);
            if is_fresh && balance.in_flight == 0 {
                self.settled.store(reserved, SeqCst);
            }
            match correction {
                Correction::Force(bytes) => place.slot.force(place.gpu, bytes),
                Correction::Release(bytes) => place.slot.release(place.gpu, bytes),
                Correction::None if !is_fresh => {
                    seen = now;
                    continue;
                }
                Correction::None => {}
            }
            if grew {
                place.slot.note_use(place.gpu);
            }
            return call.is_some_and(|growth| balance.has_outgrown(growth));
        }
        let mut balance = self.balance();
        if let Some(growth) = ended {
            balance.finish(growth);
        }
        call.is_some_and(|growth| balance.has_outgrown(growth))
    }

    /// The driver was told to give back what is not in use. It may have taken as much again for another call by the time it is asked.
    pub fn gave_back(&self) {
        self.shrinks.fetch_add(1, SeqCst);
        self.unsettle(&mut self.balance());
    }

    /// Something happened that may have changed what the driver reserves: agrees with it.
    pub fn changed(&self) {
        self.unsettle(&mut self.balance());
        self.reconcile();
    }

    /// What the driver says from now on is compared with what is charged from now on.
    fn unsettle(&self, balance: &mut Balance) {
        balance.changes += 1;
        self.settled.store(UNSETTLED, SeqCst);
    }

    /// One allocation's bytes are counted by itself from now on. Returns whether the cache was charged for them.
    pub fn lend(&self, bytes: u64) -> bool {
        let Some(_open) = self.open() else {
            return false;
        };
        let mut balance = self.balance();
        let lends = bytes <= balance.charged - balance.in_flight;
        if lends {
            balance.charged -= bytes;
            balance.lent += bytes;
            self.unsettle(&mut balance);
        }
        lends
    }

    /// They are the cache's again. A closed one is charged for them, for the driver keeps them until the cache ends, and cannot be
    /// asked. An open one finds them when it settles.
    pub fn take_back(&self, bytes: u64) {
        let is_closed = self.open().is_none();
        let mut balance = self.balance();
        balance.lent = balance.lent.saturating_sub(bytes);
        self.unsettle(&mut balance);
        if is_closed {
            balance.charged += bytes;
            self.place.slot.force(self.place.gpu, bytes);
        }
    }

    /// Has the driver give back what the cache keeps without need.
    pub fn trim(&self) {
        if let Some(open) = self.open() {
            self.source.trim();
            drop(open);
            self.gave_back();
            self.reconcile();
        }
    }

    /// Runs the call by which the program ends what the driver is asked about. From then on what is charged stays charged, so it is
    /// settled before: the driver may have given something back by itself since it was asked last.
    pub fn closing(&self, end: impl FnOnce() -> CUresult) -> CUresult {
        let mut closed = self.closed.write().unwrap_or_else(PoisonError::into_inner);
        self.settle(None);
        let result = end();
        *closed = result == CUresult::SUCCESS;
        result
    }

    /// A closed one is gone, and the driver has all of it back.
    pub fn end(&self) {
        let charged = std::mem::take(&mut self.balance().charged);
        self.place.slot.release(self.place.gpu, charged);
    }

    /// Charges as much as a call that needs `bytes` may make the cache grow; `None` when the limit refuses that.
    #[inline]
    pub fn begin(&self, bytes: u64) -> Option<Growth> {
        let most = most(bytes);
        match self.begin_now(most) {
            None => self.begin_in_turn(most),
            begun => begun,
        }
    }

    /// Charges it if it fits now. A thread that sees the bytes no longer free also sees them in flight.
    #[inline]
    fn begin_now(&self, most: u64) -> Option<Growth> {
        let GpuAccount { slot, gpu, .. } = self.place;
        let mut balance = self.balance();
        slot.reserve(gpu, most).ok()?.claim();
        self.settled.store(UNSETTLED, SeqCst);
        Some(balance.begin(GrowthClaim::Reserved(most)))
    }

    /// When the slice has nothing left, what the cache has left may do: charging nothing then relies on the driver to use
    /// that. Should it grow all the same, [`DriverCache::finish`] tells, and the call is to be undone.
    pub fn begin_within(&self, bytes: u64) -> Option<Growth> {
        let mut tries_left = TRIES;
        loop {
            let seen = self.balance().changes;
            let open = self.open()?;
            let (reserved, used) = (self.source.reserved()?, self.source.used()?);
            drop(open);
            let mut balance = self.balance();
            tries_left -= 1;
            // Another thread's call may have taken what was free, or freed what was taken, since the driver was asked.
            if balance.changes != seen && tries_left > 0 {
                continue;
            }
            let taken = [used, balance.in_flight, balance.promised, bytes];
            if taken.into_iter().fold(0, u64::saturating_add) > reserved {
                return None;
            }
            // The refused growth turned out not to be needed.
            oom_report::clear_attempt();
            self.settled.store(UNSETTLED, SeqCst);
            return Some(balance.begin(GrowthClaim::Promised(bytes)));
        }
    }

    /// Charges it after other threads' calls: each holds more than it will take, for a moment, which on a busy machine
    /// may be long. Waiting threads take turns and check before they reserve, because refused reservations delay each
    /// other. They wait while the bytes held by others would suffice, two seconds at most. Before they sleep, cached
    /// memory is given back.
    #[cold]
    fn begin_in_turn(&self, most: u64) -> Option<Growth> {
        let GpuAccount { slot, gpu, account } = self.place;
        let start = boot_time_ns();
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        for looks in 0.. {
            // Asked before looking: what a call has given back since is found free.
            let in_flight = self.balance().in_flight;
            if slot.free(gpu) >= most
                && let Some(growth) = self.begin_now(most)
            {
                return Some(growth);
            }
            // And after it: what a call has taken since is not free, but held by it.
            let in_flight = in_flight.max(self.balance().in_flight);
            let would_do = in_flight > 0 && slot.free(gpu).saturating_add(in_flight) >= most;
            if !would_do || boot_time_ns().saturating_sub(start) > DRIVER_RELEASE_TIMEOUT_NS {
                break;
            }
            match looks {
                ..YIELDS => std::thread::yield_now(),
                YIELDS => account.trim_caches(gpu),
                _ => divvy_ledger::nap(PATIENCE),
            }
        }
        self.place.reserve(most).ok()?.claim();
        let mut balance = self.balance();
        self.settled.store(UNSETTLED, SeqCst);
        Some(balance.begin(GrowthClaim::Reserved(most)))
    }

    /// Ends what was begun. Returns whether the driver took more than could be charged within the limit.
    pub fn finish(&self, growth: Growth) -> bool {
        if let Some(_open) = self.open() {
            return self.finish_open(growth);
        }
        let mut balance = self.balance();
        balance.finish(growth);
        let has_outgrown = balance.has_outgrown(growth);
        drop(balance);
        has_outgrown && self.is_over()
    }

    /// The same, for a cache that is not closed meanwhile.
    #[inline]
    pub fn finish_open(&self, growth: Growth) -> bool {
        self.settle(Some(growth)) && self.is_over()
    }

    /// Whether the slice has more than its limit, which a refusal's record then says.
    fn is_over(&self) -> bool {
        let GpuAccount { slot, gpu, .. } = self.place;
        let over = slot.used(gpu) > slot.limit(gpu);
        if over {
            oom_report::record_over_limit();
        }
        over
    }
}

/// One attribute of a pool; `T` is the type that the header gives for it.
pub fn attribute_of<T>(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    mut value: T,
) -> Option<T> {
    // SAFETY: a pool that the program uses, and a place of the attribute's own type.
    let result =
        unsafe { driver::cuMemPoolGetAttribute.get()?(pool, attribute, (&raw mut value).cast()) };
    (result == CUresult::SUCCESS).then_some(value)
}

/// One figure of a device's graph memory, in bytes.
fn graph_attribute_of(device: CUdevice, attribute: CUgraphMem_attribute) -> Option<u64> {
    let mut value = 0u64;
    let ask = driver::cuDeviceGetGraphMemAttribute.get()?;
    // SAFETY: the driver's function, with a place of the type that the header gives for these attributes.
    let result = unsafe { ask(device, attribute, (&raw mut value).cast()) };
    (result == CUresult::SUCCESS).then_some(value)
}

/// Runs a call that the driver might refuse, or hold against the program, while one of its threads captures a stream.
pub fn relaxed<T>(call: impl FnOnce() -> T) -> T {
    let mut mode = CUstreamCaptureMode::RELAXED;
    let exchange = driver::cuThreadExchangeStreamCaptureMode.get();
    // SAFETY: exchanges this thread's mode with the one given, and back below.
    let changed = exchange.filter(|exchange| unsafe { exchange(&mut mode) } == CUresult::SUCCESS);
    let result = call();
    if let Some(exchange) = changed {
        // SAFETY: as above.
        unsafe { exchange(&mut mode) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Balance {
        /// Simulates a call for which the driver takes all that was charged or promised.
        fn call(&mut self, part: GrowthClaim) {
            let growth = self.begin(part);
            self.finish(growth);
        }

        fn settle_now(&mut self, reserved: u64) -> Correction {
            self.reconcile(reserved, self.changes, false)
        }
    }

    #[test]
    fn a_cache_is_charged_what_the_driver_reserves() {
        let mut cache = Balance::default();
        cache.call(GrowthClaim::Reserved(4));
        assert_eq!(cache.settle_now(2), Correction::Release(2));
        assert_eq!(cache.settle_now(5), Correction::Force(3));
        assert_eq!(cache.settle_now(5), Correction::None);
    }

    #[test]
    fn a_figure_read_before_another_call_lowers_nothing() {
        let mut cache = Balance::default();
        let seen = cache.changes;
        let growth = cache.begin(GrowthClaim::Reserved(4));
        assert_eq!(cache.reconcile(0, seen, false), Correction::None);
        cache.finish(growth);
        assert_eq!(cache.reconcile(0, seen, true), Correction::None);
        assert_eq!(cache.charged, 4);
    }

    #[test]
    fn a_figure_read_before_another_call_raises_nothing_while_there_may_be_a_newer_one() {
        let mut cache = Balance::default();
        cache.call(GrowthClaim::Reserved(4));
        let seen = cache.changes;
        // Another thread has the driver give all of it back.
        cache.changes += 1;
        assert_eq!(cache.settle_now(0), Correction::Release(4));
        assert_eq!(cache.reconcile(4, seen, false), Correction::None);
        assert_eq!((cache.charged, cache.forced), (0, 0));
        assert_eq!(cache.reconcile(4, seen, true), Correction::Force(4));
    }

    #[test]
    fn what_is_in_flight_stays_charged_until_its_own_call_settles() {
        let mut cache = Balance::default();
        let [small, large] = [4, 8].map(|bytes| cache.begin(GrowthClaim::Reserved(bytes)));
        cache.finish(small);
        assert_eq!(cache.settle_now(4), Correction::None);
        cache.finish(large);
        assert_eq!(cache.settle_now(12), Correction::None);
        assert_eq!(cache.settle_now(0), Correction::Release(12));
    }

    #[test]
    fn what_is_lent_is_not_charged_twice() {
        let mut cache = Balance::default();
        cache.call(GrowthClaim::Reserved(8));
        (cache.charged, cache.lent) = (5, 3);
        assert_eq!(cache.settle_now(8), Correction::None);
        assert_eq!(cache.settle_now(4), Correction::Release(4));
        cache.lent = 0;
        assert_eq!(cache.settle_now(4), Correction::Force(3));
    }

    #[test]
    fn a_promise_charges_nothing() {
        let mut cache = Balance::default();
        let growth = cache.begin(GrowthClaim::Promised(4));
        assert_eq!((cache.charged, cache.promised), (0, 4));
        cache.finish(growth);
        assert_eq!(cache.settle_now(0), Correction::None);
        assert_eq!(cache.promised, 0);
    }

    #[test]
    fn every_call_learns_that_the_driver_took_more() {
        let mut cache = Balance::default();
        let growth = cache.begin(GrowthClaim::Promised(4));
        assert!(!cache.has_outgrown(growth));
        // Another thread looks after the driver has done the call, and before the call is finished.
        assert_eq!(cache.settle_now(4), Correction::Force(4));
        cache.finish(growth);
        assert_eq!(cache.settle_now(4), Correction::None);
        assert!(cache.has_outgrown(growth));
        let next = cache.begin(GrowthClaim::Promised(1));
        assert!(!cache.has_outgrown(next));
    }
}
