//! Probe of arrays: memory laid out for textures, without an address. Only the driver knows how much they take; the
//! probe counts their elements, so never too much.

use super::{Session, Taken};
use crate::Error;
use crate::load::Function;
use crate::sys::cuda::*;

/// Bytes of an element: four floats. The largest element that an array of CUDA can have, so that the fewest calls reach
/// the limit.
const ELEMENT: u64 = 16;
const CHANNELS: u32 = 4;
/// Elements in a row: with these a row is 1 MiB, and arrays of 64 GiB are within every GPU's bounds (CUDA C++ Programming
/// Guide, technical specifications: two-dimensional arrays of 131072 by 65536).
const ROW: u64 = 1 << 16;
/// The most that one array can have.
pub const MOST: u64 = ROW * ELEMENT * (1 << 16);
/// Elements in a row and rows in a layer of a three-dimensional array, 2 MiB a layer: within the bound of 16384 each.
const LAYER: (u64, u64) = (512, 256);
pub const MOST_3D: u64 = LAYER.0 * LAYER.1 * ELEMENT * (1 << 14);
/// Elements in a row of a mipmapped array, and its levels: each has a quarter of the one before.
const MIPMAP_ROW: u64 = 1 << 15;
/// Two are the least that make a mipmapped array; more would add little to its size.
const LEVELS: u32 = 2;
pub const MOST_MIPMAPPED: u64 = MIPMAP_ROW * ELEMENT * (1 << 15);

/// `cuArrayCreate_v2`
pub fn create(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let descriptor = CUDA_ARRAY_DESCRIPTOR {
        Width: ROW as usize,
        Height: (bytes / ROW / ELEMENT) as usize,
        Format: CUarray_format::FLOAT,
        NumChannels: CHANNELS,
    };
    made(
        session,
        &session.functions.cuArrayCreate_v2,
        &descriptor,
        bytes,
    )
}

/// `cuArrayCreate`, the form of CUDA 3.1 and before.
pub fn create_v1(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let descriptor = CUDA_ARRAY_DESCRIPTOR_v1 {
        Width: ROW as u32,
        Height: (bytes / ROW / ELEMENT) as u32,
        Format: CUarray_format::FLOAT,
        NumChannels: CHANNELS,
    };
    made(
        session,
        &session.functions.cuArrayCreate,
        &descriptor,
        bytes,
    )
}

/// `cuArray3DCreate_v2`
pub fn create_3d(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: LAYER.0 as usize,
        Height: LAYER.1 as usize,
        Depth: (bytes / (LAYER.0 * LAYER.1 * ELEMENT)) as usize,
        Format: CUarray_format::FLOAT,
        NumChannels: CHANNELS,
        Flags: 0,
    };
    made(
        session,
        &session.functions.cuArray3DCreate_v2,
        &descriptor,
        bytes,
    )
}

/// `cuArray3DCreate`, the form of CUDA 3.1 and before.
pub fn create_3d_v1(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR_v1 {
        Width: LAYER.0 as u32,
        Height: LAYER.1 as u32,
        Depth: (bytes / (LAYER.0 * LAYER.1 * ELEMENT)) as u32,
        Format: CUarray_format::FLOAT,
        NumChannels: CHANNELS,
        Flags: 0,
    };
    made(
        session,
        &session.functions.cuArray3DCreate,
        &descriptor,
        bytes,
    )
}

/// `cuMipmappedArrayCreate`
pub fn create_mipmapped(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: MIPMAP_ROW as usize,
        Height: (bytes / MIPMAP_ROW / ELEMENT) as usize,
        Depth: 0,
        Format: CUarray_format::FLOAT,
        NumChannels: CHANNELS,
        Flags: 0,
    };
    let mut array = std::ptr::null_mut();
    // SAFETY: reads the descriptor, writes one handle.
    session.call(&session.functions.cuMipmappedArrayCreate, |create| unsafe {
        create(&raw mut array, &raw const descriptor, LEVELS)
    })?;
    Ok(session.taken(bytes + bytes / 4, move |session| {
        // SAFETY: made above, destroyed once.
        session.call(
            &session.functions.cuMipmappedArrayDestroy,
            |destroy| unsafe { destroy(array) },
        )
    }))
}

/// The common form of the array creation functions.
type Create<D> = unsafe extern "C" fn(*mut CUarray, *const D) -> CUresult;

fn made<'s, D>(
    session: &'s Session,
    function: &Function<Create<D>>,
    descriptor: &D,
    bytes: u64,
) -> Result<Taken<'s>, Error> {
    let mut array = std::ptr::null_mut();
    // SAFETY: reads the descriptor, which is of the type in the function's signature; writes one handle.
    session.call(function, |create| unsafe {
        create(&raw mut array, descriptor)
    })?;
    Ok(session.taken(bytes, move |session| {
        // SAFETY: made above, destroyed once.
        session.call(&session.functions.cuArrayDestroy, |destroy| unsafe {
            destroy(array)
        })
    }))
}
