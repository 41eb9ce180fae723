//! MIG discovery: the driver's state of a GPU in MIG mode: its profiles, its instances, and the processes in them.

use std::sync::Arc;

use divvy_core::Bytes;
use divvy_core::mig::recover::{ComputeInstances, ObservedInstance};
use divvy_core::mig::{
    Attribute, MigProfile, MigUuid, MigUuidError, Placement, Profile, ProfileTable,
};
use divvy_driver::nvml::mig::{self as nvml, GpuInstanceInfo, MigMode, MigRefusal};

use super::driver::{Gpu, Instance};
use crate::gpu::GpuProcess;

/// A GPU that knows MIG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMigState {
    pub mode: MigMode,
    /// What it offers; `None` while MIG is off.
    pub capabilities: Option<Arc<MigCapabilities>>,
    /// As of when: `None` where the GPU was being changed meanwhile, and then `instances` says nothing.
    pub epoch: Option<u64>,
    /// By ascending id.
    pub instances: Vec<DiscoveredInstance>,
    /// Why its instances cannot be read.
    pub error: Option<String>,
}

/// What stays as it is while the driver is loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct MigCapabilities {
    /// Why there is none, where the driver's profiles make none.
    pub table: Result<Arc<ProfileTable>, String>,
    /// Ids of all profiles that the driver lists, also of those that the table has not.
    pub profile_ids: Vec<u32>,
}

/// An existing GPU instance, of Divvy or foreign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredInstance {
    pub placement: Placement,
    /// In memory slices.
    pub size: u8,
    pub id: u32,
    pub devices: Vec<MigDeviceState>,
    /// There is one device, and it has all of the instance.
    pub is_whole: bool,
}

/// A MIG device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigDeviceState {
    /// The compute instance's id.
    pub id: u32,
    pub uuid: MigUuid,
    pub total: Bytes,
    pub used: Bytes,
    pub processes: Vec<GpuProcess>,
}

