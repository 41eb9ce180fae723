//! Virtual memory management.

use super::out;
use crate::engine::objects::memory::LARGE;
use crate::engine::objects::result::Done;
use crate::engine::objects::vmm::Place;
use crate::engine::process::{Process, process};
use divvy_driver::sys::cuda::{
    CU_MEM_CREATE_USAGE_TILE_POOL, CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
};
use std::ffi::c_void;

exports! { cuda {
    cuMemAddressReserve: (address, size, alignment, wanted, flags) => reserve;
    cuMemAddressFree: (address, size) => free;
    cuMemCreate: (handle, size, properties, flags) => create;
    cuMemRelease: (handle) => release;
    cuMemMap: (address, size, offset, handle, flags) => map;
    cuMemUnmap: (address, size) => unmap;
    cuMemSetAccess: (address, size, descriptions, count) => set_access;
    cuMemGetAccess: (flags, location, address) => get_access;
    cuMemExportToShareableHandle: (shareable, handle, kind, flags) => export;
    cuMemImportFromShareableHandle: (handle, shareable, kind) => import;
    cuMemGetAllocationGranularity: (granularity, properties, option) => granularity;
    cuMemGetAllocationPropertiesFromHandle: (properties, handle) => properties;
    cuMemRetainAllocationHandle: (handle, address) => retain;
} }

fn reserve(
    address: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    wanted: CUdeviceptr,
    flags: u64,
) -> Done {
    let (process, address) = (process()?, out(address)?);
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    address.set(process.reserve_addresses(size as u64, alignment as u64, wanted)?)
}

fn free(address: CUdeviceptr, size: usize) -> Done {
    process()?.free_addresses(address, size as u64)
}

/// Whether the host has this NUMA node. One without the folder has node 0.
fn is_node(node: i32) -> bool {
    let folder = format!("/sys/devices/system/node/node{node}");
    node == 0 || node > 0 && std::path::Path::new(&folder).exists()
}

/// Where properties name memory. NVIDIA documents with `cuMemCreate` that memory of the host without a node cannot be
/// exported.
unsafe fn located(
    process: &Process,
    properties: *const CUmemAllocationProp,
) -> Done<(Place, CUmemAllocationHandleType)> {
    // SAFETY: null or the caller's structure.
    let properties = unsafe { properties.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    let known = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR.0;
    if properties.type_ != CUmemAllocationType::PINNED
        || properties.requestedHandleTypes.0 & !known != 0
    {
        return Err(CUresult::INVALID_VALUE);
    }
    let (id, handle_types) = (properties.location.id, properties.requestedHandleTypes);
    let place = match properties.location.type_ {
        CUmemLocationType::DEVICE => Place::Gpu(process.gpu(id)?),
        CUmemLocationType::HOST if handle_types == CUmemAllocationHandleType::NONE => {
            Place::Host(None)
        }
        CUmemLocationType::HOST_NUMA if is_node(id) => Place::Host(Some(id)),
        CUmemLocationType::HOST_NUMA_CURRENT => return Err(CUresult::NOT_SUPPORTED),
        _ => return Err(CUresult::INVALID_VALUE),
    };
    Ok((place, handle_types))
}

unsafe fn create(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> Done {
    let (process, handle) = (process()?, out(handle)?);
    // SAFETY: the caller's structure.
    let (place, handle_types) = unsafe { located(process, properties) }?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: `located` has found it.
    let usage = unsafe { (*properties).allocFlags.usage };
    let is_tile_pool = usage & CU_MEM_CREATE_USAGE_TILE_POOL != 0;
    handle.set(process.create_physical(place, size as u64, handle_types.0, is_tile_pool)?)
}

fn release(handle: CUmemGenericAllocationHandle) -> Done {
    process()?.release_physical(handle)
}

fn map(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Done {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    process()?.map_physical(address, size as u64, offset as u64, handle)
}

fn unmap(address: CUdeviceptr, size: usize) -> Done {
    process()?.unmap_physical(address, size as u64)
}

/// Access is one for all GPUs of the process: the last description decides.
unsafe fn set_access(
    address: CUdeviceptr,
    size: usize,
    descriptions: *const CUmemAccessDesc,
    count: usize,
) -> Done {
    let process = process()?;
    out(descriptions.cast_mut())?;
    for at in 0..count {
        // SAFETY: the caller passes `count` descriptions.
        let description = unsafe { *descriptions.add(at) };
        if description.location.type_ == CUmemLocationType::DEVICE {
            process.gpu(description.location.id)?;
        }
        process.set_access(address, size as u64, description.flags.0)?;
    }
    if count == 0 {
        Err(CUresult::INVALID_VALUE)
    } else {
        Ok(())
    }
}

fn get_access(flags: *mut u64, location: *const CUmemLocation, address: CUdeviceptr) -> Done {
    let (process, flags) = (process()?, out(flags)?);
    out(location.cast_mut())?;
    let access = process.objects().virtual_memory.access(address);
    flags.set(u64::from(access.ok_or(CUresult::INVALID_VALUE)?))
}

unsafe fn export(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Done {
    let (process, shareable) = (process()?, out(shareable.cast::<i32>())?);
    if kind != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    shareable.set(process.export_physical(handle)?)
}

/// A POSIX descriptor is passed as the value of the pointer.
fn import(
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> Done {
    let (process, handle) = (process()?, out(handle)?);
    if kind != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR {
        return Err(CUresult::INVALID_VALUE);
    }
    let descriptor = i32::try_from(shareable.addr()).map_err(|_| CUresult::INVALID_VALUE)?;
    handle.set(process.import_physical(descriptor)?)
}

unsafe fn granularity(
    granularity: *mut usize,
    properties: *const CUmemAllocationProp,
    _option: CUmemAllocationGranularity_flags,
) -> Done {
    let (process, granularity) = (process()?, out(granularity)?);
    // SAFETY: the caller's structure.
    unsafe { located(process, properties) }?;
    granularity.set(LARGE as usize)
}

fn properties(properties: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) -> Done {
    let (process, properties) = (process()?, out(properties)?);
    let objects = process.objects();
    let physical = objects.virtual_memory.physical(handle)?;
    properties.set(CUmemAllocationProp {
        type_: CUmemAllocationType::PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(physical.handle_types),
        location: match physical.place {
            Place::Gpu(gpu) => CUmemLocation {
                type_: CUmemLocationType::DEVICE,
                id: process.device(gpu),
            },
            Place::Host(node) => Place::host_location(node),
        },
        ..Default::default()
    })
}

fn retain(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void) -> Done {
    let (process, handle) = (process()?, out(handle)?);
    handle.set(process.retain_physical(address.addr() as u64)?)
}
