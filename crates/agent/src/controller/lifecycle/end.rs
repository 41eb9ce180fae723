//! Ends: the journal gets the end of a job, and what its slice counted before the slice goes.

use std::time::Duration;

use divvy_core::JobId;
use divvy_ledger::Snapshot;

use crate::controller::effects::{Effects, FreedSlice, RunOver};
use crate::controller::io::Io;
use crate::controller::lifecycle::{notifications, park_policy};
use crate::controller::observe::{limiter_alarms, usage};
use crate::controller::runtime::{ActiveJob, Runtime};
use crate::controller::state::Jobs;
use crate::gpu::slice;
use crate::host::clock::Instant;
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::oom;

/// How long after a container job's end leftovers are collected. By then its supervisor has removed them or has died.
/// Half could take a container from a supervisor that waits for a slow engine; longer only keeps leftovers.
const CONTAINER_GC_DELAY: Duration = Duration::from_secs(60);

/// The ledger of a job's slice; `None` without a slice that can be read.
pub(in crate::controller) fn last_snapshot(jobs: &Jobs, id: JobId) -> Option<Snapshot> {
    jobs.active.get(&id)?.slice()?.read().ok()
}

/// Stores the slice's peaks and denials in the journal, before [`release`](super::release::release) removes the slice.
pub(in crate::controller) fn save_allocation_stats(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    last: Option<&Snapshot>,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let mut alarms = 0;
    let ActiveJob { job, runtime, .. } = &mut **active;
    let Runtime::Placed(placed) = runtime else {
        return Ok(());
    };
    if let Some(slice) = &placed.slice
        && let Some(snapshot) = last
    {
        alarms = snapshot.alarms();
        for (gpu, holding) in job.allocations.iter_mut().enumerate() {
            holding.stats = slice::allocation_stats(snapshot, gpu);
        }
        if let Ok((denials, _)) = slice.denials() {
            let records = oom::to_api(&denials, &job.allocations);
            io.store.keep_denials(id, &records)?;
        }
    }
    for (holding, ledger) in job.allocations.iter_mut().zip(&placed.slice_usage) {
        holding.stats.mismatch_max = ledger.mismatch_max;
    }
    limiter_alarms::record_alarms(jobs, fx, io, id, alarms)
}

/// Journals the end of a job, and notifies its clients and dependents.
pub(in crate::controller) fn journal_end(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    notifications::queue_notification(jobs, fx, io, id)?;
    let Some(active) = jobs.active.get(&id) else {
        return Ok(());
    };
    let job = active.job.clone();
    let folder = io.config.home.job(&id.to_string());
    if job.spec.container.is_some() && folder.is_dir() {
        // A supervisor that still holds the lock removes its container itself.
        let dir = jobs.dir(&io.config.home, id);
        let is_attended = dir.path().is_dir() && !matches!(dir.lock(), Ok(Some(_)));
        schedule_container_gc(
            fx,
            match is_attended {
                true => CONTAINER_GC_DELAY,
                false => Duration::ZERO,
            },
        );
    }
    let mut text = job
        .state
        .outcome()
        .map(ToString::to_string)
        .unwrap_or_default();
    if job.run_state.withdrawn {
        text = job.reason.clone().unwrap_or(text);
        io.store.drop_allocations(&job)?;
    }
    io.store.release_allocations(&job)?;
    jobs.was_held |= !job.allocations.is_empty();
    let gpus = job.allocations.iter().map(|held| held.grant.gpu.clone());
    usage::divide_energy(jobs, io, &gpus.collect())?;
    io.store.save(&job)?;
    fx.record_event(io, Some(id), "ended", &text)?;
    park_policy::note_end(jobs, fx, io, &job)?;
    if job.run_state.withdrawn {
        // A job that stood for another system's task and never ran is no work of this machine: its number and its
        // event are all that stays. Its waiters still get it, because it is active until the replies are sent.
        io.store.forget_jobs(&[id])?;
        fx.machine.forgotten.push(id);
    }
    fx.jobs.over.push(RunOver {
        job: id,
        dir: jobs.dir(&io.config.home, id),
        is_last: true,
    });
    reach("end.decided");
    jobs.waits.remove(&id);
    fx.jobs.expired_secrets.push(id);
    fx.replies.milestones.push(id);
    fx.jobs.ended.push(id);
    fx.replan = true;
    Ok(())
}

/// Schedules a collection, because a container or CDI file may be left over. It runs within `after`.
fn schedule_container_gc(fx: &mut Effects, after: Duration) {
    let due = Instant::now() + after;
    fx.container_gc_at = Some(fx.container_gc_at.map_or(due, |before| before.min(due)));
}

/// Takes the slice from a job that no longer holds it; [`release`](super::release::release) removes it.
pub(in crate::controller) fn free_slice(jobs: &mut Jobs, fx: &mut Effects, id: JobId) {
    let active = jobs.active.get_mut(&id);
    fx.jobs.freed.push(FreedSlice {
        job: id,
        slice: active.and_then(|active| active.placed_mut()?.slice.take()),
    });
}
