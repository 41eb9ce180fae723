//! Copies and memory sets. The bytes move while the call is made; the time they take goes through the queue.

use super::out;
use crate::engine::process::{Done, Objects, Process, process};
use crate::engine::time::Work;
use divvy_driver::sys::cuda::{
    CUDA_MEMCPY2D, CUcontext, CUdeviceptr, CUmemorytype, CUresult, CUstream,
};
use std::ffi::c_void;

exports! { cuda {
    cuMemcpy, cuMemcpy_ptds: (to, from, size) => any;
    cuMemcpyAsync, cuMemcpyAsync_ptsz: (to, from, size, stream) => any_async;
    cuMemcpyPeer, cuMemcpyPeer_ptds: (to, to_context, from, from_context, size) => peer;
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz: (to, to_context, from, from_context, size, stream) => peer_async;
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds: (to, from, size) => to_device;
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds: (to, from, size) => to_host;
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds: (to, from, size) => on_device;
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz: (to, from, size, stream) => to_device_async;
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz: (to, from, size, stream) => to_host_async;
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz: (to, from, size, stream) => on_device_async;
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds: (copy) => rectangle;
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz: (copy, stream) => rectangle_async;
    cuMemsetD8_v2, cuMemsetD8_v2_ptds: (to, value, count) => set;
    cuMemsetD16_v2, cuMemsetD16_v2_ptds: (to, value, count) => set;
    cuMemsetD32_v2, cuMemsetD32_v2_ptds: (to, value, count) => set;
    cuMemsetD8Async, cuMemsetD8Async_ptsz: (to, value, count, stream) => set_async;
    cuMemsetD16Async, cuMemsetD16Async_ptsz: (to, value, count, stream) => set_async;
    cuMemsetD32Async, cuMemsetD32Async_ptsz: (to, value, count, stream) => set_async;
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds: (to, pitch, value, width, height) => set_rectangle;
    cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds: (to, pitch, value, width, height) => set_rectangle;
    cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds: (to, pitch, value, width, height) => set_rectangle;
    cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz: (to, pitch, value, width, height, stream) => set_rectangle_async;
    cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz: (to, pitch, value, width, height, stream) => set_rectangle_async;
    cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz: (to, pitch, value, width, height, stream) => set_rectangle_async;
} }

/// Where one end of a copy is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Must be memory CUDA knows.
    Device,
    /// The program's own memory, whatever it is.
    Host,
    /// Found out from the address.
    Any,
}

/// One end of a copy: its first byte, and from row to row how far.
#[derive(Clone, Copy)]
struct End {
    side: Side,
    start: u64,
    pitch: u64,
}

/// Bytes in a row, and rows.
#[derive(Clone, Copy)]
struct Extent {
    width: u64,
    height: u64,
}

impl Extent {
    fn row(size: usize) -> Extent {
        let width = size as u64;
        Extent { width, height: 1 }
    }

    fn bytes(self) -> u64 {
        self.width.saturating_mul(self.height)
    }

    /// Bytes from the first to the last one that an end with this pitch touches.
    fn span(self, pitch: u64) -> Done<u64> {
        if self.bytes() == 0 {
            return Ok(0);
        }
        if self.height > 1 && pitch < self.width {
            return Err(CUresult::INVALID_VALUE);
        }
        let before_last = pitch.checked_mul(self.height - 1);
        let span = before_last.and_then(|before| before.checked_add(self.width));
        span.ok_or(CUresult::INVALID_VALUE)
    }
}

/// Whether the caller waits for the copy.
#[derive(Clone, Copy)]
enum When {
    Now,
    InStream(CUstream),
}

/// The legacy default stream.
const LEGACY: CUstream = std::ptr::null_mut();

/// Bytes per microsecond: over the bus about what pinned copies reach on PCIe generation 4 and 5, within the GPU half of
/// the memory's bandwidth.
fn bytes_per_us(process: &Process, gpu: usize, over_bus: bool) -> u64 {
    let model = process.model(gpu);
    match (over_bus, model.pcie_generation) {
        (true, 5..) => 50_000,
        (true, _) => 25_000,
        (false, _) => u64::from(model.memory_clock_mhz) * model.memory_bus_bits as u64 / 8,
    }
}

