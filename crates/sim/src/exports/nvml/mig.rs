//! MIG: the handles of instances and MIG devices, and the right to change them.
//!
//! ```text
//! mode ─ the mode, MIG devices          profile ─ what there can be, how many more
//! instance ─ making, finding, destroying
//! control ─ what no NVML call does: resets, restarts, holders that are no processes
//! ```
//! A handle carries the generation of what it was given for, so that one of something destroyed is known to be stale.

mod control;
mod instance;
mod mode;
mod profile;

use super::{Device, Done, out, state};
use crate::engine::machine::mig_change::MigError;
use crate::engine::machine::opened::machine;
use crate::engine::machine::state::State;
use crate::engine::mig::{ComputeInstance, GpuInstance, MigInstanceId};
use crate::model::mig::Table;
use divvy_driver::sys::nvml::*;
use std::ptr::without_provenance_mut;

/// Without an array the count alone; with one, nothing says how large it is.
///
/// # Safety
/// `places` is null or has room for all of them.
unsafe fn set_list<T: Copy>(places: *mut T, count: *mut u32, list: &[T]) -> Done {
    let count = out(count)?;
    if !places.is_null() {
        // SAFETY: the caller's array is large enough for what the profile has, as nvml.h asks.
        unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), places, list.len()) };
    }
    count.set(list.len() as u32)
}

/// Where the handles of each kind begin; nothing like them is an address of ours.
const MIG_DEVICES: usize = 0x6300_0000_0000;
const GPU_INSTANCES: usize = 0x6400_0000_0000;
const COMPUTE_INSTANCES: usize = 0x6500_0000_0000;
const KIND_MASK: usize = !0xff_ffff_ffff;

/// What a handle names: a GPU, ids on it, and a generation of which it has the last 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named {
    gpu: usize,
    place: MigInstanceId,
    generation: usize,
}

const GENERATION_MASK: usize = 0xff_ffff;

impl Named {
    fn value(self, kind: usize) -> usize {
        let MigInstanceId {
            gpu_instance,
            compute_instance,
        } = self.place;
        kind | (self.generation & GENERATION_MASK) << 16
            | self.gpu << 12
            | (gpu_instance as usize) << 8
            | (compute_instance as usize) << 4
    }

    fn of(value: usize, kind: usize) -> Option<Named> {
        let part = |shift: u32| (value >> shift) & 0xf;
        let named = Named {
            gpu: part(12),
            place: MigInstanceId {
                gpu_instance: part(8) as u32,
                compute_instance: part(4) as u32,
            },
            generation: (value >> 16) & GENERATION_MASK,
        };
        (named.value(kind) == value).then_some(named)
    }

    /// Whether what has this generation now is what the handle was given for, or may be taken for it.
    fn is(self, generation: u64) -> bool {
        let reuse = machine().is_some_and(|machine| machine.config.mig.reuse_handles);
        reuse || self.generation == generation as usize & GENERATION_MASK
    }
}

/// A compute instance behind the handle of a device, or behind its own.
#[derive(Clone, Copy)]
pub(super) struct MigDevice {
    pub state: &'static State,
    pub gpu: usize,
    pub place: MigInstanceId,
}

/// A GPU instance behind its handle.
#[derive(Clone, Copy)]
struct GpuInstanceRef {
    state: &'static State,
    gpu: usize,
    id: u32,
}

/// What a handle of a kind names on a GPU that answers.
fn named(value: usize, kind: usize) -> Done<(&'static State, Named)> {
    let state = state()?;
    let named = Named::of(value, kind).filter(|named| named.gpu < state.gpu_count());
    let named = named.ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    let gpu = &state.gpus()[named.gpu];
    if gpu.health.is_lost() {
        return Err(nvmlReturn_t::GPU_IS_LOST);
    }
    if gpu.mig.is_on() {
        Ok((state, named))
    } else {
        Err(nvmlReturn_t::INVALID_ARGUMENT)
    }
}

impl MigDevice {
    /// Whether a handle was ever that of a MIG device.
    pub fn owns(handle: nvmlDevice_t) -> bool {
        handle.addr() & KIND_MASK == MIG_DEVICES
    }

    /// The MIG device, if it is one's handle; an error if what it named is gone.
    pub fn of(handle: nvmlDevice_t) -> Done<Option<MigDevice>> {
        if MigDevice::owns(handle) {
            MigDevice::from_value(handle.addr(), MIG_DEVICES).map(Some)
        } else {
            Ok(None)
        }
    }

    fn from_value(value: usize, kind: usize) -> Done<MigDevice> {
        let (state, named) = named(value, kind)?;
        let found = state.gpus()[named.gpu].mig.compute_instance(named.place);
        match found {
            Some(found) if named.is(found.generation) => Ok(MigDevice {
                state,
                gpu: named.gpu,
                place: named.place,
            }),
            _ => Err(nvmlReturn_t::INVALID_ARGUMENT),
        }
    }

