//! Finalization: the end of a job, or of one of its runs, is journaled. [`release`](super::release) removes its slice and
//! its files later.

use std::time::Duration;

use divvy_api::v1::Signal;
use divvy_core::job::{ProgramExit, StopReason};
use divvy_core::{JobId, JobState};

use super::hold::TASK;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{end, orphans, requeue};
use crate::controller::mig::release;
use crate::controller::observe::{reconcile, usage};
use crate::controller::service::faults;
use crate::controller::state::lookup::records;
use crate::controller::state::{Jobs, State};
use crate::host::clock::{Instant, boot_ns, now};
use crate::host::process::Process;
use crate::job_dir::{ExitRecord, JobDir, RunOutcome};
use crate::journal::StoreError;
use crate::model::job::Job;

/// Finalizes a run; `exit` is `None` if no record shows how it ended. While a process of the job lives, the job keeps
/// its slice, and the next tick tries again.
pub(in crate::controller) fn finalize(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    exit: Option<&ExitRecord>,
) -> Result<(), StoreError> {
    if orphans::has_orphans(&mut state.jobs, &state.gpus, fx, io, id)? {
        return Ok(());
    }
    let last = end::last_snapshot(&state.jobs, id);
    // Before the room is given to a job that would fail as well.
    if let Some(last) = &last {
        let State { jobs, gpus, .. } = state;
        faults::watch_job(jobs, gpus, fx, id, |gpu| last.contexts(gpu));
    }
    end::save_allocation_stats(&mut state.jobs, fx, io, id, last.as_ref())?;
    let restarted = exit.is_none() && is_of_earlier_boot(&state.jobs.dir(&io.config.home, id));
    let Some(active) = state.jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let of_task = exit.and_then(|exit| exit_of_task(&active.job, exit));
    let exit = of_task.as_ref().or(exit);
    let (gone, words) = match active.job.bypasses.iter().find(|found| found.is_killed()) {
        Some(bypass) => {
            let words = format!("killed: {}: {}", bypass.describe(), bypass.cause());
            (ProgramExit::Bypass, Some(words))
        }
        None => {
            let placed = active.placed();
            let end = placed.and_then(|one| one.supervisor.end.as_deref());
            let end = restarted
                .then_some("ended when the machine restarted")
                .or(end);
            let (gone, words) = exit_of(exit, end);
            match signal_sender(io, &active.job, &gone)? {
                // `ended by signal 2: SIGINT by ana (uid 1001) through attach`
                Some(by) => (gone, words.map(|words| format!("{words}: {by}"))),
                None => (gone, words),
            }
        }
    };
    let mut held = active.job.state.grants().iter();
    let (gone, words) = match held.find(|grant| state.gpus.lost.contains(&grant.gpu)) {
        Some(grant) if is_failure(&gone) => {
            let index = grant.index;
            let words = words.unwrap_or_default();
            (
                ProgramExit::GpuLost,
                Some(format!("GPU {index} is lost; {words}")),
            )
        }
        _ => (gone, words),
    };
    active.job.exit_code = exit.and_then(|exit| exit.outcome.code());
    let preempted = matches!(
        &active.job.state,
        JobState::Stopping {
            why: StopReason::Preempt,
            ..
        }
    );
    fx.counters.preempted_done += u64::from(preempted);
    let exited_first = active.job.exited_before_stop(exit);
    // A front end cancels in words of its own, which name the other system's user.
    let cause = active.job.run_state.cause.clone();
    let in_words = cause.as_ref().filter(|cause| cause.by.is_none());
    let stop_text = match &active.job.state {
        JobState::Stopping {
            why: StopReason::Cancel,
            ..
        } => Some(in_words.map_or("cancelled", |cause| &cause.words)),
        JobState::Stopping { why, .. } if !exited_first => match why {
            StopReason::TimeLimit => Some("stopped by its time limit"),
            StopReason::Idle => Some("stopped by its idle rule"),
            StopReason::GpuLost => Some("one of its GPUs was lost"),
            StopReason::Preempt => Some("preempted"),
            StopReason::Release => Some("released"),
            StopReason::Requeue | StopReason::Cancel => Some("stopped to be requeued"),
        },
        _ => None,
    };
    active.job.reason = match (stop_text, words) {
        (Some(stop_text), Some(words)) => Some(format!("{stop_text}; {words}")),
        (Some(stop_text), None) => Some(format!("{stop_text}; exited with code 0")),
        (None, words) => words,
    };
    active.job.ended_at = Some(exit.map_or_else(now, |exit| exit.at));
    // A short program can start and end between two checks.
    let unseen = active.job.started_at.is_none();
    let dir = records(&io.config.home, id, &active.job);
    let ran = unseen.then(|| dir.started().ok().flatten()).flatten();
    if let Some(ran) = ran {
        active.job.started_at = Some(ran.at);
    }
    let starting = matches!(active.job.state, JobState::Starting { .. });
    let ran = ran.filter(|_| starting);
    let ran = ran.map(|ran| running(ran.process, &active.job));
    let (event, failed) = active.job.exit_transition(gone, exit);
    active.job.run_state.failures += u32::from(failed);
    active.job.run_state.requeued |= !failed;
    active.job.apply_event(event);
    if let Some(placed) = active.placed_mut() {
        placed.start.pending_instances.clear();
    }
    usage::journal_metered(&mut state.jobs, io, id)?;
    end::free_slice(&mut state.jobs, fx, id);
    release::release_instances(&mut state.mig, io, id)?;
    reconcile::close_bypasses(&mut state.jobs, io, id)?;
    if unseen {
        warn_of_the_weaker_form(&state.jobs, io, id);
    }
    if let Some(ran) = ran {
        fx.record_event(io, Some(id), "running", &ran)?;
    }
    let job = &state.jobs.active[&id].job;
    if job.state != JobState::Queued {
        return end::journal_end(&mut state.jobs, fx, io, id);
    }
    let words = job.reason.clone().unwrap_or_default();
    match failed {
        true => {
            let ran = job.started_at.map(|began| now().duration_since(began));
            let ran = ran.and_then(|ran| Duration::try_from(ran).ok());
            let pause = retry_pause(job.run_state.failures).saturating_sub(ran.unwrap_or_default());
            if !pause.is_zero() {
                state.jobs.pauses.insert(id, Instant::now() + pause);
            }
            requeue::requeue_after_run(&mut state.jobs, fx, io, id, "retried", &words)
        }
        false => requeue::requeue_after_run(&mut state.jobs, fx, io, id, "requeued", &words),
    }
}

