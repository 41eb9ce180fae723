//! NVML's memory limits of a control group (cgroup), which the driver enforces, since r615 (nvml.h; NVIDIA, "MPS v3
//! Memory Partitioning").

use super::scope::undivided;
use super::setting::permitted;
use super::{Device, Done, name, out};
use crate::config::Backend;
use crate::engine::machine::group::{GroupError, GroupId, LONGEST_PATH, is_group};
use crate::engine::machine::state::Locked;
use divvy_driver::sys::nvml::*;
use std::ffi::c_char;
use std::path::{Path, PathBuf};

exports! { nvml {
    nvmlDeviceSetMemoryLimits_v1: (device, limits) => set;
    nvmlDeviceGetMemoryLimits_v1: (device, limits) => get;
} }

unsafe fn set(device: nvmlDevice_t, limits: *mut nvmlSetMemoryLimits_v1_t) -> Done {
    let device = limiting(device)?;
    out(limits)?;
    // SAFETY: not null; the caller's structure.
    let wanted = unsafe { *limits };
    let folder = folder(device, wanted.nameSpace)?;
    if wanted.softLimit > wanted.hardLimit {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    permitted()?;
    let (locked, index) = (device.state.lock(), device.index);
    let group = group(&locked, &folder)?;
    locked.set_limit(group, index, wanted.softLimit, wanted.hardLimit);
    Ok(())
}

unsafe fn get(device: nvmlDevice_t, limits: *mut nvmlGetMemoryLimits_v1_t) -> Done {
    let device = limiting(device)?;
    out(limits)?;
    // SAFETY: not null; the caller's structure.
    let limits = unsafe { &mut *limits };
    let folder = folder(device, limits.nameSpace)?;
    let locked = device.state.lock();
    let figures = locked.group_figures(group(&locked, &folder)?, device.index);
    limits.softLimit = figures.soft;
    limits.hardLimit = figures.hard;
    limits.currentUsed = figures.used;
    Ok(())
}

/// A GPU that is not divided, of a driver that limits memory.
fn limiting(device: nvmlDevice_t) -> Done<Device> {
    let device = undivided(device)?;
    let limits = device.state.memory_limits();
    limits.map(|_| device).ok_or(nvmlReturn_t::NOT_SUPPORTED)
}

/// The folder of a control group below the root. The machine's root group has no files of DMEM (Linux, cgroup-v2.rst).
fn folder(device: Device, text: *const c_char) -> Done<PathBuf> {
    let limits = device.state.memory_limits();
    let limits = limits.ok_or(nvmlReturn_t::NOT_SUPPORTED)?;
    let path = Path::new(name(text)?);
    if !path.is_absolute() || path.as_os_str().len() > LONGEST_PATH {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let found = path.canonicalize().map_err(|_| nvmlReturn_t::NOT_FOUND)?;
    let is_root = limits.backend == Backend::Dmem && !found.join("cgroup.type").exists();
    if is_root || !found.starts_with(&limits.root) || !is_group(&found) {
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    Ok(found)
}

fn group(locked: &Locked<'_>, folder: &Path) -> Done<GroupId> {
    locked.group_at(folder).map_err(|error| match error {
        GroupError::NotFound => nvmlReturn_t::NOT_FOUND,
        GroupError::PathTooLong => nvmlReturn_t::INVALID_ARGUMENT,
        GroupError::TableFull => nvmlReturn_t::INSUFFICIENT_RESOURCES,
    })
}