/// The driver could not be asked, or what it said makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum MigStateError {
    #[error(transparent)]
    Driver(#[from] divvy_driver::Error),
    #[error("the driver reports an invalid MIG device UUID")]
    Uuid(#[from] MigUuidError),
    #[error("the driver reports an instance at the invalid slice {0}")]
    Slice(u32),
}

impl DiscoveredInstance {
    /// In use of it, as the driver reports.
    pub fn used(&self) -> Bytes {
        self.devices
            .first()
            .map_or(Bytes::ZERO, |device| device.used)
    }

    /// Processes in it.
    pub fn processes(&self) -> usize {
        self.devices
            .iter()
            .map(|device| device.processes.len())
            .sum()
    }

    /// As recovery knows it.
    pub fn to_observed(&self) -> ObservedInstance {
        ObservedInstance {
            placement: self.placement,
            id: self.id,
            compute_instances: match &self.devices[..] {
                [] => ComputeInstances::Nothing,
                [device] if self.is_whole => ComputeInstances::Whole(device.uuid.clone()),
                _ => ComputeInstances::Divided,
            },
        }
    }
}

/// Everything that lies on a GPU.
///
/// # Errors
/// When one instance cannot be read: it must not be taken for one that is not there.
pub fn list_instances(
    gpu: &dyn Gpu,
    offer: &MigCapabilities,
) -> Result<Vec<DiscoveredInstance>, MigStateError> {
    let instances = gpu.instances(&offer.profile_ids)?;
    let mut all = Vec::new();
    for (instance, info) in instances {
        match read_instance(&*instance, info, offer) {
            // Destroyed meanwhile.
            Err(MigStateError::Driver(error)) if error.refusal() == Some(MigRefusal::Gone) => {}
            found => all.push(found?),
        }
    }
    Ok(all)
}

fn read_instance(
    instance: &dyn Instance,
    info: GpuInstanceInfo,
    offer: &MigCapabilities,
) -> Result<DiscoveredInstance, MigStateError> {
    let slice = |slice: u32| u8::try_from(slice).map_err(|_| MigStateError::Slice(slice));
    let mut devices = Vec::new();
    let mut slices = 0;
    for (compute, within) in instance.compute_instances()? {
        let memory = compute.memory()?;
        let process = |process: divvy_driver::nvml::Process| GpuProcess {
            pid: process.pid,
            used: process.used.map(Bytes::new),
        };
        devices.push(MigDeviceState {
            id: within.id,
            uuid: within.uuid.parse()?,
            total: Bytes::new(memory.total),
            used: Bytes::new(memory.used),
            processes: compute.processes()?.into_iter().map(process).collect(),
        });
        slices += within.placement.size;
    }
    // Of a profile that the table has not, nothing is ever ours.
    let profile = offer.table.as_ref().ok();
    let profile = profile.and_then(|table| table.profile(info.profile));
    let is_whole = profile.is_some_and(|profile| slices >= u32::from(profile.compute_slices));
    Ok(DiscoveredInstance {
        placement: Placement {
            profile: info.profile,
            start: slice(info.placement.start)?,
        },
        size: slice(info.placement.size)?,
        id: info.id,
        is_whole: is_whole && devices.len() == 1,
        devices,
    })
}

/// What a GPU with so much memory offers. A profile that makes no sense is left out, so that it takes none of the
/// others with it.
///
/// # Errors
/// When the driver lists no profile at all.
pub fn read_capabilities(
    gpu: &dyn Gpu,
    total: Bytes,
) -> Result<MigCapabilities, divvy_driver::Error> {
    let listed = gpu.profiles()?;
    let ids = listed.iter().map(|(profile, _)| profile.id).collect();
    let profiles: Vec<Profile> = listed
        .iter()
        .filter_map(|(info, placements)| {
            let profile = profile(info, placements, total);
            if profile.is_none() {
                tracing::warn!(?info, "ignoring a MIG profile with invalid data");
            }
            profile
        })
        .collect();
    let table = ProfileTable::new(profiles);
    Ok(MigCapabilities {
        table: table.map(Arc::new).map_err(|error| error.to_string()),
        profile_ids: ids,
    })
}

fn profile(
    info: &nvml::GpuInstanceProfile,
    placements: &[nvml::Placement],
    total: Bytes,
) -> Option<Profile> {
    let memory = Bytes::new(info.memory);
    let compute_slices = u8::try_from(info.slices).ok()?;
    let name = match info.name.as_deref().map(MigProfile::from_driver_name) {
        Some(Ok(name)) => name,
        _ => {
            let attribute = Attribute::of_driver_number(info.number)?;
            MigProfile::computed(compute_slices, memory, total, attribute)?
        }
    };
    let size = placements.first()?.size;
    let alike = placements.iter().all(|place| place.size == size);
    let starts = placements.iter().map(|place| u8::try_from(place.start));
    alike.then_some(Profile {
        id: info.id,
        name,
        memory,
        compute_slices,
        memory_slices: u8::try_from(size).ok()?,
        multiprocessors: info.multiprocessors,
        most: u8::try_from(info.most).ok()?,
        starts: starts.collect::<Result<_, _>>().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: Option<&str>) -> nvml::GpuInstanceProfile {
        nvml::GpuInstanceProfile {
            number: 0,
            id: 19,
            name: name.map(str::to_owned),
            memory: 4864 << 20,
            slices: 1,
            multiprocessors: 14,
            most: 7,
            copy_engines: 1,
            decoders: 0,
            encoders: 0,
            jpegs: 0,
            ofas: 0,
        }
    }

    fn places(starts: &[u32]) -> Vec<nvml::Placement> {
        let place = |start: &u32| nvml::Placement {
            start: *start,
            size: 1,
        };
        starts.iter().map(place).collect()
    }

    #[test]
    fn a_driver_that_gives_no_names_has_them_computed() {
        let total = Bytes::mib(40_960);
        for name in [None, Some("1g.5gb"), Some("what is this")] {
            let profile = profile(&info(name), &places(&[0, 1, 2]), total).unwrap();
            assert_eq!(profile.name.to_string(), "1g.5gb");
            assert_eq!((profile.starts, profile.memory_slices), (vec![0, 1, 2], 1));
        }
    }

    #[test]
    fn a_profile_that_makes_no_sense_is_left_out() {
        let total = Bytes::mib(40_960);
        assert_eq!(profile(&info(None), &[], total), None);
        let unknown = nvml::GpuInstanceProfile {
            number: 99,
            ..info(None)
        };
        assert_eq!(profile(&unknown, &places(&[0]), total), None);
        let mut unlike = places(&[0, 1]);
        unlike[1].size = 2;
        assert_eq!(profile(&info(None), &unlike, total), None);
    }
}
