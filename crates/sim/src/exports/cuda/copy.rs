//! Copies and memory sets.

use super::context::to_handle as context_handle;
use super::out;
use crate::engine::objects::result::Done;
use crate::engine::objects::transfer::Move;
use crate::engine::process::process;
use crate::engine::work::transfer::{When, row};
use divvy_driver::sys::cuda::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUDA_MEMCPY3D_PEER,
    CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr, CUmemcpy3DOperand, CUmemcpy3DOperand_array,
    CUmemcpy3DOperand_ptr, CUmemcpy3DOperandType, CUmemcpyAttributes, CUmemcpySrcAccessOrder,
    CUmemorytype, CUresult, CUstream,
};
use std::ffi::c_void;
use std::ptr::null_mut;

exports! { cuda {
    cuMemcpy, cuMemcpy_ptds: (to, from, size) => { copy_row((ANY, to), (ANY, from), size, When::Now) };
    cuMemcpyAsync, cuMemcpyAsync_ptsz: (to, from, size, stream) => { copy_row((ANY, to), (ANY, from), size, in_stream(stream)) };
    cuMemcpyPeer, cuMemcpyPeer_ptds: (to, to_context, from, from_context, size) => { copy_peer(to, to_context, from, from_context, size, When::Now) };
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz: (to, to_context, from, from_context, size, stream) => { copy_peer(to, to_context, from, from_context, size, in_stream(stream)) };
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds: (to, from, size) => { copy_row((DEVICE, to), host(from), size, When::Now) };
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds: (to, from, size) => { copy_row(host(to), (DEVICE, from), size, When::Now) };
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds: (to, from, size) => { copy_row((DEVICE, to), (DEVICE, from), size, When::Now) };
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz: (to, from, size, stream) => { copy_row((DEVICE, to), host(from), size, in_stream(stream)) };
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz: (to, from, size, stream) => { copy_row(host(to), (DEVICE, from), size, in_stream(stream)) };
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz: (to, from, size, stream) => { copy_row((DEVICE, to), (DEVICE, from), size, in_stream(stream)) };
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds: (copy) => { copy_rectangle(copy, When::Now) };
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz: (copy, stream) => { copy_rectangle(copy, in_stream(stream)) };
    cuMemcpy3D_v2, cuMemcpy3D_v2_ptds: (copy) => { copy_body(copy, When::Now) };
    cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz: (copy, stream) => { copy_body(copy, in_stream(stream)) };
    cuMemcpy3DPeer, cuMemcpy3DPeer_ptds: (copy) => { copy_peer_body(copy, When::Now) };
    cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz: (copy, stream) => { copy_peer_body(copy, in_stream(stream)) };
    cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz: (to, from, sizes, count, attributes, firsts, kinds, failed, stream) => { name_none(failed, batch(to, from, sizes, count, attributes, firsts, kinds, stream)) };
    cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz: (to, from, sizes, count, attributes, firsts, kinds, stream) => batch;
    cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz: (count, copies, failed, flags, stream) => { name_none(failed, bodies(count, copies, flags, stream)) };
    cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz: (count, copies, flags, stream) => bodies;
    cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz: (to, from, size, attributes, stream) => with_attributes;
    cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz: (copy, flags, stream) => { bodies(1, copy, flags, stream) };
    cuMemsetD8_v2, cuMemsetD8_v2_ptds, cuMemsetD16_v2, cuMemsetD16_v2_ptds, cuMemsetD32_v2, cuMemsetD32_v2_ptds: (to, value, count)
        => { set(to, 0, value, count, 1, null_mut()) };
    cuMemsetD8Async, cuMemsetD8Async_ptsz, cuMemsetD16Async, cuMemsetD16Async_ptsz, cuMemsetD32Async, cuMemsetD32Async_ptsz: (to, value, count, stream)
        => { set(to, 0, value, count, 1, stream) };
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds: (to, pitch, value, width, height)
        => { set(to, pitch, value, width, height, null_mut()) };
    cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz, cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz, cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz: (to, pitch, value, width, height, stream) => set;
} }

const DEVICE: CUmemorytype = CUmemorytype::DEVICE;
const HOST: CUmemorytype = CUmemorytype::HOST;
/// Found out from the address.
const ANY: CUmemorytype = CUmemorytype::UNIFIED;

fn in_stream(stream: CUstream) -> When {
    When::InStream(stream.addr())
}

fn carry_out(moves: &[Move], when: When) -> Done {
    // SAFETY: host memory is the caller's word.
    unsafe { process()?.transfer(moves, when) }
}

fn copy_row(to: (CUmemorytype, u64), from: (CUmemorytype, u64), size: usize, when: When) -> Done {
    carry_out(&[row(to, from, size)], when)
}

/// An address of the program's own memory.
fn host(at: *const c_void) -> (CUmemorytype, u64) {
    (HOST, at.addr() as u64)
}

