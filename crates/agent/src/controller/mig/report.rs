//! MIG reports: the results of the workers. An instance goes to its job, is recreated, quarantined or forgotten; the
//! job starts or is requeued.

use std::time::Duration;

use divvy_core::mig::recover::InstanceState;

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{confirm, driver_limit, requeue};
use crate::controller::mig::{backoff, claim, commands, geometry, mode, reconcile};
use crate::controller::state::mig::{DestroyReason, MigManager};
use crate::controller::state::{GpuState, State};
use crate::gpu::mig::{MigOpError, MigOutcome, MigReport};
use crate::host::clock::now;
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::mig_instance::{InstanceInfo, MigSlot};

/// Applies the result of a command.
pub(in crate::controller) fn apply_mig_report(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    report: MigReport,
) -> Result<(), StoreError> {
    if let MigOutcome::Limited { task, result } = report.outcome {
        return driver_limit::limited(state, fx, io, &report.gpu, &task, result);
    }
    let of_gpu = state.mig.gpu(&report.gpu);
    of_gpu.outstanding = of_gpu.outstanding.saturating_sub(1);
    of_gpu.epoch = of_gpu.epoch.max(report.epoch);
    if let Some(slot) = report.outcome.slot() {
        state.mig.busy_slots.remove(slot);
    }
    fx.replan = true;
    // The next observation has to show the result.
    fx.machine.sample_soon = true;
    match report.outcome {
        MigOutcome::Created {
            slot,
            generation,
            result,
        } if is_of(&state.mig, &slot, generation) => match result {
            Ok(made) => self::instance_created(state, fx, io, &slot, made, report.took),
            Err(failure) => create_failed(state, fx, io, &slot, &failure),
        },
        MigOutcome::Checked {
            slot,
            generation,
            result,
        } if is_of(&state.mig, &slot, generation) => match result {
            Ok(true) => reused(state, fx, io, &slot, report.took),
            // The job may have ended meanwhile. The instance is not clean for the next job either.
            Ok(false) => commands::destroy(&mut state.mig, fx, io, &slot, DestroyReason::Unclean),
            Err(failure) => check_failed(state, fx, io, &slot, &failure),
        },
        MigOutcome::Destroyed {
            slot,
            generation,
            result,
        } if is_of(&state.mig, &slot, generation) => {
            instance_destroyed(state, fx, io, &slot, generation, result, report.took)
        }
        MigOutcome::Created { slot, .. }
        | MigOutcome::Checked { slot, .. }
        | MigOutcome::Destroyed { slot, .. } => {
            tracing::error!(%slot, "ignoring a report about an unknown MIG instance");
            Ok(())
        }
        MigOutcome::Limited { .. } => Ok(()),
        MigOutcome::ModeSet { on, result } => mode::mode_set(
            &mut state.mig,
            &mut state.gpus,
            fx,
            io,
            &report.gpu,
            on,
            result,
        ),
    }
}

fn is_of(mig: &MigManager, slot: &MigSlot, generation: u64) -> bool {
    let instance = mig.instances.get(slot);
    instance.is_some_and(|instance| instance.generation == generation)
}

fn instance_created(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    made: InstanceInfo,
    took: Duration,
) -> Result<(), StoreError> {
    reach("mig.create.done");
    fx.failpoints.push("mig.create.kept");
    if let Some(instance) = state.mig.instances.get_mut(slot) {
        instance.state = InstanceState::Ready;
        instance.info = Some(made);
        instance.since = now();
    }
    state.mig.counts.created.add(took);
    handed_over(state, fx, io, slot, "mig_created", "created", took)
}

fn reused(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    took: Duration,
) -> Result<(), StoreError> {
    reach("mig.reuse.done");
    fx.failpoints.push("mig.reuse.kept");
    if claim::waiting_job(&state.jobs, &state.mig, slot).is_none() {
        // No job waits for it, so it stays idle.
        return Ok(());
    }
    state.mig.counts.reused.add(took);
    handed_over(state, fx, io, slot, "mig_reused", "reused", took)
}

/// Gives an instance to its job, if that still waits for it.
fn handed_over(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    kind: &str,
    verb: &str,
    took: Duration,
) -> Result<(), StoreError> {
    let waiting = claim::waiting_job(&state.jobs, &state.mig, slot);
    let Some(instance) = state.mig.instances.get_mut(slot) else {
        return Ok(());
    };
    let (label, job) = (instance.label(), instance.job);
    let mut ready = None;
    if let Some(active) = waiting.and_then(|job| state.jobs.active.get_mut(&job)) {
        // From here on a program of this tenant may run in it.
        instance.last_user = Some(active.job.tenant());
        let placed = active.placed_mut();
        let is_complete = placed.is_none_or(|placed| {
            placed.start.pending_instances.remove(slot);
            let is_complete = placed.start.pending_instances.is_empty();
            if is_complete {
                placed.attempts.refusals = 0;
            }
            is_complete
        });
        if is_complete {
            ready = waiting;
        }
    }
    io.store.save_mig(instance)?;
    state.mig.gpu(&slot.gpu).busy_refusals = 0;
    let text = format!(
        "{label} of GPU {} {verb} in {} ms",
        geometry::index(&state.gpus, &slot.gpu),
        took.as_millis()
    );
    tracing::info!(?job, "{text}");
    fx.record_event(io, job, kind, &text)?;
    ready.map_or(Ok(()), |id| confirm::ready(&mut state.jobs, fx, io, id))
}

