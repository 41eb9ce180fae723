//! Requests for more memory than a whole GPU has. No driver can grant one, so the call goes to the driver, which
//! answers with its own code.
//!
//! The limit refuses such a request too, but OUT_OF_MEMORY would hide what is wrong with it: a size of -1, a bad format, a dead
//! context. Managed memory may exceed a GPU (CUDA programming guide, "GPU Memory Oversubscription"), and takes nothing of it before it is
//! touched: what the driver grants all the same is given back before the program hears of it.

use divvy_driver::sys::cuda::CUresult;

use crate::account::GpuAccount;
use crate::charge::driver_cache::relaxed;
use crate::device::DeviceMembership;
use crate::process;
use crate::table::real;

/// Whether a request is for more than the GPU has. The driver is asked, so this is for calls that the limit refuses.
pub fn exceeds_gpu(place: &GpuAccount, bytes: u64) -> bool {
    total(place).is_some_and(|total| bytes > total)
}

/// Answers a call that the limit refuses: OUT_OF_MEMORY, or what the driver says of a request that exceeds the GPU. `out` is where the
/// driver writes its answer, which `undo` gives back.
///
/// # Safety
/// `out` may be read, and the driver would write there.
pub unsafe fn refuse<T: Copy>(
    place: &GpuAccount,
    bytes: u64,
    out: *mut T,
    ask: impl FnOnce() -> CUresult,
    undo: impl FnOnce(T) -> Option<CUresult>,
) -> CUresult {
    if !exceeds_gpu(place, bytes) {
        return CUresult::OUT_OF_MEMORY;
    }
    // SAFETY: the caller says so.
    unsafe { leave_to_driver(out, ask, undo) }
}

/// Answers a call that the limit refuses with what the driver says of it. What the driver grants all the same is given back.
///
/// # Safety
/// As [`refuse`].
pub unsafe fn leave_to_driver<T: Copy>(
    out: *mut T,
    ask: impl FnOnce() -> CUresult,
    undo: impl FnOnce(T) -> Option<CUresult>,
) -> CUresult {
    // SAFETY: the caller says so.
    let before = unsafe { out.read() };
    let result = ask();
    if result != CUresult::SUCCESS {
        return result;
    }
    // SAFETY: as above; the driver has just written it.
    let granted = unsafe { out.read() };
    if relaxed(|| undo(granted)) != Some(CUresult::SUCCESS) {
        process::alarm();
    }
    // SAFETY: as above.
    unsafe { out.write(before) };
    CUresult::OUT_OF_MEMORY
}

/// Bytes of a GPU, as the driver reports them.
fn total(place: &GpuAccount) -> Option<u64> {
    let known = (0..).map(|device| (device, place.account.belongs(device)));
    let mut known = known.take_while(|(_, belongs)| !matches!(belongs, DeviceMembership::Unknown));
    let (device, _) = known.find(|(_, belongs)| match belongs {
        DeviceMembership::InSlice(found) => found.gpu == place.gpu,
        DeviceMembership::OutsideSlice | DeviceMembership::Unknown => false,
    })?;
    let ask = real::cuDeviceTotalMem_v2.get()?;
    let mut total = 0;
    // SAFETY: the driver's function, with a place for its answer.
    let result = unsafe { ask(&mut total, device) };
    (result == CUresult::SUCCESS).then_some(total as u64)
}
