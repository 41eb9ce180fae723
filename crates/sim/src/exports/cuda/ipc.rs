//! IPC handles of memory and events.

use super::out;
use super::stream::event_handle;
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CUdeviceptr, CUevent, CUipcEventHandle, CUipcMem_flags, CUipcMemHandle, CUresult,
};
use std::ptr::without_provenance_mut;

exports! { cuda {
    cuIpcGetMemHandle: (handle, address) => export;
    cuIpcOpenMemHandle: (address, handle, flags) => open;
    cuIpcOpenMemHandle_v2: (address, handle, flags) => open;
    cuIpcCloseMemHandle: (address) => close;
    cuIpcGetEventHandle: (handle, event) => export_event;
    cuIpcOpenEventHandle: (event, handle) => open_event;
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

fn export_event(handle: *mut CUipcEventHandle, event: CUevent) -> Done {
    let (process, handle) = (process()?, out(handle)?);
    handle.set(process.export_event(event_handle(event))?)
}

fn open_event(event: *mut CUevent, handle: CUipcEventHandle) -> Done {
    let (process, event) = (process()?, out(event)?);
    event.set(without_provenance_mut(process.open_event(handle)?.value()))
}
