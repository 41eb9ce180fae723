//! Devices: their count, names, UUIDs and attributes.

use super::{name, out, set_text};
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use crate::model::Model;
use divvy_driver::sys::cuda::{
    CUdevice, CUdevice_P2PAttribute, CUdevice_attribute as Attribute, CUresult, CUuuid,
};
use std::ffi::c_char;

exports! { cuda {
    cuDeviceGet: (device, ordinal) => get;
    cuDeviceGetCount: (count) => count;
    cuDeviceGetName: (text, length, device) => device_name;
    cuDeviceGetUuid: (uuid, device) => uuid;
    cuDeviceGetUuid_v2: (uuid, device) => own_uuid;
    cuDeviceTotalMem_v2: (bytes, device) => total_memory;
    cuDeviceGetAttribute: (value, attribute, device) => attribute;
    cuDeviceComputeCapability: (major, minor, device) => compute_capability;
    cuDeviceGetPCIBusId: (text, length, device) => pci_bus_id;
    cuDeviceGetByPCIBusId: (device, text) => by_pci_bus_id;
    cuDeviceCanAccessPeer: (can, device, peer) => can_access_peer;
    cuDeviceGetP2PAttribute: (value, attribute, source, destination) => peer_attribute;
} }

fn get(device: *mut CUdevice, ordinal: i32) -> Done {
    process()?.gpu(ordinal)?;
    out(device)?.set(ordinal)
}

fn count(count: *mut i32) -> Done {
    let count = out(count)?;
    count.set(process()?.device_count() as i32)
}

fn device_name(text: *mut c_char, length: i32, device: CUdevice) -> Done {
    let process = process()?;
    set_text(text, length, &process.model(process.gpu(device)?).name)
}

fn uuid(uuid: *mut CUuuid, device: CUdevice) -> Done {
    let process = process()?;
    let gpu = process.gpu(device)?;
    out(uuid)?.set(CUuuid {
        bytes: *process.state().gpu(gpu).uuid(),
    })
}

/// A compute instance's own; the first version gives its GPU's (cuda.h, `cuDeviceGetUuid`).
fn own_uuid(place: *mut CUuuid, device: CUdevice) -> Done {
    let process = process()?;
    match process.instance(process.gpu(device)?) {
        Some(instance) => out(place)?.set(CUuuid {
            bytes: instance.uuid,
        }),
        None => uuid(place, device),
    }
}

fn total_memory(bytes: *mut usize, device: CUdevice) -> Done {
    let process = process()?;
    out(bytes)?.set(process.model(process.gpu(device)?).memory_usable() as usize)
}

fn compute_capability(major: *mut i32, minor: *mut i32, device: CUdevice) -> Done {
    let process = process()?;
    let capability = process.model(process.gpu(device)?).compute_capability;
    out(major)?.set(capability.0)?;
    out(minor)?.set(capability.1)
}

fn pci_text(device: CUdevice) -> Done<String> {
    let process = process()?;
    Ok(format!(
        "0000:{:02X}:00.0",
        process.state().gpu(process.gpu(device)?).pci_bus()
    ))
}

fn pci_bus_id(text: *mut c_char, length: i32, device: CUdevice) -> Done {
    set_text(text, length, &pci_text(device)?)
}

/// Accepts `domain:bus:device.function`, `domain:bus:device` and `bus:device.function`, in either case.
fn by_pci_bus_id(device: *mut CUdevice, text: *const c_char) -> Done {
    let (device, wanted) = (out(device)?, name(text)?.to_ascii_uppercase());
    let fits = |full: &str| {
        full == wanted
            || full.strip_suffix(".0") == Some(&wanted)
            || full.strip_prefix("0000:") == Some(&wanted)
    };
    let count = process()?.device_count() as CUdevice;
    let found = (0..count).find(|device| pci_text(*device).is_ok_and(|full| fits(&full)));
    device.set(found.ok_or(CUresult::INVALID_DEVICE)?)
}

fn can_access_peer(can: *mut i32, device: CUdevice, peer: CUdevice) -> Done {
    let process = process()?;
    let (gpu, other) = (process.gpu(device)?, process.gpu(peer)?);
    out(can)?.set(i32::from(process.reaches(gpu, other)))
}

/// Links are alike (rank 0), carry all atomics where they exist, and arrays are reached over them.
fn peer_attribute(
    value: *mut i32,
    attribute: CUdevice_P2PAttribute,
    source: CUdevice,
    destination: CUdevice,
) -> Done {
    let (process, value) = (process()?, out(value)?);
    let (gpu, other) = (process.gpu(source)?, process.gpu(destination)?);
    if gpu == other {
        return Err(CUresult::INVALID_DEVICE);
    }
    let reaches = i32::from(process.reaches(gpu, other));
    value.set(match attribute {
        CUdevice_P2PAttribute::PERFORMANCE_RANK
        | CUdevice_P2PAttribute::ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => 0,
        CUdevice_P2PAttribute::ACCESS_SUPPORTED
        | CUdevice_P2PAttribute::NATIVE_ATOMIC_SUPPORTED
        | CUdevice_P2PAttribute::CUDA_ARRAY_ACCESS_SUPPORTED => reaches,
        _ => return Err(CUresult::INVALID_VALUE),
    })
}

