//! Charges for linear memory: `cuMemAlloc`, `cuMemAllocPitch`, `cuMemAllocManaged`, `cuMemFree`.
//!
//! Reserve, ask the driver, commit. What the driver would refuse anyway (no place for the answer, no bytes) it refuses
//! itself, and so it does what exceeds the GPU (`oversize`). At the limit the answer is OUT_OF_MEMORY and the program's variables are as
//! they were.

use std::ffi::c_uint;

use divvy_driver::sys::cuda::{CUdeviceptr, CUdeviceptr_v1, CUresult};

use crate::account::ProcessAccount;
use crate::charge::oversize;
use crate::charge::pointers::Allocation;
use crate::device::{self, Admission};
use crate::oom_report;
use crate::process;
use crate::route::hook::Real;
use crate::table::real;

/// From this size on, the driver gives whole pages of the larger size; below, it divides them. Inferred, as is that
/// nothing smaller than `SMALL` is given: public accounts of `cuMemAlloc` on Volta to Hopper agree on these.
const LARGE_FROM: u64 = 1 << 20;
const LARGE: u64 = 2 << 20;
const SMALL: u64 = 512;

/// Rows of pitched memory start at multiples of this on all current GPUs (inferred). Only the reservation before the
/// call depends on it; what is charged in the end is what the driver says. Half would reserve too little where the
/// driver pads; double would refuse what fits.
const ROW: usize = 512;

