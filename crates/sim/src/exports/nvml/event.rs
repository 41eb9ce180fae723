//! Events. Two happen: an Xid error, and a change of a GPU's MIG mode or instances.

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

/// So an event is seen a hundredth of a second later at most; a shorter one would take processor time from the tests.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a set watches and has not reported yet.
#[derive(Default)]
struct EventSet {
    watched: Vec<Watched>,
}

/// What a set watches of a GPU, and how many events the set has reported, one for each call.
enum Watched {
    Xid(usize, u64),
    Division(usize, u64),
}

/// The next event that was not told: its GPU, type and data.
fn next(state: &State, watched: &mut [Watched]) -> Option<(usize, u64, u64)> {
    let locked = state.lock();
    watched.iter_mut().find_map(|watched| match watched {
        Watched::Xid(gpu, told) => {
            let (number, xid) = locked.xid_after(*gpu, *told)?;
            *told = number;
            Some((*gpu, nvmlEventTypeXidCriticalError, xid))
        }
        Watched::Division(gpu, told) => {
            if locked.mig(*gpu).changes() == *told {
                return None;
            }
            *told += 1;
            Some((*gpu, nvmlEventMigConfigChange, 0))
        }
    })
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
        watched.push(Watched::Xid(device.index, device.gpu().health.xid_count()));
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
