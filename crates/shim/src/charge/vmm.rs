//! Memory by handle: `cuMemCreate` charges the device that the call names, with or without a current context. The memory
//! dies when neither a handle reference nor a mapping is left (`mappings`).

use std::ffi::{c_ulonglong, c_void};

use divvy_driver::sys::cuda::{
    CUdevice, CUdeviceptr, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType, CUresult,
};

use crate::account::Account;
use crate::charge::mappings::Backing;
use crate::charge::memory::granted;
use crate::device::{self, Admission};
use crate::process;
use crate::route::hook::Real;

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
        return real.call();
    };
    let place = match device::admit_on(device) {
        Admission::Charge(place) => place,
        Admission::Pass => return real.call(),
        Admission::Refuse => return CUresult::OUT_OF_MEMORY,
    };
    let bytes = granted(size as u64);
    let Ok(hold) = place.reserve(bytes) else {
        return CUresult::OUT_OF_MEMORY;
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        hold.commit();
        // SAFETY: not null, and the driver has just written the handle.
        place.account.mappings().create(
            unsafe { handle.read() },
            Backing {
                gpu: place.gpu,
                bytes,
            },
        );
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
    let Some((account, released)) =
        process::account().and_then(|account| Some((account, account.mappings().release(handle)?)))
    else {
        return real.call();
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        account.returned(released.dead);
    } else {
        account.mappings().undo_release(&released);
    }
    result
}

pub fn map<F>(
    real: Real<'_, F>,
    ptr: CUdeviceptr,
    _size: usize,
    _offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
    {
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
    if result == CUresult::SUCCESS {
        account.returned(unmapped.dead());
    } else {
        account.mappings().undo_unmap(&unmapped);
    }
    result
}

impl Account {
    fn returned(&self, dead: impl IntoIterator<Item = Backing>) {
        if let Some(slot) = self.joined() {
            dead.into_iter()
                .for_each(|backing| slot.release(backing.gpu, backing.bytes));
        }
    }
}
