//! MIG capacity: the GPUs as the planner sees them, with the instances that it may use or destroy.

use std::sync::Arc;

use divvy_core::mig::{MigInventory, Placement, ProfileTable, UnallocatedState};
use divvy_core::{Gpu, GpuUuid, Mode, Request, can_ever_fit, mig};

use crate::controller::mig::geometry::{overlap, size_in};
use crate::controller::state::mig::MigManager;
use crate::controller::state::{GpuState, Jobs, State};
use crate::gpu::Device;

/// The GPUs as the planner sees them.
pub(in crate::controller) fn gpus_now(state: &State) -> Vec<Gpu> {
    state
        .gpus
        .devices
        .iter()
        .map(|device| {
            let mut gpu = device.gpu.clone();
            gpu.mig = None;
            if gpu.mode == Mode::Mig {
                gpu.mig = device
                    .profile_table()
                    .map(|table| inventory(&state.jobs, &state.mig, &gpu.uuid, table));
                let of_gpu = state.mig.gpus.get(&gpu.uuid);
                // Without the list of instances, free places are unknown.
                let backs_off = of_gpu.is_some_and(|of_gpu| {
                    of_gpu.backoff_until.contains_key(&None) || of_gpu.trouble.is_some()
                });
                if backs_off || gpu.mig.is_none() {
                    gpu.mode = Mode::Unmanaged;
                }
            }
            gpu
        })
        .collect()
}

/// The instances of a GPU that no job holds. An instance that is being destroyed for a job is left out, as that job
/// holds the place already. The worker runs commands in order, so a later instance beside it is created after that.
fn inventory(
    jobs: &Jobs,
    mig: &MigManager,
    gpu: &GpuUuid,
    table: Arc<ProfileTable>,
) -> MigInventory {
    let mut taken: Vec<(Placement, u8)> = Vec::new();
    let held = jobs
        .active
        .values()
        .flat_map(|active| active.job.state.grants());
    let held = held.filter(|grant| grant.gpu == *gpu);
    taken.extend(held.filter_map(|grant| {
        let placement = grant.mig?.placement;
        Some((placement, size_in(&table, placement)))
    }));
    let mut listed: Vec<mig::UnallocatedInstance> = Vec::new();
    let mut list = |placement: Placement, size: u8, standing: UnallocatedState| {
        let there = (placement, size);
        if !taken.iter().any(|other| overlap(*other, there)) {
            taken.push(there);
            listed.push(mig::UnallocatedInstance {
                placement,
                standing,
            });
        }
    };
    let of_gpu = mig.gpus.get(gpu);
    let backs_off = |placement: Placement| {
        of_gpu.is_some_and(|of_gpu| of_gpu.backoff_until.contains_key(&Some(placement)))
    };
    let ours = mig.instances.values();
    let ours = ours.filter(|one| one.slot.gpu == *gpu && one.job.is_none());
    // In this order, so that a new instance hides the one that makes room for it.
    let standings = [
        UnallocatedState::Coming,
        UnallocatedState::Idle,
        UnallocatedState::Quarantined,
        UnallocatedState::Leaving,
    ];
    for standing in standings {
        let these = ours.clone();
        for instance in these.filter(|one| mig.standing(one) == standing) {
            let placement = instance.slot.placement;
            let standing = match backs_off(placement) {
                // The daemon could not check it.
                true => UnallocatedState::Quarantined,
                false => standing,
            };
            list(placement, size_in(&table, placement), standing);
        }
    }
    if let Some(of_gpu) = of_gpu {
        for (placement, size) in &of_gpu.unmanaged {
            for placement in covering_placements(&table, *placement, *size) {
                list(
                    placement,
                    size_in(&table, placement),
                    UnallocatedState::Foreign,
                );
            }
        }
        for placement in of_gpu.backoff_until.keys().flatten() {
            list(
                *placement,
                size_in(&table, *placement),
                UnallocatedState::Quarantined,
            );
        }
    }
    listed.sort_unstable();
    MigInventory {
        table,
        instances: listed,
    }
}

