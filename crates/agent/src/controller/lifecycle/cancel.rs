//! Stopping jobs: a pending job leaves its queue at once, a running one is stopped through its supervisor.

use divvy_api::v1::{Error, ErrorCode, Runner};
use divvy_core::job::StopReason;
use divvy_core::{JobId, JobState};
use rustix::process::Signal;

use super::container;
use super::orphans::own_orphans;
use crate::auth::Caller;
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::lifecycle::end;
use crate::controller::lifecycle::hold::TASK;
use crate::controller::observe::usage;
use crate::controller::reference::has_ended;
use crate::controller::request::Cancellation;
use crate::controller::state::Jobs;
use crate::host::clock::{Instant, now};
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::host::process::Process;
use crate::job_dir::JobDir;
use crate::job_dir::processes::processes_of;
use crate::journal::StoreError;
use crate::model::cause::Cause;
use crate::model::job::{Credentials, Job};
use crate::supervisor::handle::SupervisorHandle;

pub(in crate::controller) fn cancel_job(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    how: &Cancellation,
    by: &Caller,
) -> Result<JobId, Halt> {
    jobs.refuse_for_claim(id, "cancelled")?;
    let active = jobs.active.get_mut(&id);
    let Some(active) = active.filter(|active| active.job.state.outcome().is_none()) else {
        return Err(has_ended(id).into());
    };
    let asked = &how.asked;
    let is_of_front_end = asked.because.is_some() || asked.withdraw;
    if is_of_front_end && by.account.uid != Credentials::current().uid {
        let why = format!(
            "only the daemon's own user may say why job {id} is cancelled, but {} is uid {}",
            by.account.name, by.account.uid
        );
        return Err(Error::new(ErrorCode::NotAllowed, why)
            .hint("cancel it with an empty body")
            .into());
    }
    if !is_of_front_end
        && !how.agreed
        && io.config.front_end.is_some()
        && let Some(error) = refuse_for_front_end(&active.job)
    {
        return Err(error.into());
    }
    if asked.withdraw && !active.job.only_stands_for_a_task() {
        let why = format!("job {id} was confirmed, so its record stays");
        return Err(Error::new(ErrorCode::Conflict, why)
            .hint("cancel it without `withdraw`")
            .into());
    }
    active.job.run_state.withdrawn |= asked.withdraw;
    let cause = match &asked.because {
        Some(words) => words.as_str().into(),
        None => Cause::requested_by("cancelled", by),
    };
    stop_job(jobs, fx, io, id, StopReason::Cancel, cause)?;
    Ok(id)
}

/// Whether a job stands for a task that waits on a ClearML server, and its front end has not claimed it.
pub(in crate::controller) fn stands_for_a_task(job: &Job) -> bool {
    job.spec.policy.labels.contains_key(TASK) && job.only_stands_for_a_task()
}

/// The refusal to cancel a job that stands for a task in another system's queue: the task would run all the same. The
/// front end takes it out of that queue first; `details` has `front_end`.
fn refuse_for_front_end(job: &Job) -> Option<Error> {
    stands_for_a_task(job).then(|| {
        let id = job.reference();
        let why = format!(
            "job {id} stands for a task that waits on a ClearML server, which still gives the task to a worker"
        );
        Error::new(ErrorCode::Conflict, why)
            .hint(format!(
                "`divvy cancel {id}`, of this job alone, takes it from its queue on the server"
            ))
            .details(serde_json::json!({ "front_end": true, "number": job.id.to_string() }))
    })
}

/// Requeues a job that has been placed, once its program is gone.
pub(in crate::controller) fn requeue_job(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    by: &Caller,
) -> Result<JobId, Halt> {
    jobs.refuse_for_claim(id, "requeued")?;
    let conflict =
        |why: String, hint: String| Err(Error::new(ErrorCode::Conflict, why).hint(hint).into());
    let Some(active) = jobs.active.get(&id) else {
        return conflict(
            format!("job {id} has ended, and its environment is deleted"),
            format!("submit it again; `divvy describe {id}` shows its command"),
        );
    };
    match &active.job.state {
        JobState::Queued => conflict(
            format!("job {id} is already queued"),
            format!("`divvy why {id}` shows what it waits for"),
        ),
        JobState::Stopping { why, .. } if !why.requeues() => conflict(
            format!("job {id} is being stopped, and cannot be requeued"),
            "submit it again".to_owned(),
        ),
        _ if active.job.spec.runner == Runner::Client => conflict(
            format!("job {id} runs on its client's terminal, so the daemon cannot restart it"),
            "use `divvy submit`: the daemon starts such jobs, and can restart them".to_owned(),
        ),
        // Its own agent would tell the server that the task was aborted, and the task would not run again.
        _ if active.job.spec.policy.labels.contains_key(TASK) => conflict(
            format!("job {id} is a task of a ClearML server, which alone can queue it again"),
            "stop the task, reset it and enqueue it on the server; `divvy cancel` stops it"
                .to_owned(),
        ),
        _ => {
            stop_job(
                jobs,
                fx,
                io,
                id,
                StopReason::Requeue,
                Cause::requested_by("requeued", by),
            )?;
            Ok(id)
        }
    }
}

