//! Arrays and mipmapped arrays.

use super::out;
use crate::engine::objects::array::{Array, Mipmap};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::Destination;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY_MEMORY_REQUIREMENTS,
    CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1, CUarray,
    CUarrayMapInfo, CUdevice, CUmipmappedArray, CUresult, CUstream,
};
use std::ptr::without_provenance_mut;

exports! { cuda {
    cuArrayCreate: (array, described) => create_v1;
    cuArrayCreate_v2: (array, described) => create;
    cuArray3DCreate: (array, described) => create_3d_v1;
    cuArray3DCreate_v2: (array, described) => create_3d;
    cuArray3DGetDescriptor_v2: (described, array) => descriptor_3d;
    cuArrayDestroy: (array) => destroy;
    cuArrayGetMemoryRequirements: (requirements, array, device) => requirements;
    cuArrayGetSparseProperties: (properties, array) => sparse_properties;
    cuArrayGetPlane: (plane, array, index) => plane;
    cuMipmappedArrayCreate: (mipmap, described, levels) => create_mipmap;
    cuMipmappedArrayGetLevel: (array, mipmap, level) => level;
    cuMipmappedArrayDestroy: (mipmap) => destroy_mipmap;
    cuMipmappedArrayGetMemoryRequirements: (requirements, mipmap, device) => mipmap_requirements;
    cuMipmappedArrayGetSparseProperties: (properties, mipmap) => sparse_properties_of_levels;
    cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz: (list, count, stream) => bind;
} }

pub(super) fn to_handle(array: CUarray) -> Handle<Array> {
    Handle::from_value(array.addr())
}

pub(super) fn from_handle(array: Handle<Array>) -> CUarray {
    without_provenance_mut(array.value())
}

fn to_mipmap(mipmap: CUmipmappedArray) -> Handle<Mipmap> {
    Handle::from_value(mipmap.addr())
}

pub(super) fn from_mipmap(mipmap: Handle<Mipmap>) -> CUmipmappedArray {
    without_provenance_mut(mipmap.value())
}

/// A flat description is one of three dimensions with nothing in the third.
fn deep(flat: CUDA_ARRAY_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: flat.Width,
        Height: flat.Height,
        Format: flat.Format,
        NumChannels: flat.NumChannels,
        ..Default::default()
    }
}

/// # Safety
/// `described` is null or the caller's structure.
unsafe fn read<T: Copy>(described: *const T) -> Done<T> {
    // SAFETY: by contract.
    unsafe { described.as_ref() }
        .copied()
        .ok_or(CUresult::INVALID_VALUE)
}

fn make(array: *mut CUarray, described: &CUDA_ARRAY3D_DESCRIPTOR) -> Done {
    let (process, array) = (process()?, out(array)?);
    array.set(from_handle(process.create_array(described)?))
}

unsafe fn create_v1(array: *mut CUarray, described: *const CUDA_ARRAY_DESCRIPTOR_v1) -> Done {
    // SAFETY: the caller's structure.
    let old = unsafe { read(described) }?;
    let flat = CUDA_ARRAY_DESCRIPTOR {
        Width: old.Width as usize,
        Height: old.Height as usize,
        Format: old.Format,
        NumChannels: old.NumChannels,
    };
    make(array, &deep(flat))
}

unsafe fn create(array: *mut CUarray, described: *const CUDA_ARRAY_DESCRIPTOR) -> Done {
    // SAFETY: the caller's structure.
    make(array, &deep(unsafe { read(described) }?))
}

unsafe fn create_3d_v1(array: *mut CUarray, described: *const CUDA_ARRAY3D_DESCRIPTOR_v1) -> Done {
    // SAFETY: the caller's structure.
    let old = unsafe { read(described) }?;
    let described = CUDA_ARRAY3D_DESCRIPTOR {
        Width: old.Width as usize,
        Height: old.Height as usize,
        Depth: old.Depth as usize,
        Format: old.Format,
        NumChannels: old.NumChannels,
        Flags: old.Flags,
    };
    make(array, &described)
}

unsafe fn create_3d(array: *mut CUarray, described: *const CUDA_ARRAY3D_DESCRIPTOR) -> Done {
    // SAFETY: the caller's structure.
    make(array, &unsafe { read(described) }?)
}

fn described(array: CUarray) -> Done<CUDA_ARRAY3D_DESCRIPTOR> {
    let objects = process()?.objects();
    Ok(objects.arrays.array(to_handle(array))?.described)
}

fn descriptor_3d(place: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) -> Done {
    let described = described(array)?;
    out(place)?.set(described)
}

fn destroy(array: CUarray) -> Done {
    process()?.destroy_array(to_handle(array))
}

fn requirements(
    place: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: CUarray,
    device: CUdevice,
) -> Done {
    let (process, place) = (process()?, out(place)?);
    process.gpu(device)?;
    let needs = process.objects().arrays.requirements(to_handle(array))?;
    place.set(CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: needs.size as usize,
        alignment: needs.alignment as usize,
        ..Default::default()
    })
}

fn mipmap_requirements(
    place: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    mipmap: CUmipmappedArray,
    device: CUdevice,
) -> Done {
    let (process, place) = (process()?, out(place)?);
    process.gpu(device)?;
    let objects = process.objects();
    let needs = objects.arrays.mipmap_requirements(to_mipmap(mipmap))?;
    place.set(CUDA_ARRAY_MEMORY_REQUIREMENTS {
        size: needs.size as usize,
        alignment: needs.alignment as usize,
        ..Default::default()
    })
}

fn sparse_properties(place: *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUarray) -> Done {
    let (process, place) = (process()?, out(place)?);
    let objects = process.objects();
    place.set(objects.arrays.sparse_properties(to_handle(array))?)
}

fn sparse_properties_of_levels(
    place: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    mipmap: CUmipmappedArray,
) -> Done {
    let (process, place) = (process()?, out(place)?);
    let objects = process.objects();
    let mipmap = to_mipmap(mipmap);
    place.set(objects.arrays.sparse_properties_of_levels(mipmap)?)
}

fn plane(place: *mut CUarray, array: CUarray, index: u32) -> Done {
    let (process, place) = (process()?, out(place)?);
    let mut objects = process.objects();
    let plane = objects.arrays.plane(to_handle(array), index as usize)?;
    place.set(from_handle(plane))
}

unsafe fn create_mipmap(
    mipmap: *mut CUmipmappedArray,
    described: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> Done {
    let (process, mipmap) = (process()?, out(mipmap)?);
    // SAFETY: the caller's structure.
    let described = unsafe { read(described) }?;
    mipmap.set(from_mipmap(process.create_mipmap(&described, levels)?))
}

fn level(place: *mut CUarray, mipmap: CUmipmappedArray, level: u32) -> Done {
    let (process, place) = (process()?, out(place)?);
    let mut objects = process.objects();
    let level = objects.arrays.level(to_mipmap(mipmap), level)?;
    place.set(from_handle(level))
}

fn destroy_mipmap(mipmap: CUmipmappedArray) -> Done {
    process()?.destroy_mipmap(to_mipmap(mipmap))
}

unsafe fn bind(list: *mut CUarrayMapInfo, count: u32, stream: CUstream) -> Done {
    let process = process()?;
    let Destination::Issue(_, current) = process.destination(stream.addr())? else {
        return Err(CUresult::STREAM_CAPTURE_UNSUPPORTED);
    };
    if count > 0 {
        out(list)?;
    }
    for at in 0..count as usize {
        // SAFETY: the caller's list of so many operations.
        process.bind(current.gpu, unsafe { &*list.add(at) })?;
    }
    Ok(())
}
