//! External memory, of other interfaces. Their semaphores are not simulated.

use super::array::from_mipmap;
use super::out;
use crate::engine::objects::external::External;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_DEDICATED,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC, CUdeviceptr,
    CUexternalMemory, CUexternalMemoryHandleType, CUmipmappedArray, CUresult,
};
use std::ptr::without_provenance_mut;

exports! { cuda {
    cuImportExternalMemory: (memory, described) => import;
    cuExternalMemoryGetMappedBuffer: (address, memory, described) => map_buffer;
    cuExternalMemoryGetMappedMipmappedArray: (mipmap, memory, described) => map_mipmap;
    cuDestroyExternalMemory: (memory) => destroy;
} }

fn to_handle(memory: CUexternalMemory) -> Handle<External> {
    Handle::from_value(memory.addr())
}

/// Of the kinds of handles Linux has two, both descriptors.
unsafe fn import(
    memory: *mut CUexternalMemory,
    described: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> Done {
    let (process, memory) = (process()?, out(memory)?);
    // SAFETY: null or the caller's structure.
    let described = unsafe { described.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    match described.type_ {
        CUexternalMemoryHandleType::OPAQUE_FD | CUexternalMemoryHandleType::DMABUF_FD => {}
        CUexternalMemoryHandleType(1..=9) => return Err(CUresult::NOT_SUPPORTED),
        _ => return Err(CUresult::INVALID_VALUE),
    }
    if described.flags & !CUDA_EXTERNAL_MEMORY_DEDICATED != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let descriptor = described.handle[0] as i32;
    let imported = process.import_external(descriptor, described.size)?;
    memory.set(without_provenance_mut(imported.value()))
}

unsafe fn map_buffer(
    address: *mut CUdeviceptr,
    memory: CUexternalMemory,
    described: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
) -> Done {
    let (process, address) = (process()?, out(address)?);
    // SAFETY: null or the caller's structure.
    let described = unsafe { described.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    if described.flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let memory = to_handle(memory);
    address.set(process.map_external(memory, described.offset, described.size)?)
}

unsafe fn map_mipmap(
    mipmap: *mut CUmipmappedArray,
    memory: CUexternalMemory,
    described: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC,
) -> Done {
    let (process, mipmap) = (process()?, out(mipmap)?);
    // SAFETY: null or the caller's structure.
    let described = unsafe { described.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    let (offset, levels) = (described.offset, described.numLevels);
    let memory = to_handle(memory);
    let placed = process.map_external_mipmap(memory, offset, &described.arrayDesc, levels)?;
    mipmap.set(from_mipmap(placed))
}

fn destroy(memory: CUexternalMemory) -> Done {
    process()?.destroy_external(to_handle(memory))
}
