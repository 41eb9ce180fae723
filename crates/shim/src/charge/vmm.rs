//! Charges for virtual memory management: `cuMemCreate` charges the device that the call names, with or without a
//! current context. The memory is freed when neither a handle reference nor a mapping is left (`mappings`).

use std::ffi::{c_ulonglong, c_void};

use divvy_driver::sys::cuda::{
    CUdevice, CUdeviceptr, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType, CUresult,
};

use crate::charge::binding::Unbinding;
use crate::charge::host;
use crate::charge::memory::granted;
use crate::charge::memory_charge::MemoryCharge;
use crate::charge::oversize;
use crate::charge::pointers::key;
use crate::device::{self, Admission};
use crate::oom_report;
use crate::process;
use crate::route::hook::Real;
use crate::table::real;

/// The device whose memory a location means; `None` for the host's.
pub fn device_of(location: &CUmemLocation) -> Option<CUdevice> {
    match location.type_ {
        CUmemLocationType::DEVICE => Some(location.id),
        // A part of the current device's memory; `id` counts the parts.
        CUmemLocationType::DEVICE_LOCALITY_DOMAIN => device::current(),
        _ => None,
    }
}

pub fn create<F>(
    real: Real<'_, F>,
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    _flags: c_ulonglong,
) -> CUresult {
    if handle.is_null() || prop.is_null() || size == 0 {
        return real.call();
    }
    // SAFETY: not null; the driver would read it too.
    let Some(device) = device_of(unsafe { &(*prop).location }) else {
        return on_host(&real, handle, size as u64);
    };
    let place = match device::admit_on(device) {
        Admission::Charge(place) => place,
        Admission::Pass => return real.call(),
        Admission::Refuse => return CUresult::OUT_OF_MEMORY,
    };
    let bytes = granted(size as u64);
    let Ok(hold) = place.reserve_unnoted(bytes) else {
        // SAFETY: the driver's function, with the handle that it has just written and the program has not seen.
        let release = |handle| unsafe { Some(real::cuMemRelease.get()?(handle)) };
        // SAFETY: not null, and the driver would write there.
        return unsafe { oversize::refuse(&place, bytes, handle, || real.call(), release) };
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        hold.commit();
        let holding = MemoryCharge::new(place, bytes, 0);
        // SAFETY: not null, and the driver has just written the handle.
        let old = place
            .account
            .mappings()
            .create(unsafe { handle.read() }, holding);
        drop(old);
    } else {
        oom_report::record_request(&place, bytes);
    }
    result
}

/// Physical memory of the host's.
fn on_host<F>(
    real: &Real<'_, F>,
    handle: *mut CUmemGenericAllocationHandle,
    bytes: u64,
) -> CUresult {
    let taken = match host::take(bytes) {
        host::PinAdmission::Passed => return real.call(),
        host::PinAdmission::Refused => return CUresult::OUT_OF_MEMORY,
        host::PinAdmission::Counted(taken) => taken,
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        let account = taken.account();
        // SAFETY: not null, and the driver has just written the handle.
        let old = account
            .mappings()
            .create(unsafe { handle.read() }, taken.into_holding());
        drop(old);
    }
    result
}

pub fn retain<F>(
    real: Real<'_, F>,
    handle: *mut CUmemGenericAllocationHandle,
    _addr: *mut c_void,
) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
    {
        // SAFETY: the driver has just written the handle.
        account.mappings().retain(unsafe { handle.read() });
    }
    result
}

pub fn release<F>(real: Real<'_, F>, handle: CUmemGenericAllocationHandle) -> CUresult {
    let Some(account) = process::account() else {
        return real.call();
    };
    let mut mappings = account.mappings();
    let has_bindings = mappings.has_bindings();
    let released = mappings.release(handle);
    drop(mappings);
    let Some(released) = released else {
        return real.call();
    };
    // If it is a multicast object that ends here, what was bound to it is not any more.
    let ends = has_bindings && released.dead.is_some();
    let unbinding = ends.then(|| Unbinding::all(account, key::multicast(handle)));
    let result = real.call();
    if result != CUresult::SUCCESS {
        account.mappings().undo_release(released);
    }
    if let Some(unbinding) = unbinding {
        unbinding.end(result);
    }
    result
}

pub fn map<F>(
    real: Real<'_, F>,
    ptr: CUdeviceptr,
    size: usize,
    _offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> CUresult {
    let Some(account) = process::account() else {
        return real.call();
    };
    // How much an imported handle is of is known only now.
    let backing = account.mappings().backing(handle);
    if let Some(backing) = backing
        && backing.is_imported()
        && backing.grow(granted(size as u64)).is_err()
    {
        return CUresult::OUT_OF_MEMORY;
    }
    let result = real.call();
    if result == CUresult::SUCCESS {
        account.mappings().map(ptr, handle);
    }
    result
}

pub fn unmap<F>(real: Real<'_, F>, ptr: CUdeviceptr, size: usize) -> CUresult {
    let Some(account) = process::account() else {
        return real.call();
    };
    let unmapped = account.mappings().unmap(ptr, size as u64);
    let result = real.call();
    if result != CUresult::SUCCESS {
        account.mappings().undo_unmap(unmapped);
    }
    result
}
