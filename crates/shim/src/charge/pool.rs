//! Memory pools: what one is charged, and how that is kept true.
//!
//! A pool keeps what is freed to it, so the device memory it takes is not what its allocations add up to. It is charged
//! what the driver says it has reserved. What an allocation may at most make it grow by is reserved before the driver is
//! asked, and afterwards the charge is settled to the driver's figure. A pool also shrinks by itself when
//! streams are synchronised; that is noticed at the next call that matters.
//!
//! ```text
//! charged ≥ reserved by the driver, at all times        in_flight: part of charged, for calls not settled yet
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use divvy_driver::sys::cuda::{CUmemPool_attribute, CUmemoryPool, CUresult, CUstreamCaptureMode};

use divvy_ledger::Hold;

use crate::account::Place;
use crate::route::function::driver;
use crate::table::real;

/// Pools grow by multiples of this (inferred: a fresh pool reports 32 MiB reserved after a small allocation). A driver that
/// takes less is charged less in the end; the last part of a limit that is smaller than this is of no use to a pool.
const SEGMENT: u64 = 32 << 20;
/// How often a settlement starts over because another thread's came between. The last to finish settles for all.
const TRIES: usize = 8;

/// How often an allocation lets other threads' allocations finish before it counts what they hold as taken.
const YIELDS: usize = 1000;

/// The pools of this process that were seen to be made or used, by handle.
#[derive(Default)]
pub struct Pools(Mutex<HashMap<usize, Home>>);

/// Where a pool's memory is.
#[derive(Clone)]
pub enum Home {
    /// On a GPU of the slice.
    Here(Arc<Pool>),
    /// On another GPU, where nothing may be allocated.
    Elsewhere,
    /// Not on a GPU.
    Host,
}

/// One pool on a GPU of the slice.
pub struct Pool {
    handle: usize,
    place: Place,
    balance: Mutex<Balance>,
    turn: Mutex<()>,
}

#[derive(Default)]
struct Balance {
    charged: u64,
    in_flight: u64,
    /// Allocations not freed yet.
    live: u64,
    /// Counts everything that may have changed what the driver reserves.
    changes: u64,
    destroyed: bool,
}

/// What to do so that the charge agrees with the driver.
#[derive(Debug, PartialEq, Eq)]
enum Correction {
    None,
    Release(u64),
    Force(u64),
}

impl Balance {
    /// The driver reserves `reserved`, read when `changes` was `seen`. A stale figure never lowers the charge.
    fn settle(&mut self, reserved: u64, seen: u64) -> Correction {
        let most = reserved.saturating_add(self.in_flight);
        if self.charged < reserved {
            let missing = reserved - self.charged;
            self.charged = reserved;
            Correction::Force(missing)
        } else if self.charged > most && self.changes == seen {
            let excess = self.charged - most;
            self.charged = most;
            Correction::Release(excess)
        } else {
            Correction::None
        }
    }

    fn begin(&mut self, bytes: u64) {
        self.charged += bytes;
        self.in_flight += bytes;
        self.changes += 1;
    }

    fn finish(&mut self, bytes: u64) {
        self.in_flight -= bytes;
        self.changes += 1;
    }
}

impl Pools {
    /// The pool of that handle, if it was seen before.
    pub fn get(&self, handle: CUmemoryPool) -> Option<Home> {
        self.known().get(&(handle as usize)).cloned()
    }

    /// Remembers a pool's home, unless another thread has just done so.
    pub fn insert(&self, handle: CUmemoryPool, home: Home) -> Home {
        self.known().entry(handle as usize).or_insert(home).clone()
    }

    /// Takes a pool out, before the driver destroys it: its handle may be another's at once.
    pub fn take(&self, handle: CUmemoryPool) -> Option<Home> {
        self.known().remove(&(handle as usize))
    }

    /// Brings the charges of a GPU's pools up to date.
    pub fn settle(&self, gpu: usize) {
        for pool in self.on(gpu) {
            pool.settle();
        }
    }

    /// Has the driver give back what the pools on a GPU keep without need. Returns whether that changed their charge.
    pub fn give_back_cached(&self, place: &Place) -> bool {
        let pools = self.on(place.gpu);
        let charged = || pools.iter().map(|pool| pool.balance().charged).sum::<u64>();
        let before = charged();
        if before > 0 {
            pools.iter().for_each(|pool| pool.trim());
        }
        charged() < before
    }

