//! Following jobs by their records: who has started, who has ended, who was lost; after a restart as on any day.
//!
//! `resume` and `tick` say when everybody is looked at, `end` what follows from an end.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use divvy_api::v1::Runner;
use divvy_core::job::Event;
use divvy_core::{JobId, JobState as Life};
use jiff::Timestamp;

use super::orphans::own_orphans;
use super::schedule;
use super::start::{Shortage, not_started};
use crate::controller::tick::ATTENDED;
use crate::controller::{ActiveJob, Controller};
use crate::host::clock::{Instant, now};
use crate::host::error::error_chain;
use crate::host::process::Process;
use crate::job_dir::processes::survivors;
use crate::job_dir::{ExitRecord, JobDir, RecordError, RunOutcome, StartRecord};
use crate::journal::StoreError;
use crate::model::job::Job;
use crate::supervisor::forkserver;

/// How long a client may take to start its job once it has its slice.
pub(in crate::controller) const CLIENT_START: Duration = Duration::from_secs(10);

/// How long a nursery may take to say how a supervisor ended. It says it as soon as it runs; one that somebody has stopped does
/// not.
const SUPERVISOR_EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a supervisor may end before it has started anything, under one agent: an agent that was killed before it
/// started one is no reason to give the job up.
const FALSE_STARTS: u32 = 3;

/// What a job's folder says.
enum RecordState {
    /// Nothing that is not known.
    Nothing,
    /// It has ended; nothing of it lives.
    Ended(ExitRecord),
    /// Its program has been started.
    Running(StartRecord),
    /// Its program was started, its supervisor is gone, and this much of it lives.
    Orphans(Vec<Process>),
    /// Its container was started, and nobody supervises it.
    Unsupervised,
    /// Its supervisor is gone, and so is whatever it started.
    Lost,
    /// Nobody has started it, and while this lock is held nobody can.
    NeverStarted(File),
}

impl Controller {
    /// Looks for new records of a job.
    pub(in crate::controller) fn check_records(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        if living.job.claim().is_some() {
            // Nobody writes any.
            return Ok(());
        }
        let dir = self.job_dir(id);
        let found = match living.job.state {
            Life::Queued | Life::Ended { .. } => return Ok(()),
            _ => read_records(&dir, living),
        };
        self.apply_observed(id, found)
    }

    /// Looks at one job's records, and at whether anybody supervises it.
    pub(in crate::controller) fn sync_job(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        if living.job.state.grants().is_empty() {
            return Ok(());
        }
        if living.job.claim().is_some() {
            return self.check_claim(id);
        }
        if let Some(exit) = living.start_failure.clone() {
            return self.finalize(id, Some(&exit));
        }
        let found = self.observe_job(id, living);
        self.watch_supervisor(id, &found);
        self.apply_observed(id, found)
    }

    /// Has the end of a running job's supervisor told, so that it need not be looked for. It is the one that holds the lock: `found` says that
    /// somebody does, and who lives that wrote `launch` does it to his end.
    fn watch_supervisor(&mut self, id: JobId, found: &Result<RecordState, RecordError>) {
        let dir = self.job_dir(id);
        let (Some(living), Some(watch)) = (self.jobs.get_mut(&id), &self.watch) else {
            return;
        };
        if !matches!(found, Ok(RecordState::Nothing))
            || !matches!(living.job.state, Life::Running { .. })
        {
            return;
        }
        let is_attended = watch.is_supervisor_watched(id) || {
            let launch = dir.launch().ok().flatten();
            launch.is_some_and(|launch| watch.watch_supervisor(id, launch.process))
        };
        living.last_checked = is_attended.then(Instant::now);
    }

    /// Draws the consequences of what was found.
    fn apply_observed(
        &mut self,
        id: JobId,
        found: Result<RecordState, RecordError>,
    ) -> Result<(), StoreError> {
        if !matches!(found, Ok(RecordState::Nothing))
            && let Some(living) = self.jobs.get_mut(&id)
        {
            living.last_checked = None;
        }
        match found {
            Ok(RecordState::Nothing) => Ok(()),
            Ok(RecordState::Ended(exit)) => self.finalize(id, Some(&exit)),
            Ok(RecordState::Running(begun)) => {
                self.warn_of_the_weaker_form(id);
                self.mark_running(id, begun.process, begun.at)
            }
            Ok(RecordState::Orphans(processes)) => {
                self.orphaned(id, &processes);
                Ok(())
            }
            Ok(RecordState::Unsupervised) => self.replace_supervisor(id),
            Ok(RecordState::Lost) => match self.is_supervisor_exit_known(id) {
                true => self.finalize(id, None),
                false => Ok(()),
            },
            Ok(RecordState::NeverStarted(lock)) => self.never_started(id, lock),
            Err(error) => {
                tracing::warn!(job = %id, error = error_chain(&error), "cannot read the job's records");
                Ok(())
            }
        }
    }

