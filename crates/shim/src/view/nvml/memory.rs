//! NVML's memory figures: the slice's on its own GPUs, the whole GPU's on all others.

use divvy_driver::sys::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t};

use super::{filled, gpu_of, limited};
use crate::route::hook::Real;
use crate::view::info::View;

pub fn memory<F>(
    real: Real<'_, F, nvmlReturn_t>,
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    let result = real.call();
    if let Some(memory) = filled(result, memory)
        && let Some(view) = view(device, memory.total, memory.free)
    {
        (memory.total, memory.free) = (view.total, view.free);
        memory.used = view.total - view.free;
    }
    result
}

pub fn memory_v2<F>(
    real: Real<'_, F, nvmlReturn_t>,
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    let result = real.call();
    if let Some(memory) = filled(result, memory)
        && let Some(view) = view(device, memory.total, memory.free)
    {
        (memory.total, memory.free) = (view.total, view.free);
        // The driver's own reserved memory is not the slice's.
        (memory.used, memory.reserved) = (view.total - view.free, 0);
    }
    result
}

/// The slice's view of a GPU's memory, which the driver says is so large and has so much free; `None` for a GPU that is not
/// the slice's, and in a process that is not limited.
///
/// In a wrapper of NVML the account knows of no pools: what this process has freed asynchronously is seen to be free once
/// it calls CUDA again, as in every other process.
fn view(device: nvmlDevice_t, total: u64, free: u64) -> Option<View> {
    let account = limited()?;
    let gpu = gpu_of(account, device)?;
    account.reconcile(gpu);
    account.note_ended();
    let usage = account.usage(gpu)?;
    if usage.parked_limit > 0 {
        return Some(View::parked(usage.parked_limit, usage.used_by_living()));
    }
    Some(View::of(
        usage.limit,
        usage.used_by_living(),
        View { total, free },
    ))
}