fn check(process: &Process, objects: &Objects, end: End, extent: Extent) -> Done {
    let (start, span) = (end.start, extent.span(end.pitch)?);
    let is_known = || {
        let linear = objects.memory.containing(start).is_some();
        linear || objects.virtual_memory.mapping(start).is_some()
    };
    match end.side {
        Side::Device => process.check_range(objects, start, span),
        Side::Any if is_known() => process.check_range(objects, start, span),
        Side::Host | Side::Any if start == 0 && span > 0 => Err(CUresult::INVALID_VALUE),
        Side::Host | Side::Any => Ok(()),
    }
}

/// Checks, moves the bytes by `effect`, and queues the time.
fn carry_out(ends: &[End], extent: Extent, when: When, effect: impl FnOnce()) -> Done {
    let process = process()?;
    let stream = match when {
        When::Now => LEGACY,
        When::InStream(stream) => stream,
    };
    let (target, current) = process.target(stream.addr())?;
    process.after_host_functions(current.gpu);
    {
        let objects = process.objects();
        for end in ends {
            check(process, &objects, *end, extent)?;
        }
        effect();
    }
    if extent.bytes() == 0 {
        return Ok(());
    }
    let over_bus = ends.iter().any(|end| end.side == Side::Host);
    let speed = bytes_per_us(process, current.gpu, over_bus);
    let ns = (extent.bytes().saturating_mul(1000) / speed).max(1);
    let ticket = process.issue(current.gpu, target, Work::Delay(ns));
    match when {
        When::Now => process.wait_for(current.gpu, ticket),
        When::InStream(_) => Ok(()),
    }
}

fn copy(to: End, from: End, extent: Extent, when: When) -> Done {
    carry_out(&[to, from], extent, when, || {
        for row in 0..extent.height {
            let (to, from) = (to.start + row * to.pitch, from.start + row * from.pitch);
            // SAFETY: device ranges were checked, and their addresses are host addresses; host ranges are the caller's
            // word.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, extent.width as usize) };
        }
    })
}

fn copy_row(to: (Side, u64), from: (Side, u64), size: usize, when: When) -> Done {
    let end = |(side, start)| End {
        side,
        start,
        pitch: 0,
    };
    copy(end(to), end(from), Extent::row(size), when)
}

fn any(to: CUdeviceptr, from: CUdeviceptr, size: usize) -> Done {
    copy_row((Side::Any, to), (Side::Any, from), size, When::Now)
}

fn any_async(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) -> Done {
    let when = When::InStream(stream);
    copy_row((Side::Any, to), (Side::Any, from), size, when)
}

fn peer(
    to: CUdeviceptr,
    _to_context: CUcontext,
    from: CUdeviceptr,
    _from_context: CUcontext,
    size: usize,
) -> Done {
    on_device(to, from, size)
}

fn peer_async(
    to: CUdeviceptr,
    _to_context: CUcontext,
    from: CUdeviceptr,
    _from_context: CUcontext,
    size: usize,
    stream: CUstream,
) -> Done {
    on_device_async(to, from, size, stream)
}

fn to_device(to: CUdeviceptr, from: *const c_void, size: usize) -> Done {
    let from = (Side::Host, from.addr() as u64);
    copy_row((Side::Device, to), from, size, When::Now)
}

fn to_device_async(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream) -> Done {
    let from = (Side::Host, from.addr() as u64);
    copy_row((Side::Device, to), from, size, When::InStream(stream))
}

fn to_host(to: *mut c_void, from: CUdeviceptr, size: usize) -> Done {
    let to = (Side::Host, to.addr() as u64);
    copy_row(to, (Side::Device, from), size, When::Now)
}

fn to_host_async(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream) -> Done {
    let to = (Side::Host, to.addr() as u64);
    copy_row(to, (Side::Device, from), size, When::InStream(stream))
}