    /// A job that could have had the wrapper and got the preload instead.
    pub(in crate::controller) fn warn_of_the_weaker_form(&self, id: JobId) {
        if let Ok(Some(limiter)) = self.job_dir(id).limiter()
            && limiter.failed
        {
            let why = limiter.because.unwrap_or_default();
            tracing::warn!(job = %id, why, "the job uses the preload instead of the wrapper; a preload is easier to bypass");
        }
    }

    fn observe_job(&self, id: JobId, living: &ActiveJob) -> Result<RecordState, RecordError> {
        let dir = self.job_dir(id);
        let news = read_records(&dir, living)?;
        if !matches!(news, RecordState::Nothing) {
            return Ok(news);
        }
        let starting = matches!(living.job.state, Life::Starting { .. });
        // Nobody was to start it yet: its instances are not there, or were made in this very round.
        if starting && (!living.pending_instances.is_empty() || self.effects.starts.contains(&id)) {
            return Ok(RecordState::Nothing);
        }
        // Nor before it is confirmed.
        if living.job.awaits_confirmation() {
            return Ok(RecordState::Nothing);
        }
        if starting && living.shortage.as_ref().is_some_and(Shortage::is_resting) {
            return Ok(RecordState::Nothing);
        }
        if awaits_client(living) && living.since.elapsed() < CLIENT_START && dir.launch()?.is_none()
        {
            return Ok(RecordState::Nothing);
        }
        let Some(lock) = dir.lock()? else {
            return Ok(RecordState::Nothing);
        };
        // The supervisor is gone. It may have written its last record since we looked.
        if let Some(exit) = dir.exit()? {
            return Ok(RecordState::Ended(exit));
        }
        let Some(launch) = dir.launch()? else {
            // What ran once is not started again, whatever became of its record.
            let is_new = matches!(
                living.job.state,
                Life::Starting { .. } | Life::Stopping { process: None, .. }
            );
            return Ok(match is_new && !dir.is_from_earlier_build() {
                true => RecordState::NeverStarted(lock),
                false => RecordState::Lost,
            });
        };
        // A container does not die with its supervisor, and the engine knows what has become of it.
        if living.job.spec.container.is_some() && dir.spec()?.is_some() {
            return Ok(RecordState::Unsupervised);
        }
        let mut orphans = survivors(&dir, launch.process)?;
        orphans.extend(own_orphans(living));
        orphans.sort_unstable_by_key(|process| process.pid);
        orphans.dedup();
        Ok(if orphans.is_empty() {
            RecordState::Lost
        } else {
            RecordState::Orphans(orphans)
        })
    }

    fn mark_running(
        &mut self,
        id: JobId,
        process: Process,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let news = match &living.job.state {
            Life::Starting { .. } => true,
            Life::Stopping { process: None, .. } => false,
            _ => return Ok(()),
        };
        living.job.apply_event(Event::Spawned(process.into()));
        living.last_checked = None;
        living.job.started_at = Some(at);
        living.activity.mark_active(Instant::now());
        let job = living.job.clone();
        self.register_process_roots(id);
        self.store.save(&job)?;
        if news {
            self.record_event(Some(id), "running", &running(process, &job))?;
        } else {
            // Asked to stop before it ran: the supervisor is there to hear it now.
            self.effects.stops.push(id);
        }
        Ok(())
    }

