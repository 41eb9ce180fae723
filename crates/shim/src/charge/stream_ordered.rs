//! Charges for stream-ordered memory: `cuMemAllocAsync` and similar calls, and the creation and destruction of memory
//! pools. This module finds the pool of an allocation and its device; `pool` and `driver_cache` charge it.

use std::sync::Arc;

use divvy_driver::sys::cuda::{
    CUdevice, CUdeviceptr, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUresult, CUstream, pfn,
};

use crate::charge::driver_cache::{self, CacheSource, attribute_of};
use crate::charge::oversize;
use crate::charge::pointers::{Allocation, AllocationBacking, NO_CONTEXT};
use crate::charge::pool::{Pool, PoolLocation};
use crate::charge::stream::{self, Flavour, LEGACY, PER_THREAD, StreamMarker};
use crate::charge::{memory, vmm};
use crate::device::{self, Admission, DeviceMembership};
use crate::oom_report;
use crate::process::{self, LimiterState};
use crate::route::function::{Function, driver};
use crate::route::hook::Real;

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
    // Known since an allocation that was admitted. It is forgotten with the device's context.
    let default_of = |device: CUdevice| {
        let account = process::account().filter(|account| account.joined().is_some())?;
        account.pools.current_default(device)
    };
    if let Some(pool) = device::sole().and_then(default_of) {
        return allocate_here(real, dptr, bytes as u64, pool, stream, flavour);
    }
    let device = stream::device_of(stream);
    let place = match device.map_or(Admission::Pass, device::admit_on) {
        Admission::Charge(place) => place,
        Admission::Pass => return real.call(),
        Admission::Refuse => return CUresult::OUT_OF_MEMORY,
    };
    let Some(device) = device else {
        return real.call();
    };
    let pools = &place.account.pools;
    if let Some(pool) = pools.current_default(device) {
        return allocate_here(real, dptr, bytes as u64, pool, stream, flavour);
    }
    let Some(handle) = pool_of(&driver::cuDeviceGetMemPool, device) else {
        return uncounted(real);
    };
    place.account.contexts.note(&place);
    let home = pools
        .get(handle)
        .unwrap_or_else(|| pools.insert(handle, PoolLocation::Here(Pool::new(handle, place))));
    if let PoolLocation::Here(pool) = &home
        && pool.is_default_or_ask(|| {
            pool_of(&driver::cuDeviceGetDefaultMemPool, device) == Some(handle)
        })
    {
        pools.note_default(device, pool);
    }
    allocate(real, dptr, bytes as u64, home, stream, flavour)
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
    let known = process::account().and_then(|account| account.pools.get(handle));
    let home = match known {
        Some(home) => home,
        // The driver refuses a handle that is no pool.
        None if CacheSource::pool(handle).reserved().is_none() => return uncounted(real),
        None => match home_of(handle).map_or(Admission::Pass, device::admit_on) {
            Admission::Charge(place) => {
                let home = PoolLocation::Here(Pool::new(handle, place));
                place.account.pools.insert(handle, home)
            }
            Admission::Pass => return real.call(),
            Admission::Refuse => return CUresult::OUT_OF_MEMORY,
        },
    };
    allocate(real, dptr, bytes as u64, home, stream, flavour)
}

/// An allocation of a driver that cannot be asked about pools. If it makes it all the same, the agent hears of it.
fn uncounted<F>(real: &Real<'_, F>) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS {
        process::alarm();
    }
    result
}

fn allocate<F>(
    real: &Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytes: u64,
    home: PoolLocation,
    stream: CUstream,
    flavour: &Flavour,
) -> CUresult {
    match home {
        PoolLocation::Here(pool) => allocate_here(real, dptr, bytes, &pool, stream, flavour),
        PoolLocation::Host | PoolLocation::Imported => real.call(),
        PoolLocation::Elsewhere => CUresult::OUT_OF_MEMORY,
    }
}

