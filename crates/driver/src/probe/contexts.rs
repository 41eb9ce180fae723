//! Contexts: nothing is asked for, and each costs some hundred megabytes.

use super::{Session, Taken};
use crate::Error;

/// `cuCtxCreate_v2`. What it took is what `cuMemGetInfo` says has gone; the size asked for means nothing.
pub fn create(session: &Session, _bytes: u64) -> Result<Taken<'_>, Error> {
    let before = session.info()?.free;
    let mut context = std::ptr::null_mut();
    // SAFETY: our own device; writes one handle.
    session.call(&session.functions.cuCtxCreate_v2, |create| unsafe {
        create(&raw mut context, 0, session.device)
    })?;
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
