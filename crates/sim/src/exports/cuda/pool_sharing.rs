//! Sharing of memory pools and their allocations with other processes.

use super::out;
use super::pool::{from_handle, to_handle};
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CUdeviceptr, CUmemAllocationHandleType, CUmemPoolPtrExportData, CUmemoryPool, CUresult,
};
use std::ffi::c_void;

exports! { cuda {
    cuMemPoolExportToShareableHandle: (handle, pool, kind, flags) => export;
    cuMemPoolImportFromShareableHandle: (pool, handle, kind, flags) => import;
    cuMemPoolExportPointer: (data, address) => export_pointer;
    cuMemPoolImportPointer: (address, pool, data) => import_pointer;
} }

fn check_kind(kind: CUmemAllocationHandleType, flags: u64) -> Done {
    if kind != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(())
}

fn export(
    handle: *mut c_void,
    pool: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Done {
    let (process, handle) = (process()?, out(handle.cast::<i32>())?);
    check_kind(kind, flags)?;
    handle.set(process.export_pool(to_handle(pool))?)
}

/// A POSIX descriptor is passed as the value of the pointer.
fn import(
    pool: *mut CUmemoryPool,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Done {
    let (process, pool) = (process()?, out(pool)?);
    check_kind(kind, flags)?;
    let descriptor = i32::try_from(handle.addr()).map_err(|_| CUresult::INVALID_VALUE)?;
    pool.set(from_handle(process.import_pool(descriptor)?))
}

fn export_pointer(data: *mut CUmemPoolPtrExportData, address: CUdeviceptr) -> Done {
    let (process, data) = (process()?, out(data)?);
    data.set(process.export_pointer(address)?)
}

unsafe fn import_pointer(
    address: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> Done {
    let (process, address) = (process()?, out(address)?);
    // SAFETY: null or the caller's structure.
    let data = unsafe { data.as_ref() }.ok_or(CUresult::INVALID_VALUE)?;
    address.set(process.import_pointer(to_handle(pool), *data)?)
}