/// Contexts that a copy names must be there; the memory itself is in reach of all of them.
fn check_contexts(contexts: [CUcontext; 2]) -> Done {
    let objects = process()?.objects();
    for context in contexts.into_iter().filter(|context| !context.is_null()) {
        objects.context(context_handle(context))?;
    }
    Ok(())
}

fn copy_peer(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    size: usize,
    when: When,
) -> Done {
    check_contexts([to_context, from_context])?;
    copy_row((DEVICE, to), (DEVICE, from), size, when)
}

/// # Safety
/// The place is NULL or holds a T.
unsafe fn given<T: Copy>(place: *const T) -> Done<T> {
    // SAFETY: by contract.
    unsafe { place.as_ref() }
        .copied()
        .ok_or(CUresult::INVALID_VALUE)
}

/// A rectangle is a box of one layer.
unsafe fn copy_rectangle(copy: *const CUDA_MEMCPY2D, when: When) -> Done {
    // SAFETY: the caller's structure.
    let flat = unsafe { given(copy) }?;
    let copy = CUDA_MEMCPY3D {
        srcXInBytes: flat.srcXInBytes,
        srcY: flat.srcY,
        srcMemoryType: flat.srcMemoryType,
        srcHost: flat.srcHost,
        srcDevice: flat.srcDevice,
        srcArray: flat.srcArray,
        srcPitch: flat.srcPitch,
        dstXInBytes: flat.dstXInBytes,
        dstY: flat.dstY,
        dstMemoryType: flat.dstMemoryType,
        dstHost: flat.dstHost,
        dstDevice: flat.dstDevice,
        dstArray: flat.dstArray,
        dstPitch: flat.dstPitch,
        WidthInBytes: flat.WidthInBytes,
        Height: flat.Height,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    };
    carry_out(&[Move::Copy(copy)], when)
}

unsafe fn copy_body(copy: *const CUDA_MEMCPY3D, when: When) -> Done {
    // SAFETY: the caller's structure.
    carry_out(&[Move::Copy(unsafe { given(copy) }?)], when)
}

unsafe fn copy_peer_body(copy: *const CUDA_MEMCPY3D_PEER, when: When) -> Done {
    // SAFETY: the caller's structure.
    let peer = unsafe { given(copy) }?;
    check_contexts([peer.dstContext, peer.srcContext])?;
    let copy = CUDA_MEMCPY3D {
        srcXInBytes: peer.srcXInBytes,
        srcY: peer.srcY,
        srcZ: peer.srcZ,
        srcLOD: peer.srcLOD,
        srcMemoryType: peer.srcMemoryType,
        srcHost: peer.srcHost,
        srcDevice: peer.srcDevice,
        srcArray: peer.srcArray,
        srcPitch: peer.srcPitch,
        srcHeight: peer.srcHeight,
        dstXInBytes: peer.dstXInBytes,
        dstY: peer.dstY,
        dstZ: peer.dstZ,
        dstLOD: peer.dstLOD,
        dstMemoryType: peer.dstMemoryType,
        dstHost: peer.dstHost,
        dstDevice: peer.dstDevice,
        dstArray: peer.dstArray,
        dstPitch: peer.dstPitch,
        dstHeight: peer.dstHeight,
        WidthInBytes: peer.WidthInBytes,
        Height: peer.Height,
        Depth: peer.Depth,
        ..CUDA_MEMCPY3D::default()
    };
    carry_out(&[Move::Copy(copy)], when)
}

