//! Claiming of MIG instances: a job gets its instances when it starts, and releases them at its end.

use divvy_core::mig::Placement;
use divvy_core::{GpuUuid, JobId, JobState};

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::requeue;
use crate::controller::mig::commands;
use crate::controller::state::mig::{DestroyReason, MigManager, slot};
use crate::controller::state::{Jobs, State};
use crate::gpu::mig::MigTask;
use crate::journal::StoreError;
use crate::model::mig_instance::MigSlot;

/// Journals the instances of a job that starts, and those that make room for them. True if all of them are ready.
pub(in crate::controller) fn claim_instances(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    reclaim: &[(GpuUuid, Placement)],
) -> Result<bool, StoreError> {
    let Some(active) = state.jobs.active.get(&id) else {
        return Ok(false);
    };
    let tenant = active.job.tenant();
    let grants = active.job.state.grants().to_vec();
    for (gpu, placement) in reclaim {
        let slot = MigSlot {
            gpu: gpu.clone(),
            placement: *placement,
        };
        self::reclaim(&mut state.mig, fx, io, id, &slot)?;
    }
    for grant in &grants {
        let (Some(slot), Some(mig)) = (slot(grant), grant.mig) else {
            continue;
        };
        let there = state.mig.instances.get(&slot);
        let idle = there.is_some_and(|instance| state.mig.is_idle(instance));
        match state.mig.instances.get_mut(&slot) {
            None => commands::make(&mut state.mig, &state.gpus, fx, io, &slot, mig.profile, id)?,
            Some(instance) => {
                let Some(made) = instance.info.clone().filter(|_| idle) else {
                    let what = format!(
                        "the planner assigned {}, which is {}",
                        instance.label(),
                        instance.state.name()
                    );
                    requeue::requeue_or_fail(
                        &mut state.jobs,
                        &mut state.mig,
                        fx,
                        io,
                        id,
                        &what,
                        false,
                    )?;
                    return Ok(false);
                };
                instance.job = Some(id);
                // NVIDIA does not document what the driver does with memory that another user has left.
                let before = instance.last_user.as_ref();
                match before.is_some_and(|before| *before != tenant) {
                    true => commands::destroy(
                        &mut state.mig,
                        fx,
                        io,
                        &slot,
                        DestroyReason::PreviousTenant,
                    )?,
                    false => {
                        io.store.save_mig(instance)?;
                        let task = MigTask::Check {
                            slot: slot.clone(),
                            generation: instance.generation,
                            made,
                        };
                        commands::enqueue_command(&mut state.mig, fx, &slot.gpu, task);
                    }
                }
            }
        }
        if let Some(placed) = (state.jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
            placed.start.pending_instances.insert(slot);
        }
    }
    Ok(has_all_instances(&state.jobs, id))
}

/// Whether a starting job waits for the instance of a slot.
fn awaits_slot(jobs: &Jobs, id: JobId, slot: &MigSlot) -> bool {
    let starts = |job: &JobState| matches!(job, JobState::Starting { .. });
    jobs.active
        .get(&id)
        .filter(|active| starts(&active.job.state))
        .and_then(|active| active.placed())
        .is_some_and(|placed| placed.start.pending_instances.contains(slot))
}

/// The job that waits for the instance of a slot; `None` if it was stopped or has failed meanwhile.
pub(super) fn waiting_job(jobs: &Jobs, mig: &MigManager, slot: &MigSlot) -> Option<JobId> {
    let job = mig.instances.get(slot)?.job?;
    awaits_slot(jobs, job, slot).then_some(job)
}

/// Whether all instances of a job are ready.
pub(in crate::controller) fn has_all_instances(jobs: &Jobs, id: JobId) -> bool {
    let active = jobs.active.get(&id);
    active.is_none_or(|active| active.has_all_instances())
}

fn reclaim(
    mig: &mut MigManager,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    slot: &MigSlot,
) -> Result<(), StoreError> {
    let instance = mig.instances.get(slot);
    // If the instance is not idle any more, the job that needs its place is refused, and planned anew.
    let Some(instance) = instance.filter(|one| mig.is_idle(one)) else {
        return Ok(());
    };
    let label = instance.label();
    commands::destroy(mig, fx, io, slot, DestroyReason::MakeRoom)?;
    fx.record_event(
        io,
        Some(id),
        "mig_evicted",
        &format!("destroying {label} to make room"),
    )
}