    fn on(&self, gpu: usize) -> Vec<Arc<Pool>> {
        let ours = |home: &Home| match home {
            Home::Here(pool) if pool.place.gpu == gpu => Some(pool.clone()),
            _ => None,
        };
        self.known().values().filter_map(ours).collect()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<usize, Home>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    pub fn new(handle: CUmemoryPool, place: Place) -> Arc<Self> {
        let (handle, balance) = (handle as usize, Mutex::default());
        Arc::new(Pool {
            handle,
            place,
            balance,
            turn: Mutex::default(),
        })
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    fn handle(&self) -> CUmemoryPool {
        self.handle as CUmemoryPool
    }

    fn balance(&self) -> MutexGuard<'_, Balance> {
        self.balance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the driver for one of the pool's figures, in bytes.
    fn ask(&self, attribute: CUmemPool_attribute) -> Option<u64> {
        attribute_of(self.handle(), attribute, 0u64)
    }

    /// Agrees with the driver. Returns whether the charge had to grow.
    pub fn settle(&self) -> bool {
        let place = &self.place;
        for _ in 0..TRIES {
            let seen = match self.balance() {
                balance if balance.destroyed => return false,
                balance => balance.changes,
            };
            let Some(reserved) = self.ask(CUmemPool_attribute::RESERVED_MEM_CURRENT) else {
                place.slot.alarm();
                return false;
            };
            let mut balance = self.balance();
            match balance.settle(reserved, seen) {
                Correction::Force(bytes) => {
                    place.slot.force(place.gpu, bytes);
                    return true;
                }
                Correction::Release(bytes) => place.slot.release(place.gpu, bytes),
                Correction::None if balance.changes != seen => continue,
                Correction::None => {}
            }
            return false;
        }
        false
    }

    pub fn trim(&self) {
        if let Some(trim) = real::cuMemPoolTrimTo.get()
            && !self.balance().destroyed
        {
            // SAFETY: a pool that the program has not destroyed; the driver keeps what is in use.
            relaxed(|| unsafe { trim(self.handle(), 0) });
            self.trimmed();
        }
    }

    /// One allocation of this pool was freed.
    pub fn freed(&self) {
        let mut balance = self.balance();
        balance.live = balance.live.saturating_sub(1);
        balance.changes += 1;
        if !balance.destroyed {
            drop(balance);
            self.settle();
        } else if balance.live == 0 {
            self.give_up(&mut balance);
        }
    }

    /// The program destroyed the pool. The driver frees it with its last allocation.
    pub fn destroyed(&self) {
        let mut balance = self.balance();
        balance.destroyed = true;
        if balance.live == 0 {
            self.give_up(&mut balance);
        }
    }

    /// The program trimmed the pool.
    pub fn trimmed(&self) {
        self.balance().changes += 1;
        self.settle();
    }

    fn give_up(&self, balance: &mut Balance) {
        let charged = std::mem::take(&mut balance.charged);
        self.place.slot.release(self.place.gpu, charged);
    }

    /// Charges as much as an allocation may make the pool grow; `None` when it cannot be had.
    ///
    /// When the slice has nothing left, what the pool has left may do: charging nothing then relies on the driver to
    /// use that. Should it grow all the same, `finish` tells, and the allocation is undone.
    pub fn begin(&self, bytes: u64) -> Option<u64> {
        let growth = bytes.checked_next_multiple_of(SEGMENT).unwrap_or(u64::MAX);
        if let Some(hold) = self.reserve(growth) {
            hold.commit();
            self.balance().begin(growth);
            return Some(growth);
        }
        let reserved = self.ask(CUmemPool_attribute::RESERVED_MEM_CURRENT)?;
        let used = self.ask(CUmemPool_attribute::USED_MEM_CURRENT)?;
        let mut balance = self.balance();
        let fits = used.saturating_add(balance.in_flight).saturating_add(bytes) <= reserved;
        fits.then(|| balance.begin(0)).map(|()| 0)
    }

    /// Reserves, if need be after other threads' calls: each holds more than it will take, for a moment. Those who wait
    /// do so one by one, and look before they reserve, for refused reservations get in each other's way.
    fn reserve(&self, growth: u64) -> Option<Hold<'static>> {
        let Place { slot, gpu, .. } = self.place;
        let attempt = || match slot.usage(gpu).free >= growth {
            true => slot.reserve(gpu, growth).ok(),
            false => None,
        };
        if let Some(hold) = attempt() {
            return Some(hold);
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..YIELDS {
            if let Some(hold) = attempt() {
                return Some(hold);
            }
            if self.balance().in_flight == 0 {
                break;
            }
            std::thread::yield_now();
        }
        self.place.reserve(growth).ok()
    }

    /// Ends what `begin` began. Returns whether the driver took more than could be charged within the limit.
    pub fn finish(&self, growth: u64) -> bool {
        self.balance().finish(growth);
        if !self.settle() {
            return false;
        }
        let usage = self.place.slot.usage(self.place.gpu);
        usage.charged + usage.overhead > usage.limit
    }

    /// One more allocation of this pool is with the program.
    pub fn allocated(&self) {
        self.balance().live += 1;
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

/// Runs a call that the driver might refuse, or hold against the program, while one of its threads captures a stream.
fn relaxed<T>(call: impl FnOnce() -> T) -> T {
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

    #[test]
    fn a_pool_is_charged_what_the_driver_reserves() {
        let mut pool = Balance::default();
        pool.begin(4);
        pool.finish(4);
        assert_eq!(pool.settle(2, pool.changes), Correction::Release(2));
        assert_eq!(pool.settle(5, pool.changes), Correction::Force(3));
        assert_eq!(pool.settle(5, pool.changes), Correction::None);
    }

    #[test]
    fn a_figure_read_before_another_call_lowers_nothing() {
        let mut pool = Balance::default();
        let seen = pool.changes;
        pool.begin(4);
        assert_eq!(pool.settle(0, seen), Correction::None);
        pool.finish(4);
        assert_eq!(pool.settle(0, seen), Correction::None);
        assert_eq!(pool.charged, 4);
    }

    #[test]
    fn what_is_in_flight_stays_charged_until_its_own_call_settles() {
        let mut pool = Balance::default();
        pool.begin(4);
        pool.begin(8);
        pool.finish(4);
        assert_eq!(pool.settle(4, pool.changes), Correction::None);
        pool.finish(8);
        assert_eq!(pool.settle(12, pool.changes), Correction::None);
        assert_eq!(pool.settle(0, pool.changes), Correction::Release(12));
    }
}