/// Every copy of a batch must say when its source may be read; where the sources are and whether to overlap are hints.
fn check_order(order: CUmemcpySrcAccessOrder) -> Done {
    match order {
        CUmemcpySrcAccessOrder::STREAM
        | CUmemcpySrcAccessOrder::DURING_API_CALL
        | CUmemcpySrcAccessOrder::ANY => Ok(()),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// Batches go into a stream of the program's or of the thread's, not into the legacy one.
fn batch_stream(stream: CUstream) -> Done<When> {
    if process()?.is_legacy(stream.addr()) {
        Err(CUresult::INVALID_VALUE)
    } else {
        Ok(in_stream(stream))
    }
}

/// The forms of before CUDA 13 name the copy that is at fault: all ones for the call as a whole, as here.
fn name_none(failed: *mut usize, done: Done) -> Done {
    done.inspect_err(|_| super::set_if_wanted(failed, usize::MAX))
}

#[expect(clippy::too_many_arguments, reason = "the C signature")]
unsafe fn batch(
    to: *mut CUdeviceptr,
    from: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    firsts: *mut usize,
    kinds: usize,
    stream: CUstream,
) -> Done {
    let when = batch_stream(stream)?;
    if count == 0 || kinds == 0 || kinds > count {
        return Err(CUresult::INVALID_VALUE);
    }
    let _ = (
        out(to)?,
        out(from)?,
        out(sizes)?,
        out(attributes)?,
        out(firsts)?,
    );
    for kind in 0..kinds {
        // SAFETY: `kinds` entries in both lists.
        let (first, order) = unsafe { (*firsts.add(kind), (*attributes.add(kind)).srcAccessOrder) };
        // SAFETY: as above.
        let follows =
            kind == 0 && first == 0 || kind > 0 && first > unsafe { *firsts.add(kind - 1) };
        if !follows || first >= count {
            return Err(CUresult::INVALID_VALUE);
        }
        check_order(order)?;
    }
    let moves: Vec<Move> = (0..count)
        // SAFETY: `count` entries in each list.
        .map(|at| unsafe { row((ANY, *to.add(at)), (ANY, *from.add(at)), *sizes.add(at)) })
        .collect();
    carry_out(&moves, when)
}

unsafe fn bodies(
    count: usize,
    copies: *mut CUDA_MEMCPY3D_BATCH_OP,
    flags: u64,
    stream: CUstream,
) -> Done {
    let when = batch_stream(stream)?;
    if count == 0 || flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    out(copies)?;
    let moves = (0..count)
        // SAFETY: `count` entries.
        .map(|at| unsafe { body_of(&*copies.add(at)) })
        .collect::<Done<Vec<Move>>>()?;
    carry_out(&moves, when)
}

/// Sizes are in elements, which are bytes between pointers.
fn body_of(copy: &CUDA_MEMCPY3D_BATCH_OP) -> Done<Move> {
    let extent = copy.extent;
    check_order(copy.srcAccessOrder)?;
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let mut made = CUDA_MEMCPY3D {
        WidthInBytes: extent.width,
        Height: extent.height,
        Depth: extent.depth,
        ..CUDA_MEMCPY3D::default()
    };
    match operand(&copy.src)? {
        Operand::Pointer(at) => {
            (made.srcMemoryType, made.srcDevice) = (ANY, at.ptr);
            (made.srcPitch, made.srcHeight) = packed(at, extent.width, extent.height)?;
        }
        Operand::Array(at) => {
            (made.srcMemoryType, made.srcArray) = (CUmemorytype::ARRAY, at.array);
            (made.srcXInBytes, made.srcY, made.srcZ) = (at.offset.x, at.offset.y, at.offset.z);
        }
    }
    match operand(&copy.dst)? {
        Operand::Pointer(at) => {
            (made.dstMemoryType, made.dstDevice) = (ANY, at.ptr);
            (made.dstPitch, made.dstHeight) = packed(at, extent.width, extent.height)?;
        }
        Operand::Array(at) => {
            (made.dstMemoryType, made.dstArray) = (CUmemorytype::ARRAY, at.array);
            (made.dstXInBytes, made.dstY, made.dstZ) = (at.offset.x, at.offset.y, at.offset.z);
        }
    }
    Ok(Move::Copy(made))
}

enum Operand {
    Pointer(CUmemcpy3DOperand_ptr),
    Array(CUmemcpy3DOperand_array),
}

fn operand(of: &CUmemcpy3DOperand) -> Done<Operand> {
    let (pointer, array) = ((&raw const of.op).cast(), (&raw const of.op).cast());
    match of.type_ {
        // SAFETY: the union holds the member its type names, which fits it.
        CUmemcpy3DOperandType::POINTER => Ok(Operand::Pointer(unsafe { *pointer })),
        // SAFETY: as above.
        CUmemcpy3DOperandType::ARRAY => Ok(Operand::Array(unsafe { *array })),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// Bytes in a row and rows in a layer; 0 is as many as the copy has.
fn packed(at: CUmemcpy3DOperand_ptr, width: usize, height: usize) -> Done<(usize, usize)> {
    let row = if at.rowLength == 0 {
        width
    } else {
        at.rowLength
    };
    let layer = if at.layerHeight == 0 {
        height
    } else {
        at.layerHeight
    };
    if row < width || layer < height {
        Err(CUresult::INVALID_VALUE)
    } else {
        Ok((row, layer))
    }
}

unsafe fn with_attributes(
    to: CUdeviceptr,
    from: CUdeviceptr,
    size: usize,
    attributes: *mut CUmemcpyAttributes,
    stream: CUstream,
) -> Done {
    let when = batch_stream(stream)?;
    // SAFETY: the caller's structure.
    check_order(unsafe { given(attributes) }?.srcAccessOrder)?;
    copy_row((ANY, to), (ANY, from), size, when)
}

/// Values of the three sizes that memory can be set in.
trait Element: Copy + Into<u32> {}

impl Element for u8 {}
impl Element for u16 {}
impl Element for u32 {}

/// Widths are in elements. Sets in the default stream do not wait either, as CUDA documents for device memory.
fn set<T: Element>(
    to: CUdeviceptr,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Done {
    let fill = CUDA_MEMSET_NODE_PARAMS {
        dst: to,
        pitch,
        value: value.into(),
        elementSize: size_of::<T>() as u32,
        width,
        height,
    };
    carry_out(&[Move::Fill(fill)], in_stream(stream))
}
