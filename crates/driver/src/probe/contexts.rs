//! Probe of contexts: each takes some hundred megabytes without an allocation call.

use super::{Session, Taken};
use crate::Error;
use crate::load::Function;
use crate::sys::cuda::*;

/// `cuCtxCreate_v2`. What it took is what `cuMemGetInfo` says has gone; the size asked for means nothing.
pub fn create_v2(session: &Session, _bytes: u64) -> Result<Taken<'_>, Error> {
    // SAFETY: our own device; writes one handle.
    let create =
        |create: pfn::cuCtxCreate_v2, context| unsafe { create(context, 0, session.device) };
    made(session, &session.functions.cuCtxCreate_v2, create)
}

/// `cuCtxCreate`, the form of CUDA 3.1 and before.
pub fn create_v1(session: &Session, _bytes: u64) -> Result<Taken<'_>, Error> {
    // SAFETY: our own device; writes one handle.
    let create = |create: pfn::cuCtxCreate, context| unsafe { create(context, 0, session.device) };
    made(session, &session.functions.cuCtxCreate, create)
}

/// `cuCtxCreate_v3`
pub fn create_v3(session: &Session, _bytes: u64) -> Result<Taken<'_>, Error> {
    // SAFETY: our own device, no parameters; writes one handle.
    let create = |create: pfn::cuCtxCreate_v3, context| unsafe {
        create(context, std::ptr::null_mut(), 0, 0, session.device)
    };
    made(session, &session.functions.cuCtxCreate_v3, create)
}

/// `cuCtxCreate_v4`
pub fn create_v4(session: &Session, _bytes: u64) -> Result<Taken<'_>, Error> {
    // SAFETY: our own device, no parameters; writes one handle.
    let create = |create: pfn::cuCtxCreate_v4, context| unsafe {
        create(context, std::ptr::null_mut(), 0, session.device)
    };
    made(session, &session.functions.cuCtxCreate_v4, create)
}

fn made<'s, F: Copy>(
    session: &'s Session,
    function: &Function<F>,
    create: impl FnOnce(F, *mut CUcontext) -> CUresult,
) -> Result<Taken<'s>, Error> {
    let before = session.info()?.free;
    let mut context = std::ptr::null_mut();
    session.call(function, |function| create(function, &raw mut context))?;
    let mut popped = std::ptr::null_mut();
    // SAFETY: writes one handle. The new context was made current on top of ours.
    session.call(&session.functions.cuCtxPopCurrent_v2, |pop| unsafe {
        pop(&raw mut popped)
    })?;
    let cost = before.saturating_sub(session.info()?.free);
    Ok(session.taken(cost, move |session| {
        // SAFETY: made above, destroyed once.
        session.call(&session.functions.cuCtxDestroy_v2, |destroy| unsafe {
            destroy(context)
        })
    }))
}
