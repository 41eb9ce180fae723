//! Copies and memory sets. The bytes move while the call is made; the time they take goes through the queue.

use crate::engine::process::{Done, Objects, Process, process};
use crate::engine::time::Work;
use divvy_driver::sys::cuda::{CUcontext, CUdeviceptr, CUresult, CUstream};
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
    cuMemsetD8_v2, cuMemsetD8_v2_ptds: (to, value, count) => set_8;
    cuMemsetD16_v2, cuMemsetD16_v2_ptds: (to, value, count) => set_16;
    cuMemsetD32_v2, cuMemsetD32_v2_ptds: (to, value, count) => set_32;
    cuMemsetD8Async, cuMemsetD8Async_ptsz: (to, value, count, stream) => set_8_async;
    cuMemsetD16Async, cuMemsetD16Async_ptsz: (to, value, count, stream) => set_16_async;
    cuMemsetD32Async, cuMemsetD32Async_ptsz: (to, value, count, stream) => set_32_async;
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

/// Whether the caller waits for the copy.
#[derive(Clone, Copy)]
enum When {
    Now,
    InStream(CUstream),
}

const NOW: CUstream = std::ptr::null_mut();

/// Bytes per microsecond over the bus of PCIe generation 4 and 5, about what pinned copies reach; within the GPU, half of the memory's bandwidth.
fn bytes_per_us(process: &Process, gpu: usize, over_bus: bool) -> u64 {
    let model = process.model(gpu);
    if over_bus {
        if model.pcie_generation >= 5 {
            50_000
        } else {
            25_000
        }
    } else {
        u64::from(model.memory_clock_mhz) * model.memory_bus_bits as u64 / 8
    }
}

fn check(process: &Process, objects: &Objects, side: Side, address: u64, size: u64) -> Done {
    match side {
        Side::Device => process.check_range(objects, address, size),
        Side::Any
            if objects.memory.containing(address).is_some()
                || objects.virtual_memory.mapping(address).is_some() =>
        {
            process.check_range(objects, address, size)
        }
        Side::Host | Side::Any if address == 0 && size > 0 => Err(CUresult::INVALID_VALUE),
        Side::Host | Side::Any => Ok(()),
    }
}

/// Checks, moves the bytes by `effect`, and queues the time.
fn carry_out(sides: [(Side, u64); 2], size: u64, when: When, effect: impl FnOnce()) -> Done {
    let process = process()?;
    let stream = match when {
        When::Now => NOW,
        When::InStream(stream) => stream,
    };
    let (target, current) = process.target(stream.addr())?;
    process.after_host_functions(current.gpu);
    {
        let objects = process.objects();
        for (side, address) in sides {
            check(process, &objects, side, address, size)?;
        }
        effect();
    }
    if size == 0 {
        return Ok(());
    }
    let over_bus = sides.iter().any(|(side, _)| *side == Side::Host);
    let ns = (size * 1000 / bytes_per_us(process, current.gpu, over_bus)).max(1);
    let ticket = process.issue(current.gpu, target, Work::Delay(ns));
    match when {
        When::Now => process.wait_for(current.gpu, ticket),
        When::InStream(_) => Ok(()),
    }
}

fn copy(to: (Side, u64), from: (Side, u64), size: usize, when: When) -> Done {
    carry_out([to, from], size as u64, when, || {
        // SAFETY: device ranges were checked, and their addresses are host addresses; host ranges are the caller's word.
        unsafe { std::ptr::copy(from.1 as *const u8, to.1 as *mut u8, size) };
    })
}

fn any(to: CUdeviceptr, from: CUdeviceptr, size: usize) -> Done {
    copy((Side::Any, to), (Side::Any, from), size, When::Now)
}

fn any_async(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) -> Done {
    copy(
        (Side::Any, to),
        (Side::Any, from),
        size,
        When::InStream(stream),
    )
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
    copy(
        (Side::Device, to),
        (Side::Host, from.addr() as u64),
        size,
        When::Now,
    )
}

fn to_device_async(to: CUdeviceptr, from: *const c_void, size: usize, stream: CUstream) -> Done {
    copy(
        (Side::Device, to),
        (Side::Host, from.addr() as u64),
        size,
        When::InStream(stream),
    )
}

fn to_host(to: *mut c_void, from: CUdeviceptr, size: usize) -> Done {
    copy(
        (Side::Host, to.addr() as u64),
        (Side::Device, from),
        size,
        When::Now,
    )
}

fn to_host_async(to: *mut c_void, from: CUdeviceptr, size: usize, stream: CUstream) -> Done {
    copy(
        (Side::Host, to.addr() as u64),
        (Side::Device, from),
        size,
        When::InStream(stream),
    )
}

fn on_device(to: CUdeviceptr, from: CUdeviceptr, size: usize) -> Done {
    copy((Side::Device, to), (Side::Device, from), size, When::Now)
}

fn on_device_async(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) -> Done {
    copy(
        (Side::Device, to),
        (Side::Device, from),
        size,
        When::InStream(stream),
    )
}

/// Sets on the legacy stream are asynchronous too, as CUDA documents for device memory.
fn set<T: Copy>(to: CUdeviceptr, value: T, count: usize, stream: CUstream) -> Done {
    if !to.is_multiple_of(size_of::<T>() as u64) {
        return Err(CUresult::INVALID_VALUE);
    }
    let size = count
        .checked_mul(size_of::<T>())
        .ok_or(CUresult::INVALID_VALUE)? as u64;
    carry_out(
        [(Side::Device, to); 2],
        size,
        When::InStream(stream),
        || {
            // SAFETY: the range was checked and is aligned; device addresses are host addresses.
            unsafe { std::slice::from_raw_parts_mut(to as *mut T, count) }.fill(value);
        },
    )
}

fn set_8(to: CUdeviceptr, value: u8, count: usize) -> Done {
    set(to, value, count, NOW)
}

fn set_16(to: CUdeviceptr, value: u16, count: usize) -> Done {
    set(to, value, count, NOW)
}

fn set_32(to: CUdeviceptr, value: u32, count: usize) -> Done {
    set(to, value, count, NOW)
}

fn set_8_async(to: CUdeviceptr, value: u8, count: usize, stream: CUstream) -> Done {
    set(to, value, count, stream)
}

fn set_16_async(to: CUdeviceptr, value: u16, count: usize, stream: CUstream) -> Done {
    set(to, value, count, stream)
}

fn set_32_async(to: CUdeviceptr, value: u32, count: usize, stream: CUstream) -> Done {
    set(to, value, count, stream)
}