    fn never_started(&mut self, id: JobId, lock: File) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let outcome = if matches!(living.job.state, Life::Stopping { .. }) {
            Some(RunOutcome::Withdrawn {
                withdrawn: "its program had not started".into(),
            })
        } else if awaits_client(living) {
            let seconds = CLIENT_START.as_secs();
            Some(not_started(&format!(
                "its client did not start the program within {seconds} s"
            )))
        } else if living.false_starts + 1 >= FALSE_STARTS {
            Some(not_started(&format!(
                "its supervisor ended {FALSE_STARTS} times before it started the program"
            )))
        } else {
            None
        };
        if let Some(outcome) = outcome {
            let exit = ExitRecord { outcome, at: now() };
            self.mark_spent(id, &exit, &lock);
            // Spent, it is nobody's to start. Who looks at its end is to see that nobody has it.
            drop(lock);
            return self.finalize(id, Some(&exit));
        }
        // Who had got away from an earlier run may have come into the slice of this one.
        if self.has_orphans(id)? {
            return Ok(());
        }
        let mut why = "its supervisor ended before it started the program".to_owned();
        if let Some(living) = self.jobs.get_mut(&id) {
            living.false_starts += u32::from(living.supervisor.take().is_some());
            if let Some(shortage) = living.shortage.take() {
                why = shortage.why;
            }
        }
        let stays = self
            .jobs
            .get(&id)
            .is_some_and(|living| living.job.keeps_placement());
        match stays {
            true => self.start_in_place(id, &why)?,
            false => self.requeue_unstarted(id, &why)?,
        }
        // Until here nobody else could start it.
        drop(lock);
        Ok(())
    }

    /// Puts a job that nobody has started back into its queue, at the place that it had.
    pub(in crate::controller) fn requeue_unstarted(
        &mut self,
        id: JobId,
        why: &str,
    ) -> Result<(), StoreError> {
        if self.is_claim(id) {
            // It waits in no queue.
            self.give_up_claim(id, why);
            return Ok(());
        }
        self.free_slice(id);
        self.release_instances(id)?;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.job.apply_event(Event::NeverStarted);
        living.members.clear();
        living.pending_instances.clear();
        living.since = Instant::now();
        let mut job = living.job.clone();
        self.store.release_allocations(&job)?;
        job.allocations.clear();
        living.job.allocations.clear();
        self.store.save(&job)?;
        self.record_event(Some(id), "requeued", why)?;
        self.effects.replan = true;
        Ok(())
    }

    /// The supervisor was killed and the program lives on. It keeps its slice; if it was to be stopped, that is up to us.
    fn orphaned(&mut self, id: JobId, processes: &[Process]) {
        let Some(living) = self.jobs.get_mut(&id) else {
            return;
        };
        if let Life::Stopping { .. } = living.job.state {
            let signal = if living.since.elapsed() < self.config.grace {
                rustix::process::Signal::TERM
            } else {
                rustix::process::Signal::KILL
            };
            for process in processes {
                // Gone by itself is just as well.
                let _ = process.signal(signal);
            }
        }
    }

    /// Waits for the supervisors that have ended, and notes how they did: one that leaves no record leaves at least that.
    pub(in crate::controller) fn reap_supervisors(&mut self) {
        if self.children.is_empty() {
            return;
        }
        forkserver::poll_replies();
        let mut ended = HashMap::new();
        self.children.retain_mut(|child| match child.try_wait() {
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
        for living in self.jobs.values_mut() {
            let status = living.supervisor.and_then(|pid| ended.get(&pid));
            if let Some(status) = status {
                living.supervisor_end = Some(describe_exit(*status));
            }
        }
    }

    /// Whether it is known how the supervisor of a lost job ended, as far as it will be: its lock is free some time before its
    /// nursery has said so.
    fn is_supervisor_exit_known(&mut self, id: JobId) -> bool {
        self.reap_supervisors();
        let Some(living) = self.jobs.get_mut(&id) else {
            return true;
        };
        let children = &self.children;
        let is_unheard = |pid| children.iter().any(|child| child.id() == pid);
        if !living.supervisor.is_some_and(is_unheard) {
            return true;
        }
        let since = *living.lost_since.get_or_insert_with(Instant::now);
        since.elapsed() >= SUPERVISOR_EXIT_TIMEOUT
    }

    /// Tells the observer from which processes the job's tree grows, and in which group, as far as the records say.
    pub(in crate::controller) fn register_process_roots(&self, id: JobId) {
        let Ok(record) = self.job_dir(id).record() else {
            return;
        };
        for begun in [record.launch, record.started].into_iter().flatten() {
            self.observer.add_root(id, begun.process);
        }
        if let Some(group) = record.held.and_then(|held| held.group) {
            self.observer.set_cgroup(id, group);
        }
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
    /// It is time for another look, as nobody would tell what it would find, or has not for a while.
    pub(in crate::controller) fn needs_check(&self) -> bool {
        self.last_checked.is_none_or(|at| at.elapsed() >= ATTENDED)
    }
}

/// What the records say that is not known.
fn read_records(dir: &JobDir, living: &ActiveJob) -> Result<RecordState, RecordError> {
    if living.job.state.process().is_some() {
        let exit = dir.exit()?;
        return Ok(exit.map_or(RecordState::Nothing, RecordState::Ended));
    }
    Ok(match dir.progress()? {
        (Some(exit), _) => RecordState::Ended(exit),
        (None, Some(begun)) => RecordState::Running(begun),
        (None, None) => RecordState::Nothing,
    })
}

/// Whether a client has yet to come for its job. Trying the lock then might be what makes it fail to take it.
fn awaits_client(living: &ActiveJob) -> bool {
    living.job.spec.runner == Runner::Client && matches!(living.job.state, Life::Starting { .. })
}

/// `pid 4242 on gpu0.25a`.
pub(in crate::controller) fn running(process: Process, job: &Job) -> String {
    format!("pid {} on {}", process.pid, schedule::labels(job))
}
