//! Device information: names, PCI, modes.

use super::mig::MigDevice;
use super::scope::undivided;
use super::{Device, Done, out, set_text};
use crate::engine::machine::gpu::Gpu;
use crate::model::Architecture;
use divvy_driver::sys::nvml::*;
use std::ffi::c_char;

exports! { nvml {
    nvmlDeviceGetName: (device, text, length) => device_name;
    nvmlDeviceGetBrand: (device, brand) => brand;
    nvmlDeviceGetIndex: (device, index) => index;
    nvmlDeviceGetMinorNumber: (device, number) => minor;
    nvmlDeviceGetSerial: (device, text, length) => serial;
    nvmlDeviceGetUUID: (device, text, length) => uuid;
    nvmlDeviceGetBoardId: (device, id) => board_id;
    nvmlDeviceGetArchitecture: (device, architecture) => architecture;
    nvmlDeviceGetCudaComputeCapability: (device, major, minor) => compute_capability;
    nvmlDeviceGetVbiosVersion: (device, text, length) => vbios;
    nvmlDeviceValidateInforom: (device) => validate;
    nvmlDeviceGetNumGpuCores: (device, count) => cores;
    nvmlDeviceGetPciInfo: (device, info) => old_pci_info;
    nvmlDeviceGetPciInfo_v2: (device, info) => old_pci_info;
    nvmlDeviceGetPciInfo_v3: (device, info) => pci_info;
    nvmlDeviceGetMaxPcieLinkGeneration: (device, generation) => pcie_generation;
    nvmlDeviceGetGpuMaxPcieLinkGeneration: (device, generation) => pcie_generation;
    nvmlDeviceGetCurrPcieLinkGeneration: (device, generation) => pcie_generation;
    nvmlDeviceGetMaxPcieLinkWidth: (device, width) => pcie_width;
    nvmlDeviceGetCurrPcieLinkWidth: (device, width) => pcie_width;
    nvmlDeviceGetPcieThroughput: (device, counter, value) => pcie_throughput;
    nvmlDeviceGetPcieReplayCounter: (device, value) => zero;
    nvmlDeviceGetTopologyCommonAncestor: (device, other, level) => common_ancestor;
    nvmlDeviceGetCpuAffinity: (device, words, set) => cpu_affinity;
    nvmlDeviceGetDisplayMode: (device, mode) => disabled;
    nvmlDeviceGetDisplayActive: (device, mode) => disabled;
    nvmlDeviceGetVirtualizationMode: (device, mode) => virtualization;
    nvmlDeviceGetEccMode: (device, current, pending) => ecc_mode;
    nvmlDeviceGetTotalEccErrors: (device, kind, counter, count) => ecc_errors;
    nvmlDeviceGetRemappedRows: (device, correctable, uncorrectable, pending, failed) => remapped_rows;
} }

fn device_name(device: nvmlDevice_t, text: *mut c_char, length: u32) -> Done {
    match MigDevice::of(device)? {
        Some(mig) => set_text(text, length, &mig.name()?),
        None => set_text(text, length, &Device::answering(device)?.model().name),
    }
}

fn brand(device: nvmlDevice_t, brand: *mut nvmlBrandType_t) -> Done {
    let display = Device::answering(device)?.model().display;
    out(brand)?.set(if display {
        nvmlBrandType_t::GEFORCE
    } else {
        nvmlBrandType_t::NVIDIA
    })
}

/// Of a MIG device, that on its GPU (nvml.h).
fn index(device: nvmlDevice_t, index: *mut u32) -> Done {
    out(index)?.set(match MigDevice::of(device)? {
        Some(mig) => mig.instance()?.index,
        None => Device::of(device)?.index as u32,
    })
}

fn minor(device: nvmlDevice_t, number: *mut u32) -> Done {
    out(number)?.set(Device::of(device)?.index as u32)
}

