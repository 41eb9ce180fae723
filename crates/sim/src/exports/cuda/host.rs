//! Pinned host memory: the driver's own, and the program's registered. It takes nothing of any GPU.

use super::out;
use crate::engine::machine::group::GroupId;
use crate::engine::objects::memory::{Allocation, AllocationKind};
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED,
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMHOSTREGISTER_READ_ONLY, CUdeviceptr, CUresult,
};
use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;

exports! { cuda {
    cuMemAllocHost: (pointer, size) => allocate_v1;
    cuMemAllocHost_v2: (pointer, size) => allocate;
    cuMemHostAlloc: (pointer, size, flags) => allocate_with_flags;
    cuMemFreeHost: (pointer) => free;
    cuMemHostGetDevicePointer_v2: (address, pointer, flags) => device_pointer;
    cuMemHostGetFlags: (flags, pointer) => flags;
    cuMemHostRegister: (pointer, size, flags) => register;
    cuMemHostRegister_v2: (pointer, size, flags) => register;
    cuMemHostUnregister: (pointer) => unregister;
} }

const ALLOC_FLAGS: u32 =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
const REGISTER_FLAGS: u32 = CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY;

/// The kernel's page on x86-64.
const PAGE: u64 = 4096;

fn allocate_v1(pointer: *mut *mut c_void, size: u32) -> Done {
    allocate(pointer, size as usize)
}

fn allocate(pointer: *mut *mut c_void, size: usize) -> Done {
    allocate_with_flags(pointer, size, 0)
}

fn allocate_with_flags(pointer: *mut *mut c_void, size: usize, flags: u32) -> Done {
    let (process, pointer) = (process()?, out(pointer)?);
    if flags & !ALLOC_FLAGS != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let address = process.allocate(size as u64, AllocationKind::Host(flags))?;
    pointer.set(with_exposed_provenance_mut(address as usize))
}

fn free(pointer: *mut c_void) -> Done {
    let process = process()?;
    if pointer.is_null() {
        return Ok(());
    }
    process.check_unsafe()?;
    process.free(pointer.addr() as u64, |kind| {
        matches!(kind, AllocationKind::Host(_))
    })
}

fn pinned(pointer: *mut c_void) -> Done<Allocation> {
    let objects = process()?.objects();
    objects
        .memory
        .containing(pointer.addr() as u64)
        .filter(|allocation| allocation.is_host())
        .copied()
        .ok_or(CUresult::INVALID_VALUE)
}

fn device_pointer(address: *mut CUdeviceptr, pointer: *mut c_void, flags: u32) -> Done {
    let address = out(address)?;
    pinned(pointer)?;
    if flags != 0 {
        Err(CUresult::INVALID_VALUE)
    } else {
        address.set(pointer.addr() as u64)
    }
}

fn flags(flags: *mut u32, pointer: *mut c_void) -> Done {
    match pinned(pointer)?.kind {
        // CUDA answers the flags as if mapping had been asked for, since it always happens.
        AllocationKind::Host(given) => out(flags)?.set(given | CU_MEMHOSTALLOC_DEVICEMAP),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

/// The program's memory, all of which must be there. Input and output memory of other devices is not simulated, and
/// read-only registration a feature that the device attributes deny.
fn register(pointer: *mut c_void, size: usize, flags: u32) -> Done {
    let process = process()?;
    let (base, size) = (pointer.addr() as u64, size as u64);
    let end = base.checked_add(size).ok_or(CUresult::INVALID_VALUE)?;
    if base == 0 || size == 0 || flags & !REGISTER_FLAGS != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if flags & CU_MEMHOSTREGISTER_READ_ONLY != 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        return Err(CUresult::NOT_PERMITTED);
    }
    let mut objects = process.objects();
    let current = process.current(&objects)?;
    if objects.memory.overlaps(base, size) {
        return Err(CUresult::HOST_MEMORY_ALREADY_REGISTERED);
    }
    if !is_mapped(base, end) {
        return Err(CUresult::INVALID_VALUE);
    }
    objects.memory.insert(Allocation {
        base,
        size,
        kind: AllocationKind::Registered(flags),
        gpu: current.gpu,
        context: Some(current.context),
        id: process.next_id(),
        charged: 0,
        group: GroupId::NONE,
    });
    Ok(())
}

/// Whether all pages of a range are mapped: a synchronisation that does nothing refuses others (msync(2)).
fn is_mapped(base: u64, end: u64) -> bool {
    let first = base & !(PAGE - 1);
    // SAFETY: MS_ASYNC changes nothing.
    unsafe { libc::msync(first as *mut _, (end - first) as usize, libc::MS_ASYNC) == 0 }
}

fn unregister(pointer: *mut c_void) -> Done {
    let registered = |kind| matches!(kind, AllocationKind::Registered(_));
    process()?
        .free(pointer.addr() as u64, registered)
        .map_err(|error| match error {
            CUresult::INVALID_VALUE => CUresult::HOST_MEMORY_NOT_REGISTERED,
            other => other,
        })
}
