//! Clocks, power and heat: plausible figures that follow the load. Nothing here is a measurement or a promise.

use super::{Device, Done, out, set_list};
use crate::model::Model;
use divvy_driver::sys::nvml::*;

exports! { nvml {
    nvmlDeviceGetClockInfo: (device, clock, mhz) => clock;
    nvmlDeviceGetMaxClockInfo: (device, clock, mhz) => max_clock;
    nvmlDeviceGetClock: (device, clock, which, mhz) => clock_by_id;
    nvmlDeviceGetDefaultApplicationsClock: (device, clock, mhz) => max_clock;
    nvmlDeviceGetSupportedMemoryClocks: (device, count, clocks) => memory_clocks;
    nvmlDeviceGetSupportedGraphicsClocks: (device, memory, count, clocks) => graphics_clocks;
    nvmlDeviceGetPerformanceState: (device, state) => performance_state;
    nvmlDeviceGetPowerState: (device, state) => performance_state;
    nvmlDeviceGetCurrentClocksThrottleReasons: (device, reasons) => event_reasons;
    nvmlDeviceGetCurrentClocksEventReasons: (device, reasons) => event_reasons;
    nvmlDeviceGetSupportedClocksThrottleReasons: (device, reasons) => supported_event_reasons;
    nvmlDeviceGetSupportedClocksEventReasons: (device, reasons) => supported_event_reasons;
    nvmlDeviceGetPowerUsage: (device, milliwatts) => power;
    nvmlDeviceGetTotalEnergyConsumption: (device, millijoules) => energy;
    nvmlDeviceGetPowerManagementMode: (device, mode) => power_management;
    nvmlDeviceGetPowerManagementDefaultLimit: (device, milliwatts) => default_power_limit;
    nvmlDeviceGetTemperature: (device, sensor, celsius) => temperature;
    nvmlDeviceGetTemperatureV: (device, temperature) => temperature_versioned;
    nvmlDeviceGetTemperatureThreshold: (device, threshold, celsius) => threshold;
    nvmlDeviceGetFanSpeed: (device, percent) => fan;
    nvmlDeviceGetFanSpeed_v2: (device, which, percent) => fan_by_index;
    nvmlDeviceGetNumFans: (device, count) => fans;
    nvmlDeviceGetFieldValues: (device, count, values) => fields;
} }

/// Invented: an idle GPU in a cool rack, so that tests see a figure that is neither zero nor an alarm.
const MIN_CELSIUS: u32 = 30;
/// What full use adds: 70 °C together, below the slowdown of all models.
const LOAD_CELSIUS: u32 = 40;

pub(super) fn milliwatts(model: &Model, percent: u32) -> u32 {
    model.power_idle_watts * 1000
        + (model.power_limit_watts - model.power_idle_watts) * 10 * percent
}

fn celsius(percent: u32) -> u32 {
    MIN_CELSIUS + LOAD_CELSIUS * percent / 100
}

/// A clock under load or idle; memory runs at full speed on data centre boards, always.
pub(super) fn mhz(model: &Model, clock: nvmlClockType_t, busy: bool) -> Done<u32> {
    match clock {
        nvmlClockType_t::GRAPHICS | nvmlClockType_t::SM => Ok(if busy {
            model.graphics_clock_mhz
        } else {
            model.idle_clock_mhz
        }),
        nvmlClockType_t::VIDEO => Ok(if busy {
            model.graphics_clock_mhz * 9 / 10
        } else {
            model.idle_clock_mhz * 2
        }),
        nvmlClockType_t::MEM => Ok(if busy || !model.display {
            model.memory_clock_mhz
        } else {
            405
        }),
        _ => Err(nvmlReturn_t::INVALID_ARGUMENT),
    }
}

fn clock(device: nvmlDevice_t, clock: nvmlClockType_t, place: *mut u32) -> Done {
    let device = Device::answering(device)?;
    out(place)?.set(mhz(device.model(), clock, device.utilization() > 0)?)
}

fn max_clock(device: nvmlDevice_t, clock: nvmlClockType_t, place: *mut u32) -> Done {
    out(place)?.set(mhz(Device::answering(device)?.model(), clock, true)?)
}

fn clock_by_id(
    device: nvmlDevice_t,
    kind: nvmlClockType_t,
    which: nvmlClockId_t,
    place: *mut u32,
) -> Done {
    if which == nvmlClockId_t::CURRENT {
        clock(device, kind, place)
    } else {
        max_clock(device, kind, place)
    }
}

unsafe fn memory_clocks(device: nvmlDevice_t, count: *mut u32, clocks: *mut u32) -> Done {
    let model = Device::answering(device)?.model();
    // SAFETY: the caller's array.
    unsafe { set_list(count, clocks, &[model.memory_clock_mhz]) }
}

/// From the highest down to idle in steps of 15 MHz.
pub(super) fn supported_graphics_clocks(model: &Model) -> impl Iterator<Item = u32> {
    (model.idle_clock_mhz..=model.graphics_clock_mhz)
        .rev()
        .step_by(15)
}

