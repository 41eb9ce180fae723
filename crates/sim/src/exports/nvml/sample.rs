//! Samples of utilisation, power and clocks: the windows of 1/6 s in which the GPU's busy time is kept.

use super::power::{mhz, milliwatts};
use super::scope::undivided;
use super::{Device, Done, out};
use crate::engine::machine::accounting::wall_clock_us;
use divvy_driver::sys::nvml::*;
use std::sync::OnceLock;

exports! { nvml {
    nvmlDeviceGetSamples: (device, kind, last_seen, value_type, count, samples) => samples;
} }

/// Simulated nanoseconds as microseconds of the wall clock. One difference for the life of the process, so that a
/// sample keeps its time.
fn stamp(now_ns: u64, at_ns: u64) -> u64 {
    static BEGINNING: OnceLock<u64> = OnceLock::new();
    let beginning = BEGINNING.get_or_init(|| wall_clock_us().saturating_sub(now_ns / 1000));
    beginning + at_ns / 1000
}

/// What a sample of this kind says of a window in which the GPU was busy for `percent`.
fn value(device: &Device, kind: nvmlSamplingType_t, percent: u32) -> Done<u32> {
    let busy = percent > 0;
    match kind {
        nvmlSamplingType_t::GPU_UTILIZATION_SAMPLES => Ok(percent),
        nvmlSamplingType_t::MEMORY_UTILIZATION_SAMPLES => Ok(percent / 2),
        nvmlSamplingType_t::ENC_UTILIZATION_SAMPLES
        | nvmlSamplingType_t::DEC_UTILIZATION_SAMPLES => Ok(0),
        nvmlSamplingType_t::TOTAL_POWER_SAMPLES => Ok(milliwatts(device.model(), percent)),
        nvmlSamplingType_t::PROCESSOR_CLK_SAMPLES => mhz(device.model(), nvmlClockType_t::SM, busy),
        nvmlSamplingType_t::MEMORY_CLK_SAMPLES => mhz(device.model(), nvmlClockType_t::MEM, busy),
        nvmlSamplingType_t(0..=9) => Err(nvmlReturn_t::NOT_SUPPORTED),
        _ => Err(nvmlReturn_t::INVALID_ARGUMENT),
    }
}

/// Without an array, how many there are at most.
unsafe fn samples(
    device: nvmlDevice_t,
    kind: nvmlSamplingType_t,
    last_seen: u64,
    value_type: *mut nvmlValueType_t,
    count: *mut u32,
    samples: *mut nvmlSample_t,
) -> Done {
    // nvml.h: of divided GPUs not how busy they are.
    let device = match kind {
        nvmlSamplingType_t::GPU_UTILIZATION_SAMPLES
        | nvmlSamplingType_t::MEMORY_UTILIZATION_SAMPLES => undivided(device)?,
        _ => Device::answering(device)?,
    };
    let value_type = out(value_type)?;
    out(count)?;
    value(&device, kind, 0)?;
    let locked = device.fresh();
    let (now, windows) = (
        locked.now(),
        device.gpu().engine.windows().ended(locked.now()),
    );
    drop(locked);
    let newer: Vec<(u64, u32)> = windows
        .into_iter()
        .map(|(end, percent)| (stamp(now, end), percent))
        .filter(|(time, _)| *time > last_seen)
        .collect();
    // SAFETY: not null; the caller's room, which goes out as what there is.
    let room = unsafe { *count } as usize;
    if samples.is_null() {
        // SAFETY: as above.
        unsafe { *count = newer.len() as u32 };
        return value_type.set(nvmlValueType_t::UNSIGNED_INT);
    }
    if room == 0 {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    if newer.is_empty() {
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    let written = newer.len().min(room);
    for (at, (time, percent)) in newer[newer.len() - written..].iter().enumerate() {
        let sample = nvmlSample_t {
            timeStamp: *time,
            sampleValue: nvmlValue_t {
                ullVal: u64::from(value(&device, kind, *percent)?),
            },
        };
        // SAFETY: there is room for `room` samples, and no more are written.
        unsafe { samples.add(at).write(sample) };
    }
    // SAFETY: as above.
    unsafe { *count = written as u32 };
    value_type.set(nvmlValueType_t::UNSIGNED_INT)
}