/// The driver's size of an allocation of `bytes`. Saturates: no GPU has 2^64 bytes.
pub fn granted(bytes: u64) -> u64 {
    let unit = if bytes >= LARGE_FROM { LARGE } else { SMALL };
    bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

pub fn alloc<F>(real: Real<'_, F>, dptr: *mut CUdeviceptr, bytesize: usize) -> CUresult {
    linear(&real, dptr, bytesize as u64, false)
}

pub fn alloc_v1<F>(real: Real<'_, F>, dptr: *mut CUdeviceptr_v1, bytesize: c_uint) -> CUresult {
    linear(&real, dptr, bytesize.into(), false)
}

pub fn alloc_managed<F>(
    real: Real<'_, F>,
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    _flags: c_uint,
) -> CUresult {
    linear(&real, dptr, bytesize as u64, true)
}

fn linear<F, P: Copy + Into<CUdeviceptr>>(
    real: &Real<'_, F>,
    dptr: *mut P,
    bytes: u64,
    managed: bool,
) -> CUresult {
    if dptr.is_null() || bytes == 0 {
        return real.call();
    }
    let place = match device::admit_with_context() {
        Admission::Charge(place) => place,
        Admission::Pass => return real.call(),
        Admission::Refuse => return CUresult::OUT_OF_MEMORY,
    };
    let bytes = granted(bytes);
    let Ok(hold) = place.reserve_unnoted(bytes) else {
        // Such a thread may have been admitted.
        if device::lacks_context() {
            // SAFETY: not null, and the driver would write there.
            return unsafe { oversize::leave_to_driver(dptr, || real.call(), free_again) };
        }
        // SAFETY: not null, and the driver would write there.
        return unsafe { oversize::refuse(&place, bytes, dptr, || real.call(), free_again) };
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        hold.commit();
        // SAFETY: not null, and the driver has just written the address there.
        let address = unsafe { dptr.read() }.into();
        let context = place.account.contexts.of_allocation();
        place.track(address, bytes, context, managed);
    } else {
        oom_report::record_request(&place, bytes);
    }
    result
}

/// Frees memory that the driver has just given, and the program has not seen.
fn free_again<P: Into<CUdeviceptr>>(address: P) -> Option<CUresult> {
    let free = real::cuMemFree_v2.get()?;
    // SAFETY: as said.
    Some(unsafe { free(address.into()) })
}

pub fn alloc_pitch<F>(
    real: Real<'_, F>,
    dptr: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _element: c_uint,
) -> CUresult {
    pitched(&real, dptr, pitch, width, height)
}

pub fn alloc_pitch_v1<F>(
    real: Real<'_, F>,
    dptr: *mut CUdeviceptr_v1,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    _element: c_uint,
) -> CUresult {
    pitched(&real, dptr, pitch, width as usize, height as usize)
}

fn pitched<F, P, N>(
    real: &Real<'_, F>,
    dptr: *mut P,
    pitch: *mut N,
    width: usize,
    height: usize,
) -> CUresult
where
    P: Copy + Into<CUdeviceptr>,
    N: Copy + TryInto<u64>,
{
    if dptr.is_null() || pitch.is_null() || width == 0 || height == 0 {
        return real.call();
    }
    let place = match device::admit_current() {
        Admission::Charge(place) => place,
        Admission::Pass => return real.call(),
        Admission::Refuse => return CUresult::OUT_OF_MEMORY,
    };
    let rows = width
        .checked_next_multiple_of(ROW)
        .and_then(|row| row.checked_mul(height));
    let bytes = rows.map_or(u64::MAX, |bytes| granted(bytes as u64));
    // SAFETY: neither is null, and the driver would write to both.
    let before = unsafe { (dptr.read(), pitch.read()) };
    let Ok(hold) = place.reserve(bytes) else {
        let undo = |address: P| {
            // SAFETY: as above.
            unsafe { pitch.write(before.1) };
            free_again(address)
        };
        // SAFETY: as above.
        return unsafe { oversize::refuse(&place, bytes, dptr, || real.call(), undo) };
    };
    let result = real.call();
    if result != CUresult::SUCCESS {
        return result;
    }
    // SAFETY: as above.
    let (address, row) = unsafe {
        (
            dptr.read().into(),
            pitch.read().try_into().unwrap_or(u64::MAX),
        )
    };
    let taken = granted(row.saturating_mul(height as u64));
    let reserved = hold.bytes();
    if taken > reserved {
        let Ok(rest) = place.reserve(taken - reserved) else {
            free_again(address);
            // SAFETY: as above.
            unsafe {
                dptr.write(before.0);
                pitch.write(before.1);
            }
            return CUresult::OUT_OF_MEMORY;
        };
        rest.commit();
        hold.commit();
    } else {
        hold.commit_as(taken);
    }
    let context = place.account.contexts.of_allocation();
    place.track(address, taken, context, false);
    result
}

pub fn free<F>(real: Real<'_, F>, dptr: CUdeviceptr) -> CUresult {
    release(&real, dptr, ProcessAccount::release)
}

pub fn free_v1<F>(real: Real<'_, F>, dptr: CUdeviceptr_v1) -> CUresult {
    release(&real, dptr.into(), ProcessAccount::release)
}

/// Memory may be freed by either kind of free, whichever allocated it. What is not ours the driver alone judges.
pub fn release<F>(
    real: &Real<'_, F>,
    dptr: CUdeviceptr,
    give_back: impl FnOnce(&ProcessAccount, &Allocation),
) -> CUresult {
    let Some(account) = process::account() else {
        return real.call();
    };
    let Some(allocation) = account.pointers.take(dptr) else {
        // Of a device's default pool, or none of ours.
        let result = real.call();
        account.pools.note_freed();
        return result;
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        give_back(account, &allocation);
    } else {
        account.pointers.insert(dptr, allocation);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sizes_are_charged_in_512_bytes_and_large_ones_in_2_mib() {
        assert_eq!(granted(0), 0);
        assert_eq!(granted(1), 512);
        assert_eq!(granted(512), 512);
        assert_eq!(granted(513), 1024);
        assert_eq!(granted((1 << 20) - 1), 1 << 20);
        assert_eq!(granted(1 << 20), 2 << 20);
        assert_eq!(granted((2 << 20) + 1), 4 << 20);
    }

    #[test]
    fn no_size_overflows() {
        assert_eq!(granted(u64::MAX), u64::MAX);
        assert_eq!(granted(u64::MAX - (2 << 20) + 1), u64::MAX - (2 << 20) + 1);
    }
}