fn create_failed(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    failure: &MigOpError,
) -> Result<(), StoreError> {
    // The obstacle goes away some time: a process that has the GPU open, or a quarantined instance. So the job may
    // wait.
    let waits =
        failure.is_in_use() || (!failure.is_final() && is_blocked(&state.mig, &state.gpus, slot));
    let waiting = claim::waiting_job(&state.jobs, &state.mig, slot);
    let Some(instance) = state.mig.instances.get_mut(slot) else {
        return Ok(());
    };
    let (label, job) = (instance.label(), instance.job.take());
    let text = format!(
        "{label} of GPU {}: {failure}",
        geometry::index(&state.gpus, &slot.gpu)
    );
    match failure {
        MigOpError::Refused { .. } => {
            state.mig.instances.remove(slot);
            io.store.forget_mig(slot)?;
            let place = (!failure.is_in_use()).then_some(slot.placement);
            backoff::back_off(&mut state.mig, &slot.gpu, place, failure.is_in_use());
            tracing::warn!(?job, "{text}");
            fx.record_event(io, job, "mig_create_failed", &text)?;
        }
        MigOpError::Stuck(why) => {
            reconcile::quarantine(&mut state.mig, &state.gpus, fx, io, slot, &why.clone())?
        }
    }
    match waiting {
        Some(job) if waits => {
            requeue::requeue_unstarted(&mut state.jobs, &mut state.mig, fx, io, job, &text)
        }
        Some(job) => requeue::requeue_or_fail(
            &mut state.jobs,
            &mut state.mig,
            fx,
            io,
            job,
            &text,
            failure.is_final(),
        ),
        None => Ok(()),
    }
}

/// Whether a quarantined instance overlaps the slot. The planner sees it, so it chooses another place until the
/// instance is gone.
fn is_blocked(mig: &MigManager, gpus: &GpuState, slot: &MigSlot) -> bool {
    let sized = |slot: &MigSlot| (slot.placement, geometry::size(gpus, slot));
    let mut ours = mig.instances.values();
    ours.any(|other| {
        other.state == InstanceState::Quarantined
            && other.slot.gpu == slot.gpu
            && geometry::overlap(sized(&other.slot), sized(slot))
    })
}

/// Handles a failed check: the instance stays as it is, and no job gets it during a backoff.
fn check_failed(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    failure: &MigOpError,
) -> Result<(), StoreError> {
    let waiting = claim::waiting_job(&state.jobs, &state.mig, slot);
    let Some(instance) = state.mig.instances.get_mut(slot) else {
        return Ok(());
    };
    instance.job = None;
    io.store.save_mig(instance)?;
    let label = instance.label();
    backoff::back_off(&mut state.mig, &slot.gpu, Some(slot.placement), true);
    let text = format!(
        "cannot inspect {label} of GPU {}: {failure}",
        geometry::index(&state.gpus, &slot.gpu)
    );
    tracing::warn!(job = ?waiting, "{text}");
    waiting.map_or(Ok(()), |job| {
        requeue::requeue_unstarted(&mut state.jobs, &mut state.mig, fx, io, job, &text)
    })
}

fn instance_destroyed(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    generation: u64,
    result: Result<bool, MigOpError>,
    took: Duration,
) -> Result<(), StoreError> {
    reach("mig.destroy.done");
    fx.failpoints.push("mig.destroy.kept");
    let why = state.mig.destroy_reasons.remove(&generation);
    let waiting = claim::waiting_job(&state.jobs, &state.mig, slot);
    let Some(instance) = state.mig.instances.get(slot) else {
        return Ok(());
    };
    let (job, name, label) = (instance.job, instance.profile, instance.label());
    match result {
        Err(failure) => return destroy_failed(state, fx, io, slot, &failure),
        Ok(false) => reconcile::forget_instance(
            &mut state.mig,
            &state.gpus,
            fx,
            io,
            slot,
            job,
            "no longer exists",
        )?,
        Ok(true) => {
            state.mig.instances.remove(slot);
            io.store.forget_mig(slot)?;
            let counts = &mut state.mig.counts;
            match why {
                Some(DestroyReason::MakeRoom) => counts.reclaimed.add(took),
                _ => counts.destroyed.add(took),
            }
            let text = format!(
                "{label} of GPU {} destroyed in {} ms, {}",
                geometry::index(&state.gpus, &slot.gpu),
                took.as_millis(),
                why.unwrap_or(DestroyReason::Leftover).describe()
            );
            tracing::info!("{text}");
            fx.record_event(io, job, "mig_destroyed", &text)?;
        }
    }
    waiting.map_or(Ok(()), |job| {
        commands::make(&mut state.mig, &state.gpus, fx, io, slot, name, job)
    })
}

/// Handles a failed destruction: the job that waits for the place is requeued, and the planner avoids the place.
fn destroy_failed(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    failure: &MigOpError,
) -> Result<(), StoreError> {
    let waiting = claim::waiting_job(&state.jobs, &state.mig, slot);
    let Some(instance) = state.mig.instances.get_mut(slot) else {
        return Ok(());
    };
    instance.job = None;
    let label = instance.label();
    reconcile::quarantine(
        &mut state.mig,
        &state.gpus,
        fx,
        io,
        slot,
        &failure.to_string(),
    )?;
    let text = format!(
        "{label} of GPU {}: {failure}",
        geometry::index(&state.gpus, &slot.gpu)
    );
    waiting.map_or(Ok(()), |job| {
        requeue::requeue_unstarted(&mut state.jobs, &mut state.mig, fx, io, job, &text)
    })
}