/// Stops a job. Only a cancel applies to a pending job.
pub(in crate::controller) fn stop_job(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    why: StopReason,
    cause: impl Into<Cause>,
) -> Result<(), StoreError> {
    let cause = cause.into();
    let words = cause.words.clone();
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let is_new = match &active.job.state {
        JobState::Ended { .. } => return Ok(()),
        JobState::Queued if why != StopReason::Cancel => return Ok(()),
        JobState::Queued => {
            active.job.stop(why);
            active.job.run_state.cause = Some(cause);
            active.job.ended_at = Some(now());
            active.job.reason = Some(format!("{words} while it waited"));
            return end::journal_end(jobs, fx, io, id);
        }
        JobState::Stopping { why: before, .. } => why > *before,
        JobState::Starting { .. } | JobState::Running { .. } | JobState::Bound { .. } => {
            if let Some(placed) = active.placed_mut() {
                placed.since = Instant::now();
            }
            true
        }
    };
    if is_new {
        let was_suspended = active.job.run_state.suspended;
        active.memory_op.cancel();
        active.job.stop(why);
        active.job.run_state.cause = Some(cause);
        // A client that waits for the job's memory to be offloaded or restored gets its reply now.
        fx.replies.milestones.push(id);
        let job = active.job.clone();
        if was_suspended {
            usage::start_usage_span(jobs, io, id)?;
        }
        io.store.save(&job)?;
        fx.record_event(io, Some(id), "stopping", &words)?;
    }
    fx.jobs.stops.push(id);
    Ok(())
}

/// Signals the supervisor of a stopping job, which then ends the program with the job's grace period.
pub(in crate::controller) fn stop(
    jobs: &Jobs,
    children: &[SupervisorHandle],
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) {
    let Some(active) = jobs.active.get(&id) else {
        return;
    };
    let dir = jobs.dir(&io.config.home, id);
    if active.job.spec.container.is_some()
        && dir.path().is_dir()
        && let Err(error) = dir.request_stop()
    {
        tracing::warn!(job = %id, error = error_chain(&error), "cannot write the mark to stop; the supervisor gets only a signal");
    }
    // The client may outlive this daemon.
    if active.job.spec.runner == Runner::Client
        && let Some(stopped) = active.job.stopped()
        && let Err(error) = dir.write_stopped(&stopped)
    {
        tracing::warn!(job = %id, error = error_chain(&error), "cannot write for its client why the job is stopped");
    }
    let launched = dir.launch().ok().flatten().map(|begun| begun.process);
    let supervisor = launched.or_else(|| {
        // A supervisor without a launch record has started nothing, so a signal may end it.
        let mut children = children.iter();
        let pid = active.placed().and_then(|placed| placed.supervisor.pid);
        let child = children.find(|child| pid == Some(child.id()));
        child.and_then(SupervisorHandle::process)
    });
    let signalled = supervisor.map(|process| {
        process.signal(Signal::TERM)?;
        // A process that is stopped handles SIGTERM only after SIGCONT.
        process.signal(Signal::CONT)
    });
    reach("stop.told");
    match signalled {
        // Otherwise no supervisor has the job: the next check ends the job, or signals its orphans.
        Some(Ok(())) => {}
        Some(Err(_)) | None => fx.jobs.recheck.push(id),
    }
}

/// Kills what is left of a job after its grace period. The supervisor stays: it has to record how the job ended.
pub(in crate::controller) fn kill(jobs: &Jobs, io: &Io, id: JobId) {
    let dir = jobs.dir(&io.config.home, id);
    let Some(launch) = dir.launch().ok().flatten() else {
        return;
    };
    if let Some(group) = dir.group() {
        // The cgroup does not contain the supervisor.
        let _ = group.kill();
    }
    let all = job_processes(jobs, id, &dir, launch.process);
    for process in all.into_iter().chain(container::processes(&dir)) {
        tracing::warn!(job = %id, pid = process.pid, "the process still runs after the grace period; killing it");
        let _ = process.signal(Signal::KILL);
    }
    // A stopped supervisor continues, and reaps its children.
    let _ = launch.process.signal(Signal::CONT);
}

/// All processes of a job but its supervisor. If the supervisor is gone, also processes that have left its session and
/// use what the job holds.
pub(in crate::controller) fn job_processes(
    jobs: &Jobs,
    id: JobId,
    dir: &JobDir,
    supervisor: Process,
) -> Vec<Process> {
    let mut all = processes_of(dir, supervisor);
    if let Some(active) = jobs.active.get(&id).filter(|_| !supervisor.is_alive()) {
        all.extend(own_orphans(active));
        all.sort_unstable_by_key(|process| process.pid);
        all.dedup();
    }
    all
}

/// Kills a job that has to stop before its program starts, and its supervisor too. That supervisor may wait for a file
/// system of the user that never answers, and then handles no signal. A container's supervisor is spared: it waits for
/// the engine, and handles signals.
pub(in crate::controller) fn kill_unstarted(jobs: &Jobs, io: &Io, id: JobId) {
    kill(jobs, io, id);
    let dir = jobs.dir(&io.config.home, id);
    let is_container = jobs
        .active
        .get(&id)
        .is_some_and(|one| one.job.spec.container.is_some());
    if let Ok(Some(launch)) = dir.launch()
        && !is_container
        && matches!((dir.started(), dir.exit()), (Ok(None), Ok(None)))
    {
        tracing::warn!(job = %id, pid = launch.process.pid, "the start hangs; killing the supervisor");
        let _ = launch.process.signal(Signal::KILL);
    }
}
