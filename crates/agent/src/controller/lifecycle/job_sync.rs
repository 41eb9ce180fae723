//! Job sync: the daemon derives a job's progress from its records: whether its program has started or ended, or its
//! supervisor is lost.
//!
//! [`startup`](crate::controller::startup) and [`tick`](crate::controller::tick) decide when jobs are checked;
//! [`finalize`] handles an end.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use divvy_api::v1::Runner;
use divvy_core::job::Event;
use divvy_core::{JobId, JobState};
use jiff::Timestamp;

use super::orphans::own_orphans;
use crate::controller::actuators::Actuators;
use crate::controller::claims;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::start_failure::{self, not_started};
use crate::controller::lifecycle::{confirm, finalize, orphans, requeue};
use crate::controller::runtime::{ActiveJob, Placed, Shortage};
use crate::controller::state::{Jobs, State};
use crate::host::account::AccountError;
use crate::host::clock::{Instant, now};
use crate::host::error::error_chain;
use crate::host::process::Process;
use crate::job_dir::processes::survivors;
use crate::job_dir::{ExitRecord, JobDir, RecordError, RunOutcome, StartRecord};
use crate::journal::StoreError;
use crate::supervisor::handle::SupervisorHandle;
use crate::supervisor::{ABSENT_USER, UNKNOWN_USER, forkserver};

/// The time between two checks of a job with a watched supervisor. Its end is an event, so the check is only for a lost
/// one; half would double the reads.
const ATTENDED: Duration = Duration::from_secs(2);

/// How long a client may take to start its job once the job has its slice.
pub(in crate::controller) const CLIENT_START: Duration = Duration::from_secs(10);

/// How long the daemon waits for the fork server to report how a supervisor ended. A running fork server reports it at
/// once; one that was stopped with a signal does not. Longer would keep the job's GPUs; half could miss one on a host
/// that swaps.
const SUPERVISOR_EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a supervisor of this daemon may end before it has started the program; then the job fails. A daemon that
/// was killed before it started a supervisor does not count against the job. One may be the machine's fault, such as a
/// lack of memory; more would hold up the queue for a job that cannot start.
const FALSE_STARTS: u32 = 3;

/// How often a start may find no account for the job's uid; then the job fails. With the rest between two attempts these
/// are five minutes, longer than a restart of a directory service.
const MOST_ABSENCES: u32 = 150;

/// What a job's records show.
enum RecordState {
    /// Nothing new.
    Nothing,
    /// The job has ended, and none of its processes lives.
    Ended(ExitRecord),
    /// Its program has started.
    Running(StartRecord),
    /// Its program was started, its supervisor is gone, and these processes live.
    Orphans(Vec<Process>),
    /// Its container was started, and no supervisor attends it.
    Unsupervised,
    /// Its supervisor is gone, and so are all processes that it started.
    Lost,
    /// No process has started it, and none can while this lock is held.
    NeverStarted(File),
}

/// Checks a job for new records.
pub(in crate::controller) fn check_records(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = state.jobs.active.get(&id) else {
        return Ok(());
    };
    if active.job.claim().is_some() {
        // A claim has no supervisor, so it has no records.
        return Ok(());
    }
    let dir = state.jobs.dir(&io.config.home, id);
    let found = match active.job.state {
        JobState::Queued | JobState::Ended { .. } => return Ok(()),
        _ => read_records(&dir, active),
    };
    apply_observed(state, fx, io, id, found)
}

/// Checks a job's records, and whether a supervisor attends it.
pub(in crate::controller) fn sync_job(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = state.jobs.active.get(&id) else {
        return Ok(());
    };
    if active.job.state.grants().is_empty() {
        return Ok(());
    }
    if active.job.claim().is_some() {
        return claims::check_claim(state, fx, io, id);
    }
    let placed = active.placed();
    if let Some(exit) = placed.and_then(|placed| placed.start.failure.clone()) {
        return finalize::finalize(state, fx, io, id, Some(&exit));
    }
    let found = observe_job(&state.jobs, fx, io, id, active);
    let is_running = matches!(active.job.state, JobState::Running { .. });
    if is_running && matches!(found, Ok(RecordState::Nothing)) {
        fx.jobs.attended.push(id);
    }
    apply_observed(state, fx, io, id, found)
}

