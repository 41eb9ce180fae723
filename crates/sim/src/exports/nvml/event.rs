//! Events. Two happen: Xid 79, when a GPU falls off the bus, and a change of a GPU's MIG mode or instances.

use super::{Device, Done, out, state, to_handle};
use crate::engine::machine::state::State;
use crate::engine::objects::handles::{Handle, Handles};
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

/// What a set watches and has not reported yet.
#[derive(Default)]
struct EventSet {
    watched: Vec<Watched>,
}

/// An event of a GPU. Changes of its division are counted, and told one by one.
#[derive(Clone, Copy)]
enum Watched {
    Loss(usize),
    Division(usize, u64),
}

/// What has happened, and what of it is still to be watched.
fn next(state: &State, watched: &mut Vec<Watched>) -> Option<(usize, u64, u64)> {
    let at = watched.iter().position(|watched| match *watched {
        Watched::Loss(gpu) => state.gpus()[gpu].is_lost(),
        Watched::Division(gpu, told) => state.gpus()[gpu].mig.changes() != told,
    })?;
    match &mut watched[at] {
        Watched::Loss(gpu) => {
            let gpu = *gpu;
            watched.remove(at);
            Some((gpu, nvmlEventTypeXidCriticalError, FALLEN_OFF_THE_BUS))
        }
        Watched::Division(gpu, told) => {
            *told += 1;
            Some((*gpu, nvmlEventMigConfigChange, 0))
        }
    }
}

static SETS: Mutex<Handles<EventSet>> = Mutex::new(Handles::new(0x62));

fn sets() -> MutexGuard<'static, Handles<EventSet>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle(set: nvmlEventSet_t) -> Handle<EventSet> {
    Handle::from_value(set.addr())
}

fn supported(device: nvmlDevice_t, types: *mut u64) -> Done {
    out(types)?.set(types_of(&Device::answering(device)?))
}

fn types_of(device: &Device) -> u64 {
    let division = device.model().mig.as_ref();
    nvmlEventTypeXidCriticalError | division.map_or(0, |_| nvmlEventMigConfigChange)
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
    if types & !types_of(&device) != 0 {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    let mut sets = sets();
    let set = sets.get_mut(handle(set));
    let watched = &mut set.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?.watched;
    if types & nvmlEventTypeXidCriticalError != 0 {
        watched.push(Watched::Loss(device.index));
    }
    if types & nvmlEventMigConfigChange != 0 {
        watched.push(Watched::Division(device.index, device.gpu().mig.changes()));
    }
    Ok(())
}

fn wait(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: u32) -> Done {
    let (state, data) = (state()?, out(data)?);
    let until = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
    loop {
        let happened = {
            let mut sets = sets();
            let set = sets.get_mut(handle(set));
            let watched = &mut set.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?.watched;
            next(state, watched)
        };
        if let Some((gpu, kind, detail)) = happened {
            return data.set(nvmlEventData_t {
                device: to_handle(gpu),
                eventType: kind,
                eventData: detail,
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
