//! Linear memory: allocating and freeing, free memory, attributes of pointers.

use super::context::from_handle;
use super::{out, set_if_wanted};
use crate::engine::objects::memory::{Allocation, AllocationKind};
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CU_DEVICE_CPU, CUcontext, CUdevice, CUdeviceptr, CUmem_advise, CUmemLocation, CUmemorytype,
    CUpointer_attribute as Attribute, CUresult, CUstream,
};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::slice;

exports! { cuda {
    cuMemGetInfo_v2: (free, total) => info;
    cuMemAlloc_v2: (address, size) => allocate;
    cuMemAllocPitch_v2: (address, pitch, width, height, element) => allocate_pitch;
    cuMemAllocManaged: (address, size, flags) => allocate_managed;
    cuMemFree_v2: (address) => free;
    cuMemGetAddressRange_v2: (base, size, address) => address_range;
    cuMemAdvise_v2: (address, size, advice, location) => advise;
    cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz: (address, size, location, flags, stream) => prefetch;
    cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz: (address, size, device, stream) => prefetch_to_device;
    cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz: (addresses, sizes, count, locations, firsts, groups, flags, stream) => prefetch_batch;
    cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz: (addresses, sizes, count, locations, firsts, groups, flags, stream) => prefetch_batch;
    cuPointerGetAttribute: (data, attribute, address) => pointer_attribute;
    cuPointerGetAttributes: (count, attributes, data, address) => pointer_attributes;
    cuPointerSetAttribute: (value, attribute, address) => set_pointer_attribute;
} }

/// Rows of pitched memory start at multiples of this. The same as on all current GPUs (CUDA).
const PITCH: usize = 512;

fn info(free: *mut usize, total: *mut usize) -> Done {
    let process = process()?;
    let gpu = process.current(&process.objects())?.gpu;
    let folder = process.state().own_folder();
    let locked = process.state().lock();
    locked.reap();
    if let Some(view) = locked.group_view(folder.as_deref(), gpu) {
        set_if_wanted(free, view.free as usize);
        set_if_wanted(total, view.hard as usize);
        return Ok(());
    }
    set_if_wanted(free, locked.free(gpu) as usize);
    set_if_wanted(total, process.model(gpu).memory_usable() as usize);
    Ok(())
}

fn allocate(address: *mut CUdeviceptr, size: usize) -> Done {
    let (process, address) = (process()?, out(address)?);
    address.set(process.allocate(size as u64, AllocationKind::Device)?)
}

fn allocate_pitch(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Done {
    let process = process()?;
    let (address, place) = (out(address)?, out(pitch)?);
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
        return Err(CUresult::INVALID_VALUE);
    }
    let pitch = width
        .checked_next_multiple_of(PITCH)
        .ok_or(CUresult::OUT_OF_MEMORY)?;
    let size = pitch.checked_mul(height).ok_or(CUresult::OUT_OF_MEMORY)?;
    address.set(process.allocate(size as u64, AllocationKind::Device)?)?;
    place.set(pitch)
}

/// Managed memory takes its GPU's memory at once and in full: oversubscription is not simulated.
fn allocate_managed(address: *mut CUdeviceptr, size: usize, flags: u32) -> Done {
    let (process, address) = (process()?, out(address)?);
    if flags != 1 && flags != 2 {
        return Err(CUresult::INVALID_VALUE);
    }
    address.set(process.allocate(size as u64, AllocationKind::Managed)?)
}

fn free(address: CUdeviceptr) -> Done {
    let process = process()?;
    if address == 0 {
        return Ok(());
    }
    process.check_unsafe()?;
    process.free(address, |kind| {
        matches!(
            kind,
            AllocationKind::Device
                | AllocationKind::Managed
                | AllocationKind::Pooled(_)
                | AllocationKind::Graph
                | AllocationKind::External
                | AllocationKind::PoolPointer
        )
    })
}

fn address_range(base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) -> Done {
    let process = process()?;
    let objects = process.objects();
    let (start, length) = match objects.memory.containing(address) {
        Some(allocation) => (allocation.base, allocation.size),
        None => objects
            .virtual_memory
            .mapping(address)
            .map(|(start, length, _)| (start, length))
            .ok_or(CUresult::NOT_FOUND)?,
    };
    set_if_wanted(base, start);
    set_if_wanted(size, length as usize);
    Ok(())
}