/// Acts on what the records show.
fn apply_observed(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    found: Result<RecordState, RecordError>,
) -> Result<(), StoreError> {
    if !matches!(found, Ok(RecordState::Nothing))
        && let Some(placed) = (state.jobs.active.get_mut(&id)).and_then(|one| one.placed_mut())
    {
        placed.supervisor.last_checked = None;
    }
    match found {
        Ok(RecordState::Nothing) => Ok(()),
        Ok(RecordState::Ended(exit)) => finalize::finalize(state, fx, io, id, Some(&exit)),
        Ok(RecordState::Running(begun)) => {
            finalize::warn_of_the_weaker_form(&state.jobs, io, id);
            mark_running(&mut state.jobs, fx, io, id, begun.process, begun.at)
        }
        Ok(RecordState::Orphans(processes)) => {
            orphaned(&mut state.jobs, io, id, &processes);
            Ok(())
        }
        Ok(RecordState::Unsupervised) => {
            fx.jobs.adoptions.push(id);
            Ok(())
        }
        Ok(RecordState::Lost) => {
            match is_supervisor_exit_known(&mut state.jobs, &mut state.children, id) {
                true => finalize::finalize(state, fx, io, id, None),
                false => Ok(()),
            }
        }
        Ok(RecordState::NeverStarted(lock)) => never_started(state, fx, io, id, lock),
        Err(error) => {
            tracing::warn!(job = %id, error = error_chain(&error), "cannot read the job's records");
            Ok(())
        }
    }
}

fn observe_job(
    jobs: &Jobs,
    fx: &Effects,
    io: &Io,
    id: JobId,
    active: &ActiveJob,
) -> Result<RecordState, RecordError> {
    let dir = jobs.dir(&io.config.home, id);
    let records = read_records(&dir, active)?;
    if !matches!(records, RecordState::Nothing) {
        return Ok(records);
    }
    let starting = matches!(active.job.state, JobState::Starting { .. });
    // Its start is not due yet: its instances or its limits are not ready, or became ready in this round.
    let is_of_round = fx.jobs.starts.contains(&id) || fx.jobs.limited.contains(&id);
    if starting && (!active.has_all_instances() || is_of_round) {
        return Ok(RecordState::Nothing);
    }
    // The job starts only after its confirmation.
    if active.job.awaits_confirmation() {
        return Ok(RecordState::Nothing);
    }
    let shortage = active.placed().and_then(|one| one.start.shortage.as_ref());
    if starting && shortage.is_some_and(Shortage::is_resting) {
        return Ok(RecordState::Nothing);
    }
    if awaits_client(active) && active.state_age() < CLIENT_START && dir.launch()?.is_none() {
        return Ok(RecordState::Nothing);
    }
    let Some(lock) = dir.lock()? else {
        return Ok(RecordState::Nothing);
    };
    // The supervisor is gone. It may have written its last record since they were read.
    if let Some(exit) = dir.exit()? {
        return Ok(RecordState::Ended(exit));
    }
    let Some(launch) = dir.launch()? else {
        // A program that ran once is not started again, even if its record is lost.
        let is_new = matches!(
            active.job.state,
            JobState::Starting { .. } | JobState::Stopping { process: None, .. }
        );
        return Ok(match is_new && !dir.is_from_earlier_build() {
            true => RecordState::NeverStarted(lock),
            false => RecordState::Lost,
        });
    };
    // A container outlives its supervisor, and the engine knows its state.
    if active.job.spec.container.is_some() && dir.spec()?.is_some() {
        return Ok(RecordState::Unsupervised);
    }
    let mut orphans = survivors(&dir, launch.process)?;
    orphans.extend(own_orphans(active));
    orphans.sort_unstable_by_key(|process| process.pid);
    orphans.dedup();
    Ok(if orphans.is_empty() {
        RecordState::Lost
    } else {
        RecordState::Orphans(orphans)
    })
}

fn mark_running(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    process: Process,
    at: Timestamp,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let was_starting = match &active.job.state {
        JobState::Starting { .. } => true,
        JobState::Stopping { process: None, .. } => false,
        _ => return Ok(()),
    };
    active.job.apply_event(Event::Spawned(process.into()));
    if let Some(placed) = active.placed_mut() {
        placed.supervisor.last_checked = None;
    }
    active.job.started_at = Some(at);
    active.activity.mark_active(Instant::now());
    let job = active.job.clone();
    fx.jobs.roots.push(id);
    io.store.save(&job)?;
    if was_starting {
        fx.record_event(io, Some(id), "running", &finalize::running(process, &job))?;
    } else {
        // The job was stopped before it ran: now the supervisor can handle the signal.
        fx.jobs.stops.push(id);
    }
    Ok(())
}