    pub fn instance(&self) -> Done<ComputeInstance> {
        let found = self.state.gpus()[self.gpu].mig.compute_instance(self.place);
        found.ok_or(nvmlReturn_t::INVALID_ARGUMENT)
    }

    /// What is called so; it must be there.
    pub fn called(state: &'static State, text: &str) -> Done<MigDevice> {
        let (gpu, place) = state.find_mig_device(text).ok_or(nvmlReturn_t::NOT_FOUND)?;
        Ok(MigDevice { state, gpu, place })
    }

    pub fn handle(&self) -> Done<nvmlDevice_t> {
        let value = self.named()?.value(MIG_DEVICES);
        Ok(without_provenance_mut(value))
    }

    fn compute_handle(&self) -> Done<nvmlComputeInstance_t> {
        let value = self.named()?.value(COMPUTE_INSTANCES);
        Ok(without_provenance_mut(value))
    }

    fn named(&self) -> Done<Named> {
        Ok(Named {
            gpu: self.gpu,
            place: self.place,
            generation: self.instance()?.generation as usize,
        })
    }

    pub fn name(&self) -> Done<String> {
        let name = self.state.mig_name(self.gpu, self.place);
        name.ok_or(nvmlReturn_t::INVALID_ARGUMENT)
    }

    pub fn uuid_text(&self) -> Done<String> {
        let uuid = self.state.mig_uuid_text(self.gpu, self.place);
        uuid.ok_or(nvmlReturn_t::INVALID_ARGUMENT)
    }
}

impl GpuInstanceRef {
    fn of(handle: nvmlGpuInstance_t) -> Done<GpuInstanceRef> {
        let (state, named) = named(handle.addr(), GPU_INSTANCES)?;
        let part = GpuInstanceRef {
            state,
            gpu: named.gpu,
            id: named.place.gpu_instance,
        };
        let found = part.instance()?;
        if named.is(found.generation) {
            Ok(part)
        } else {
            Err(nvmlReturn_t::INVALID_ARGUMENT)
        }
    }

    /// One that the caller may look into and change.
    fn changeable(handle: nvmlGpuInstance_t) -> Done<GpuInstanceRef> {
        let part = GpuInstanceRef::of(handle)?;
        super::setting::permitted()?;
        Ok(part)
    }

    fn instance(&self) -> Done<GpuInstance> {
        let found = self.state.gpus()[self.gpu].mig.gpu_instance(self.id);
        found.ok_or(nvmlReturn_t::INVALID_ARGUMENT)
    }

    fn handle(&self) -> Done<nvmlGpuInstance_t> {
        let named = Named {
            gpu: self.gpu,
            place: MigInstanceId {
                gpu_instance: self.id,
                compute_instance: 0,
            },
            generation: self.instance()?.generation as usize,
        };
        Ok(without_provenance_mut(named.value(GPU_INSTANCES)))
    }
}

/// A GPU that can be divided, and into what.
fn partitionable(device: nvmlDevice_t) -> Done<(Device, &'static Table)> {
    let device = Device::answering(device)?;
    let table = device.state.mig_table(device.index);
    Ok((device, table.ok_or(nvmlReturn_t::NOT_SUPPORTED)?))
}

/// The same for a caller with the right to divide it.
fn dividable(device: nvmlDevice_t) -> Done<(Device, &'static Table)> {
    let found = partitionable(device)?;
    super::setting::permitted()?;
    Ok(found)
}

/// A divided GPU, for a caller with the right to change that.
fn divided(device: nvmlDevice_t) -> Done<(Device, &'static Table)> {
    let (device, table) = dividable(device)?;
    if device.gpu().mig.is_on() {
        Ok((device, table))
    } else {
        Err(nvmlReturn_t::NOT_SUPPORTED)
    }
}

fn refused(why: MigError) -> nvmlReturn_t {
    match why {
        MigError::Off => nvmlReturn_t::NOT_SUPPORTED,
        MigError::Invalid => nvmlReturn_t::INVALID_ARGUMENT,
        MigError::NoRoom => nvmlReturn_t::INSUFFICIENT_RESOURCES,
        MigError::InUse => nvmlReturn_t::IN_USE,
        MigError::NotFound => nvmlReturn_t::NOT_FOUND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_come_back_and_those_of_another_kind_do_not() {
        let named = Named {
            gpu: 15,
            place: MigInstanceId {
                gpu_instance: 14,
                compute_instance: 7,
            },
            generation: 0xabcdef,
        };
        let value = named.value(MIG_DEVICES);
        assert_eq!(Named::of(value, MIG_DEVICES), Some(named));
        assert_eq!(Named::of(value, GPU_INSTANCES), None);
        assert_eq!(Named::of(value + 1, MIG_DEVICES), None);
        assert_eq!(Named::of(0, MIG_DEVICES), None);
    }
}
