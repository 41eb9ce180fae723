//! The view of memory through CUDA (`cuMemGetInfo`, `cuDeviceTotalMem`): the slice, not the GPU. Total is the limit;
//! free is the part of it that living processes leave. Neither exceeds the driver's own figure. Memory of ended
//! processes is not shown, as the driver does not show it; an allocation that needs it waits until the driver has
//! returned it.

use std::ffi::c_uint;

use divvy_driver::sys::cuda::{CUdevice, CUresult};

use crate::account::GpuAccount;
use crate::device::{self, DeviceMembership};
use crate::park;
use crate::route::hook::Real;

/// A GPU's memory as the slice sees it, in bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct View {
    pub total: u64,
    pub free: u64,
}

impl View {
    /// The view of a parked job: others have its memory on the GPU, so what the driver has free does not count.
    pub fn parked(limit: u64, used: u64) -> View {
        View {
            total: limit,
            free: limit.saturating_sub(used),
        }
    }

    /// The slice's view of a GPU of which the driver reports `real`.
    pub fn of(limit: u64, used: u64, real: View) -> View {
        let total = real.total.min(limit);
        View {
            total,
            free: real.free.min(total.saturating_sub(used)),
        }
    }
}

pub fn mem_get_info<F>(real: Real<'_, F>, free: *mut usize, total: *mut usize) -> CUresult {
    info(&real, free, total)
}

pub fn mem_get_info_v1<F>(real: Real<'_, F>, free: *mut c_uint, total: *mut c_uint) -> CUresult {
    info(&real, free, total)
}

fn info<F, N: Copy + TryInto<u64> + TryFrom<u64>>(
    real: &Real<'_, F>,
    free: *mut N,
    total: *mut N,
) -> CUresult {
    if park::parked().is_some() {
        return parked(free, total);
    }
    let result = real.call();
    if result != CUresult::SUCCESS || free.is_null() || total.is_null() {
        return result;
    }
    let Some(belongs) = device::of_context().and_then(device::belongs) else {
        return result;
    };
    // SAFETY: neither is null, and the driver has just written both.
    let (Ok(real_free), Ok(real_total)) = (
        unsafe { free.read() }.try_into(),
        unsafe { total.read() }.try_into(),
    ) else {
        return result;
    };
    let real = View {
        total: real_total,
        free: real_free,
    };
    let view = match belongs {
        DeviceMembership::InSlice(place) => {
            place.account.contexts.note(&place);
            place.account.reconcile(place.gpu);
            let GpuAccount { slot, gpu, .. } = place;
            View::of(slot.limit(gpu), slot.used_by_living(gpu), real)
        }
        DeviceMembership::OutsideSlice => View { free: 0, ..real },
        DeviceMembership::Unknown => return result,
    };
    // SAFETY: as above. Neither number grew, so both still fit.
    unsafe {
        free.write(N::try_from(view.free).unwrap_or(free.read()));
        total.write(N::try_from(view.total).unwrap_or(total.read()));
    }
    result
}

/// The answer while the job is parked: from the ledger alone, since the driver's lock would hold the question. Without a
/// context on a GPU of the slice it is the driver's error.
fn parked<N: TryFrom<u64>>(free: *mut N, total: *mut N) -> CUresult {
    let belongs = device::current().and_then(device::belongs);
    let Some(DeviceMembership::InSlice(place)) = belongs else {
        return CUresult::INVALID_CONTEXT;
    };
    if free.is_null() || total.is_null() {
        return CUresult::INVALID_VALUE;
    }
    let GpuAccount { slot, gpu, .. } = place;
    let view = View::parked(slot.parked_limit(gpu), slot.used_by_living(gpu));
    let (Ok(view_free), Ok(view_total)) = (N::try_from(view.free), N::try_from(view.total)) else {
        return CUresult::INVALID_VALUE;
    };
    // SAFETY: neither is null, and the program has room for its answer there.
    unsafe {
        free.write(view_free);
        total.write(view_total);
    }
    CUresult::SUCCESS
}

pub fn total_mem<F>(real: Real<'_, F>, bytes: *mut usize, dev: CUdevice) -> CUresult {
    total(&real, bytes, dev)
}

pub fn total_mem_v1<F>(real: Real<'_, F>, bytes: *mut c_uint, dev: CUdevice) -> CUresult {
    total(&real, bytes, dev)
}

fn total<F, N: Copy + TryInto<u64> + TryFrom<u64>>(
    real: &Real<'_, F>,
    bytes: *mut N,
    dev: CUdevice,
) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && !bytes.is_null()
        && let Some(DeviceMembership::InSlice(place)) = device::belongs(dev)
    {
        // SAFETY: not null, and the driver has just written it.
        let whole = unsafe { bytes.read() };
        let limited = whole
            .try_into()
            .unwrap_or(u64::MAX)
            .min(place.slot.shown_limit(place.gpu));
        // SAFETY: as above. The number did not grow, so it still fits.
        unsafe { bytes.write(N::try_from(limited).unwrap_or(whole)) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_is_the_slice_and_never_more_than_the_gpu() {
        let gpu = || View {
            total: 80,
            free: 70,
        };
        assert_eq!(
            View::of(40, 10, gpu()),
            View {
                total: 40,
                free: 30
            }
        );
        assert_eq!(
            View::of(100, 10, gpu()),
            View {
                total: 80,
                free: 70
            }
        );
        assert_eq!(
            View::of(79, 0, gpu()),
            View {
                total: 79,
                free: 70
            }
        );
    }

    #[test]
    fn a_slice_over_its_limit_has_nothing_free() {
        assert_eq!(
            View::of(
                40,
                41,
                View {
                    total: 80,
                    free: 70
                }
            ),
            View { total: 40, free: 0 }
        );
    }
}
