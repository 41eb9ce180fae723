//! Stream-ordered memory and its pools.

use super::out;
use crate::engine::objects::graph::node::Operation;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::memory::AllocationKind;
use crate::engine::objects::pool::Pool;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::Destination;
use crate::engine::process::{Process, process};
use divvy_driver::sys::cuda::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPool_attribute as Attribute,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};
use std::ffi::c_void;
use std::ptr::without_provenance_mut;

exports! { cuda {
    cuMemAllocAsync, cuMemAllocAsync_ptsz: (address, size, stream) => allocate;
    cuMemFreeAsync, cuMemFreeAsync_ptsz: (address, stream) => free;
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz: (address, size, pool, stream) => allocate_from;
    cuMemPoolCreate: (pool, properties) => create;
    cuMemPoolDestroy: (pool) => destroy;
    cuMemPoolTrimTo: (pool, keep) => trim;
    cuMemPoolSetAttribute: (pool, attribute, value) => set_attribute;
    cuMemPoolGetAttribute: (pool, attribute, value) => get_attribute;
    cuMemPoolSetAccess: (pool, map, count) => set_access;
    cuMemPoolGetAccess: (flags, pool, location) => get_access;
    cuDeviceGetDefaultMemPool: (pool, device) => default_of_device;
    cuDeviceGetMemPool: (pool, device) => of_device;
    cuDeviceSetMemPool: (device, pool) => set_of_device;
    cuMemGetDefaultMemPool: (pool, location, kind) => default_of_location;
    cuMemGetMemPool: (pool, location, kind) => of_location;
    cuMemSetMemPool: (location, kind, pool) => set_of_location;
} }

pub(super) fn to_handle(pool: CUmemoryPool) -> Handle<Pool> {
    Handle::from_value(pool.addr())
}

pub(super) fn from_handle(pool: Handle<Pool>) -> CUmemoryPool {
    without_provenance_mut(pool.value())
}

fn allocate(address: *mut CUdeviceptr, size: usize, stream: CUstream) -> Done {
    let (process, address) = (process()?, out(address)?);
    match process.destination(stream.addr())? {
        Destination::Issue(_, stream) => {
            address.set(process.allocate_pooled(stream, size as u64, None)?)
        }
        Destination::Capture(stream) => {
            let pool = None;
            address.set(process.capture_allocation(stream, size as u64, pool)?)
        }
    }
}

