//! Startup: the daemon compares the journal with the machine, and adopts the jobs that still run.

use divvy_core::job::StopReason;
use divvy_core::{JobId, JobState};

use super::admission::dependencies::DependencyOutcomes;
use super::lifecycle::start::{overheads, slice_layout};
use crate::controller::actuators::Actuators;
use crate::controller::admission::dependencies;
use crate::controller::claims::{entries, files};
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::known_gpus::told;
use crate::controller::lifecycle::{
    cancel, container_gc, driver_limit, job_sync, requeue, resize, start,
};
use crate::controller::mig::{mode, release};
use crate::controller::observe::{reconcile, unjournaled};
use crate::controller::state::lookup::records;
use crate::controller::state::mig::is_divided;
use crate::controller::state::slice_usage::SliceUsage;
use crate::controller::state::{Jobs, State};
use crate::controller::{apply, claims, observe};
use crate::gpu::slice;
use crate::gpu::watched_jobs::WatchedJob;
use crate::host::error::error_chain;
use crate::journal::StoreError;

/// What a restarted daemon found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumeSummary {
    pub queued: usize,
    /// Jobs that still hold their grants.
    pub adopted: usize,
    /// Jobs that ended while no daemon ran, or were never started.
    pub finalized: usize,
}

/// A job that a build with another record format started, and that still runs.
pub fn job_of_earlier_build(jobs: &Jobs, io: &Io) -> Option<JobId> {
    let mut active = jobs.active.keys().copied();
    active.find(|id| jobs.dir(&io.config.home, *id).has_earlier_supervisor())
}