fn never_started(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    lock: File,
) -> Result<(), StoreError> {
    // The exit code of the supervisor may say why.
    if !is_supervisor_exit_known(&mut state.jobs, &mut state.children, id) {
        return Ok(());
    }
    let Some(active) = state.jobs.active.get(&id) else {
        return Ok(());
    };
    let placed = active.placed();
    let has_shortage = placed.is_some_and(|placed| placed.start.shortage.is_some());
    let attempts = placed.map(|placed| placed.attempts).unwrap_or_default();
    let outcome = if matches!(active.job.state, JobState::Stopping { .. }) {
        Some(RunOutcome::Withdrawn {
            withdrawn: "its program had not started".into(),
        })
    } else if awaits_client(active) {
        let seconds = CLIENT_START.as_secs();
        Some(not_started(&format!(
            "its client did not start the program within {seconds} s"
        )))
    } else if attempts.absences >= MOST_ABSENCES {
        let (uid, was) = (active.job.spec.credentials.uid, active.job.account());
        let was = was.to_owned();
        Some(not_started(&AccountError::Absent { uid, was }.to_string()))
    } else if attempts.false_starts + 1 >= FALSE_STARTS && !has_shortage {
        Some(not_started(&format!(
            "its supervisor ended {FALSE_STARTS} times before it started the program"
        )))
    } else {
        None
    };
    if let Some(outcome) = outcome {
        let exit = ExitRecord { outcome, at: now() };
        start_failure::mark_spent(&state.jobs, io, id, &exit, &lock);
        // A spent job cannot be started any more. The check of the lock that follows must find it free.
        drop(lock);
        return finalize::finalize(state, fx, io, id, Some(&exit));
    }
    // An orphan of an earlier run may have joined the slice of this run.
    if orphans::has_orphans(&mut state.jobs, &state.gpus, fx, io, id)? {
        return Ok(());
    }
    let active = state.jobs.active.get(&id);
    let stays = active.is_some_and(|active| active.job.keeps_placement());
    // Nothing starts on a full disk. The next check finds the job in this state again.
    if stays && state.disk.full.is_some() {
        return Ok(());
    }
    let mut why = "its supervisor ended before it started the program".to_owned();
    if let Some(placed) = (state.jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
        let was_started = placed.supervisor.pid.take().is_some();
        match placed.start.shortage.take() {
            Some(shortage) => why = shortage.why,
            None => placed.attempts.false_starts += u32::from(was_started),
        }
    }
    match stays {
        true => confirm::start_in_place(&mut state.jobs, fx, io, id, &why)?,
        false => requeue::requeue_unstarted(&mut state.jobs, &mut state.mig, fx, io, id, &why)?,
    }
    // The lock kept other processes from starting the job until here.
    drop(lock);
    Ok(())
}

/// Handles a program that outlives its supervisor: it keeps its slice. If the job is stopping, the daemon signals the
/// processes itself.
fn orphaned(jobs: &mut Jobs, io: &Io, id: JobId, processes: &[Process]) {
    let Some(active) = jobs.active.get_mut(&id) else {
        return;
    };
    if let JobState::Stopping { .. } = active.job.state {
        let signal = if active.state_age() < io.config.grace {
            rustix::process::Signal::TERM
        } else {
            rustix::process::Signal::KILL
        };
        for process in processes {
            // The process may have exited by itself.
            let _ = process.signal(signal);
        }
    }
}

/// Reaps ended supervisors, and notes their exit status, which matters if they leave no record.
pub(in crate::controller) fn reap_supervisors(
    jobs: &mut Jobs,
    children: &mut Vec<SupervisorHandle>,
) {
    if children.is_empty() {
        return;
    }
    forkserver::poll_replies();
    let mut ended = HashMap::new();
    children.retain_mut(|child| match child.try_wait() {
        Ok(None) => true,
        Ok(Some(status)) => {
            ended.insert(child.id(), status);
            false
        }
        Err(_) => false,
    });
    if ended.is_empty() {
        return;
    }
    let placed = jobs.active.values_mut().filter_map(|one| one.placed_mut());
    for Placed {
        supervisor,
        start,
        attempts,
        ..
    } in placed
    {
        let Some(status) = supervisor.pid.and_then(|pid| ended.get(&pid)) else {
            continue;
        };
        supervisor.end = Some(describe_exit(*status));
        let why = match status.code().map(u8::try_from) {
            Some(Ok(UNKNOWN_USER)) => "the user database does not answer",
            Some(Ok(ABSENT_USER)) => {
                attempts.absences += 1;
                "the user database has no account for its user now"
            }
            _ => continue,
        };
        start.shortage = Some(Shortage {
            why: format!("it could not be started: {why}"),
            since: Instant::now(),
        });
    }
}

