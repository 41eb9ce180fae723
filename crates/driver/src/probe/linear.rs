//! Probe of linear memory: one call, one address.

use std::ffi::c_uint;

use super::{Session, Taken};
use crate::Error;
use crate::sys::cuda::*;

/// Bytes in a row of pitched memory.
const ROW: usize = 1 << 20;

/// `cuMemAlloc_v2`
pub fn alloc(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let mut address = 0;
    // SAFETY: writes one address.
    session.call(&session.functions.cuMemAlloc_v2, |take| unsafe {
        take(&raw mut address, bytes as usize)
    })?;
    Ok(linear(session, bytes, address))
}

/// `cuMemAlloc`, the 32-bit form of CUDA 3.1 and before.
pub fn alloc_v1(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let mut address = 0;
    let bytes = c_uint::try_from(bytes).unwrap_or(c_uint::MAX);
    // SAFETY: writes one address.
    session.call(&session.functions.cuMemAlloc, |take| unsafe {
        take(&raw mut address, bytes)
    })?;
    Ok(session.taken(bytes.into(), move |session| {
        // SAFETY: allocated above, freed once.
        session.call(&session.functions.cuMemFree, |free| unsafe {
            free(address)
        })
    }))
}

/// `cuMemAllocPitch_v2`
pub fn alloc_pitch(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    const ELEMENT: c_uint = 16;
    let (mut address, mut pitch) = (0, 0);
    let height = bytes as usize / ROW;
    // SAFETY: writes an address and a number.
    session.call(&session.functions.cuMemAllocPitch_v2, |take| unsafe {
        take(&raw mut address, &raw mut pitch, ROW, height, ELEMENT)
    })?;
    Ok(linear(session, pitch as u64 * height as u64, address))
}

/// `cuMemAllocPitch`, the 32-bit form of CUDA 3.1 and before.
pub fn alloc_pitch_v1(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    const ELEMENT: c_uint = 16;
    let (mut address, mut pitch) = (0, 0);
    let height = c_uint::try_from(bytes / ROW as u64).unwrap_or(c_uint::MAX);
    // SAFETY: writes an address and a number.
    session.call(&session.functions.cuMemAllocPitch, |take| unsafe {
        take(
            &raw mut address,
            &raw mut pitch,
            ROW as c_uint,
            height,
            ELEMENT,
        )
    })?;
    let bytes = u64::from(pitch) * u64::from(height);
    Ok(linear_v1(session, bytes, address))
}

/// `cuMemAllocManaged`
pub fn alloc_managed(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let mut address = 0;
    // SAFETY: writes one address.
    session.call(&session.functions.cuMemAllocManaged, |take| unsafe {
        take(
            &raw mut address,
            bytes as usize,
            CUmemAttach_flags::GLOBAL.0,
        )
    })?;
    Ok(linear(session, bytes, address))
}

/// `cuMemHostAlloc`: pinned memory of the host, which the GPU can use.
pub fn alloc_pinned(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let mut address = std::ptr::null_mut();
    let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: writes one address.
    session.call(&session.functions.cuMemHostAlloc, |take| unsafe {
        take(&raw mut address, bytes as usize, flags)
    })?;
    Ok(session.taken(bytes, move |session| {
        // SAFETY: allocated above, freed once.
        session.call(&session.functions.cuMemFreeHost, |free| unsafe {
            free(address)
        })
    }))
}

fn linear(session: &Session, bytes: u64, address: CUdeviceptr) -> Taken<'_> {
    let mut taken = session.taken(bytes, move |session| {
        // SAFETY: allocated by our caller, freed once.
        session.call(&session.functions.cuMemFree_v2, |free| unsafe {
            free(address)
        })
    });
    taken.address = Some(address);
    taken
}

fn linear_v1(session: &Session, bytes: u64, address: CUdeviceptr_v1) -> Taken<'_> {
    session.taken(bytes, move |session| {
        // SAFETY: allocated by our caller, freed once.
        session.call(&session.functions.cuMemFree, |free| unsafe {
            free(address)
        })
    })
}