/// Advice and prefetching have nothing to move: managed memory is the GPU's and the CPU's at once.
fn advise(
    address: CUdeviceptr,
    size: usize,
    _advice: CUmem_advise,
    _location: CUmemLocation,
) -> Done {
    check_managed(address, size)
}

fn prefetch(
    address: CUdeviceptr,
    size: usize,
    _location: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> Done {
    process()?.uncaptured(stream.addr())?;
    if flags != 0 {
        Err(CUresult::INVALID_VALUE)
    } else {
        check_managed(address, size)
    }
}

fn prefetch_to_device(
    address: CUdeviceptr,
    size: usize,
    device: CUdevice,
    stream: CUstream,
) -> Done {
    let process = process()?;
    process.uncaptured(stream.addr())?;
    if device != CU_DEVICE_CPU {
        process.gpu(device)?;
    }
    check_managed(address, size)
}

/// Ranges in groups: each group has a location, and begins at a range (cuda.h). What is discarded may keep its contents.
#[expect(clippy::too_many_arguments, reason = "the C signature")]
unsafe fn prefetch_batch(
    addresses: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    locations: *mut CUmemLocation,
    firsts: *mut usize,
    groups: usize,
    flags: u64,
    stream: CUstream,
) -> Done {
    let process = process()?;
    process.uncaptured(stream.addr())?;
    let is_legacy = process.is_legacy(stream.addr());
    if is_legacy || flags != 0 || count == 0 || groups == 0 || groups > count {
        return Err(CUresult::INVALID_VALUE);
    }
    let _ = (out(locations)?, out(addresses)?, out(sizes)?, out(firsts)?);
    // SAFETY: `groups` entries.
    let firsts = unsafe { slice::from_raw_parts(firsts, groups) };
    let is_in_order = firsts[0] == 0 && firsts.is_sorted_by(|one, next| one < next);
    if !is_in_order || firsts.iter().any(|first| *first >= count) {
        return Err(CUresult::INVALID_VALUE);
    }
    (0..count).try_for_each(|at| {
        // SAFETY: `count` entries in each list.
        let (address, size) = unsafe { (*addresses.add(at), *sizes.add(at)) };
        check_managed(address, size)
    })
}

fn check_managed(address: CUdeviceptr, size: usize) -> Done {
    let process = process()?;
    let objects = process.objects();
    process.check_range(&objects, address, size as u64)?;
    objects
        .memory
        .containing(address)
        .filter(|allocation| allocation.kind == AllocationKind::Managed)
        .map(drop)
        .ok_or(CUresult::INVALID_VALUE)
}

unsafe fn pointer_attribute(data: *mut c_void, attribute: Attribute, address: CUdeviceptr) -> Done {
    process()?;
    out(data)?;
    // SAFETY: `data` points to room for this attribute's type.
    let is_known = unsafe { write_attribute(data, attribute, address) }?;
    is_known.then_some(()).ok_or(CUresult::INVALID_VALUE)
}

/// Attributes of a pointer CUDA does not know are zero, and the call succeeds.
unsafe fn pointer_attributes(
    count: u32,
    attributes: *mut Attribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> Done {
    process()?;
    let _ = (out(attributes)?, out(data)?);
    for at in 0..count as usize {
        // SAFETY: the caller passes `count` attributes and as many places, each with room for its attribute's type.
        unsafe {
            let (attribute, data) = (*attributes.add(at), *data.add(at));
            out(data)?;
            if !write_attribute(data, attribute, address)? {
                write_absent(data, attribute);
            }
        }
    }
    Ok(())
}

/// Writes one attribute of the memory at `address`; false for an address of no allocation.
///
/// # Safety
/// `data` points to room for the attribute's type.
unsafe fn write_attribute(
    data: *mut c_void,
    attribute: Attribute,
    address: CUdeviceptr,
) -> Done<bool> {
    let process = process()?;
    let objects = process.objects();
    let linear = objects.memory.containing(address);
    let mapping = objects.virtual_memory.mapping(address);
    let (base, size, gpu) = match (linear, &mapping) {
        (Some(allocation), _) => (allocation.base, allocation.size, Some(allocation.gpu)),
        (None, Some((base, size, physical))) => (*base, *size, physical.place.gpu()),
        (None, None) => return Ok(false),
    };
    let is_host = gpu.is_none() || linear.is_some_and(Allocation::is_host);
    let kind = linear.map(|allocation| allocation.kind);
    // SAFETY: the caller gives room for the attribute's documented type, which is the one each arm writes.
    unsafe {
        match attribute {
            Attribute::CONTEXT => data.cast::<CUcontext>().write(
                linear
                    .and_then(|allocation| allocation.context)
                    .map_or(null_mut(), from_handle),
            ),
            Attribute::MEMORY_TYPE => data.cast::<CUmemorytype>().write(if is_host {
                CUmemorytype::HOST
            } else {
                CUmemorytype::DEVICE
            }),
            Attribute::DEVICE_POINTER => data.cast::<CUdeviceptr>().write(address),
            Attribute::HOST_POINTER if is_host || kind == Some(AllocationKind::Managed) => {
                data.cast::<CUdeviceptr>().write(address)
            }
            Attribute::HOST_POINTER => return Err(CUresult::INVALID_VALUE),
            Attribute::IS_LEGACY_CUDA_IPC_CAPABLE => data
                .cast::<u8>()
                .write(u8::from(kind == Some(AllocationKind::Device))),
            Attribute::SYNC_MEMOPS | Attribute::IS_GPU_DIRECT_RDMA_CAPABLE => {
                data.cast::<u8>().write(0)
            }
            Attribute::BUFFER_ID => data
                .cast::<u64>()
                .write(linear.map_or(base, |allocation| allocation.id)),
            Attribute::IS_MANAGED => data
                .cast::<u8>()
                .write(u8::from(kind == Some(AllocationKind::Managed))),
            Attribute::DEVICE_ORDINAL => data
                .cast::<i32>()
                .write(gpu.map_or(CU_DEVICE_CPU, |gpu| process.device(gpu))),
            Attribute::RANGE_START_ADDR | Attribute::MAPPING_BASE_ADDR => {
                data.cast::<CUdeviceptr>().write(base)
            }
            Attribute::RANGE_SIZE | Attribute::MAPPING_SIZE => {
                data.cast::<usize>().write(size as usize)
            }
            Attribute::MAPPED => data.cast::<u8>().write(1),
            Attribute::ALLOWED_HANDLE_TYPES => data
                .cast::<u64>()
                .write(mapping.map_or(0, |(.., physical)| u64::from(physical.handle_types))),
            Attribute::ACCESS_FLAGS => data
                .cast::<u32>()
                .write(objects.virtual_memory.access(address).unwrap_or(3)),
            Attribute::MEMPOOL_HANDLE => data.cast::<usize>().write(match kind {
                Some(AllocationKind::Pooled(pool)) => pool.value(),
                _ => 0,
            }),
            Attribute::MEMORY_BLOCK_ID => data
                .cast::<u64>()
                .write(linear.map_or(base, |allocation| allocation.id)),
            _ => return Err(CUresult::INVALID_VALUE),
        }
    }
    Ok(true)
}

/// # Safety
/// `data` points to room for the attribute's type.
unsafe fn write_absent(data: *mut c_void, attribute: Attribute) {
    // SAFETY: as in `write_attribute`.
    unsafe {
        match attribute {
            Attribute::MEMORY_TYPE | Attribute::ACCESS_FLAGS => data.cast::<u32>().write(0),
            Attribute::DEVICE_ORDINAL => data.cast::<i32>().write(-2),
            Attribute::SYNC_MEMOPS | Attribute::IS_MANAGED | Attribute::MAPPED => {
                data.cast::<u8>().write(0)
            }
            Attribute::IS_LEGACY_CUDA_IPC_CAPABLE | Attribute::IS_GPU_DIRECT_RDMA_CAPABLE => {
                data.cast::<u8>().write(0)
            }
            _ => data.cast::<u64>().write(0),
        }
    }
}

fn set_pointer_attribute(value: *const c_void, attribute: Attribute, address: CUdeviceptr) -> Done {
    let process = process()?;
    out(value.cast_mut())?;
    process
        .objects()
        .memory
        .containing(address)
        .ok_or(CUresult::INVALID_VALUE)?;
    if attribute == Attribute::SYNC_MEMOPS {
        Ok(())
    } else {
        Err(CUresult::INVALID_VALUE)
    }
}
