//! Interprocess handles of memory.

use super::out;
use crate::engine::process::{Done, process};
use divvy_driver::sys::cuda::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle, CUresult};

exports! { cuda {
    cuIpcGetMemHandle: (handle, address) => export;
    cuIpcOpenMemHandle: (address, handle, flags) => open;
    cuIpcOpenMemHandle_v2: (address, handle, flags) => open;
    cuIpcCloseMemHandle: (address) => close;
} }

fn export(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> Done {
    let (process, handle) = (process()?, out(handle)?);
    handle.set(process.export_allocation(address)?)
}

fn open(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32) -> Done {
    let (process, address) = (process()?, out(address)?);
    if flags != CUipcMem_flags::LAZY_ENABLE_PEER_ACCESS.0 {
        return Err(CUresult::INVALID_VALUE);
    }
    address.set(process.open_memory(handle)?)
}

fn close(address: CUdeviceptr) -> Done {
    process()?.close_memory(address)
}
