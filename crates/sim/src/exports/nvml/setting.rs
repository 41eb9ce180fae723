//! Settings of a GPU: modes, power, clocks. All users read, and root sets, as nvml.h says of each function.

use super::{Device, Done, out};
use crate::engine::machine::opened::machine;
use crate::engine::machine::settings::ComputeMode;
use divvy_driver::sys::nvml::*;

exports! { nvml {
    nvmlDeviceGetComputeMode: (device, mode) => compute_mode;
    nvmlDeviceSetComputeMode: (device, mode) => set_compute_mode;
    nvmlDeviceGetPersistenceMode: (device, mode) => persistence;
    nvmlDeviceSetPersistenceMode: (device, mode) => set_persistence;
    nvmlDeviceGetPowerManagementLimit: (device, milliwatts) => power_limit;
    nvmlDeviceGetEnforcedPowerLimit: (device, milliwatts) => power_limit;
    nvmlDeviceSetPowerManagementLimit: (device, milliwatts) => set_power_limit;
    nvmlDeviceGetPowerManagementLimitConstraints: (device, least, most) => power_limits;
    nvmlDeviceGetApplicationsClock: (device, clock, mhz) => clock;
    nvmlDeviceSetApplicationsClocks: (device, memory, graphics) => set_clocks;
    nvmlDeviceResetApplicationsClocks: (device) => reset_clocks;
} }

/// The device, for a caller with the right to change it.
pub(super) fn changeable(device: nvmlDevice_t) -> Done<Device> {
    let device = Device::answering(device)?;
    permitted()?;
    Ok(device)
}

/// Fails unless this is root, or where the configuration says that it is not.
pub(super) fn permitted() -> Done {
    let denied = machine().is_some_and(|machine| machine.config.unprivileged);
    // SAFETY: has no preconditions.
    if denied || unsafe { libc::geteuid() } != 0 {
        return Err(nvmlReturn_t::NO_PERMISSION);
    }
    Ok(())
}

/// A mode that is on or off.
pub(super) fn is_on(mode: nvmlEnableState_t) -> Done<bool> {
    match mode {
        nvmlEnableState_t::DISABLED => Ok(false),
        nvmlEnableState_t::ENABLED => Ok(true),
        _ => Err(nvmlReturn_t::INVALID_ARGUMENT),
    }
}

pub(super) fn state_of(on: bool) -> nvmlEnableState_t {
    if on {
        nvmlEnableState_t::ENABLED
    } else {
        nvmlEnableState_t::DISABLED
    }
}

fn compute_mode(device: nvmlDevice_t, mode: *mut nvmlComputeMode_t) -> Done {
    let settings = &Device::answering(device)?.gpu().settings;
    out(mode)?.set(nvmlComputeMode_t(settings.compute_mode().number()))
}

/// Exclusive to a thread is not supported any more; contexts that exist stay.
fn set_compute_mode(device: nvmlDevice_t, mode: nvmlComputeMode_t) -> Done {
    let known = match mode {
        nvmlComputeMode_t::EXCLUSIVE_THREAD => Err(nvmlReturn_t::NOT_SUPPORTED),
        nvmlComputeMode_t(number) => {
            ComputeMode::from_number(number).ok_or(nvmlReturn_t::INVALID_ARGUMENT)
        }
    };
    let device = changeable(device)?;
    device.gpu().settings.set_compute_mode(known?);
    Ok(())
}

fn persistence(device: nvmlDevice_t, mode: *mut nvmlEnableState_t) -> Done {
    let settings = &Device::answering(device)?.gpu().settings;
    out(mode)?.set(state_of(settings.persistence()))
}

fn set_persistence(device: nvmlDevice_t, mode: nvmlEnableState_t) -> Done {
    let (on, device) = (is_on(mode)?, changeable(device)?);
    device.gpu().settings.set_persistence(on);
    Ok(())
}

fn highest(device: &Device) -> u32 {
    device.model().power_limit_watts * 1000
}

fn lowest(device: &Device) -> u32 {
    highest(device) / 2
}

fn power_limit(device: nvmlDevice_t, place: *mut u32) -> Done {
    let device = Device::answering(device)?;
    let limit = device.gpu().settings.power_limit();
    out(place)?.set(limit.unwrap_or_else(|| highest(&device)))
}

/// From half of it to the model's limit (invented).
fn power_limits(device: nvmlDevice_t, least: *mut u32, most: *mut u32) -> Done {
    let device = Device::answering(device)?;
    let most = out(most)?;
    out(least)?.set(lowest(&device))?;
    most.set(highest(&device))
}

fn set_power_limit(device: nvmlDevice_t, milliwatts: u32) -> Done {
    let device = changeable(device)?;
    if !(lowest(&device)..=highest(&device)).contains(&milliwatts) {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    device.gpu().settings.set_power_limit(milliwatts);
    Ok(())
}

fn clock(device: nvmlDevice_t, clock: nvmlClockType_t, place: *mut u32) -> Done {
    let device = Device::answering(device)?;
    let model = super::power::mhz(device.model(), clock, true)?;
    let set = device.gpu().settings.clocks();
    out(place)?.set(match (set, clock) {
        (Some((memory, _)), nvmlClockType_t::MEM) => memory,
        (Some((_, graphics)), nvmlClockType_t::GRAPHICS | nvmlClockType_t::SM) => graphics,
        _ => model,
    })
}

/// Among the supported clocks; they are shown and change nothing.
fn set_clocks(device: nvmlDevice_t, memory: u32, graphics: u32) -> Done {
    let device = changeable(device)?;
    let model = device.model();
    let fits = memory == model.memory_clock_mhz
        && super::power::supported_graphics_clocks(model).any(|clock| clock == graphics);
    if !fits {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    device.gpu().settings.set_clocks(Some((memory, graphics)));
    Ok(())
}

fn reset_clocks(device: nvmlDevice_t) -> Done {
    changeable(device)?.gpu().settings.set_clocks(None);
    Ok(())
}
