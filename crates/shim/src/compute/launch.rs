//! The hooks of asynchronous work: kernel launches, copies and fills that do not wait for the GPU.

use std::ffi::{c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use divvy_driver::sys::cuda::*;

use crate::charge::stream::{Flavour, LEGACY, PER_THREAD};
use crate::compute::{Work, pass};
use crate::route::hook::Real;

/// Handlers that let their call through the gate: for the legacy flavour and, where a second name is given, for the
/// per-thread one. `stream` and `work` are made from the arguments.
macro_rules! handlers {
    ($($legacy:ident $(and $per_thread:ident)? with $arguments:tt into $stream:expr, $work:expr;)*) => {$(
        handlers!(@one $legacy, LEGACY, $arguments, $stream, $work);
        $(handlers!(@one $per_thread, PER_THREAD, $arguments, $stream, $work);)?
    )*};
    (@one $name:ident, $flavour:ident, ($($argument:ident: $type:ty),* $(,)?), $stream:expr, $work:expr) => {
        #[allow(clippy::too_many_arguments, unused_variables)]
        #[inline]
        pub fn $name<F>(real: Real<'_, F>, $($argument: $type),*) -> CUresult {
            let flavour: &Flavour = &$flavour;
            pass($stream, flavour, || $work, || real.call())
        }
    };
}

const NULL: CUstream = std::ptr::null_mut();

handlers! {
    kernel and kernel_ptsz with (
        f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) into stream, Work::kernel(f as usize, [gx, gy, gz]);
    cooperative and cooperative_ptsz with (
        f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: CUstream, params: *mut *mut c_void,
    ) into stream, Work::kernel(f as usize, [gx, gy, gz]);
    kernel_ex and kernel_ex_ptsz with (
        config: *const CUlaunchConfig, f: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) into stream_of_config(config), Work::kernel(f as usize, blocks_of_config(config));
    several_devices with (list: *mut CUDA_LAUNCH_PARAMS, count: c_uint, flags: c_uint)
        into stream_of_first(list, count), Work::kernel(list as usize, [count, 0, 0]);
    plain with (f: CUfunction) into NULL, Work::kernel(f as usize, [1, 1, 1]);
    grid with (f: CUfunction, width: c_int, height: c_int) into NULL, Work::kernel(f as usize, [width as u32, height as u32, 1]);
    grid_async with (f: CUfunction, width: c_int, height: c_int, stream: CUstream)
        into stream, Work::kernel(f as usize, [width as u32, height as u32, 1]);

    copy and copy_ptsz with (to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) into stream, Work::copy(bytes);
    copy_in and copy_in_ptsz with (to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) into stream, Work::copy(bytes);
    copy_out and copy_out_ptsz with (to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) into stream, Work::copy(bytes);
    copy_peer and copy_peer_ptsz with (
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream,
    ) into stream, Work::copy(bytes);
    copy_2d and copy_2d_ptsz with (copy: *const CUDA_MEMCPY2D, stream: CUstream) into stream, Work::copy(bytes_2d(copy));
    copy_3d and copy_3d_ptsz with (copy: *const CUDA_MEMCPY3D, stream: CUstream) into stream, Work::copy(bytes_3d(copy));
    copy_3d_peer and copy_3d_peer_ptsz with (copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream) into stream, Work::copy(bytes_3d_peer(copy));

    copies and copies_ptsz with (
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes,
        indices: *mut usize, attribute_count: usize, failed: *mut usize, stream: CUstream,
    ) into stream, Work::copy(sum(sizes, count));
    copies_v2 and copies_v2_ptsz with (
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes,
        indices: *mut usize, attribute_count: usize, stream: CUstream,
    ) into stream, Work::copy(sum(sizes, count));
    copies_3d and copies_3d_ptsz with (
        count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, failed: *mut usize, flags: c_ulonglong, stream: CUstream,
    ) into stream, Work::several(count);
    copies_3d_v2 and copies_3d_v2_ptsz with (count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream)
        into stream, Work::several(count);
    copy_with and copy_with_ptsz with (
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *mut CUmemcpyAttributes, stream: CUstream,
    ) into stream, Work::copy(bytes);
    copy_3d_with and copy_3d_with_ptsz with (copy: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream)
        into stream, Work::several(1);
    array_in and array_in_ptsz with (to: CUarray, offset: usize, from: *const c_void, bytes: usize, stream: CUstream)
        into stream, Work::copy(bytes);
    array_out and array_out_ptsz with (to: *mut c_void, from: CUarray, offset: usize, bytes: usize, stream: CUstream)
        into stream, Work::copy(bytes);
    prefetch and prefetch_ptsz with (from: CUdeviceptr, bytes: usize, to: CUmemLocation, flags: c_uint, stream: CUstream)
        into stream, Work::copy(bytes);
    prefetch_v1 and prefetch_v1_ptsz with (from: CUdeviceptr, bytes: usize, to: CUdevice, stream: CUstream)
        into stream, Work::copy(bytes);
    prefetches and prefetches_ptsz with (
        from: *mut CUdeviceptr, sizes: *mut usize, count: usize, to: *mut CUmemLocation, indices: *mut usize, places: usize,
        flags: c_ulonglong, stream: CUstream,
    ) into stream, Work::copy(sum(sizes, count));

    fill_2d_8 and fill_2d_8_ptsz with (
        to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream,
    ) into stream, Work::copy(width.saturating_mul(height));
    fill_2d_16 and fill_2d_16_ptsz with (
        to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream,
    ) into stream, Work::copy(width.saturating_mul(height).saturating_mul(2));
    fill_2d_32 and fill_2d_32_ptsz with (
        to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream,
    ) into stream, Work::copy(width.saturating_mul(height).saturating_mul(4));
    fill_8 and fill_8_ptsz with (to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) into stream, Work::copy(count);
    fill_16 and fill_16_ptsz with (to: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream)
        into stream, Work::copy(count.saturating_mul(2));
    fill_32 and fill_32_ptsz with (to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream)
        into stream, Work::copy(count.saturating_mul(4));
}

fn stream_of_config(config: *const CUlaunchConfig) -> CUstream {
    // SAFETY: null, or the program's structure, which the driver would read too.
    unsafe { config.as_ref() }.map_or(NULL, |config| config.hStream)
}

fn blocks_of_config(config: *const CUlaunchConfig) -> [u32; 3] {
    // SAFETY: as above.
    unsafe { config.as_ref() }.map_or([0; 3], |config| {
        [config.gridDimX, config.gridDimY, config.gridDimZ]
    })
}

/// All devices' kernels go when the first may.
fn stream_of_first(list: *const CUDA_LAUNCH_PARAMS, count: c_uint) -> CUstream {
    // SAFETY: null, or the program's array of so many.
    unsafe { list.as_ref() }
        .filter(|_| count > 0)
        .map_or(NULL, |first| first.hStream)
}

fn sum(sizes: *const usize, count: usize) -> usize {
    if sizes.is_null() {
        return 0;
    }
    // SAFETY: the program's array of so many, which the driver would read too; a few give the size.
    let first = unsafe { std::slice::from_raw_parts(sizes, count.min(16)) };
    let bytes = first
        .iter()
        .fold(0_usize, |sum, size| sum.saturating_add(*size));
    bytes.saturating_mul(count.div_ceil(16).max(1))
}

fn bytes_2d(copy: *const CUDA_MEMCPY2D) -> usize {
    // SAFETY: null, or the program's structure, which the driver would read too.
    unsafe { copy.as_ref() }.map_or(0, |copy| copy.WidthInBytes.saturating_mul(copy.Height))
}

fn bytes_3d(copy: *const CUDA_MEMCPY3D) -> usize {
    // SAFETY: as above.
    unsafe { copy.as_ref() }.map_or(0, |copy| {
        copy.WidthInBytes
            .saturating_mul(copy.Height)
            .saturating_mul(copy.Depth)
    })
}

fn bytes_3d_peer(copy: *const CUDA_MEMCPY3D_PEER) -> usize {
    // SAFETY: as above.
    unsafe { copy.as_ref() }.map_or(0, |copy| {
        copy.WidthInBytes
            .saturating_mul(copy.Height)
            .saturating_mul(copy.Depth)
    })
}