/// How long after its last start a job starts again that has failed so often: at once, then 1, 2, 4 … 60 s. A program that
/// fails at once would otherwise start a hundred times a second.
fn retry_pause(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        more => Duration::from_secs(1 << (more - 2).min(6)).min(LONGEST_PAUSE),
    }
}

/// So a job that fails for want of its node is tried each minute; a longer pause would waste a GPU that works again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How the program of a ClearML task ended, where clearml-agent ran it and signal N ended it. The agent then exits with
/// Python's code -N, which the kernel makes 256-N. Code 255 stays, because programs exit with -1 themselves.
fn exit_of_task(job: &Job, exit: &ExitRecord) -> Option<ExitRecord> {
    const LAST_SIGNAL: i32 = 64;
    let RunOutcome::Exited { exit_code } = exit.outcome else {
        return None;
    };
    let signal = 256 - exit_code;
    let is_task = job.spec.policy.labels.contains_key(TASK);
    (is_task && (2..=LAST_SIGNAL).contains(&signal)).then(|| ExitRecord {
        outcome: RunOutcome::Signaled { signal },
        ..exit.clone()
    })
}

/// Whether the supervisor started later in its boot than this boot has lasted: then the machine has restarted. A boot that
/// has lasted longer shows nothing.
fn is_of_earlier_boot(dir: &JobDir) -> bool {
    let launch = dir.launch().ok().flatten();
    launch.is_some_and(|launch| launch.boot_ns > Some(boot_ns()))
}

/// The words of the event if a user sent the signal that ended this run. The journal has them after a restart as well.
fn signal_sender(io: &Io, job: &Job, gone: &ProgramExit) -> Result<Option<String>, StoreError> {
    let ProgramExit::Signaled(number) = *gone else {
        return Ok(None);
    };
    let signal = u8::try_from(number).ok().and_then(Signal::with_number);
    let Some((signal, began)) = signal.zip(job.started_at) else {
        return Ok(None);
    };
    let text = io.store.last_text_of_event(job.id, "signalled", began)?;
    Ok(text.filter(|text| text.starts_with(signal.name())))
}

fn exit_of(exit: Option<&ExitRecord>, supervisor: Option<&str>) -> (ProgramExit, Option<String>) {
    let Some(exit) = exit else {
        // The exit status is known only of a supervisor that this daemon started.
        let words = match supervisor {
            Some(end) => {
                format!("its supervisor {end} and left no record; the exit code is unknown")
            }
            None => {
                "its supervisor is gone and left no record; the exit code is unknown".to_owned()
            }
        };
        return (ProgramExit::SupervisorLost, Some(words));
    };
    match &exit.outcome {
        RunOutcome::Launch { launch_error, .. } => (
            ProgramExit::LaunchFailed(launch_error.clone()),
            Some(launch_error.clone()),
        ),
        RunOutcome::Withdrawn { withdrawn } => (
            ProgramExit::LaunchFailed(withdrawn.clone()),
            Some(withdrawn.clone()),
        ),
        RunOutcome::Lost { lost } => (ProgramExit::SupervisorLost, Some(lost.clone())),
        RunOutcome::Exited { exit_code: 0 } => (ProgramExit::Exited(0), None),
        RunOutcome::Exited { exit_code } => (
            ProgramExit::Exited(*exit_code),
            Some(format!("exited with code {exit_code}")),
        ),
        RunOutcome::Signaled { signal } => (
            ProgramExit::Signaled(*signal),
            Some(format!("ended by signal {signal}")),
        ),
    }
}

/// Whether the loss of a GPU may have ended a program that exited in this way.
fn is_failure(gone: &ProgramExit) -> bool {
    match gone {
        ProgramExit::Exited(code) => *code != 0,
        ProgramExit::Signaled(_) | ProgramExit::SupervisorLost => true,
        ProgramExit::LaunchFailed(_) | ProgramExit::Bypass | ProgramExit::GpuLost => false,
    }
}

/// Warns of a job that should have had the wrapper and got the preload.
pub(in crate::controller) fn warn_of_the_weaker_form(jobs: &Jobs, io: &Io, id: JobId) {
    if let Ok(Some(limiter)) = jobs.dir(&io.config.home, id).limiter()
        && limiter.failed
    {
        let why = limiter.because.unwrap_or_default();
        tracing::warn!(job = %id, why, "the job uses the preload instead of the wrapper; a preload is easier to bypass");
    }
}

/// `pid 4242 on gpu0.25a`.
pub(in crate::controller) fn running(process: Process, job: &Job) -> String {
    format!("pid {} on {}", process.pid, job.grant_labels())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_before_a_retry_grows_up_to_a_minute() {
        let seconds = [1, 2, 3, 4, 5, 6, 7, 8, 9, u32::MAX];
        let seconds = seconds.map(|failures| retry_pause(failures).as_secs());
        assert_eq!(seconds, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
