//! Memory of a GPU, or of the GPU instance of a MIG device.

use super::scope::Scope;
use super::{Device, Done, out};
use divvy_driver::sys::nvml::*;

exports! { nvml {
    nvmlDeviceGetMemoryInfo: (device, memory) => info;
    nvmlDeviceGetMemoryInfo_v2: (device, memory) => info_v2;
    nvmlDeviceGetBAR1MemoryInfo: (device, memory) => bar1;
    nvmlDeviceGetMemoryBusWidth: (device, width) => bus_width;
} }

fn figures(device: nvmlDevice_t) -> Done<nvmlMemory_v2_t> {
    let scope = Scope::of(device)?;
    let folder = scope.device.state.own_folder();
    let (device, model) = (scope.device, scope.device.model());
    let locked = device.fresh();
    let version = struct_version::<nvmlMemory_v2_t>(2);
    // Nothing of an instance is reserved (guessed).
    if let Some(partition) = scope.partition() {
        return Ok(nvmlMemory_v2_t {
            version,
            total: locked.memory_at(partition),
            reserved: 0,
            free: locked.free(partition),
            used: device.gpu().used_at(partition),
        });
    }
    if let Some(view) = locked.group_view(folder.as_deref(), device.index) {
        return Ok(nvmlMemory_v2_t {
            version,
            total: view.hard,
            reserved: 0,
            free: view.free,
            used: view.used,
        });
    }
    let used = device.gpu().used();
    Ok(nvmlMemory_v2_t {
        version,
        total: model.memory_total(),
        reserved: model.memory_reserved(),
        free: model.memory_usable().saturating_sub(used),
        used,
    })
}

/// Here `used` includes what the driver reserves.
fn info(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> Done {
    let figures = figures(device)?;
    out(memory)?.set(nvmlMemory_t {
        total: figures.total,
        free: figures.free,
        used: figures.used + figures.reserved,
    })
}

unsafe fn info_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) -> Done {
    let (figures, place) = (figures(device)?, out(memory)?);
    // SAFETY: not null; the caller sets the version before the call.
    if unsafe { (*memory).version } != figures.version {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    place.set(figures)
}

/// A window as large as the memory, rounded up to a power of two, with a little of it in use.
fn bar1(device: nvmlDevice_t, memory: *mut nvmlBAR1Memory_t) -> Done {
    let scope = Scope::of(device)?;
    let total = match scope.partition() {
        Some(partition) => scope.device.fresh().memory_at(partition),
        None => scope.device.model().memory_total(),
    };
    let total = total.next_power_of_two();
    let used = 2 << 20;
    out(memory)?.set(nvmlBAR1Memory_t {
        bar1Total: total,
        bar1Free: total - used,
        bar1Used: used,
    })
}

fn bus_width(device: nvmlDevice_t, width: *mut u32) -> Done {
    out(width)?.set(Device::answering(device)?.model().memory_bus_bits as u32)
}
