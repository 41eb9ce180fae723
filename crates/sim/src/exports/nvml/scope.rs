//! The scope of figures of memory and processes: a GPU, or one MIG device.

use super::mig::MigDevice;
use super::setting::permitted;
use super::{Device, Done};
use crate::engine::machine::slots::ProcessSlot;
use crate::engine::mig::MigInstanceId;
use crate::engine::mig::capabilities;
use crate::engine::mig::partition::{of_instance, partitions_of};
use divvy_driver::sys::nvml::{nvmlDevice_t, nvmlReturn_t};

/// A GPU that answers, and the place of the MIG device on it that was named, if one was.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    pub device: Device,
    pub place: Option<MigInstanceId>,
}

impl Scope {
    /// Of a divided GPU, figures of all its instances need the right to watch them (nvml.h: "only if the caller has
    /// appropriate privileges"): root has it, and any process that can open the file of that right.
    pub fn of(handle: nvmlDevice_t) -> Done<Scope> {
        if let Some(MigDevice { state, gpu, place }) = MigDevice::of(handle)? {
            let device = Device { state, index: gpu };
            let place = Some(place);
            return Ok(Scope { device, place });
        }
        let device = Device::answering(handle)?;
        if device.gpu().mig.is_on() && permitted().is_err() && !capabilities::may_watch() {
            return Err(nvmlReturn_t::NO_PERMISSION);
        }
        Ok(Scope {
            device,
            place: None,
        })
    }

    /// Where a process is counted in: with its instance there, if it is in one.
    pub fn seats_of<'a>(
        &'a self,
        slot: &'a ProcessSlot,
    ) -> impl Iterator<Item = (usize, Option<MigInstanceId>)> + 'a {
        let gpu = self.device.index;
        let here = partitions_of(gpu).filter_map(move |partition| {
            if !slot.has_context(partition) {
                return None;
            }
            let place = slot.mig_instance(partition);
            Some((partition, place))
        });
        here.filter(|(_, place)| self.place.is_none() || *place == self.place)
    }

    /// The partition with the memory in question; None for all of the GPU.
    pub fn partition(&self) -> Option<usize> {
        let place = self.place?;
        Some(of_instance(self.device.index, place.gpu_instance))
    }
}

/// A GPU as a whole: figures that a divided GPU and its instances do not have (nvml.h: "On MIG-enabled GPUs, … not
/// currently supported").
pub(super) fn undivided(handle: nvmlDevice_t) -> Done<Device> {
    if MigDevice::of(handle)?.is_some() {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    let device = Device::answering(handle)?;
    if device.gpu().mig.is_on() {
        Err(nvmlReturn_t::NOT_SUPPORTED)
    } else {
        Ok(device)
    }
}
