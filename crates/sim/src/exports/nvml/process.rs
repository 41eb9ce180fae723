//! Processes on a GPU, and how much of it they use.

use super::scope::{Scope, undivided};
use super::{Device, Done, out, set_list};
use crate::config::Config;
use crate::engine::machine::accounting::wall_clock_us;
use crate::engine::machine::opened::machine;
use crate::engine::machine::slots::ProcessSlot;
use crate::engine::mig::MigInstanceId;
use divvy_driver::sys::nvml::*;

exports! { nvml {
    nvmlDeviceGetComputeRunningProcesses: (device, count, infos) => compute_v1;
    nvmlDeviceGetComputeRunningProcesses_v2: (device, count, infos) => compute_v2;
    nvmlDeviceGetComputeRunningProcesses_v3: (device, count, infos) => compute_v2;
    nvmlDeviceGetGraphicsRunningProcesses: (device, count, infos) => none_v1;
    nvmlDeviceGetGraphicsRunningProcesses_v2: (device, count, infos) => none_v2;
    nvmlDeviceGetGraphicsRunningProcesses_v3: (device, count, infos) => none_v2;
    nvmlDeviceGetMPSComputeRunningProcesses: (device, count, infos) => none_v1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: (device, count, infos) => none_v2;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: (device, count, infos) => none_v2;
    nvmlDeviceGetRunningProcessDetailList: (device, list) => details;
    nvmlDeviceGetUtilizationRates: (device, utilization) => rates;
    nvmlDeviceGetEncoderUtilization: (device, utilization, period) => no_video;
    nvmlDeviceGetDecoderUtilization: (device, utilization, period) => no_video;
    nvmlDeviceGetProcessUtilization: (device, samples, count, last_seen) => process_utilization;
    nvmlDeviceGetProcessesUtilizationInfo: (device, info) => processes_utilization;
} }

/// Windows of utilisation in one second, over which a process's share is taken. So it must agree with `WINDOW_NS`, a
/// sixth of a second.
const SECOND: u64 = 6;

/// One process with a context on a GPU, or in an instance of one.
pub(super) struct Row {
    pub pid: u32,
    pub used: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    sm_percent: u32,
}

pub(super) fn rows(handle: nvmlDevice_t) -> Done<Vec<Row>> {
    Ok(rows_of(&Scope::of(handle)?))
}

fn rows_of(scope: &Scope) -> Vec<Row> {
    let locked = scope.device.fresh();
    let now = locked.now();
    let live = locked.slots().iter().enumerate();
    let live = live.filter(|(_, slot)| slot.is_live());
    let here = live.flat_map(|(index, slot)| {
        let partitions = scope.seats_of(slot);
        partitions.map(move |(partition, place)| (index, slot, partition, place))
    });
    let configured = |of: fn(&Config) -> bool| machine().is_some_and(|machine| of(&machine.config));
    let hidden = configured(|config| config.hide_process_memory);
    let imports_count = configured(|config| config.charge_imports);
    let row =
        |(index, slot, partition, place): (usize, &ProcessSlot, usize, Option<MigInstanceId>)| {
            let shared = |imported| locked.shared_bytes_of(index, partition, imported);
            let imported = if imports_count { shared(true) } else { 0 };
            let used = slot.listed(partition) + shared(false) + imported;
            Some(Row {
                pid: slot.pid_here()?,
                used: if hidden { MEMORY_NOT_AVAILABLE } else { used },
                gpu_instance: place.map_or(NO_INSTANCE, |place| place.gpu_instance),
                compute_instance: place.map_or(NO_INSTANCE, |place| place.compute_instance),
                sm_percent: locked
                    .queue(index, partition)
                    .windows()
                    .percent(now, SECOND),
            })
        };
    here.filter_map(row).collect()
}

fn whole(device: Device) -> Scope {
    Scope {
        device,
        place: None,
    }
}

unsafe fn compute_v1(
    device: nvmlDevice_t,
    count: *mut u32,
    infos: *mut nvmlProcessInfo_v1_t,
) -> Done {
    let list: Vec<_> = rows(device)?
        .iter()
        .map(|row| nvmlProcessInfo_v1_t {
            pid: row.pid,
            usedGpuMemory: row.used,
        })
        .collect();
    // SAFETY: the caller's array.
    unsafe { set_list(count, infos, &list) }
}

