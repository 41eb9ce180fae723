//! Probe of context limits: a raised limit takes memory without an allocation call.

use super::{Session, Taken};
use crate::Error;
use crate::sys::cuda::*;

/// `cuCtxSetLimit` of the heap that kernels allocate from.
pub fn heap(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    raised(session, CUlimit::MALLOC_HEAP_SIZE, bytes, bytes)
}

/// `cuCtxSetLimit` of the stack, of which every thread that the GPU can run at once has one.
pub fn stack(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let attribute = |attribute| session.attribute(attribute);
    let threads = attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT)?
        * attribute(CUdevice_attribute::MAX_THREADS_PER_MULTIPROCESSOR)?;
    let each = bytes.div_ceil(threads.max(1));
    raised(session, CUlimit::STACK_SIZE, each, bytes)
}

/// Raises a limit by `by`, for which the driver takes `bytes`; lowers it again when dropped.
fn raised(session: &Session, limit: CUlimit, by: u64, bytes: u64) -> Result<Taken<'_>, Error> {
    let mut before = 0;
    // SAFETY: writes one number.
    session.call(&session.functions.cuCtxGetLimit, |get| unsafe {
        get(&raw mut before, limit)
    })?;
    let set = move |value: usize| {
        // SAFETY: takes no pointer.
        session.call(&session.functions.cuCtxSetLimit, |set| unsafe {
            set(limit, value)
        })
    };
    set(before.saturating_add(by as usize))?;
    Ok(session.taken(bytes, move |_| set(before)))
}