fn allocate_from(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Done {
    let (process, address) = (process()?, out(address)?);
    let pool = Some(to_handle(pool));
    match process.destination(stream.addr())? {
        Destination::Issue(_, stream) => {
            address.set(process.allocate_pooled(stream, size as u64, pool)?)
        }
        Destination::Capture(stream) => {
            address.set(process.capture_allocation(stream, size as u64, pool)?)
        }
    }
}

fn free(address: CUdeviceptr, stream: CUstream) -> Done {
    let process = process()?;
    let place = process.destination(stream.addr())?;
    if address == 0 {
        return Ok(());
    }
    match place {
        Destination::Issue(..) => process.free(address, |kind| {
            matches!(
                kind,
                AllocationKind::Pooled(_) | AllocationKind::Graph | AllocationKind::PoolPointer
            )
        }),
        // Only what a graph allocates can be freed by one.
        Destination::Capture(stream) => {
            let captured = process.objects().capture(stream, Operation::Free(address));
            captured.map(drop)
        }
    }
}

/// The GPU a location names.
pub(super) fn gpu_at(process: &Process, location: CUmemLocation) -> Done<usize> {
    match location.type_ {
        CUmemLocationType::DEVICE => process.gpu(location.id),
        CUmemLocationType::HOST
        | CUmemLocationType::HOST_NUMA
        | CUmemLocationType::HOST_NUMA_CURRENT => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

unsafe fn create(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> Done {
    let (process, pool) = (process()?, out(pool)?);
    // SAFETY: null or the caller's structure.
    let properties = unsafe { properties.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    match properties.allocType {
        CUmemAllocationType::PINNED => {}
        CUmemAllocationType::MANAGED => {
            return pool.set(from_handle(create_managed(process, properties)?));
        }
        _ => return Err(CUresult::INVALID_VALUE),
    }
    let shareable = match properties.handleTypes {
        CUmemAllocationHandleType::NONE => false,
        CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR => true,
        _ => return Err(CUresult::NOT_SUPPORTED),
    };
    let gpu = gpu_at(process, properties.location)?;
    let mut objects = process.objects();
    let made = objects
        .pools
        .create(gpu, properties.maxSize as u64, shareable)?;
    pool.set(from_handle(made))
}

/// A managed pool has no greatest size, cannot be shared, and need not say where its memory is to be.
fn create_managed(process: &Process, properties: &CUmemPoolProps) -> Done<Handle<Pool>> {
    if properties.maxSize != 0 || properties.handleTypes != CUmemAllocationHandleType::NONE {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut objects = process.objects();
    let located = properties.location.type_ == CUmemLocationType::DEVICE;
    let gpu = if located {
        process.gpu(properties.location.id)?
    } else {
        process.current(&objects)?.gpu
    };
    Ok(objects.pools.create_managed(gpu, located))
}

fn destroy(pool: CUmemoryPool) -> Done {
    process()?.destroy_pool(to_handle(pool))
}

fn trim(pool: CUmemoryPool, keep: usize) -> Done {
    let process = process()?;
    process.check_unsafe()?;
    let mut objects = process.objects();
    objects.pools.get(to_handle(pool))?;
    process.trim_pool(&mut objects, to_handle(pool), keep as u64)
}

/// Whether an attribute's value is an `int`; the others are 64 bits wide.
fn is_int(attribute: Attribute) -> bool {
    attribute <= Attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES
        || attribute >= Attribute::ALLOCATION_TYPE && attribute != Attribute::MAX_POOL_SIZE
}

unsafe fn set_attribute(pool: CUmemoryPool, attribute: Attribute, value: *mut c_void) -> Done {
    let process = process()?;
    out(value)?;
    // SAFETY: the caller passes a value of the attribute's type.
    let value = unsafe {
        if is_int(attribute) {
            value.cast::<i32>().read() as u64
        } else {
            value.cast::<u64>().read()
        }
    };
    process
        .objects()
        .pools
        .set_attribute(to_handle(pool), attribute, value)
}

unsafe fn get_attribute(pool: CUmemoryPool, attribute: Attribute, value: *mut c_void) -> Done {
    let process = process()?;
    out(value)?;
    let objects = process.objects();
    let answer = match attribute {
        Attribute::ALLOCATION_TYPE => {
            u64::from(objects.pools.get(to_handle(pool))?.allocation_type().0)
        }
        Attribute::EXPORT_HANDLE_TYPES => {
            u64::from(objects.pools.get(to_handle(pool))?.handle_types().0)
        }
        Attribute::LOCATION_ID => {
            let location = objects.pools.get(to_handle(pool))?.location();
            location.map_or(0, |gpu| process.device(gpu) as u64)
        }
        Attribute::LOCATION_TYPE => {
            let location = objects.pools.get(to_handle(pool))?.location();
            let none = CUmemLocationType(0);
            u64::from(location.map_or(none, |_| CUmemLocationType::DEVICE).0)
        }
        _ => objects.pools.attribute(to_handle(pool), attribute)?,
    };
    // SAFETY: the caller gives room for the attribute's type.
    unsafe {
        if is_int(attribute) {
            value.cast::<i32>().write(answer as i32)
        } else {
            value.cast::<u64>().write(answer)
        }
    }
    Ok(())
}

unsafe fn set_access(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) -> Done {
    let process = process()?;
    process.objects().pools.get(to_handle(pool))?;
    if count > 0 {
        out(map.cast_mut())?;
    }
    for at in 0..count {
        // SAFETY: the caller passes `count` descriptions.
        gpu_at(process, unsafe { *map.add(at) }.location)?;
    }
    Ok(())
}

unsafe fn get_access(
    flags: *mut CUmemAccess_flags,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> Done {
    let (process, flags) = (process()?, out(flags)?);
    process.objects().pools.get(to_handle(pool))?;
    // SAFETY: null or the caller's structure.
    let location = unsafe { location.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    gpu_at(process, *location)?;
    flags.set(CUmemAccess_flags::PROT_READWRITE)
}

fn default_of_device(pool: *mut CUmemoryPool, device: CUdevice) -> Done {
    let (process, pool) = (process()?, out(pool)?);
    let gpu = process.gpu(device)?;
    pool.set(from_handle(process.objects().pools.default_of(gpu)))
}

fn of_device(pool: *mut CUmemoryPool, device: CUdevice) -> Done {
    let (process, pool) = (process()?, out(pool)?);
    let gpu = process.gpu(device)?;
    pool.set(from_handle(process.objects().pools.current_of(gpu)))
}

fn set_of_device(device: CUdevice, pool: CUmemoryPool) -> Done {
    let process = process()?;
    let gpu = process.gpu(device)?;
    process.objects().pools.set_current(gpu, to_handle(pool))
}

/// The ordinal of the device that a location names, for pinned memory only.
unsafe fn device_at(location: *mut CUmemLocation, kind: CUmemAllocationType) -> Done<CUdevice> {
    // SAFETY: null or the caller's structure.
    let location = unsafe { location.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    gpu_at(process()?, *location)?;
    match kind {
        CUmemAllocationType::PINNED => Ok(location.id),
        CUmemAllocationType::MANAGED => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

unsafe fn default_of_location(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> Done {
    // SAFETY: the caller's structure.
    default_of_device(pool, unsafe { device_at(location, kind) }?)
}

unsafe fn of_location(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> Done {
    // SAFETY: the caller's structure.
    of_device(pool, unsafe { device_at(location, kind) }?)
}

unsafe fn set_of_location(
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> Done {
    // SAFETY: the caller's structure.
    set_of_device(unsafe { device_at(location, kind) }?, pool)
}
