//! Charges for arrays and mipmapped arrays: the size that the driver reports for such an array.
//!
//! It says so only of an array whose memory is to be mapped later (`CUDA_ARRAY3D_DEFERRED_MAPPING`), so a twin of that kind is made
//! first, asked and destroyed; it takes no memory itself. A driver that cannot be asked is believed to take what `extent` comes to.
//! Arrays that are deferred or sparse by the program's own wish take nothing: their memory is made by `cuMemCreate`.

use std::ffi::c_uint;

use divvy_driver::sys::cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY_MEMORY_REQUIREMENTS,
    CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1,
    CUDA_ARRAY3D_SPARSE, CUarray, CUdevice, CUmipmappedArray, CUresult,
};

use crate::account::{GpuAccount, ProcessAccount};
use crate::charge::binding::Unbinding;
use crate::charge::driver_cache::relaxed;
use crate::charge::extent;
use crate::charge::memory;
use crate::charge::oversize;
use crate::charge::pointers::{Allocation, AllocationBacking, key};
use crate::device::{self, Admission};
use crate::process;
use crate::route::function::driver;
use crate::route::hook::Real;
use crate::table::real;

pub fn create<F>(
    real: Real<'_, F>,
    array: *mut CUarray,
    of: *const CUDA_ARRAY_DESCRIPTOR,
) -> CUresult {
    // SAFETY: null, or the program's description, which the driver would read too.
    make(&real, array, unsafe { of.as_ref() }.map(flat))
}

pub fn create_v1<F>(
    real: Real<'_, F>,
    array: *mut CUarray,
    of: *const CUDA_ARRAY_DESCRIPTOR_v1,
) -> CUresult {
    // SAFETY: as above.
    let of = unsafe { of.as_ref() }.map(|of| CUDA_ARRAY3D_DESCRIPTOR {
        Width: of.Width as usize,
        Height: of.Height as usize,
        Format: of.Format,
        NumChannels: of.NumChannels,
        ..Default::default()
    });
    make(&real, array, of)
}

pub fn create_3d<F>(
    real: Real<'_, F>,
    array: *mut CUarray,
    of: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> CUresult {
    // SAFETY: as above.
    make(&real, array, unsafe { of.as_ref() }.copied())
}

pub fn create_3d_v1<F>(
    real: Real<'_, F>,
    array: *mut CUarray,
    of: *const CUDA_ARRAY3D_DESCRIPTOR_v1,
) -> CUresult {
    // SAFETY: as above.
    let of = unsafe { of.as_ref() }.map(|of| CUDA_ARRAY3D_DESCRIPTOR {
        Width: of.Width as usize,
        Height: of.Height as usize,
        Depth: of.Depth as usize,
        Format: of.Format,
        NumChannels: of.NumChannels,
        Flags: of.Flags,
    });
    make(&real, array, of)
}

fn flat(of: &CUDA_ARRAY_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: of.Width,
        Height: of.Height,
        Format: of.Format,
        NumChannels: of.NumChannels,
        ..Default::default()
    }
}

fn make<F>(
    real: &Real<'_, F>,
    array: *mut CUarray,
    of: Option<CUDA_ARRAY3D_DESCRIPTOR>,
) -> CUresult {
    let size = |of: &CUDA_ARRAY3D_DESCRIPTOR, device| {
        told_of_array(of, device).or_else(|| extent::bytes(of, 1))
    };
    // SAFETY: the driver's function, with an array that it has just made and the program has not seen.
    let destroy = |array| unsafe { Some(real::cuArrayDestroy.get()?(array)) };
    charged(real, array, of, size, destroy, || {
        // SAFETY: the driver has written the handle when this is called.
        key::array(unsafe { array.read() })
    })
}

