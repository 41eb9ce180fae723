//! Copies that name an array and an offset in its first row. Those of rectangles are with the other copies.

use crate::engine::objects::result::Done;
use crate::engine::objects::transfer::Move;
use crate::engine::process::process;
use crate::engine::work::transfer::When;
use divvy_driver::sys::cuda::{CUDA_MEMCPY3D, CUarray, CUdeviceptr, CUmemorytype, CUstream};
use std::ffi::c_void;

exports! { cuda {
    cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds: (to, offset, from, size) => { copy(End::Array(to, offset), End::Device(from), size, When::Now) };
    cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds: (to, from, offset, size) => { copy(End::Device(to), End::Array(from, offset), size, When::Now) };
    cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds: (to, offset, from, size) => { copy(End::Array(to, offset), End::Host(from), size, When::Now) };
    cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds: (to, from, offset, size) => { copy(End::Host(to), End::Array(from, offset), size, When::Now) };
    cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds: (to, to_offset, from, from_offset, size)
        => { copy(End::Array(to, to_offset), End::Array(from, from_offset), size, When::Now) };
    cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz: (to, offset, from, size, stream)
        => { copy(End::Array(to, offset), End::Host(from), size, in_stream(stream)) };
    cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz: (to, from, offset, size, stream)
        => { copy(End::Host(to), End::Array(from, offset), size, in_stream(stream)) };
} }

fn in_stream(stream: CUstream) -> When {
    When::InStream(stream.addr())
}

/// Where a copy begins or ends.
enum End {
    /// An array and bytes in its first row.
    Array(CUarray, usize),
    Device(CUdeviceptr),
    Host(*const c_void),
}

fn copy(to: End, from: End, size: usize, when: When) -> Done {
    let mut row = CUDA_MEMCPY3D {
        WidthInBytes: size,
        Height: 1,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    };
    row.srcMemoryType = match from {
        End::Array(array, offset) => {
            (row.srcArray, row.srcXInBytes) = (array, offset);
            CUmemorytype::ARRAY
        }
        End::Device(at) => {
            row.srcDevice = at;
            CUmemorytype::DEVICE
        }
        End::Host(at) => {
            row.srcHost = at;
            CUmemorytype::HOST
        }
    };
    row.dstMemoryType = match to {
        End::Array(array, offset) => {
            (row.dstArray, row.dstXInBytes) = (array, offset);
            CUmemorytype::ARRAY
        }
        End::Device(at) => {
            row.dstDevice = at;
            CUmemorytype::DEVICE
        }
        End::Host(at) => {
            row.dstHost = at.cast_mut();
            CUmemorytype::HOST
        }
    };
    // SAFETY: the caller's arguments.
    unsafe { process()?.transfer(&[Move::Copy(row)], when) }
}
