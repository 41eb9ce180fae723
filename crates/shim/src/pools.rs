//! Stream-ordered memory: `cuMemAllocAsync` and the pools it comes from.
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

use divvy_driver::sys::cuda::{
    CUdevice, CUdeviceptr, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, pfn,
};

use crate::account::{Account, Place};
use crate::device::{self, Admission};
use crate::function::{Function, driver};
use crate::hook::Real;
use crate::pointers::Allocation;
use crate::process;
use crate::table::real;
use crate::vmm;

/// Pools grow by multiples of this (inferred: a fresh pool reports 32 MiB reserved after a small allocation). A driver that
/// takes less is charged less in the end; the last part of a limit that is smaller than this is of no use to a pool.
const SEGMENT: u64 = 32 << 20;
/// How often a settlement starts over because another thread's came between. The last to finish settles for all.
const TRIES: usize = 8;

/// The pools of this process that were seen to be used, by handle.
#[derive(Default)]
pub struct Pools(Mutex<HashMap<usize, Arc<Pool>>>);

/// One pool; `place` says whom it is charged to, `None` when its memory is not a GPU's.
pub struct Pool {
    handle: usize,
    place: Option<Place>,
    balance: Mutex<Balance>,
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
    /// The pool of that handle, first seen now if it is new.
    fn get(&self, handle: CUmemoryPool, place: impl FnOnce() -> Option<Place>) -> Arc<Pool> {
        let fresh = || {
            Arc::new(Pool {
                handle: handle as usize,
                place: place(),
                balance: Mutex::default(),
            })
        };
        self.known()
            .entry(handle as usize)
            .or_insert_with(fresh)
            .clone()
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
        let known = self.known();
        known
            .values()
            .filter(|pool| pool.place.is_some_and(|place| place.gpu == gpu))
            .cloned()
            .collect()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<usize, Arc<Pool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
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
    fn settle(&self) -> bool {
        let Some(place) = self.place else {
            return false;
        };
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

    fn trim(&self) {
        if let Some(trim) = real::cuMemPoolTrimTo.get()
            && !self.balance().destroyed
        {
            // SAFETY: a pool that the program has not destroyed; the driver keeps what is in use.
            relaxed(|| unsafe { trim(self.handle(), 0) });
            self.balance().changes += 1;
            self.settle();
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

    /// The driver frees a destroyed pool with its last allocation.
    fn give_up(&self, balance: &mut Balance) {
        if let Some(place) = self.place {
            place
                .slot
                .release(place.gpu, std::mem::take(&mut balance.charged));
        }
    }

    /// Charges as much as an allocation may make the pool grow; `None` when it cannot be had.
    ///
    /// When the slice has nothing left, what the pool has left may do: charging nothing then relies on the driver to
    /// use that. Should it grow all the same, `finish` tells, and the allocation is undone.
    fn begin(&self, place: &Place, bytes: u64) -> Option<u64> {
        let growth = bytes.checked_next_multiple_of(SEGMENT).unwrap_or(u64::MAX);
        if let Ok(hold) = place.reserve(growth) {
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

    /// Ends what `begin` began. Returns whether the driver took more than could be charged within the limit.
    fn finish(&self, place: &Place, growth: u64) -> bool {
        self.balance().finish(growth);
        let grew = self.settle();
        let usage = place.slot.usage(place.gpu);
        grew && usage.charged + usage.overhead > usage.limit
    }
}

/// The functions that go with one meaning of the null stream.
struct Flavour {
    is_capturing: &'static Function<pfn::cuStreamIsCapturing>,
    free: &'static Function<pfn::cuMemFreeAsync>,
}

static LEGACY: Flavour = Flavour {
    is_capturing: &driver::cuStreamIsCapturing,
    free: &real::cuMemFreeAsync,
};
static PER_THREAD: Flavour = Flavour {
    is_capturing: &driver::cuStreamIsCapturing_ptsz,
    free: &real::cuMemFreeAsync_ptsz,
};

impl Flavour {
    /// While a stream is captured, allocations on it are written down and not made. When the driver will not say, it
    /// will not allocate either.
    fn captures(&self, stream: CUstream) -> bool {
        let mut status = CUstreamCaptureStatus::NONE;
        let Some(ask) = self.is_capturing.get() else {
            return false;
        };
        // SAFETY: the program's stream, and a place for the answer.
        let result = unsafe { ask(stream, &mut status) };
        result != CUresult::SUCCESS || status != CUstreamCaptureStatus::NONE
    }
}

pub fn alloc<F>(
    real: Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    stream: CUstream,
) -> CUresult {
    from_current(&real, dptr, bytesize, stream, &LEGACY)
}

pub fn alloc_ptsz<F>(
    real: Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    stream: CUstream,
) -> CUresult {
    from_current(&real, dptr, bytesize, stream, &PER_THREAD)
}

pub fn alloc_from<F>(
    real: Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    from_pool(&real, dptr, bytesize, pool, stream, &LEGACY)
}

pub fn alloc_from_ptsz<F>(
    real: Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    from_pool(&real, dptr, bytesize, pool, stream, &PER_THREAD)
}

/// From the pool that is current on the stream's device.
fn from_current<F>(
    real: &Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    flavour: &Flavour,
) -> CUresult {
    if dptr.is_null() || bytes == 0 {
        return real.call();
    }
    let device = device_of_stream(stream);
    let place = match device.map_or(Admission::Pass, device::admit_on) {
        Admission::Charge(place) => place,
        Admission::Pass => return real.call(),
        Admission::Refuse => return CUresult::OUT_OF_MEMORY,
    };
    let pool = device.and_then(|device| pool_of(&driver::cuDeviceGetMemPool, device));
    let Some(handle) = pool else {
        // Without pools there is no such memory; if there is, it was not counted.
        let result = real.call();
        if result == CUresult::SUCCESS {
            place.slot.alarm();
        }
        return result;
    };
    place.account.contexts.note(&place);
    let pool = place.account.pools.get(handle, || Some(place));
    allocate(real, dptr, bytes as u64, &pool, stream, flavour)
}

fn from_pool<F>(
    real: &Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    handle: CUmemoryPool,
    stream: CUstream,
    flavour: &Flavour,
) -> CUresult {
    if dptr.is_null() || bytes == 0 || handle.is_null() {
        return real.call();
    }
    // The pool's own device is charged, wherever the stream runs.
    let known = process::account()
        .and_then(|account| account.pools.known().get(&(handle as usize)).cloned());
    let pool = match known {
        Some(pool) => pool,
        None => match home_of(handle).map_or(Admission::Pass, device::admit_on) {
            Admission::Charge(place) => place.account.pools.get(handle, || Some(place)),
            Admission::Pass => return real.call(),
            Admission::Refuse => return CUresult::OUT_OF_MEMORY,
        },
    };
    allocate(real, dptr, bytes as u64, &pool, stream, flavour)
}

fn allocate<F>(
    real: &Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytes: u64,
    pool: &Arc<Pool>,
    stream: CUstream,
    flavour: &Flavour,
) -> CUresult {
    let Some(place) = pool.place.filter(|_| !flavour.captures(stream)) else {
        return real.call();
    };
    let Some(growth) = pool.begin(&place, bytes) else {
        return CUresult::OUT_OF_MEMORY;
    };
    // SAFETY: not null, and the driver would write there.
    let before = unsafe { dptr.read() };
    let result = real.call();
    let over = pool.finish(&place, growth);
    if result != CUresult::SUCCESS {
        return result;
    }
    // SAFETY: as above; the driver has just written the address.
    let address = unsafe { dptr.read() };
    if over {
        if let Some(free) = flavour.free.get() {
            // SAFETY: the allocation just made, which the program has not seen, on its own stream.
            unsafe { free(address, stream) };
        }
        pool.trim();
        // SAFETY: as above.
        unsafe { dptr.write(before) };
        return CUresult::OUT_OF_MEMORY;
    }
    pool.balance().live += 1;
    let era = place.account.pointers.era();
    let allocation = Allocation {
        gpu: place.gpu,
        bytes: 0,
        context: 0,
        era,
        managed: false,
        pool: Some(pool.clone()),
    };
    place.account.pointers.insert(address, allocation);
    result
}

/// `cuMemPoolCreate`: the one moment at which every driver says where the pool's memory is.
pub fn create<F>(
    real: Real<'_, F>,
    pool: *mut CUmemoryPool,
    props: *const CUmemPoolProps,
) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && !pool.is_null()
        && !props.is_null()
        && let Some(account) = limited()
    {
        // SAFETY: neither is null; the driver has read one and written the other.
        let (handle, location) = unsafe { (pool.read(), (*props).location) };
        let place = vmm::device_of(&location).map(|device| account.belongs(device));
        match place {
            Some(device::Belongs::Here(place)) => drop(account.pools.get(handle, || Some(place))),
            None => drop(account.pools.get(handle, || None)),
            Some(_) => {}
        }
    }
    result
}

pub fn destroy<F>(real: Real<'_, F>, pool: CUmemoryPool) -> CUresult {
    let Some((account, known)) = process::account()
        .and_then(|account| Some((account, account.pools.known().remove(&(pool as usize))?)))
    else {
        return real.call();
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        let mut balance = known.balance();
        balance.destroyed = true;
        if balance.live == 0 {
            known.give_up(&mut balance);
        }
    } else {
        account.pools.known().insert(pool as usize, known);
    }
    result
}

pub fn trim_to<F>(real: Real<'_, F>, pool: CUmemoryPool, _keep: usize) -> CUresult {
    let result = real.call();
    if let Some(known) =
        process::account().and_then(|account| account.pools.known().get(&(pool as usize)).cloned())
    {
        known.balance().changes += 1;
        known.settle();
    }
    result
}

fn limited() -> Option<&'static Account> {
    match process::standing() {
        process::Standing::Limited(account) => Some(account),
        _ => None,
    }
}

/// The device that a stream's work runs on.
fn device_of_stream(stream: CUstream) -> Option<CUdevice> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the program's stream, and a place for the answer.
    let known = stream as usize > 2
        && unsafe { driver::cuStreamGetCtx.get()?(stream, &mut context) } == CUresult::SUCCESS;
    if !known || context == device::current_context() {
        return device::current();
    }
    // SAFETY: a living context, for its stream does; taken off again at once.
    unsafe {
        if driver::cuCtxPushCurrent_v2.get()?(context) != CUresult::SUCCESS {
            return None;
        }
        let device = device::current();
        driver::cuCtxPopCurrent_v2.get()?(&mut context);
        device
    }
}

/// The device whose memory a pool gives that this process did not make: the driver says so from CUDA 13 on; before, it can
/// only be some device's default pool.
fn home_of(pool: CUmemoryPool) -> Option<CUdevice> {
    let kind = attribute_of(pool, CUmemPool_attribute::LOCATION_TYPE, 0i32);
    let id = attribute_of(pool, CUmemPool_attribute::LOCATION_ID, 0i32);
    if let (Some(kind), Some(id)) = (kind, id) {
        let type_ = divvy_driver::sys::cuda::CUmemLocationType(kind as u32);
        return vmm::device_of(&divvy_driver::sys::cuda::CUmemLocation { type_, id });
    }
    let defaults = (0..)
        .map_while(|device| Some((device, pool_of(&driver::cuDeviceGetDefaultMemPool, device)?)));
    let mut found = defaults.filter(|(_, default)| *default == pool);
    found
        .next()
        .map(|(device, _)| device)
        .or_else(device::current)
}

fn pool_of(ask: &Function<pfn::cuDeviceGetMemPool>, device: CUdevice) -> Option<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: the driver's function, with a place for its answer.
    (unsafe { ask.get()?(&mut pool, device) } == CUresult::SUCCESS).then_some(pool)
}

/// One attribute of a pool; `T` is the type that the header gives for it.
fn attribute_of<T>(pool: CUmemoryPool, attribute: CUmemPool_attribute, mut value: T) -> Option<T> {
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