/// Entries of the second and third version are the same.
unsafe fn compute_v2(
    device: nvmlDevice_t,
    count: *mut u32,
    infos: *mut nvmlProcessInfo_v2_t,
) -> Done {
    let entry = |row: &Row| nvmlProcessInfo_v2_t {
        pid: row.pid,
        usedGpuMemory: row.used,
        gpuInstanceId: row.gpu_instance,
        computeInstanceId: row.compute_instance,
    };
    let list: Vec<_> = rows(device)?.iter().map(entry).collect();
    // SAFETY: the caller's array.
    unsafe { set_list(count, infos, &list) }
}

unsafe fn none_v1(device: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_v1_t) -> Done {
    Scope::of(device)?;
    // SAFETY: the caller's array.
    unsafe { set_list(count, infos, &[]) }
}

unsafe fn none_v2(device: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_v2_t) -> Done {
    Scope::of(device)?;
    // SAFETY: the caller's array.
    unsafe { set_list(count, infos, &[]) }
}

/// Mode 0 asks for compute processes; there are no graphics or MPS ones.
unsafe fn details(device: nvmlDevice_t, list: *mut nvmlProcessDetailList_t) -> Done {
    let scope = Scope::of(device)?;
    // SAFETY: null or the caller's structure.
    let list = unsafe { list.as_mut() }.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    if list.version != struct_version::<nvmlProcessDetailList_t>(1) {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    let rows = if list.mode == 0 {
        rows_of(&scope)
    } else {
        Vec::new()
    };
    let entry = |row: &Row| nvmlProcessDetail_v1_t {
        pid: row.pid,
        usedGpuMemory: row.used,
        gpuInstanceId: row.gpu_instance,
        computeInstanceId: row.compute_instance,
        usedGpuCcProtectedMemory: 0,
    };
    let entries: Vec<_> = rows.iter().map(entry).collect();
    // SAFETY: the caller's array.
    unsafe { set_list(&raw mut list.numProcArrayEntries, list.procArray, &entries) }
}

/// How busy the memory is, is not modelled: half of how busy the multiprocessors are.
fn rates(device: nvmlDevice_t, utilization: *mut nvmlUtilization_t) -> Done {
    let (device, utilization) = (undivided(device)?, out(utilization)?);
    let percent = device.utilization();
    utilization.set(nvmlUtilization_t {
        gpu: percent,
        memory: percent / 2,
    })
}

fn no_video(device: nvmlDevice_t, utilization: *mut u32, period: *mut u32) -> Done {
    undivided(device)?;
    let period = out(period)?;
    out(utilization)?.set(0)?;
    period.set(1_000_000 / 6)
}

/// One sample per process, of the last second. Asked again within the same sample period, there is nothing new.
unsafe fn process_utilization(
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut u32,
    last_seen: u64,
) -> Done {
    let rows = rows_of(&whole(undivided(device)?));
    let time = wall_clock_us();
    if rows.is_empty() || time <= last_seen {
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    let sample = |row: &Row| nvmlProcessUtilizationSample_t {
        pid: row.pid,
        timeStamp: time,
        smUtil: row.sm_percent,
        memUtil: row.sm_percent / 2,
        encUtil: 0,
        decUtil: 0,
    };
    let list: Vec<_> = rows.iter().map(sample).collect();
    // SAFETY: the caller's array; without one the call asks for the number of samples.
    unsafe {
        if samples.is_null() && !count.is_null() {
            *count = 0;
        }
        set_list(count, samples, &list)
    }
}

unsafe fn processes_utilization(
    device: nvmlDevice_t,
    info: *mut nvmlProcessesUtilizationInfo_t,
) -> Done {
    let device = undivided(device)?;
    // SAFETY: null or the caller's structure.
    let info = unsafe { info.as_mut() }.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    if info.version != struct_version::<nvmlProcessesUtilizationInfo_t>(1) {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    let (rows, time) = (rows_of(&whole(device)), wall_clock_us());
    if rows.is_empty() || time <= info.lastSeenTimeStamp {
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    let sample = |row: &Row| nvmlProcessUtilizationInfo_v1_t {
        timeStamp: time,
        pid: row.pid,
        smUtil: row.sm_percent,
        memUtil: row.sm_percent / 2,
        ..Default::default()
    };
    let list: Vec<_> = rows.iter().map(sample).collect();
    // SAFETY: the caller's array; without one the call asks for the number of samples.
    unsafe {
        if info.procUtilArray.is_null() {
            info.processSamplesCount = 0;
        }
        set_list(&raw mut info.processSamplesCount, info.procUtilArray, &list)
    }
}
