//! Events. One happens: Xid 79, when a GPU falls off the bus.

use super::{Device, Done, out, state, to_handle};
use crate::engine::handles::{Handle, Handles};
use divvy_driver::sys::nvml::*;
use std::ptr::without_provenance_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

exports! { nvml {
    nvmlDeviceGetSupportedEventTypes: (device, types) => supported;
    nvmlDeviceRegisterEvents: (device, types, set) => register;
    nvmlEventSetCreate: (set) => create;
    nvmlEventSetFree: (set) => free;
    nvmlEventSetWait_v2: (set, data, timeout_ms) => wait;
} }

/// "GPU has fallen off the bus", in NVIDIA's list of Xid errors.
const FALLEN_OFF_THE_BUS: u64 = 79;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The GPUs a set watches and has not reported yet.
#[derive(Default)]
struct EventSet {
    watched: Vec<usize>,
}

static SETS: Mutex<Handles<EventSet>> = Mutex::new(Handles::new(0x62));

fn sets() -> MutexGuard<'static, Handles<EventSet>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle(set: nvmlEventSet_t) -> Handle<EventSet> {
    Handle::from_value(set.addr())
}

fn supported(device: nvmlDevice_t, types: *mut u64) -> Done {
    Device::answering(device)?;
    out(types)?.set(nvmlEventTypeXidCriticalError)
}

fn create(set: *mut nvmlEventSet_t) -> Done {
    state()?;
    let set = out(set)?;
    set.set(without_provenance_mut(
        sets().insert(EventSet::default()).value(),
    ))
}

fn free(set: nvmlEventSet_t) -> Done {
    state()?;
    sets()
        .remove(handle(set))
        .map(drop)
        .ok_or(nvmlReturn_t::INVALID_ARGUMENT)
}

fn register(device: nvmlDevice_t, types: u64, set: nvmlEventSet_t) -> Done {
    let device = Device::answering(device)?;
    if types & !nvmlEventTypeXidCriticalError != 0 {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    sets()
        .get_mut(handle(set))
        .ok_or(nvmlReturn_t::INVALID_ARGUMENT)?
        .watched
        .push(device.index);
    Ok(())
}

fn wait(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: u32) -> Done {
    let (state, data) = (state()?, out(data)?);
    let until = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
    loop {
        let lost = {
            let mut sets = sets();
            let watched = &mut sets
                .get_mut(handle(set))
                .ok_or(nvmlReturn_t::INVALID_ARGUMENT)?
                .watched;
            let at = watched.iter().position(|gpu| state.gpus()[*gpu].is_lost());
            at.map(|at| watched.remove(at))
        };
        if let Some(gpu) = lost {
            return data.set(nvmlEventData_t {
                device: to_handle(gpu),
                eventType: nvmlEventTypeXidCriticalError,
                eventData: FALLEN_OFF_THE_BUS,
                gpuInstanceId: NO_INSTANCE,
                computeInstanceId: NO_INSTANCE,
            });
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(nvmlReturn_t::TIMEOUT);
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}