/// Compares the journal with the machine after a start: adopts, finalizes or requeues each job.
///
/// # Errors
/// When the journal fails.
pub fn resume(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
) -> Result<ResumeSummary, StoreError> {
    let before: Vec<JobId> = state.jobs.active.keys().copied().collect();
    unjournaled::find_unknown(&mut state.jobs, io)?;
    remove_orphaned_slices(&state.jobs, io);
    files::remove_stale_cdi_files(&state.jobs, io);
    entries::remove_stale(&state.jobs, io);
    container_gc::remove_stale_mounts(&state.jobs, io);
    let lives = |job: JobId| {
        state.jobs.active.contains_key(&job) || state.jobs.unjournaled.contains_key(&job)
    };
    io.secrets.sweep(lives);
    crate::job_dir::erase_leftover_specs(&io.config.home.jobs(), |job| {
        let active = state.jobs.active.get(&job);
        let run = active.map(|active| active.job.run_state.runs);
        // The record of an unknown job is not of the journal's run.
        let is_unknown = state.jobs.unjournaled.contains_key(&job);
        if is_unknown { Some(0) } else { run }
    });
    io.store.begin()?;
    let changes = std::mem::take(&mut state.gpus.start.changes);
    if !changes.is_empty() {
        fx.record_event(io, None, "gpus_changed", &told(changes).join("; "))?;
    }
    let mut outcomes = DependencyOutcomes::default();
    for id in &before {
        let Some(active) = state.jobs.active.get_mut(id) else {
            continue;
        };
        if io.config.front_end.is_none() && cancel::stands_for_a_task(&active.job) {
            // Without its front end no client would ever confirm it, and its slice would stay unused.
            active.job.run_state.withdrawn = true;
            let words = "withdrawn: this daemon serves no ClearML server";
            cancel::stop_job(&mut state.jobs, fx, io, *id, StopReason::Cancel, words)?;
            continue;
        }
        if active.job.state == JobState::Queued {
            unjournaled::end_spent(state, fx, io, *id)?;
            dependencies::check_dependencies(&mut state.jobs, fx, io, *id, &mut outcomes)?;
            continue;
        }
        if active.job.claim().is_some() {
            claims::resume_claim(state, fx, io, actuators, *id)?;
            continue;
        }
        if active.job.awaits_confirmation() {
            // The job has only a placement in the journal. Its MIG instances may not exist.
            if is_divided(active.job.state.grants()) {
                requeue::requeue_unstarted(
                    &mut state.jobs,
                    &mut state.mig,
                    fx,
                    io,
                    *id,
                    "the daemon was killed before the job was confirmed",
                )?;
            }
            continue;
        }
        let memory = active.job.run_state.aside.memory;
        if active.job.run_state.suspended && !memory.is_copying() {
            // The crash may have come before its processes were stopped.
            fx.jobs.pauses.push(*id);
        }
        if memory.is_copying() {
            // It is unknown how far the operation came.
            fx.jobs.memory_ops.push(*id);
        }
        if matches!(active.job.state, JobState::Stopping { .. }) {
            // The supervisor may not have got the signal.
            fx.jobs.stops.push(*id);
        }
        // A job without a folder had only been placed: it has no slice, and is requeued.
        let dir = records(&io.config.home, *id, &active.job);
        if dir.path().is_dir() {
            if is_divided(active.job.state.grants()) {
                actuators
                    .observer
                    .register(*id, WatchedJob::without_ledger());
            } else {
                let (name, job) = (id.to_string(), &active.job);
                let overheads = overheads(&state.gpus.devices, job.state.grants());
                let layout = slice_layout(&name, job, &overheads);
                let launch = dir.launch().ok().flatten();
                let supervisor = launch.map(|launch| launch.process);
                match slice::HeldSlice::adopt(&io.config.home.slice(&name), &layout, supervisor) {
                    Ok(slice) => {
                        actuators
                            .observer
                            .register(*id, slice.to_watched_job(Vec::new()));
                        let gpus = active.job.allocations.len();
                        if let Some(placed) = active.placed_mut() {
                            // What became of contexts before this start was judged then.
                            placed.slice_usage.resize(gpus, SliceUsage::default());
                            if let Ok(snapshot) = slice.read() {
                                for (gpu, usage) in placed.slice_usage.iter_mut().enumerate() {
                                    usage.contexts = snapshot.contexts(gpu);
                                }
                            }
                            placed.slice = Some(slice);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(job = %id, error = error_chain(&error), "cannot adopt the job's slice");
                    }
                }
            }
            start::watch_job(&state.jobs, io, actuators, *id);
            job_sync::register_process_roots(&state.jobs, io, actuators, *id);
            // The daemon may have been killed between the journal and the slice.
            let active = state.jobs.active.get(id);
            let awake = active.filter(|active| !active.job.run_state.aside.is_parked());
            if let Some(slice) = awake.and_then(|active| active.slice()) {
                slice.open_parked_gate();
            }
            resize::apply_limits(&mut state.jobs, io, actuators, *id);
        }
        job_sync::sync_job(state, fx, io, *id)?;
    }
    driver_limit::resume(state, fx, io, actuators);
    claims::remember_released(state, io, actuators)?;
    release::release_stray_instances(&state.jobs, &mut state.mig, io)?;
    reconcile::restore_bypasses(&state.jobs, &mut state.gpus);
    // From here on processes are attributed to jobs, and the first plan counts the memory of unmanaged processes.
    match actuators.observer.observe() {
        Ok(sample) => observe::apply_sample(state, fx, io, &sample)?,
        Err(error) => observe::observation_failed(
            &mut state.jobs,
            &mut state.gpus,
            fx,
            io,
            error_chain(&error),
        )?,
    }
    mode::finish_switches(state, fx, io, |_| true)?;
    unjournaled::reserve_for_unknown(state, fx, io)?;
    let count = |wanted: fn(&JobState) -> bool| {
        before
            .iter()
            .filter(|id| {
                state
                    .jobs
                    .active
                    .get(id)
                    .is_some_and(|active| wanted(&active.job.state))
            })
            .count()
    };
    let resumed = ResumeSummary {
        queued: count(|job_state| *job_state == JobState::Queued),
        adopted: count(|job_state| !job_state.grants().is_empty()),
        finalized: count(|job_state| job_state.outcome().is_some()),
    };
    fx.counters.adopted = u64::try_from(resumed.adopted).unwrap_or(u64::MAX);
    fx.counters.finalized = u64::try_from(resumed.finalized).unwrap_or(u64::MAX);
    apply::commit_and_apply(state, fx, io, actuators)?;
    Ok(resumed)
}

/// Removes slice folders without a job: the daemon was killed between the end of a job in the journal and the removal.
fn remove_orphaned_slices(jobs: &Jobs, io: &Io) {
    let folders = std::fs::read_dir(io.config.home.slices())
        .into_iter()
        .flatten()
        .flatten();
    for folder in folders {
        let job = folder
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let holds = |id: &JobId| {
            jobs.active
                .get(id)
                .is_some_and(|active| !active.job.state.grants().is_empty())
        };
        let is_unknown = |id: &JobId| jobs.unjournaled.contains_key(id);
        if job.as_ref().is_none_or(|id| !holds(id) && !is_unknown(id))
            && let Err(error) = slice::remove(&folder.path())
        {
            tracing::warn!(
                error = error_chain(&error),
                "cannot remove a slice without a job"
            );
        }
    }
}