fn allocate_here<F>(
    real: &Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytes: u64,
    pool: &Arc<Pool>,
    stream: CUstream,
    flavour: &Flavour,
) -> CUresult {
    if flavour.captures(stream) {
        return real.call();
    }
    let Some(growth) = pool.begin(bytes) else {
        let free_again = |address| {
            // SAFETY: the allocation just made, which the program has not seen, on its own stream.
            let freed = unsafe { flavour.free.get()?(address, stream) };
            pool.trim();
            Some(freed)
        };
        // SAFETY: not null, and the driver would write there.
        return unsafe { oversize::refuse(pool.place(), bytes, dptr, || real.call(), free_again) };
    };
    // SAFETY: not null, and the driver would write there.
    let before = unsafe { dptr.read() };
    let result = real.call();
    let over = pool.finish(growth);
    if result != CUresult::SUCCESS {
        oom_report::record_request(pool.place(), driver_cache::most(bytes));
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
    if pool.is_default() {
        return result;
    }
    pool.allocated();
    let pointers = &pool.place().account.pointers;
    let allocation = Allocation {
        gpu: pool.place().gpu,
        bytes: 0,
        context: NO_CONTEXT,
        era: pointers.era(),
        backing: AllocationBacking::Pooled(pool.clone()),
    };
    pointers.insert(address, allocation);
    result
}

pub fn free<F>(real: Real<'_, F>, dptr: CUdeviceptr, stream: CUstream) -> CUresult {
    free_in(&real, dptr, stream, &LEGACY)
}

pub fn free_ptsz<F>(real: Real<'_, F>, dptr: CUdeviceptr, stream: CUstream) -> CUresult {
    free_in(&real, dptr, stream, &PER_THREAD)
}

/// The driver keeps memory that is freed in stream order until the stream has reached that point. A living pool reports
/// its reserved memory; a destroyed one reports nothing any more.
fn free_in<F>(
    real: &Real<'_, F>,
    dptr: CUdeviceptr,
    stream: CUstream,
    flavour: &Flavour,
) -> CUresult {
    memory::release(real, dptr, |account, allocation| {
        let (pool, gone) = match &allocation.backing {
            AllocationBacking::Pooled(pool) => (pool, pool.freed()),
            AllocationBacking::Lent(pool, holding) => (pool, pool.freed_lent(holding.bytes())),
            _ => return account.release(allocation),
        };
        if !gone {
            return;
        }
        match StreamMarker::behind(stream, flavour).filter(|mark| !mark.is_reached()) {
            Some(mark) => account.pools.fade(pool.clone(), mark),
            None => pool.end(),
        }
    })
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
        && let LimiterState::Limited(account) = process::limiter_state()
    {
        // SAFETY: neither is null; the driver has read one and written the other.
        let (handle, kind, location) =
            unsafe { (pool.read(), (*props).allocType, (*props).location) };
        let home = match charged_on(kind, &location).map(|device| account.belongs(device)) {
            Some(DeviceMembership::InSlice(place)) => PoolLocation::Here(Pool::new(handle, place)),
            Some(DeviceMembership::OutsideSlice | DeviceMembership::Unknown) => {
                PoolLocation::Elsewhere
            }
            None => PoolLocation::Host,
        };
        // The earlier pool of that handle ended without a hooked call.
        account.pools.take(handle);
        account.pools.insert(handle, home);
    }
    result
}

pub fn destroy<F>(real: Real<'_, F>, pool: CUmemoryPool) -> CUresult {
    let taken = process::account().and_then(|account| Some((account, account.pools.take(pool)?)));
    let Some((account, home)) = taken else {
        return real.call();
    };
    let result = match &home {
        PoolLocation::Here(known) => known.destroy(|| real.call()),
        PoolLocation::Elsewhere | PoolLocation::Host | PoolLocation::Imported => real.call(),
    };
    // A device of which it was the current one has its default one again (cuMemPoolDestroy, CUDA driver API).
    account.pools.forget_current();
    if result != CUresult::SUCCESS {
        account.pools.insert(pool, home);
    }
    result
}

/// `cuDeviceSetMemPool`.
pub fn set_of_device<F>(real: Real<'_, F>, _dev: CUdevice, _pool: CUmemoryPool) -> CUresult {
    set_current(&real)
}

/// `cuMemSetMemPool`.
pub fn set_of_location<F>(
    real: Real<'_, F>,
    _location: *mut CUmemLocation,
    _kind: CUmemAllocationType,
    _pool: CUmemoryPool,
) -> CUresult {
    set_current(&real)
}

fn set_current<F>(real: &Real<'_, F>) -> CUresult {
    let result = real.call();
    if let Some(account) = process::account() {
        account.pools.forget_current();
    }
    result
}

pub fn trim_to<F>(real: Real<'_, F>, pool: CUmemoryPool, _keep: usize) -> CUresult {
    let result = real.call();
    if let Some(PoolLocation::Here(known)) =
        process::account().and_then(|account| account.pools.get(pool))
    {
        known.trimmed();
    }
    result
}

/// The device that is charged for a pool. Managed memory may move to any device: without a preferred device, the
/// current one is charged, as for `cuMemAllocManaged`.
fn charged_on(kind: CUmemAllocationType, location: &CUmemLocation) -> Option<CUdevice> {
    let managed = kind == CUmemAllocationType::MANAGED;
    vmm::device_of(location).or_else(|| managed.then(device::current).flatten())
}

/// The device whose memory a pool gives that this process did not make: the driver says so from CUDA 13 on; before, it can
/// only be some device's default pool.
fn home_of(pool: CUmemoryPool) -> Option<CUdevice> {
    let ask = |attribute| attribute_of(pool, attribute, 0i32);
    let kind = ask(CUmemPool_attribute::ALLOCATION_TYPE);
    let type_ = ask(CUmemPool_attribute::LOCATION_TYPE);
    let id = ask(CUmemPool_attribute::LOCATION_ID);
    if let (Some(type_), Some(id)) = (type_, id) {
        let type_ = CUmemLocationType(type_ as u32);
        let kind = CUmemAllocationType(kind.unwrap_or_default() as u32);
        return charged_on(kind, &CUmemLocation { type_, id });
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
