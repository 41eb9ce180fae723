//! Accounting: what processes did on a GPU, while they run and after.

use super::scope::undivided;
use super::setting::{changeable, is_on, state_of};
use super::{Device, Done, out, set_list};
use crate::engine::machine::accounting::{AccountingStats, RECORDS};
use crate::engine::machine::opened::machine;
use crate::engine::time::WINDOW_NS;
use divvy_driver::sys::nvml::*;

exports! { nvml {
    nvmlDeviceGetAccountingMode: (device, mode) => mode;
    nvmlDeviceSetAccountingMode: (device, mode) => set_mode;
    nvmlDeviceGetAccountingPids: (device, count, pids) => pids;
    nvmlDeviceGetAccountingStats: (device, pid, stats) => stats;
    nvmlDeviceGetAccountingStats_v2: (device, stats) => stats_v2;
    nvmlDeviceGetAccountingBufferSize: (device, size) => buffer_size;
    nvmlDeviceClearAccountingPids: (device) => clear;
} }

fn mode(device: nvmlDevice_t, mode: *mut nvmlEnableState_t) -> Done {
    let gpu = Device::answering(device)?.gpu();
    out(mode)?.set(state_of(gpu.settings.accounting() && !gpu.mig.is_on()))
}

/// Off, everything is forgotten. Of divided GPUs there are no accounts (nvml.h).
fn set_mode(device: nvmlDevice_t, mode: nvmlEnableState_t) -> Done {
    undivided(device)?;
    let (on, device) = (is_on(mode)?, changeable(device)?);
    let locked = device.fresh();
    device.gpu().settings.set_accounting(on);
    if !on {
        locked.clear_accounts(device.index);
    }
    Ok(())
}

fn clear(device: nvmlDevice_t) -> Done {
    let device = changeable(device)?;
    device.fresh().clear_accounts(device.index);
    Ok(())
}

/// A device with accounting.
fn accounting(device: nvmlDevice_t) -> Done<Device> {
    let device = undivided(device)?;
    if device.gpu().settings.accounting() {
        Ok(device)
    } else {
        Err(nvmlReturn_t::NOT_SUPPORTED)
    }
}

unsafe fn pids(device: nvmlDevice_t, count: *mut u32, pids: *mut u32) -> Done {
    let device = accounting(device)?;
    let mut list = Vec::new();
    for account in device.fresh().accounts(device.index) {
        if !list.contains(&account.pid) {
            list.push(account.pid);
        }
    }
    // SAFETY: the caller's array.
    unsafe { set_list(count, pids, &list) }
}

/// The newest account of a pid.
fn account(device: nvmlDevice_t, pid: u32) -> Done<AccountingStats> {
    let device = accounting(device)?;
    let accounts = device.fresh().accounts(device.index);
    let mut of_pid = accounts.into_iter().filter(|account| account.pid == pid);
    of_pid.next().ok_or(nvmlReturn_t::NOT_FOUND)
}

fn peak(account: &AccountingStats) -> u64 {
    let hidden = machine().is_some_and(|machine| machine.config.hide_process_memory);
    if hidden {
        MEMORY_NOT_AVAILABLE
    } else {
        account.peak
    }
}

/// Milliseconds, when it is over.
fn time(account: &AccountingStats) -> u64 {
    if account.is_running {
        0
    } else {
        account.lasted_ns / 1_000_000
    }
}

fn stats(device: nvmlDevice_t, pid: u32, stats: *mut nvmlAccountingStats_t) -> Done {
    let stats = out(stats)?;
    let account = account(device, pid)?;
    stats.set(nvmlAccountingStats_t {
        gpuUtilization: account.busy_percent(),
        memoryUtilization: account.busy_percent() / 2,
        maxMemoryUsage: peak(&account),
        time: time(&account),
        startTime: account.began_us,
        isRunning: u32::from(account.is_running),
        ..Default::default()
    })
}

unsafe fn stats_v2(device: nvmlDevice_t, stats: *mut nvmlAccountingStats_v2_t) -> Done {
    // SAFETY: null or the caller's structure.
    let stats = unsafe { stats.as_mut() }.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    let account = account(device, stats.pid)?;
    let samples = (account.lasted_ns / WINDOW_NS).max(1);
    let percent = account.busy_percent();
    *stats = nvmlAccountingStats_v2_t {
        pid: stats.pid,
        isRunning: u32::from(account.is_running),
        gpuUtilization: percent,
        memoryUtilization: percent / 2,
        maxMemoryUsage: peak(&account),
        sampleCount: u32::try_from(samples).unwrap_or(u32::MAX),
        sumGpuUtil: samples * u64::from(percent),
        sumFbUtil: samples * u64::from(percent / 2),
        time: time(&account),
        startTime: account.began_us,
    };
    Ok(())
}

fn buffer_size(device: nvmlDevice_t, size: *mut u32) -> Done {
    accounting(device)?;
    out(size)?.set(RECORDS as u32)
}
