//! Context limits that take memory: the stacks of all threads that the GPU can hold at one time, the heap of
//! device-side `malloc`, the buffer of `printf`. The part of a limit beyond the context's default is charged before the
//! limit is raised, and released with the context. The driver keeps memory that it has once taken for stacks (cuda.h,
//! `CU_CTX_LMEM_RESIZE_TO_MAX`).
//!
//! cuda.h and the CUDA programming guide document that stacks exist for every thread at once, and take effect when they
//! are set; for heap and buffer this is inferred. The limiter sees larger stacks that the driver allocates for a kernel
//! only in the driver's figures.

use std::sync::{Mutex, PoisonError};

use divvy_driver::sys::cuda::{CUdevice, CUdevice_attribute, CUlimit, CUresult};

use crate::account::GpuAccount;
use crate::charge::oversize;
use crate::charge::pointers::{Allocation, AllocationBacking, key};
use crate::device::{self, Admission};
use crate::route::function::driver;
use crate::route::hook::Real;
use crate::table::real;

/// The driver gives memory by these pages (inferred, as for all larger allocations).
const PAGE: u64 = 2 << 20;

/// One at a time: what a limit may take depends on what it was.
static TURN: Mutex<()> = Mutex::new(());

pub fn set<F>(real: Real<'_, F>, limit: CUlimit, value: usize) -> CUresult {
    let is_memory = [
        CUlimit::STACK_SIZE,
        CUlimit::MALLOC_HEAP_SIZE,
        CUlimit::PRINTF_FIFO_SIZE,
    ]
    .contains(&limit);
    let (Some(device), true) = (device::current(), is_memory) else {
        return real.call();
    };
    let place = match device::admit_current() {
        Admission::Charge(place) => place,
        Admission::Pass => return real.call(),
        Admission::Refuse => return CUresult::OUT_OF_MEMORY,
    };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (Some(before), Some(unit)) = (now(limit), unit(limit, device)) else {
        // No such limit: the driver will say so.
        return real.call();
    };
    let key = key::limit(device::current_context() as usize, limit);
    let (base, charged) = match place.account.pointers.get(key) {
        Some(Allocation {
            bytes,
            backing: AllocationBacking::Limit(base),
            ..
        }) => (base, bytes),
        _ => (before as u64, 0),
    };
    let cost = |value: usize| cost(value as u64, base, unit).max(charged) - charged;
    let Ok(hold) = place.reserve(cost(value)) else {
        return refuse(&real, &place, cost(value), || set_back(limit, before));
    };
    let result = real.call();
    if result != CUresult::SUCCESS {
        return result;
    }
    // The driver rounds values to what the hardware can do.
    let more = cost(now(limit).unwrap_or(value));
    if more <= hold.bytes() {
        hold.commit_as(more);
    } else if let Ok(rest) = place.reserve(more - hold.bytes()) {
        rest.commit();
        hold.commit();
    } else {
        set_back(limit, before);
        return CUresult::OUT_OF_MEMORY;
    }
    track(&place, key, charged + more, base);
    result
}

/// Answers a value that does not fit: OUT_OF_MEMORY, or what the driver says of one that exceeds the GPU.
fn refuse<F>(
    real: &Real<'_, F>,
    place: &GpuAccount,
    bytes: u64,
    set_back: impl FnOnce(),
) -> CUresult {
    if !oversize::exceeds_gpu(place, bytes) {
        return CUresult::OUT_OF_MEMORY;
    }
    let result = real.call();
    if result != CUresult::SUCCESS {
        return result;
    }
    set_back();
    CUresult::OUT_OF_MEMORY
}

/// The cost of a value beyond the context's default, in bytes.
fn cost(value: u64, base: u64, unit: u64) -> u64 {
    value
        .saturating_sub(base)
        .checked_mul(unit)
        .and_then(|bytes| bytes.checked_next_multiple_of(PAGE))
        .unwrap_or(u64::MAX)
}

/// The multiplier of the limit: the number of bytes for each byte of it.
fn unit(limit: CUlimit, device: CUdevice) -> Option<u64> {
    if limit != CUlimit::STACK_SIZE {
        return Some(1);
    }
    let each = device::attribute(device, CUdevice_attribute::MAX_THREADS_PER_MULTIPROCESSOR)?;
    let all = device::attribute(device, CUdevice_attribute::MULTIPROCESSOR_COUNT)?;
    Some(u64::try_from(each).ok()? * u64::try_from(all).ok()?)
}

fn now(limit: CUlimit) -> Option<usize> {
    let mut value = 0;
    let ask = driver::cuCtxGetLimit.get()?;
    // SAFETY: the driver's function, with a place for its answer.
    (unsafe { ask(&mut value, limit) } == CUresult::SUCCESS).then_some(value)
}

fn set_back(limit: CUlimit, value: usize) {
    if let Some(set) = real::cuCtxSetLimit.get() {
        // SAFETY: the driver's function; the value is the one from before.
        unsafe { set(limit, value) };
    }
}

fn track(place: &GpuAccount, key: u64, bytes: u64, base: u64) {
    let pointers = &place.account.pointers;
    let allocation = Allocation {
        gpu: place.gpu,
        bytes,
        context: device::current_context() as usize,
        era: pointers.era(),
        backing: AllocationBacking::Limit(base),
    };
    pointers.insert(key, allocation);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_costs_what_is_beyond_its_first_value() {
        let threads = 108 * 2048;
        assert_eq!(cost(1024, 1024, threads), 0);
        assert_eq!(cost(16, 1024, threads), 0);
        assert_eq!(cost(2048, 1024, threads), 1024 * threads);
        assert_eq!(cost(8 << 20, 7 << 20, 1), 2 << 20, "in whole pages");
    }

    #[test]
    fn no_value_overflows() {
        assert_eq!(cost(u64::MAX, 0, 1), u64::MAX);
        assert_eq!(cost(u64::MAX, 1024, 1 << 20), u64::MAX);
    }
}
