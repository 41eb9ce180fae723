//! Pinned host memory. It is not GPU memory, so it is counted beside the limit; a GPU that shares its memory with the
//! host (`CU_DEVICE_ATTRIBUTE_INTEGRATED`) is charged as for any allocation.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use divvy_driver::sys::cuda::CUresult;
use divvy_ledger::Hold;

use crate::account::{GpuAccount, ProcessAccount};
use crate::charge::memory::{self, granted};
use crate::charge::memory_charge::MemoryCharge;
use crate::charge::pointers::{Allocation, AllocationBacking, key};
use crate::device::{self, DeviceMembership};
use crate::process::{self, LimiterState};
use crate::route::hook::Real;

/// The decision on a request for pinned host memory.
pub enum PinAdmission {
    /// The driver answers alone.
    Passed,
    /// It fails with OUT_OF_MEMORY.
    Refused,
    Counted(Pinned),
}

/// Host memory, about to be pinned. Dropped, it counts for nothing.
pub struct Pinned {
    place: GpuAccount,
    bytes: u64,
    /// Its charge, where host memory is the GPU's memory too.
    hold: Option<Hold<'static>>,
}

/// Counts host memory, with the current device, or with the slice's first where none is current.
pub fn take(bytes: u64) -> PinAdmission {
    let is_integrated = device::is_integrated(device::current().unwrap_or(0));
    let account = match process::limiter_state() {
        LimiterState::Limited(account) => account,
        LimiterState::Refused(refusal) if is_integrated => {
            process::log_refusal(&refusal.cause);
            return PinAdmission::Refused;
        }
        LimiterState::Off | LimiterState::Refused(_) => return PinAdmission::Passed,
    };
    let place = match device::current().map(|device| account.belongs(device)) {
        Some(DeviceMembership::InSlice(place)) => Some(place),
        Some(DeviceMembership::OutsideSlice) if is_integrated => return PinAdmission::Refused,
        _ => account.first_place(),
    };
    let Some(place) = place else {
        return if is_integrated {
            PinAdmission::Refused
        } else {
            PinAdmission::Passed
        };
    };
    let hold = if is_integrated {
        match place.reserve(granted(bytes)) {
            Ok(hold) => Some(hold),
            Err(_) => return PinAdmission::Refused,
        }
    } else {
        None
    };
    PinAdmission::Counted(Pinned { place, bytes, hold })
}

impl Pinned {
    pub fn account(&self) -> &'static ProcessAccount {
        self.place.account
    }

    /// It was pinned. Returns what it was charged.
    fn commit(self) -> u64 {
        let charged = self.hold.as_ref().map_or(0, Hold::bytes);
        if let Some(hold) = self.hold {
            hold.commit();
        }
        let GpuAccount { slot, gpu, .. } = self.place;
        slot.note_host(gpu, i64::try_from(self.bytes).unwrap_or(i64::MAX));
        charged
    }

    /// It was made by handle.
    pub fn into_holding(self) -> Arc<MemoryCharge> {
        let (place, bytes) = (self.place, self.bytes);
        MemoryCharge::new(place, self.commit(), bytes)
    }

    fn track(self, address: *const c_void) {
        let GpuAccount { account, gpu, .. } = self.place;
        let pinned = self.bytes;
        let allocation = Allocation {
            gpu,
            bytes: self.commit(),
            context: device::current_context() as usize,
            era: account.pointers.era(),
            backing: AllocationBacking::Pinned(pinned),
        };
        let key = key::pinned(address as u64);
        account.pointers.insert(key, allocation);
    }
}

pub fn alloc<F>(real: Real<'_, F>, pp: *mut *mut c_void, bytesize: usize) -> CUresult {
    allocate(&real, pp, bytesize as u64)
}

pub fn alloc_v1<F>(real: Real<'_, F>, pp: *mut *mut c_void, bytesize: c_uint) -> CUresult {
    allocate(&real, pp, bytesize.into())
}

pub fn alloc_with<F>(
    real: Real<'_, F>,
    pp: *mut *mut c_void,
    bytesize: usize,
    _flags: c_uint,
) -> CUresult {
    allocate(&real, pp, bytesize as u64)
}

fn allocate<F>(real: &Real<'_, F>, pp: *mut *mut c_void, bytes: u64) -> CUresult {
    if pp.is_null() {
        return real.call();
    }
    // SAFETY: not null, and the driver has written it when this is called.
    pin(real, bytes, || unsafe { pp.read() })
}

pub fn register<F>(real: Real<'_, F>, p: *mut c_void, bytesize: usize, _flags: c_uint) -> CUresult {
    pin(&real, bytesize as u64, || p)
}

fn pin<F>(real: &Real<'_, F>, bytes: u64, address: impl Fn() -> *mut c_void) -> CUresult {
    if bytes == 0 {
        return real.call();
    }
    let taken = match take(bytes) {
        PinAdmission::Passed => return real.call(),
        PinAdmission::Refused => return CUresult::OUT_OF_MEMORY,
        PinAdmission::Counted(taken) => taken,
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        taken.track(address());
    }
    result
}

/// `cuMemFreeHost` and `cuMemHostUnregister`.
pub fn free<F>(real: Real<'_, F>, p: *mut c_void) -> CUresult {
    memory::release(&real, key::pinned(p as u64), ProcessAccount::release)
}