/// Whether the exit status of a lost job's supervisor is known, or will not become known. Its lock becomes free before
/// the fork server reports the status.
fn is_supervisor_exit_known(
    jobs: &mut Jobs,
    children: &mut Vec<SupervisorHandle>,
    id: JobId,
) -> bool {
    reap_supervisors(jobs, children);
    let Some(placed) = (jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) else {
        return true;
    };
    let supervisor = &mut placed.supervisor;
    let is_unheard = |pid| children.iter().any(|child| child.id() == pid);
    if !supervisor.pid.is_some_and(is_unheard) {
        return true;
    }
    let since = *supervisor.lost_since.get_or_insert_with(Instant::now);
    since.elapsed() >= SUPERVISOR_EXIT_TIMEOUT
}

/// Watches the ends of running jobs' supervisors with pidfds, so that they need not be polled. A process holds the lock
/// of each job. The process of the launch record holds that lock until it ends, so it is the supervisor.
pub(in crate::controller) fn watch_supervisors(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
) {
    for id in std::mem::take(&mut fx.jobs.attended) {
        let dir = jobs.dir(&io.config.home, id);
        let (Some(active), Some(watch)) = (jobs.active.get_mut(&id), &actuators.watch) else {
            continue;
        };
        if !matches!(active.job.state, JobState::Running { .. }) {
            continue;
        }
        let is_attended = watch.is_supervisor_watched(id) || {
            let launch = dir.launch().ok().flatten();
            launch.is_some_and(|launch| watch.watch_supervisor(id, launch.process))
        };
        if let Some(placed) = active.placed_mut() {
            placed.supervisor.last_checked = is_attended.then(Instant::now);
        }
    }
}

/// Registers the roots of the job's process tree and its cgroup with the observer, as the records have them.
pub(in crate::controller) fn register_process_roots(
    jobs: &Jobs,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) {
    let Ok(record) = jobs.dir(&io.config.home, id).record() else {
        return;
    };
    let active = jobs.active.get(&id);
    if let (Some(launch), Some(slice)) = (&record.launch, active.and_then(|active| active.slice()))
    {
        slice.set_supervisor(launch.process.pid);
    }
    for begun in [record.launch, record.started].into_iter().flatten() {
        actuators.observer.add_root(id, begun.process);
    }
    if let Some(group) = record.held.and_then(|held| held.group) {
        actuators.observer.set_cgroup(id, group);
    }
}

/// `was killed by signal 9`.
fn describe_exit(ended: ExitStatus) -> String {
    match (ended.signal(), ended.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, code) => format!("ended with code {}", code.unwrap_or_default()),
    }
}

impl ActiveJob {
    /// Whether a check is due: no pidfd would report the supervisor's end, or the last check was long ago.
    pub(in crate::controller) fn needs_check(&self) -> bool {
        let placed = self.placed();
        let last_checked = placed.and_then(|placed| placed.supervisor.last_checked);
        last_checked.is_none_or(|at| at.elapsed() >= ATTENDED)
    }
}

/// What is new in the records.
fn read_records(dir: &JobDir, active: &ActiveJob) -> Result<RecordState, RecordError> {
    if active.job.state.process().is_some() {
        let exit = dir.exit()?;
        return Ok(exit.map_or(RecordState::Nothing, RecordState::Ended));
    }
    Ok(match dir.progress()? {
        (Some(exit), _) => RecordState::Ended(exit),
        (None, Some(begun)) => RecordState::Running(begun),
        (None, None) => RecordState::Nothing,
    })
}

/// Whether the job's client has yet to start it. If the daemon tried the lock now, the client might fail to take it.
fn awaits_client(active: &ActiveJob) -> bool {
    active.job.spec.runner == Runner::Client
        && matches!(active.job.state, JobState::Starting { .. })
}
