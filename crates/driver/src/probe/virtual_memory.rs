//! Probe of virtual memory management: physical memory held by a handle, and by a mapping alone.

use super::{Session, Taken};
use crate::Error;
use crate::sys::cuda::*;

impl Session {
    /// This GPU, as memory's place.
    pub(super) fn location(&self) -> CUmemLocation {
        CUmemLocation {
            type_: CUmemLocationType::DEVICE,
            id: self.device,
        }
    }
}

/// `cuMemCreate`
pub fn create(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let handle = physical(session, bytes)?;
    Ok(session.taken(bytes, move |session| release(session, handle)))
}

/// `cuMemMap` of memory whose handle is released at once: the mapping alone keeps it.
pub fn map(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let f = &session.functions;
    let size = bytes as usize;
    let mut address = 0;
    // SAFETY: writes one address; any alignment and any place will do.
    session.call(&f.cuMemAddressReserve, |reserve| unsafe {
        reserve(&raw mut address, size, 0, 0, 0)
    })?;
    let reserved = session.taken(0, move |session| {
        // SAFETY: the range reserved above, which nothing is mapped in any more.
        session.call(&session.functions.cuMemAddressFree, |free| unsafe {
            free(address, size)
        })
    });
    let handle = physical(session, bytes)?;
    // SAFETY: the range and the memory made above.
    let mapped = session.call(&f.cuMemMap, |map| unsafe {
        map(address, size, 0, handle, 0)
    });
    release(session, handle)?;
    mapped?;
    Ok(session.taken(bytes, move |session| {
        // SAFETY: the range mapped above, whose memory no code uses.
        let unmapped = session.call(&session.functions.cuMemUnmap, |unmap| unsafe {
            unmap(address, size)
        });
        drop(reserved);
        unmapped
    }))
}

fn physical(session: &Session, bytes: u64) -> Result<CUmemGenericAllocationHandle, Error> {
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::PINNED,
        location: session.location(),
        ..Default::default()
    };
    create_by(session, bytes, &properties)
}

pub(super) fn create_by(
    session: &Session,
    bytes: u64,
    properties: &CUmemAllocationProp,
) -> Result<CUmemGenericAllocationHandle, Error> {
    let mut handle = 0;
    // SAFETY: reads the properties, writes one handle.
    session.call(&session.functions.cuMemCreate, |create| unsafe {
        create(&raw mut handle, bytes as usize, properties, 0)
    })?;
    Ok(handle)
}

pub(super) fn release(
    session: &Session,
    handle: CUmemGenericAllocationHandle,
) -> Result<(), Error> {
    // SAFETY: made by our caller, released once.
    session.call(&session.functions.cuMemRelease, |release| unsafe {
        release(handle)
    })
}
