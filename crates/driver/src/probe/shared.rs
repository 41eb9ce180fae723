//! Memory that processes share by the handles of CUDA's legacy IPC.

use super::{Session, Taken, linear};
use crate::Error;
use crate::sys::cuda::*;

/// A handle, as it is sent to another process.
pub type IpcHandle = [u8; CU_IPC_HANDLE_SIZE];

/// Linear memory, and its handle.
///
/// # Errors
/// The driver's, also where the platform has no IPC.
pub fn alloc_for_ipc(session: &Session, bytes: u64) -> Result<(Taken<'_>, IpcHandle), Error> {
    let taken = linear::alloc(session, bytes)?;
    let address = taken.address().unwrap_or_default();
    let mut handle = CUipcMemHandle::default();
    // SAFETY: memory of ours; writes one handle.
    session.call(&session.functions.cuIpcGetMemHandle, |get| unsafe {
        get(&raw mut handle, address)
    })?;
    Ok((taken, handle.reserved.map(|byte| byte.to_ne_bytes()[0])))
}

/// Memory of another process. `bytes` is its size, which the driver does not ask for.
///
/// # Errors
/// The driver's.
pub fn open_ipc<'s>(
    session: &'s Session,
    handle: &IpcHandle,
    bytes: u64,
) -> Result<Taken<'s>, Error> {
    let handle = CUipcMemHandle {
        reserved: handle.map(|byte| std::ffi::c_char::from_ne_bytes([byte])),
    };
    let mut address = 0;
    let flags = CUipcMem_flags::LAZY_ENABLE_PEER_ACCESS.0;
    // SAFETY: writes one address.
    session.call(&session.functions.cuIpcOpenMemHandle_v2, |open| unsafe {
        open(&raw mut address, handle, flags)
    })?;
    Ok(session.taken(bytes, move |session| {
        // SAFETY: opened above, closed once.
        session.call(&session.functions.cuIpcCloseMemHandle, |close| unsafe {
            close(address)
        })
    }))
}
