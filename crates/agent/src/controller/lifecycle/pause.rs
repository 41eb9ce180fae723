//! Suspension: the daemon stops every process of a job, which keeps its GPU memory, and resumes them later.
//!
//! The daemon journals a suspension before it stops the processes, and stops them again after a crash. It resumes the
//! processes before it journals that. So a crash in between leaves the job suspended, and its user resumes it again.

use std::collections::BTreeSet;

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::{JobId, JobState};
use rustix::process::Signal;

use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::lifecycle::{cancel, offload};
use crate::controller::observe::usage;
use crate::controller::reference;
use crate::controller::reference::has_ended;
use crate::controller::state::Jobs;
use crate::host::clock::Instant;
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::gpu_memory::GpuMemoryState;

/// How often the daemon repeats its search for processes that were started during the search. More than a job needs
/// whose start is over; one that forks for ever would have no end.
const PASSES: usize = 16;

pub(in crate::controller) fn pause_job(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    suspend: bool,
) -> Result<JobId, Halt> {
    check_pausable(jobs, id, "suspended or resumed")?;
    refuse_for_park(jobs, id)?;
    let suspended = jobs
        .active
        .get(&id)
        .map(|active| active.job.run_state.suspended);
    if !offload::pause_memory(jobs, fx, io, id, suspend)? && suspended != Some(suspend) {
        if !suspend {
            signal_all(jobs, io, id, Signal::CONT);
        }
        set_suspended(jobs, fx, io, id, suspend)?;
    }
    Ok(id)
}

/// Finds a job that can be suspended, resumed or parked, and is not parked; `what`: which of these, in words.
pub(in crate::controller) fn pausable(
    jobs: &Jobs,
    io: &Io,
    reference: &str,
    what: &str,
) -> Result<JobId, Halt> {
    let id = reference::find(jobs, io, reference)?;
    check_pausable(jobs, id, what)?;
    refuse_for_park(jobs, id)?;
    Ok(id)
}

/// A parked job holds no GPU: it has to be woken first.
fn refuse_for_park(jobs: &Jobs, id: JobId) -> Result<(), Error> {
    let active = jobs.active.get(&id);
    let Some(active) = active.filter(|active| active.job.run_state.aside.is_parked()) else {
        return Ok(());
    };
    let reference = active.job.reference();
    let why = format!("job {reference} is parked");
    Err(Error::new(ErrorCode::Conflict, why).hint(format!("wake it: divvy wake {reference}")))
}

fn check_pausable(jobs: &Jobs, id: JobId, what: &str) -> Result<(), Error> {
    let conflict = |why: String, hint: String| Err(Error::new(ErrorCode::Conflict, why).hint(hint));
    jobs.refuse_for_claim(id, what)?;
    let job = jobs.active.get(&id).map(|active| &active.job);
    let Some(job) = job.filter(|job| job.state.outcome().is_none()) else {
        return Err(has_ended(id));
    };
    if !matches!(job.state, JobState::Running { .. }) {
        let state = job.state.state();
        return conflict(
            format!("job {id} is {state}, but only running jobs can be {what}"),
            format!("`divvy describe {id}` shows its state"),
        );
    }
    if job.spec.container.is_some() {
        return conflict(
            format!("job {id} runs in a container, and cannot be {what} by Divvy"),
            "pause the container with its engine: docker pause".to_owned(),
        );
    }
    Ok(())
}

pub(in crate::controller) fn set_suspended(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    suspended: bool,
) -> Result<(), StoreError> {
    mark(jobs, fx, io, id, suspended)?;
    if suspended {
        fx.jobs.pauses.push(id);
        fx.record_event(io, Some(id), "suspended", "it keeps its GPU memory")
    } else {
        fx.record_event(io, Some(id), "resumed", "")
    }
}

/// Journals that a job is suspended; the checkpoint operation stops its processes.
pub(in crate::controller) fn mark_suspended(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    mark(jobs, fx, io, id, true)
}

fn mark(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    suspended: bool,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    active.job.run_state.suspended = suspended;
    if !suspended {
        active.job.run_state.aside = GpuMemoryState::default();
    }
    active.activity.mark_active(Instant::now());
    let job = active.job.clone();
    fx.jobs.changed.insert(id);
    usage::start_usage_span(jobs, io, id)?;
    io.store.save(&job)
}

/// Stops every process of a suspended job, including processes that it starts meanwhile. Does nothing if the job was
/// resumed since, or if an operation copies its memory: that needs running processes.
pub(in crate::controller) fn stop_all_processes(jobs: &Jobs, io: &Io, id: JobId) {
    let active = jobs.active.get(&id);
    if !active.is_some_and(|active| active.job.run_state.suspended && active.is_memory_idle()) {
        return;
    }
    let mut before = BTreeSet::new();
    for _ in 0..PASSES {
        let stopped = signal_all(jobs, io, id, Signal::STOP);
        if stopped == before {
            reach("pause.held");
            return;
        }
        before = stopped;
    }
}

/// Signals all processes of a job except its supervisor, and returns their pids.
pub(in crate::controller) fn signal_all(
    jobs: &Jobs,
    io: &Io,
    id: JobId,
    signal: Signal,
) -> BTreeSet<u32> {
    let dir = jobs.dir(&io.config.home, id);
    let Some(launch) = dir.launch().ok().flatten() else {
        return BTreeSet::new();
    };
    let processes = cancel::job_processes(jobs, id, &dir, launch.process);
    for process in &processes {
        // The process may have exited by itself.
        let _ = process.signal(signal);
    }
    processes.iter().map(|process| process.pid).collect()
}