unsafe fn graphics_clocks(
    device: nvmlDevice_t,
    memory: u32,
    count: *mut u32,
    clocks: *mut u32,
) -> Done {
    let model = Device::answering(device)?.model();
    if memory != model.memory_clock_mhz {
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    let list: Vec<u32> = supported_graphics_clocks(model).collect();
    // SAFETY: the caller's array.
    unsafe { set_list(count, clocks, &list) }
}

/// Data centre boards stay in P0; others rest in P8.
fn performance_state(device: nvmlDevice_t, place: *mut nvmlPstates_t) -> Done {
    let device = Device::answering(device)?;
    let rests = device.model().display && device.utilization() == 0;
    out(place)?.set(if rests {
        nvmlPstates_t::PSTATE_8
    } else {
        nvmlPstates_t::PSTATE_0
    })
}

fn event_reasons(device: nvmlDevice_t, reasons: *mut u64) -> Done {
    let idle = Device::answering(device)?.utilization() == 0;
    out(reasons)?.set(if idle {
        nvmlClocksEventReasonGpuIdle
    } else {
        0
    })
}

fn supported_event_reasons(device: nvmlDevice_t, reasons: *mut u64) -> Done {
    Device::answering(device)?;
    out(reasons)?.set(nvmlClocksEventReasonGpuIdle | nvmlClocksEventReasonSwPowerCap)
}

fn power(device: nvmlDevice_t, place: *mut u32) -> Done {
    let device = Device::answering(device)?;
    out(place)?.set(milliwatts(device.model(), device.utilization()))
}

/// Idle power since time began, and the rest for the time the GPU was busy.
fn millijoules(device: &Device) -> u64 {
    let (locked, model) = (device.fresh(), device.model());
    let (idle, extra) = (
        u64::from(model.power_idle_watts),
        u64::from(model.power_limit_watts - model.power_idle_watts),
    );
    (locked.now() / 1_000_000) * idle + (device.gpu().engine.busy() / 1_000_000) * extra
}

fn energy(device: nvmlDevice_t, place: *mut u64) -> Done {
    let device = Device::answering(device)?;
    out(place)?.set(millijoules(&device))
}

fn power_management(device: nvmlDevice_t, mode: *mut nvmlEnableState_t) -> Done {
    Device::answering(device)?;
    out(mode)?.set(nvmlEnableState_t::ENABLED)
}

fn default_power_limit(device: nvmlDevice_t, place: *mut u32) -> Done {
    out(place)?.set(Device::answering(device)?.model().power_limit_watts * 1000)
}

fn temperature(device: nvmlDevice_t, sensor: nvmlTemperatureSensors_t, place: *mut u32) -> Done {
    let device = Device::answering(device)?;
    if sensor != nvmlTemperatureSensors_t::GPU {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    out(place)?.set(celsius(device.utilization()))
}

unsafe fn temperature_versioned(device: nvmlDevice_t, place: *mut nvmlTemperature_t) -> Done {
    let device = Device::answering(device)?;
    // SAFETY: null or the caller's structure.
    let place = unsafe { place.as_mut() }.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    if place.version != struct_version::<nvmlTemperature_t>(1) {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    if place.sensorType != nvmlTemperatureSensors_t::GPU {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    place.temperature = celsius(device.utilization()) as i32;
    Ok(())
}

fn threshold(
    device: nvmlDevice_t,
    threshold: nvmlTemperatureThresholds_t,
    place: *mut u32,
) -> Done {
    Device::answering(device)?;
    out(place)?.set(match threshold {
        nvmlTemperatureThresholds_t::SHUTDOWN => 92,
        nvmlTemperatureThresholds_t::SLOWDOWN => 89,
        nvmlTemperatureThresholds_t::MEM_MAX => 95,
        nvmlTemperatureThresholds_t::GPU_MAX => 87,
        _ => return Err(nvmlReturn_t::NOT_SUPPORTED),
    })
}

/// Server boards are cooled by their chassis.
fn with_fan(device: nvmlDevice_t) -> Done {
    if Device::answering(device)?.model().display {
        Ok(())
    } else {
        Err(nvmlReturn_t::NOT_SUPPORTED)
    }
}

fn fan(device: nvmlDevice_t, percent: *mut u32) -> Done {
    with_fan(device)?;
    out(percent)?.set(30)
}

fn fan_by_index(device: nvmlDevice_t, which: u32, percent: *mut u32) -> Done {
    if which == 0 {
        fan(device, percent)
    } else {
        Err(nvmlReturn_t::INVALID_ARGUMENT)
    }
}

fn fans(device: nvmlDevice_t, count: *mut u32) -> Done {
    let has = with_fan(device).is_ok();
    Device::answering(device)?;
    out(count)?.set(u32::from(has))
}

unsafe fn fields(device: nvmlDevice_t, count: i32, values: *mut nvmlFieldValue_t) -> Done {
    let device = Device::answering(device)?;
    out(values)?;
    let percent = device.utilization();
    for at in 0..usize::try_from(count).map_err(|_| nvmlReturn_t::INVALID_ARGUMENT)? {
        // SAFETY: the caller's array of `count` values.
        let value = unsafe { &mut *values.add(at) };
        let (kind, answer) = match value.fieldId {
            NVML_FI_DEV_MEMORY_TEMP => (
                nvmlValueType_t::UNSIGNED_INT,
                nvmlValue_t {
                    ullVal: u64::from(celsius(percent)),
                },
            ),
            NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION => (
                nvmlValueType_t::UNSIGNED_LONG_LONG,
                nvmlValue_t {
                    ullVal: millijoules(&device),
                },
            ),
            NVML_FI_DEV_POWER_AVERAGE | NVML_FI_DEV_POWER_INSTANT => (
                nvmlValueType_t::UNSIGNED_INT,
                nvmlValue_t {
                    ullVal: u64::from(milliwatts(device.model(), percent)),
                },
            ),
            _ => {
                value.nvmlReturn = nvmlReturn_t::NOT_SUPPORTED;
                continue;
            }
        };
        (value.valueType, value.value, value.nvmlReturn) = (kind, answer, nvmlReturn_t::SUCCESS);
    }
    Ok(())
}