fn on_device(to: CUdeviceptr, from: CUdeviceptr, size: usize) -> Done {
    copy_row((Side::Device, to), (Side::Device, from), size, When::Now)
}

fn on_device_async(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) -> Done {
    let when = When::InStream(stream);
    copy_row((Side::Device, to), (Side::Device, from), size, when)
}

/// The end a memory type names: its first byte, moved to the rectangle's corner. Arrays are not simulated.
fn corner(
    kind: CUmemorytype,
    host: u64,
    device: u64,
    pitch: usize,
    [x, y]: [usize; 2],
) -> Done<End> {
    let (side, base) = match kind {
        CUmemorytype::HOST => (Side::Host, host),
        CUmemorytype::DEVICE => (Side::Device, device),
        CUmemorytype::UNIFIED => (Side::Any, device),
        CUmemorytype::ARRAY => return Err(CUresult::NOT_SUPPORTED),
        _ => return Err(CUresult::INVALID_VALUE),
    };
    let rows = pitch.checked_mul(y).and_then(|rows| rows.checked_add(x));
    let start = rows.and_then(|offset| base.checked_add(offset as u64));
    Ok(End {
        side,
        start: start.ok_or(CUresult::INVALID_VALUE)?,
        pitch: pitch as u64,
    })
}

unsafe fn copy_rectangle(copy_of: *const CUDA_MEMCPY2D, when: When) -> Done {
    process()?;
    out(copy_of.cast_mut())?;
    // SAFETY: not null; the caller's structure.
    let given = unsafe { *copy_of };
    let (host, corner_at) = (given.dstHost.addr() as u64, [given.dstXInBytes, given.dstY]);
    let to = corner(
        given.dstMemoryType,
        host,
        given.dstDevice,
        given.dstPitch,
        corner_at,
    )?;
    let (host, corner_at) = (given.srcHost.addr() as u64, [given.srcXInBytes, given.srcY]);
    let from = corner(
        given.srcMemoryType,
        host,
        given.srcDevice,
        given.srcPitch,
        corner_at,
    )?;
    let (width, height) = (given.WidthInBytes as u64, given.Height as u64);
    copy(to, from, Extent { width, height }, when)
}

unsafe fn rectangle(copy: *const CUDA_MEMCPY2D) -> Done {
    // SAFETY: the caller's structure.
    unsafe { copy_rectangle(copy, When::Now) }
}

unsafe fn rectangle_async(copy: *const CUDA_MEMCPY2D, stream: CUstream) -> Done {
    // SAFETY: the caller's structure.
    unsafe { copy_rectangle(copy, When::InStream(stream)) }
}

/// Sets on the legacy stream are asynchronous too, as CUDA documents for device memory. Widths are in elements.
fn set_rectangle_async<T: Copy>(
    to: CUdeviceptr,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Done {
    let size = size_of::<T>();
    if !to.is_multiple_of(size as u64) || !pitch.is_multiple_of(size) {
        return Err(CUresult::INVALID_VALUE);
    }
    let bytes = width.checked_mul(size).ok_or(CUresult::INVALID_VALUE)? as u64;
    let (side, pitch) = (Side::Device, pitch as u64);
    let extent = Extent {
        width: bytes,
        height: height as u64,
    };
    let end = End {
        side,
        start: to,
        pitch,
    };
    carry_out(&[end], extent, When::InStream(stream), || {
        for row in 0..extent.height {
            let row = (to + row * pitch) as *mut T;
            // SAFETY: the range was checked and is aligned; device addresses are host addresses.
            unsafe { std::slice::from_raw_parts_mut(row, width) }.fill(value);
        }
    })
}

fn set_rectangle<T: Copy>(
    to: CUdeviceptr,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
) -> Done {
    set_rectangle_async(to, pitch, value, width, height, LEGACY)
}

fn set_async<T: Copy>(to: CUdeviceptr, value: T, count: usize, stream: CUstream) -> Done {
    set_rectangle_async(to, 0, value, count, 1, stream)
}

fn set<T: Copy>(to: CUdeviceptr, value: T, count: usize) -> Done {
    set_async(to, value, count, LEGACY)
}
