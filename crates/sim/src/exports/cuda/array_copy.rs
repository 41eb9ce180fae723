//! Copies that name an array and an offset in its first row. Those of rectangles are with the other copies.

use crate::engine::objects::Done;
use crate::engine::objects::transfer::Move;
use crate::engine::process::process;
use crate::engine::work::transfer::When;
use divvy_driver::sys::cuda::{CUDA_MEMCPY3D, CUarray, CUdeviceptr, CUmemorytype, CUstream};
use std::ffi::c_void;

exports! { cuda {
    cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds: (to, offset, from, size) => device_to_array;
    cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds: (to, from, offset, size) => array_to_device;
    cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds: (to, offset, from, size) => host_to_array;
    cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds: (to, from, offset, size) => array_to_host;
    cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds: (to, to_offset, from, from_offset, size) => array_to_array;
    cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz: (to, offset, from, size, stream) => host_to_array_in;
    cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz: (to, from, offset, size, stream) => array_to_host_in;
} }

fn copy(when: When, size: usize, ends: CUDA_MEMCPY3D) -> Done {
    let row = CUDA_MEMCPY3D {
        WidthInBytes: size,
        Height: 1,
        Depth: 1,
        ..ends
    };
    // SAFETY: the caller's arguments.
    unsafe { process()?.transfer(&[Move::Copy(row)], when) }
}

fn from_array(from: CUarray, offset: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::ARRAY,
        srcArray: from,
        srcXInBytes: offset,
        ..Default::default()
    }
}

fn to_array(to: CUarray, offset: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        dstMemoryType: CUmemorytype::ARRAY,
        dstArray: to,
        dstXInBytes: offset,
        ..Default::default()
    }
}

fn device_to_array(to: CUarray, offset: usize, from: CUdeviceptr, size: usize) -> Done {
    let ends = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::DEVICE,
        srcDevice: from,
        ..to_array(to, offset)
    };
    copy(When::Now, size, ends)
}

fn array_to_device(to: CUdeviceptr, from: CUarray, offset: usize, size: usize) -> Done {
    let ends = CUDA_MEMCPY3D {
        dstMemoryType: CUmemorytype::DEVICE,
        dstDevice: to,
        ..from_array(from, offset)
    };
    copy(When::Now, size, ends)
}

fn in_from_host(when: When, to: CUarray, offset: usize, from: *const c_void, size: usize) -> Done {
    let ends = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::HOST,
        srcHost: from,
        ..to_array(to, offset)
    };
    copy(when, size, ends)
}

fn out_to_host(when: When, to: *mut c_void, from: CUarray, offset: usize, size: usize) -> Done {
    let ends = CUDA_MEMCPY3D {
        dstMemoryType: CUmemorytype::HOST,
        dstHost: to,
        ..from_array(from, offset)
    };
    copy(when, size, ends)
}

fn host_to_array(to: CUarray, offset: usize, from: *const c_void, size: usize) -> Done {
    in_from_host(When::Now, to, offset, from, size)
}

fn array_to_host(to: *mut c_void, from: CUarray, offset: usize, size: usize) -> Done {
    out_to_host(When::Now, to, from, offset, size)
}

fn array_to_array(to: CUarray, into: usize, from: CUarray, offset: usize, size: usize) -> Done {
    let ends = CUDA_MEMCPY3D {
        dstMemoryType: CUmemorytype::ARRAY,
        dstArray: to,
        dstXInBytes: into,
        ..from_array(from, offset)
    };
    copy(When::Now, size, ends)
}

fn host_to_array_in(
    to: CUarray,
    offset: usize,
    from: *const c_void,
    size: usize,
    stream: CUstream,
) -> Done {
    in_from_host(When::InStream(stream.addr()), to, offset, from, size)
}

fn array_to_host_in(
    to: *mut c_void,
    from: CUarray,
    offset: usize,
    size: usize,
    stream: CUstream,
) -> Done {
    out_to_host(When::InStream(stream.addr()), to, from, offset, size)
}