/// The placements that stand for an unmanaged instance of a profile that the table lacks: the smallest instances that
/// cover it.
fn covering_placements(table: &ProfileTable, placement: Placement, size: u8) -> Vec<Placement> {
    if table.profile(placement.profile).is_some() {
        return vec![placement];
    }
    let there = (placement, size);
    let smallest = table
        .profiles
        .iter()
        .min_by_key(|profile| profile.memory_slices);
    let Some(profile) = smallest else {
        return Vec::new();
    };
    let piece = |start: &u8| Placement {
        profile: profile.id,
        start: *start,
    };
    profile
        .starts
        .iter()
        .map(piece)
        .filter(|piece| overlap((*piece, profile.memory_slices), there))
        .collect()
}

/// The GPUs as they are without passing obstacles, to decide whether a request can ever be served. A MIG GPU that
/// another program holds returns, and so does a GPU that is out of service, or does not respond but is not lost for good. A GPU that switches
/// its mode counts with the new mode. An obstacle that an administrator has to remove counts as lasting.
pub fn gpus_ever(mig: &MigManager, gpus: &GpuState) -> Vec<Gpu> {
    let ever = |device: &Device| {
        let mut gpu = device.unoccupied();
        let is_out = gpu.out_of_service.take().is_some();
        let returns = match std::mem::take(&mut gpu.away) {
            true => !device.is_lost,
            false => is_out,
        };
        if returns {
            gpu.mode = device.mode.assigned;
        }
        if let Some(wanted) = device
            .mode
            .requested
            .filter(|_| device.is_managed && device.mode.is_switching)
        {
            gpu.mode = wanted.mode;
        } else if gpu.mode == Mode::Mig && trouble_of(mig, device).is_some() {
            gpu.mode = Mode::Unmanaged;
        }
        gpu.mig = gpu.mig.filter(|_| gpu.mode == Mode::Mig);
        gpu
    };
    gpus.devices.iter().map(ever).collect()
}

/// The same, or the GPUs of the last start for a request that waits for one of them.
pub fn gpus_for(mig: &MigManager, gpus: &GpuState, request: &Request) -> Vec<Gpu> {
    let (ever, before) = (gpus_ever(mig, gpus), &gpus.start.before);
    let fits = |gpus: &[Gpu]| can_ever_fit(gpus, request).is_ok();
    match !before.is_empty() && !fits(&ever) && fits(before) {
        true => before.clone(),
        false => ever,
    }
}

/// What keeps a GPU from the use that its requested mode allows.
pub(in crate::controller) fn trouble_of(mig: &MigManager, device: &Device) -> Option<String> {
    let wanted = device.mode.requested.map(|wanted| wanted.mode);
    let mig_mode = device.mode.mig.map(|mode| (mode.current, mode.pending));
    let index = device.gpu.index;
    let reset = format!("after a reset: `nvidia-smi --gpu-reset -i {index}`");
    match (wanted, mig_mode) {
        _ if device.mode.is_switching => Some("its mode is being changed".to_owned()),
        (Some(Mode::Mig), Some((false, true))) => Some(format!("MIG mode turns on {reset}")),
        (Some(Mode::Mig), Some((false, false))) => Some(format!(
            "it is no longer in MIG mode; restore it: `divvy admin gpu {index} --mode mig`"
        )),
        (Some(Mode::Shared | Mode::Exclusive), Some((true, false))) => {
            Some(format!("MIG mode turns off {reset}"))
        }
        _ => {
            let why = mig.gpus.get(&device.gpu.uuid)?.trouble.as_ref()?;
            Some(format!("cannot read its MIG instances: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(profile: u32, start: u8) -> Placement {
        Placement { profile, start }
    }

    #[test]
    fn side_by_side_is_no_overlap() {
        assert!(!overlap((at(14, 0), 2), (at(14, 2), 2)));
        assert!(overlap((at(14, 0), 2), (at(19, 1), 1)));
        assert!(overlap((at(0, 0), 8), (at(19, 6), 1)));
    }

    #[test]
    fn an_instance_of_an_unknown_profile_takes_its_slices() {
        let table = ProfileTable::of_model("a100-40gb").unwrap();
        assert_eq!(covering_placements(&table, at(19, 3), 1), [at(19, 3)]);
        let covered = covering_placements(&table, at(77, 2), 2);
        assert!(covered.iter().all(|piece| [2, 3].contains(&piece.start)));
        assert_eq!(covered.len(), 2);
    }
}