/// Thirteen digits, as data centre boards have; made from the UUID.
pub(super) fn serial_text(gpu: &Gpu) -> String {
    let digits = gpu.uuid().iter().fold(0u64, |number, byte| {
        number.wrapping_mul(257).wrapping_add(u64::from(*byte))
    }) % 1_000_000_000;
    format!("1320{digits:09}")
}

fn serial(device: nvmlDevice_t, text: *mut c_char, length: u32) -> Done {
    let device = Device::answering(device)?;
    if device.model().display {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    set_text(text, length, &serial_text(device.gpu()))
}

fn uuid(device: nvmlDevice_t, text: *mut c_char, length: u32) -> Done {
    match MigDevice::of(device)? {
        Some(mig) => set_text(text, length, &mig.uuid_text()?),
        None => set_text(text, length, &Device::answering(device)?.gpu().uuid_text()),
    }
}

fn board_id(device: nvmlDevice_t, id: *mut u32) -> Done {
    out(id)?.set(Device::answering(device)?.gpu().pci_bus() << 8)
}

fn architecture(device: nvmlDevice_t, architecture: *mut nvmlDeviceArchitecture_t) -> Done {
    out(architecture)?.set(match Device::answering(device)?.model().architecture {
        Architecture::Ampere => NVML_DEVICE_ARCH_AMPERE,
        Architecture::Ada => NVML_DEVICE_ARCH_ADA,
        Architecture::Hopper => NVML_DEVICE_ARCH_HOPPER,
        Architecture::Blackwell => NVML_DEVICE_ARCH_BLACKWELL,
    })
}

fn compute_capability(device: nvmlDevice_t, major: *mut i32, minor: *mut i32) -> Done {
    let capability = Device::answering(device)?.model().compute_capability;
    let minor = out(minor)?;
    out(major)?.set(capability.0)?;
    minor.set(capability.1)
}

/// A version of the usual form, not that of any board.
fn vbios(device: nvmlDevice_t, text: *mut c_char, length: u32) -> Done {
    Device::answering(device)?;
    set_text(text, length, "90.00.00.00.01")
}

fn validate(device: nvmlDevice_t) -> Done {
    Device::answering(device).map(drop)
}

/// FP32 units, not of divided GPUs (nvml.h): 64 per multiprocessor on compute capability 8.0, 128 on the later ones.
fn cores(device: nvmlDevice_t, count: *mut u32) -> Done {
    let model = undivided(device)?.model();
    let each = if model.compute_capability == (8, 0) {
        64
    } else {
        128
    };
    out(count)?.set(model.multiprocessors as u32 * each)
}

fn pci_figures(device: nvmlDevice_t) -> Done<nvmlPciInfo_t> {
    const NVIDIA: u32 = 0x10de;
    let device = Device::of(device)?;
    let (model, bus) = (device.model(), device.gpu().pci_bus());
    let mut info = nvmlPciInfo_t {
        bus,
        pciDeviceId: model.pci_device << 16 | NVIDIA,
        pciSubSystemId: model.pci_subsystem << 16 | NVIDIA,
        ..Default::default()
    };
    let (long, short) = (&mut info.busId, &mut info.busIdLegacy);
    set_text(
        long.as_mut_ptr(),
        long.len() as u32,
        &format!("00000000:{bus:02X}:00.0"),
    )?;
    set_text(
        short.as_mut_ptr(),
        short.len() as u32,
        &format!("0000:{bus:02X}:00.0"),
    )?;
    Ok(info)
}

fn pci_info(device: nvmlDevice_t, info: *mut nvmlPciInfo_t) -> Done {
    out(info)?.set(pci_figures(device)?)
}

/// Callers of the first two versions have a shorter structure, which ends before the long bus id.
unsafe fn old_pci_info(device: nvmlDevice_t, info: *mut nvmlPciInfo_t) -> Done {
    let figures = pci_figures(device)?;
    out(info)?;
    let length = std::mem::offset_of!(nvmlPciInfo_t, busId);
    // SAFETY: not null; the caller's structure has at least the fields before the long bus id.
    unsafe {
        (&raw const figures)
            .cast::<u8>()
            .copy_to_nonoverlapping(info.cast(), length)
    };
    Ok(())
}

fn pcie_generation(device: nvmlDevice_t, generation: *mut u32) -> Done {
    out(generation)?.set(Device::answering(device)?.model().pcie_generation)
}

fn pcie_width(device: nvmlDevice_t, width: *mut u32) -> Done {
    Device::answering(device)?;
    out(width)?.set(16)
}

fn pcie_throughput(device: nvmlDevice_t, _counter: nvmlPcieUtilCounter_t, value: *mut u32) -> Done {
    zero(device, value)
}

fn zero(device: nvmlDevice_t, value: *mut u32) -> Done {
    Device::answering(device)?;
    out(value)?.set(0)
}

fn common_ancestor(
    device: nvmlDevice_t,
    other: nvmlDevice_t,
    level: *mut nvmlGpuTopologyLevel_t,
) -> Done {
    let (one, other) = (Device::answering(device)?, Device::answering(other)?);
    out(level)?.set(if one.index == other.index {
        nvmlGpuTopologyLevel_t::INTERNAL
    } else {
        nvmlGpuTopologyLevel_t::NODE
    })
}

/// Every processor of the machine is equally near.
unsafe fn cpu_affinity(device: nvmlDevice_t, words: u32, set: *mut u64) -> Done {
    Device::answering(device)?;
    out(set)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for word in 0..words as usize {
        let count = processors.saturating_sub(word * 64).min(64);
        // SAFETY: the caller gives room for `words` words.
        unsafe {
            set.add(word).write(if count == 64 {
                u64::MAX
            } else {
                (1 << count) - 1
            })
        };
    }
    Ok(())
}

fn disabled(device: nvmlDevice_t, mode: *mut nvmlEnableState_t) -> Done {
    Device::answering(device)?;
    out(mode)?.set(nvmlEnableState_t::DISABLED)
}

fn virtualization(device: nvmlDevice_t, mode: *mut nvmlGpuVirtualizationMode_t) -> Done {
    Device::answering(device)?;
    out(mode)?.set(nvmlGpuVirtualizationMode_t::NONE)
}

/// Data centre boards have ECC memory, always on here; others do not have it.
fn with_ecc(device: nvmlDevice_t) -> Done<Device> {
    let device = Device::answering(device)?;
    if device.model().display {
        Err(nvmlReturn_t::NOT_SUPPORTED)
    } else {
        Ok(device)
    }
}

fn ecc_mode(
    device: nvmlDevice_t,
    current: *mut nvmlEnableState_t,
    pending: *mut nvmlEnableState_t,
) -> Done {
    with_ecc(device)?;
    let pending = out(pending)?;
    out(current)?.set(nvmlEnableState_t::ENABLED)?;
    pending.set(nvmlEnableState_t::ENABLED)
}

/// Both counters begin anew with the driver; a board keeps the aggregate one.
fn ecc_errors(
    device: nvmlDevice_t,
    kind: nvmlMemoryErrorType_t,
    _counter: nvmlEccCounterType_t,
    count: *mut u64,
) -> Done {
    let health = &with_ecc(device)?.gpu().health;
    out(count)?.set(match kind {
        nvmlMemoryErrorType_t::UNCORRECTED => health.uncorrected_ecc(),
        _ => 0,
    })
}

/// Not of a GPU in MIG mode, as nvml.h says.
fn remapped_rows(
    device: nvmlDevice_t,
    correctable: *mut u32,
    uncorrectable: *mut u32,
    pending: *mut u32,
    failed: *mut u32,
) -> Done {
    with_ecc(device)?;
    let rows = undivided(device)?.gpu().health.remapped();
    let (uncorrectable, pending, failed) = (out(uncorrectable)?, out(pending)?, out(failed)?);
    out(correctable)?.set(0)?;
    uncorrectable.set(rows.uncorrectable)?;
    pending.set(u32::from(rows.is_pending))?;
    failed.set(u32::from(rows.has_failed))
}
