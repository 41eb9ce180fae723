//! MIG in the API: instances, profiles, and troubles of GPUs.

use divvy_api::v1;
use divvy_core::mig::recover::InstanceState;
use divvy_core::mig::{Placement, UnallocatedState};
use divvy_core::{GpuUuid, Grant};

use crate::controller::mig::{capacity, geometry};
use crate::controller::state::mig::{MigManager, slot};
use crate::controller::state::{GpuState, Jobs, State};
use crate::gpu::Device;
use crate::gpu::mig::discover::DiscoveredInstance;
use crate::model::mig_instance::{ManagedInstance, MigSlot};

/// Every instance, by GPU and placement.
pub fn mig_instances(mig: &MigManager, gpus: &GpuState) -> Vec<v1::MigInstance> {
    gpus.devices
        .iter()
        .flat_map(|device| instances_on(mig, gpus, device))
        .collect()
}

/// The MIG layout of a GPU; `None` if it is not in MIG mode.
pub fn mig_of(state: &State, gpu: &GpuUuid) -> Option<v1::Mig> {
    let device = state
        .gpus
        .devices
        .iter()
        .find(|device| device.gpu.uuid == *gpu)?;
    let table = device.profile_table()?;
    let gpu = capacity::gpus_now(state)
        .into_iter()
        .find(|one| one.uuid == *gpu)?;
    let profile = |profile: &divvy_core::mig::Profile| v1::MigProfile {
        name: profile.name.to_string(),
        id: profile.id,
        memory_bytes: profile.memory.get(),
        memory_slices: profile.memory_slices,
        compute_slices: profile.compute_slices,
        multiprocessors: profile.multiprocessors,
        max_instances: profile.most,
        starts: profile.starts.clone(),
        available: free_places(&state.jobs, &gpu, profile.id),
    };
    Some(v1::Mig {
        memory_slices: table.memory_slices,
        compute_slices: table.compute_slices,
        profiles: table.profiles.iter().map(profile).collect(),
        instances: instances_on(&state.mig, &state.gpus, device),
    })
}

/// Adds the troubles of GPUs to a refusal of a request that can never fit: it might fit without them.
pub(in crate::controller) fn explain(
    mig: &MigManager,
    gpus: &GpuState,
    error: v1::Error,
) -> v1::Error {
    if error.code != v1::ErrorCode::NeverFits {
        return error;
    }
    let troubles = gpus.devices.iter().filter_map(|device| {
        let trouble = capacity::trouble_of(mig, device)?;
        Some(format!("; GPU {}: {trouble}", device.gpu.index))
    });
    let message = std::iter::once(error.message).chain(troubles).collect();
    v1::Error { message, ..error }
}

/// The MIG instance of a grant.
pub fn mig_slice(mig: &MigManager, gpus: &GpuState, grant: &Grant) -> Option<v1::MigSlice> {
    let slot = slot(grant)?;
    let instance = mig.instances.get(&slot);
    let made = instance.and_then(|instance| instance.info.as_ref());
    Some(v1::MigSlice {
        profile: grant.mig?.profile.to_string(),
        start: slot.placement.start,
        memory_slices: geometry::size(gpus, &slot),
        memory_bytes: grant.memory.get(),
        uuid: made.map(|made| made.uuid.to_string()),
    })
}

/// What the last observation found in a grant's instance.
pub(in crate::controller) fn found_in<'a>(
    mig: &'a MigManager,
    grant: &Grant,
) -> Option<&'a DiscoveredInstance> {
    let MigSlot { gpu, placement } = slot(grant)?;
    let found = &mig.gpus.get(&gpu)?.observed;
    found.iter().find(|found| found.placement == placement)
}

/// How many more instances of a profile fit on a GPU if idle ones are destroyed. Taking the places from the left yields
/// the most, as all have one size.
fn free_places(jobs: &Jobs, gpu: &divvy_core::Gpu, profile: u32) -> u8 {
    let Some(inventory) = &gpu.mig else { return 0 };
    let table = &inventory.table;
    let Some(profile) = table.profile(profile) else {
        return 0;
    };
    let held = jobs
        .active
        .values()
        .flat_map(|active| active.job.state.grants());
    let held = held.filter(|grant| grant.gpu == gpu.uuid);
    let mut taken = inventory.fixed();
    taken.extend(held.filter_map(|grant| Some(grant.mig?.placement)));
    let same = taken.iter().filter(|one| one.profile == profile.id).count();
    let sized = |placement: Placement| (placement, geometry::size_in(table, placement));
    let mut taken: Vec<(Placement, u8)> = taken.into_iter().map(sized).collect();
    let before = taken.len();
    for start in &profile.starts {
        let piece = sized(Placement {
            profile: profile.id,
            start: *start,
        });
        if !taken.iter().any(|other| geometry::overlap(*other, piece)) {
            taken.push(piece);
        }
    }
    let most = usize::from(profile.most).saturating_sub(same);
    u8::try_from((taken.len() - before).min(most)).unwrap_or(u8::MAX)
}

fn instances_on(mig: &MigManager, gpus: &GpuState, device: &Device) -> Vec<v1::MigInstance> {
    let gpu = &device.gpu;
    let Some(table) = device.profile_table() else {
        return Vec::new();
    };
    let shown = |placement: Placement, size: u8, state, instance: Option<&ManagedInstance>| {
        let profile = table.profile(placement.profile);
        let made = instance.and_then(|instance| instance.info.as_ref());
        v1::MigInstance {
            gpu_uuid: gpu.uuid.to_string(),
            gpu_index: gpu.index,
            profile: match profile {
                Some(profile) => profile.name.to_string(),
                None => format!("profile {}", placement.profile),
            },
            start: placement.start,
            memory_slices: size,
            memory_bytes: profile.map_or(0, |profile| profile.memory.get()),
            state,
            job: instance.and_then(|one| Some(one.job?.to_string())),
            uuid: made.map(|made| made.uuid.to_string()),
        }
    };
    let ours = mig.instances.values();
    let mut all: Vec<v1::MigInstance> = ours
        .filter(|instance| instance.slot.gpu == gpu.uuid)
        .map(|instance| {
            let placement = instance.slot.placement;
            shown(
                placement,
                geometry::size(gpus, &instance.slot),
                self::state(mig, instance),
                Some(instance),
            )
        })
        .collect();
    let foreign = mig.gpus.get(&gpu.uuid).into_iter();
    all.extend(
        foreign
            .flat_map(|of_gpu| &of_gpu.unmanaged)
            .map(|(placement, size)| shown(*placement, *size, v1::MigState::Unmanaged, None)),
    );
    all.sort_by_key(|one| (one.start, one.memory_slices));
    all
}

fn state(mig: &MigManager, instance: &ManagedInstance) -> v1::MigState {
    match mig.standing(instance) {
        _ if instance.state == InstanceState::Ready && instance.job.is_some() => {
            v1::MigState::InUse
        }
        UnallocatedState::Idle => v1::MigState::Idle,
        UnallocatedState::Foreign => v1::MigState::Unmanaged,
        UnallocatedState::Quarantined => v1::MigState::Quarantined,
        UnallocatedState::Leaving => v1::MigState::Destroying,
        UnallocatedState::Coming => v1::MigState::Creating,
    }
}
