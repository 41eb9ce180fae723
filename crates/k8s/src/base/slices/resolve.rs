//! Resolution of an allocated device: what the node's agent has to hold for it.

use divvy_core::mig::{MigProfile, ProfileTable};
use divvy_core::units::Bytes;

use super::name;
use super::offer::{Gpu, Offer};

/// The node agent's part of one device of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceAllocation {
    Part {
        /// The GPU's UUID, as everywhere below.
        gpu: String,
        memory: Bytes,
    },
    Mig {
        gpu: String,
        profile: MigProfile,
        start: u8,
    },
    Whole {
        gpu: String,
    },
}

/// Why a device cannot be held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDevice {
    #[error(
        "this node has no device `{0}`: its GPU is missing, or does not support this MIG placement"
    )]
    Unknown(String),
    #[error("GPU {index} is no longer available as `{device}`: its GPU mode was changed")]
    Changed { device: String, index: u32 },
    #[error(
        "the claim has {} of `{device}`, which has only {}",
        asked.human_beside(*most)[0],
        asked.human_beside(*most)[1]
    )]
    TooMuch {
        device: String,
        asked: Bytes,
        most: Bytes,
    },
}

/// The part to hold for a device of this name, `status.allocation.devices.results[].device`, of which the claim has so
/// much, its `consumedCapacity["memory"]`. The node's role does not matter here: an allocated device is held.
///
/// A device that was allocated without an amount is exclusive: MIG placements, whole GPUs, and GPUs in a cluster
/// without consumable capacity.
///
/// # Errors
/// The node has no such device (any more), or not so much.
pub fn resolve_device(
    device: &str,
    consumed: Option<Bytes>,
    gpus: &[Gpu],
) -> Result<DeviceAllocation, NoDevice> {
    let unknown = || NoDevice::Unknown(device.to_owned());
    let of_gpu = |gpu: &&Gpu| {
        let rest = device.strip_prefix(&name::gpu(&gpu.uuid)?)?;
        Some(rest.is_empty() || rest.starts_with("-mig-"))
    };
    let found = gpus.iter().find(|gpu| of_gpu(gpu) == Some(true));
    let gpu = found.ok_or_else(unknown)?;
    let all = name::gpu(&gpu.uuid).as_deref() == Some(device);
    let uuid = gpu.uuid.clone();
    match &gpu.offer {
        Offer::Whole if all => Ok(DeviceAllocation::Whole { gpu: uuid }),
        Offer::Parts(_) if all => match consumed {
            None => Ok(DeviceAllocation::Whole { gpu: uuid }),
            Some(memory) if memory == gpu.memory => Ok(DeviceAllocation::Whole { gpu: uuid }),
            Some(memory) if Bytes::ZERO < memory && memory < gpu.memory => {
                Ok(DeviceAllocation::Part { gpu: uuid, memory })
            }
            Some(asked) => Err(NoDevice::TooMuch {
                device: device.to_owned(),
                asked,
                most: gpu.memory,
            }),
        },
        Offer::Instances(carving) | Offer::Parts(Some(carving)) if !all => {
            let (profile, start) = place(&carving.table, gpu, device).ok_or_else(unknown)?;
            Ok(DeviceAllocation::Mig {
                gpu: uuid,
                profile,
                start,
            })
        }
        _ => Err(NoDevice::Changed {
            device: device.to_owned(),
            index: gpu.index,
        }),
    }
}

/// Every name under which something of a GPU may have been given out.
pub fn names(gpu: &Gpu) -> Vec<String> {
    let Some(of_gpu) = name::gpu(&gpu.uuid) else {
        return Vec::new();
    };
    let places = match &gpu.offer {
        Offer::Instances(carving) | Offer::Parts(Some(carving)) => places(&carving.table, &of_gpu),
        Offer::Parts(None) | Offer::Whole | Offer::Nothing(_) => Vec::new(),
    };
    let places = places.into_iter().map(|(_, _, name)| name);
    std::iter::once(of_gpu.clone()).chain(places).collect()
}

/// Every place of a GPU of this name, and what it is called.
fn places(table: &ProfileTable, of_gpu: &str) -> Vec<(MigProfile, u8, String)> {
    let places = table.profiles.iter().flat_map(|profile| {
        let named = |start: &u8| {
            let name = name::place(of_gpu, profile.name, *start);
            (profile.name, *start, name)
        };
        profile.starts.iter().map(named)
    });
    places.collect()
}

/// Which of a table's places a device is called after.
fn place(table: &ProfileTable, gpu: &Gpu, device: &str) -> Option<(MigProfile, u8)> {
    let mut places = places(table, &name::gpu(&gpu.uuid)?).into_iter();
    let (profile, start, _) = places.find(|(_, _, name)| name == device)?;
    Some((profile, start))
}