fn attribute(value: *mut i32, attribute: Attribute, device: CUdevice) -> Done {
    let process = process()?;
    let gpu = process.gpu(device)?;
    let value = out(value)?;
    let answer = match attribute {
        Attribute::COMPUTE_MODE => process.state().gpu(gpu).settings.compute_mode().number() as i32,
        // The CUDA programming guide, "L2 Set-Aside": not where GPUs are divided.
        Attribute::MAX_PERSISTING_L2_CACHE_SIZE if process.instance(gpu).is_some() => 0,
        Attribute::INTEGRATED => i32::from(process.machine.config.integrated),
        Attribute::MULTICAST_SUPPORTED => i32::from(process.has_multicast(gpu)),
        Attribute::PCI_BUS_ID => process.state().gpu(gpu).pci_bus() as i32,
        _ => of_model(process.model(gpu), attribute).ok_or(CUresult::INVALID_VALUE)?,
    };
    value.set(answer)
}

/// Figures from the model, the CUDA programming guide's table of compute capabilities, and 0 for features that are not
/// simulated.
fn of_model(model: &Model, attribute: Attribute) -> Option<i32> {
    const KIB: i32 = 1024;
    let hopper = model.compute_capability >= (9, 0);
    let shared_per_multiprocessor = model.shared_per_multiprocessor_kib * KIB;
    Some(match attribute {
        Attribute::MAX_THREADS_PER_BLOCK
        | Attribute::MAX_BLOCK_DIM_X
        | Attribute::MAX_BLOCK_DIM_Y => 1024,
        Attribute::MAX_BLOCK_DIM_Z => 64,
        Attribute::MAX_GRID_DIM_X => i32::MAX,
        Attribute::MAX_GRID_DIM_Y | Attribute::MAX_GRID_DIM_Z => 65535,
        Attribute::MAX_SHARED_MEMORY_PER_BLOCK => 48 * KIB,
        Attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => shared_per_multiprocessor - KIB,
        Attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => shared_per_multiprocessor,
        Attribute::RESERVED_SHARED_MEMORY_PER_BLOCK => KIB,
        Attribute::TOTAL_CONSTANT_MEMORY => 64 * KIB,
        Attribute::WARP_SIZE => 32,
        Attribute::MAX_PITCH => i32::MAX,
        Attribute::MAX_REGISTERS_PER_BLOCK | Attribute::MAX_REGISTERS_PER_MULTIPROCESSOR => 65536,
        Attribute::CLOCK_RATE => (model.graphics_clock_mhz * 1000) as i32,
        Attribute::MEMORY_CLOCK_RATE => (model.memory_clock_mhz * 1000) as i32,
        Attribute::GLOBAL_MEMORY_BUS_WIDTH => model.memory_bus_bits,
        Attribute::L2_CACHE_SIZE => model.l2_cache_mib * KIB * KIB,
        Attribute::MAX_PERSISTING_L2_CACHE_SIZE => model.persisting_l2_bytes() as i32,
        Attribute::MAX_ACCESS_POLICY_WINDOW_SIZE => 128 * KIB * KIB - KIB,
        Attribute::MULTIPROCESSOR_COUNT => model.multiprocessors,
        Attribute::MAX_THREADS_PER_MULTIPROCESSOR => model.threads_per_multiprocessor,
        Attribute::MAX_BLOCKS_PER_MULTIPROCESSOR => model.blocks_per_multiprocessor,
        Attribute::COMPUTE_CAPABILITY_MAJOR => model.compute_capability.0,
        Attribute::COMPUTE_CAPABILITY_MINOR => model.compute_capability.1,
        Attribute::ASYNC_ENGINE_COUNT => model.copy_engines,
        Attribute::ECC_ENABLED => i32::from(!model.display),
        Attribute::KERNEL_EXEC_TIMEOUT => 0,
        Attribute::SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => {
            if matches!(model.compute_capability, (8..=10, 0)) {
                2
            } else {
                64
            }
        }
        Attribute::TEXTURE_ALIGNMENT | Attribute::SURFACE_ALIGNMENT => 512,
        Attribute::TEXTURE_PITCH_ALIGNMENT => 32,
        Attribute::GPU_PCI_DEVICE_ID => (model.pci_device << 16 | 0x10de) as i32,
        Attribute::GPU_PCI_SUBSYSTEM_ID => (model.pci_subsystem << 16 | 0x10de) as i32,
        Attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | Attribute::VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED
        | Attribute::MEMORY_POOLS_SUPPORTED
        | Attribute::UNIFIED_ADDRESSING
        | Attribute::MANAGED_MEMORY
        | Attribute::CONCURRENT_MANAGED_ACCESS
        | Attribute::CAN_MAP_HOST_MEMORY
        | Attribute::HOST_REGISTER_SUPPORTED
        | Attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | Attribute::GPU_OVERLAP
        | Attribute::CONCURRENT_KERNELS
        | Attribute::IPC_EVENT_SUPPORTED
        | Attribute::STREAM_PRIORITIES_SUPPORTED
        | Attribute::GLOBAL_L1_CACHE_SUPPORTED
        | Attribute::LOCAL_L1_CACHE_SUPPORTED
        | Attribute::COMPUTE_PREEMPTION_SUPPORTED
        | Attribute::COOPERATIVE_LAUNCH
        | Attribute::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | Attribute::UNIFIED_FUNCTION_POINTERS => 1,
        Attribute::CLUSTER_LAUNCH => i32::from(hopper),
        Attribute::MEM_SYNC_DOMAIN_COUNT => {
            if hopper {
                4
            } else {
                1
            }
        }
        Attribute::NUMA_ID => -1,
        Attribute::HOST_NUMA_ID => 0,
        Attribute(1..=161) => 0,
        _ => return None,
    })
}
