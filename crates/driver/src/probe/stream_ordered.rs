//! Probe of stream-ordered memory, from the device's default pool and from a pool of the probe.

use super::{Session, Taken};
use crate::Error;
use crate::load::Function;
use crate::sys::cuda::*;

/// The stream that NULL means.
const STREAM: CUstream = std::ptr::null_mut();

/// `cuMemAllocAsync`
pub fn alloc(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    alloc_by(session, &session.functions.cuMemAllocAsync, bytes)
}

/// `cuMemAllocAsync_ptsz`
pub fn alloc_ptsz(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    alloc_by(session, &session.functions.cuMemAllocAsync_ptsz, bytes)
}

/// `cuMemAllocFromPoolAsync`
pub fn alloc_from_pool(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    alloc_from(session, &session.functions.cuMemAllocFromPoolAsync, bytes)
}

/// `cuMemAllocFromPoolAsync_ptsz`
pub fn alloc_from_pool_ptsz(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let function = &session.functions.cuMemAllocFromPoolAsync_ptsz;
    alloc_from(session, function, bytes)
}

fn alloc_by<'s>(
    session: &'s Session,
    function: &Function<pfn::cuMemAllocAsync>,
    bytes: u64,
) -> Result<Taken<'s>, Error> {
    let mut address = 0;
    // SAFETY: writes one address; the null stream always exists.
    session.call(function, |take| unsafe {
        take(&raw mut address, bytes as usize, STREAM)
    })?;
    Ok(session.taken(bytes, move |session| free(session, address)))
}

fn alloc_from<'s>(
    session: &'s Session,
    function: &Function<pfn::cuMemAllocFromPoolAsync>,
    bytes: u64,
) -> Result<Taken<'s>, Error> {
    let pool = new_pool(session)?;
    let made = session.taken(0, move |session| {
        // SAFETY: made above, destroyed once.
        session.call(&session.functions.cuMemPoolDestroy, |destroy| unsafe {
            destroy(pool)
        })
    });
    let mut address = 0;
    // SAFETY: writes one address; our own pool, and the null stream.
    session.call(function, |take| unsafe {
        take(&raw mut address, bytes as usize, pool, STREAM)
    })?;
    Ok(session.taken(bytes, move |session| {
        let freed = free(session, address);
        drop(made);
        freed
    }))
}

/// A pool on this GPU that cannot be shared.
pub(super) fn new_pool(session: &Session) -> Result<CUmemoryPool, Error> {
    let mut pool = std::ptr::null_mut();
    let properties = CUmemPoolProps {
        allocType: CUmemAllocationType::PINNED,
        handleTypes: CUmemAllocationHandleType::NONE,
        location: session.location(),
        ..Default::default()
    };
    // SAFETY: reads the properties, writes one handle.
    session.call(&session.functions.cuMemPoolCreate, |make| unsafe {
        make(&raw mut pool, &raw const properties)
    })?;
    Ok(pool)
}

/// Memory of a pool that the caller keeps.
pub(super) fn alloc_of(
    session: &Session,
    pool: CUmemoryPool,
    bytes: u64,
) -> Result<Taken<'_>, Error> {
    let mut address = 0;
    let take = &session.functions.cuMemAllocFromPoolAsync;
    // SAFETY: writes one address; the caller's pool, and the null stream.
    session.call(take, |take| unsafe {
        take(&raw mut address, bytes as usize, pool, STREAM)
    })?;
    session.synchronise();
    Ok(session.taken(bytes, move |session| free(session, address)))
}

/// A pool gives memory back to the device at the next synchronisation.
fn free(session: &Session, address: CUdeviceptr) -> Result<(), Error> {
    // SAFETY: allocated by our caller, freed once.
    session.call(&session.functions.cuMemFreeAsync, |free| unsafe {
        free(address, STREAM)
    })?;
    session.synchronise();
    Ok(())
}
