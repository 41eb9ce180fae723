//! NVML's accounting statistics and process names, reduced to the slice's own processes.

use std::ffi::{c_char, c_uint};

use divvy_driver::sys::nvml::{
    nvmlAccountingStats_t, nvmlAccountingStats_v2_t, nvmlDevice_t, nvmlReturn_t,
};

use super::lists::{Entry, List, OutputList, everyone};
use super::members::{Member, Members};
use super::{filled, gpu_of, limited};
use crate::route::hook::Real;

// SAFETY: an integer.
unsafe impl Entry for c_uint {
    fn pid(&self) -> u32 {
        *self
    }
}

/// Processes with statistics: those of the slice, dead ones too as long as their memory is not back.
pub fn pids(
    real: Real<'_, List<c_uint>, nvmlReturn_t>,
    device: nvmlDevice_t,
    count: *mut c_uint,
    pids: *mut c_uint,
) -> nvmlReturn_t {
    let Some(account) = limited() else {
        return real.call();
    };
    let Some(mut room) = OutputList::of(count, pids) else {
        return real.call();
    };
    // SAFETY: room for `count` numbers.
    match everyone(|count, pids| unsafe { (real.function)(device, count, pids) }) {
        Ok(mut all) => {
            let members = Members::of(account);
            all.retain(|pid| members.get(*pid).is_some());
            room.answer(&all)
        }
        Err(result) => result,
    }
}

pub fn stats<F>(
    real: Real<'_, F, nvmlReturn_t>,
    device: nvmlDevice_t,
    pid: c_uint,
    stats: *mut nvmlAccountingStats_t,
) -> nvmlReturn_t {
    of_member(&real, device, pid, || {
        // SAFETY: null, or filled by the driver.
        unsafe { stats.as_mut() }.map(|stats| &mut stats.maxMemoryUsage)
    })
}

pub fn stats_v2<F>(
    real: Real<'_, F, nvmlReturn_t>,
    device: nvmlDevice_t,
    stats: *mut nvmlAccountingStats_v2_t,
) -> nvmlReturn_t {
    if stats.is_null() {
        return real.call();
    }
    // SAFETY: not null; the driver would read the pid too.
    let pid = unsafe { (*stats).pid };
    of_member(&real, device, pid, || {
        // SAFETY: not null, and filled by the driver.
        filled(nvmlReturn_t::SUCCESS, stats).map(|stats| &mut stats.maxMemoryUsage)
    })
}

/// Has the driver answer about a process of the slice, and puts what it was charged at most where `most` says.
fn of_member<'a, F>(
    real: &Real<'_, F, nvmlReturn_t>,
    device: nvmlDevice_t,
    pid: c_uint,
    most: impl FnOnce() -> Option<&'a mut u64>,
) -> nvmlReturn_t {
    let Some(account) = limited() else {
        return real.call();
    };
    let members = Members::of(account);
    let Some(member) = members.get(pid) else {
        return nvmlReturn_t::NOT_FOUND;
    };
    let result = real.call();
    if result == nvmlReturn_t::SUCCESS
        && let Some(gpu) = gpu_of(account, device)
        && let Some(most) = most()
    {
        *most = member.peak(gpu);
    }
    result
}

/// A process that is not listed has no name either; this process may ask for its own.
pub fn process_name<F>(
    real: Real<'_, F, nvmlReturn_t>,
    pid: c_uint,
    _name: *mut c_char,
    _length: c_uint,
) -> nvmlReturn_t {
    let known = |members: &Members| members.get(pid).is_some_and(|member: &Member| member.lives);
    match limited() {
        Some(account) if pid != std::process::id() && !known(&Members::of(account)) => {
            nvmlReturn_t::NOT_FOUND
        }
        _ => real.call(),
    }
}