pub fn create_mipmapped<F>(
    real: Real<'_, F>,
    array: *mut CUmipmappedArray,
    of: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> CUresult {
    let size = |of: &CUDA_ARRAY3D_DESCRIPTOR, device| {
        told_of_mipmapped(of, levels, device).or_else(|| extent::bytes(of, levels))
    };
    // SAFETY: null, or the program's description, which the driver would read too.
    let of = unsafe { of.as_ref() }.copied();
    // SAFETY: as above.
    let destroy = |array| unsafe { Some(real::cuMipmappedArrayDestroy.get()?(array)) };
    charged(&real, array, of, size, destroy, || {
        // SAFETY: the driver has written the handle when this is called.
        key::mipmapped_array(unsafe { array.read() })
    })
}

fn charged<F, A: Copy>(
    real: &Real<'_, F>,
    array: *mut A,
    of: Option<CUDA_ARRAY3D_DESCRIPTOR>,
    size: impl FnOnce(&CUDA_ARRAY3D_DESCRIPTOR, CUdevice) -> Option<u64>,
    destroy: impl FnOnce(A) -> Option<CUresult>,
    key: impl FnOnce() -> u64,
) -> CUresult {
    const NO_MEMORY: c_uint = CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE;
    let Some(of) = of.filter(|of| !array.is_null() && of.Width > 0 && of.Flags & NO_MEMORY == 0)
    else {
        return real.call();
    };
    let place = match device::admit_current() {
        Admission::Charge(place) => place,
        Admission::Pass => return real.call(),
        Admission::Refuse => return CUresult::OUT_OF_MEMORY,
    };
    let bytes = device::current().and_then(|device| size(&of, device));
    let bytes = bytes.unwrap_or(u64::MAX);
    let Ok(hold) = place.reserve(bytes) else {
        // SAFETY: not null, and the driver would write there.
        return unsafe { oversize::refuse(&place, bytes, array, || real.call(), destroy) };
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        let bytes = hold.bytes();
        hold.commit();
        track(&place, key(), bytes);
    }
    result
}

fn track(place: &GpuAccount, key: u64, bytes: u64) {
    let pointers = &place.account.pointers;
    let allocation = Allocation {
        gpu: place.gpu,
        bytes,
        context: device::current_context() as usize,
        era: pointers.era(),
        backing: AllocationBacking::Array,
    };
    pointers.insert(key, allocation);
}

pub fn destroy<F>(real: Real<'_, F>, array: CUarray) -> CUresult {
    end(&real, key::array(array))
}

pub fn destroy_mipmapped<F>(real: Real<'_, F>, array: CUmipmappedArray) -> CUresult {
    end(&real, key::mipmapped_array(array))
}

/// Gives back what the array was charged, and what was bound to it.
fn end<F>(real: &Real<'_, F>, key: u64) -> CUresult {
    let unbinding = process::account().map(|account| Unbinding::all(account, key));
    let result = memory::release(real, key, ProcessAccount::release);
    if let Some(unbinding) = unbinding {
        unbinding.end(result);
    }
    result
}

/// The driver's figure for the size of an array.
fn told_of_array(of: &CUDA_ARRAY3D_DESCRIPTOR, device: CUdevice) -> Option<u64> {
    let (create, destroy) = (real::cuArray3DCreate_v2.get()?, real::cuArrayDestroy.get()?);
    let ask = driver::cuArrayGetMemoryRequirements.get()?;
    let of = deferred(of);
    reported_size(|needs| {
        let mut twin = std::ptr::null_mut();
        // SAFETY: the driver's functions, with places for their answers and a description that is read; the twin is ours alone.
        unsafe {
            let made = create(&mut twin, &of);
            if made != CUresult::SUCCESS {
                return made;
            }
            let asked = ask(needs, twin, device);
            destroy(twin);
            asked
        }
    })
}

/// The driver's figure for the size of a mipmapped array.
fn told_of_mipmapped(
    of: &CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
    device: CUdevice,
) -> Option<u64> {
    let (create, destroy) = (
        real::cuMipmappedArrayCreate.get()?,
        real::cuMipmappedArrayDestroy.get()?,
    );
    let ask = driver::cuMipmappedArrayGetMemoryRequirements.get()?;
    let of = deferred(of);
    reported_size(|needs| {
        let mut twin = std::ptr::null_mut();
        // SAFETY: as above.
        unsafe {
            let made = create(&mut twin, &of, levels);
            if made != CUresult::SUCCESS {
                return made;
            }
            let asked = ask(needs, twin, device);
            destroy(twin);
            asked
        }
    })
}

fn deferred(of: &CUDA_ARRAY3D_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Flags: of.Flags | CUDA_ARRAY3D_DEFERRED_MAPPING,
        ..*of
    }
}

fn reported_size(ask: impl FnOnce(&mut CUDA_ARRAY_MEMORY_REQUIREMENTS) -> CUresult) -> Option<u64> {
    let mut needs = CUDA_ARRAY_MEMORY_REQUIREMENTS::default();
    let result = relaxed(|| ask(&mut needs));
    (result == CUresult::SUCCESS && needs.size > 0).then_some(needs.size as u64)
}
