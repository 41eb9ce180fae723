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
use divvy_core::{Job as Life, JobId};
use jiff::Timestamp;

use super::left::its_own;
use super::start::{Shortage, not_started};
use super::tick::ATTENDED;
use super::{Cycle, Living, place};
use crate::clock::{Instant, now};
use crate::job::Job;
use crate::nursery;
use crate::process::Process;
use crate::records::{Begun, Exit, JobDir, Outcome, RecordError};
use crate::store::StoreError;
use crate::supervise::{chain, survivors};

/// How long a client may take to start its job once it has its slice.
pub(super) const CLIENT_START: Duration = Duration::from_secs(10);

/// How long a nursery may take to say how a supervisor ended. It says it as soon as it runs; one that somebody has stopped does
/// not.
const UNHEARD: Duration = Duration::from_secs(30);

/// How often a supervisor may end before it has started anything, under one agent: an agent that was killed before it
/// started one is no reason to give the job up.
const FALSE_STARTS: u32 = 3;

/// What a job's folder says.
enum Found {
    /// Nothing that is not known.
    Nothing,
    /// It has ended; nothing of it lives.
    Ended(Exit),
    /// Its program has been started.
    Runs(Begun),
    /// Its program was started, its supervisor is gone, and this much of it lives.
    Orphans(Vec<Process>),
    /// Its container was started, and nobody supervises it.
    Unattended,
    /// Its supervisor is gone, and so is whatever it started.
    Lost,
    /// Nobody has started it, and while this lock is held nobody can.
    NeverStarted(File),
}

impl Cycle {
    /// Looks for new records of a job.
    pub(super) fn news(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        if living.job.claim().is_some() {
            // Nobody writes any.
            return Ok(());
        }
        let dir = self.job_dir(id);
        let found = match living.job.life {
            Life::Queued | Life::Ended { .. } => return Ok(()),
            _ => news(&dir, living),
        };
        self.draw(id, found)
    }

    /// Looks at one job's records, and at whether anybody supervises it.
    pub(super) fn look(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        if living.job.life.grants().is_empty() {
            return Ok(());
        }
        if living.job.claim().is_some() {
            return self.look_at_claim(id);
        }
        if let Some(exit) = living.failed.clone() {
            return self.settle(id, Some(&exit));
        }
        let found = self.found(id, living);
        self.attend(id, &found);
        self.draw(id, found)
    }

    /// Has the end of a running job's supervisor told, so that it need not be looked for. It is the one that holds the lock: `found` says that
    /// somebody does, and who lives that wrote `launch` does it to his end.
    fn attend(&mut self, id: JobId, found: &Result<Found, RecordError>) {
        let dir = self.job_dir(id);
        let (Some(living), Some(watch)) = (self.jobs.get_mut(&id), &self.watch) else {
            return;
        };
        if !matches!(found, Ok(Found::Nothing)) || !matches!(living.job.life, Life::Running { .. })
        {
            return;
        }
        let is_attended = watch.is_attended(id) || {
            let launch = dir.launch().ok().flatten();
            launch.is_some_and(|launch| watch.attend(id, launch.process))
        };
        living.attended = is_attended.then(Instant::now);
    }

    /// Draws the consequences of what was found.
    fn draw(&mut self, id: JobId, found: Result<Found, RecordError>) -> Result<(), StoreError> {
        if !matches!(found, Ok(Found::Nothing))
            && let Some(living) = self.jobs.get_mut(&id)
        {
            living.attended = None;
        }
        match found {
            Ok(Found::Nothing) => Ok(()),
            Ok(Found::Ended(exit)) => self.settle(id, Some(&exit)),
            Ok(Found::Runs(begun)) => {
                self.warn_of_the_weaker_form(id);
                self.runs(id, begun.process, begun.at)
            }
            Ok(Found::Orphans(processes)) => {
                self.orphaned(id, &processes);
                Ok(())
            }
            Ok(Found::Unattended) => self.relay(id),
            Ok(Found::Lost) => match self.has_heard(id) {
                true => self.settle(id, None),
                false => Ok(()),
            },
            Ok(Found::NeverStarted(lock)) => self.never_started(id, lock),
            Err(error) => {
                tracing::warn!(job = %id, error = chain(&error), "cannot read the job's records");
                Ok(())
            }
        }
    }

    /// A job that could have had the wrapper and got the preload instead.
    pub(super) fn warn_of_the_weaker_form(&self, id: JobId) {
        if let Ok(Some(limiter)) = self.job_dir(id).limiter()
            && limiter.failed
        {
            let why = limiter.because.unwrap_or_default();
            tracing::warn!(job = %id, why, "the job uses the preload instead of the wrapper; a preload is easier to bypass");
        }
    }

    fn found(&self, id: JobId, living: &Living) -> Result<Found, RecordError> {
        let dir = self.job_dir(id);
        let news = news(&dir, living)?;
        if !matches!(news, Found::Nothing) {
            return Ok(news);
        }
        let starting = matches!(living.job.life, Life::Starting { .. });
        // Nobody was to start it yet: its instances are not there, or were made in this very round.
        if starting && (!living.awaits.is_empty() || self.round.starts.contains(&id)) {
            return Ok(Found::Nothing);
        }
        // Nor before it is confirmed.
        if living.job.awaits_confirmation() {
            return Ok(Found::Nothing);
        }
        if starting && living.shortage.as_ref().is_some_and(Shortage::rests) {
            return Ok(Found::Nothing);
        }
        if awaits_client(living) && living.since.elapsed() < CLIENT_START && dir.launch()?.is_none()
        {
            return Ok(Found::Nothing);
        }
        let Some(lock) = dir.lock()? else {
            return Ok(Found::Nothing);
        };
        // The supervisor is gone. It may have written its last record since we looked.
        if let Some(exit) = dir.exit()? {
            return Ok(Found::Ended(exit));
        }
        let Some(launch) = dir.launch()? else {
            // What ran once is not started again, whatever became of its record.
            let is_new = matches!(
                living.job.life,
                Life::Starting { .. } | Life::Stopping { process: None, .. }
            );
            return Ok(match is_new && !dir.is_earlier() {
                true => Found::NeverStarted(lock),
                false => Found::Lost,
            });
        };
        // A container does not die with its supervisor, and the engine knows what has become of it.
        if living.job.ask.container.is_some() && dir.spec()?.is_some() {
            return Ok(Found::Unattended);
        }
        let mut orphans = survivors(&dir, launch.process)?;
        orphans.extend(its_own(living));
        orphans.sort_unstable_by_key(|process| process.pid);
        orphans.dedup();
        Ok(if orphans.is_empty() {
            Found::Lost
        } else {
            Found::Orphans(orphans)
        })
    }

    fn runs(&mut self, id: JobId, process: Process, at: Timestamp) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let news = match &living.job.life {
            Life::Starting { .. } => true,
            Life::Stopping { process: None, .. } => false,
            _ => return Ok(()),
        };
        living.job.step(Event::Spawned(process.into()));
        living.attended = None;
        living.job.started_at = Some(at);
        living.work.wants(Instant::now());
        let job = living.job.clone();
        self.take_roots(id);
        self.store.save(&job)?;
        if news {
            self.tell(Some(id), "running", &running(process, &job))?;
        } else {
            // Asked to stop before it ran: the supervisor is there to hear it now.
            self.round.stops.push(id);
        }
        Ok(())
    }

    fn never_started(&mut self, id: JobId, lock: File) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let outcome = if matches!(living.job.life, Life::Stopping { .. }) {
            Some(Outcome::Withdrawn {
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
            let exit = Exit { outcome, at: now() };
            self.mark_spent(id, &exit, &lock);
            // Spent, it is nobody's to start. Who looks at its end is to see that nobody has it.
            drop(lock);
            return self.settle(id, Some(&exit));
        }
        // Who had got away from an earlier run may have come into the slice of this one.
        if self.is_held(id)? {
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
            .is_some_and(|living| living.job.starts_where_it_is());
        match stays {
            true => self.start_where_it_is(id, &why)?,
            false => self.put_back(id, &why)?,
        }
        // Until here nobody else could start it.
        drop(lock);
        Ok(())
    }

    /// Puts a job that nobody has started back into its queue, at the place that it had.
    pub(super) fn put_back(&mut self, id: JobId, why: &str) -> Result<(), StoreError> {
        if self.is_claim(id) {
            // It waits in no queue.
            self.give_up_claim(id, why);
            return Ok(());
        }
        self.free_slice(id);
        self.let_go(id)?;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.job.step(Event::NeverStarted);
        living.members.clear();
        living.awaits.clear();
        living.since = Instant::now();
        let mut job = living.job.clone();
        self.store.release(&job)?;
        job.holdings.clear();
        living.job.holdings.clear();
        self.store.save(&job)?;
        self.tell(Some(id), "requeued", why)?;
        self.round.replan = true;
        Ok(())
    }

    /// The supervisor was killed and the program lives on. It keeps its slice; if it was to be stopped, that is up to us.
    fn orphaned(&mut self, id: JobId, processes: &[Process]) {
        let Some(living) = self.jobs.get_mut(&id) else {
            return;
        };
        if let Life::Stopping { .. } = living.job.life {
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
    pub(super) fn reap_supervisors(&mut self) {
        if self.children.is_empty() {
            return;
        }
        nursery::hear();
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
                living.supervisor_end = Some(in_words(*status));
            }
        }
    }

    /// Whether it is known how the supervisor of a lost job ended, as far as it will be: its lock is free some time before its
    /// nursery has said so.
    fn has_heard(&mut self, id: JobId) -> bool {
        self.reap_supervisors();
        let Some(living) = self.jobs.get_mut(&id) else {
            return true;
        };
        let children = &self.children;
        let is_unheard = |pid| children.iter().any(|child| child.id() == pid);
        if !living.supervisor.is_some_and(is_unheard) {
            return true;
        }
        let since = *living.unheard.get_or_insert_with(Instant::now);
        since.elapsed() >= UNHEARD
    }

    /// Tells the observer from which processes the job's tree grows, and in which group, as far as the records say.
    pub(super) fn take_roots(&self, id: JobId) {
        let Ok(record) = self.job_dir(id).record() else {
            return;
        };
        for begun in [record.launch, record.started].into_iter().flatten() {
            self.observer.root(id, begun.process);
        }
        if let Some(group) = record.held.and_then(|held| held.group) {
            self.observer.group(id, group);
        }
    }
}

/// `was killed by signal 9`.
fn in_words(ended: ExitStatus) -> String {
    match (ended.signal(), ended.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, code) => format!("ended with code {}", code.unwrap_or_default()),
    }
}

impl Living {
    /// It is time for another look, as nobody would tell what it would find, or has not for a while.
    pub(super) fn is_due(&self) -> bool {
        self.attended.is_none_or(|at| at.elapsed() >= ATTENDED)
    }
}

/// What the records say that is not known.
fn news(dir: &JobDir, living: &Living) -> Result<Found, RecordError> {
    if living.job.life.process().is_some() {
        let exit = dir.exit()?;
        return Ok(exit.map_or(Found::Nothing, Found::Ended));
    }
    Ok(match dir.progress()? {
        (Some(exit), _) => Found::Ended(exit),
        (None, Some(begun)) => Found::Runs(begun),
        (None, None) => Found::Nothing,
    })
}

/// Whether a client has yet to come for its job. Trying the lock then might be what makes it fail to take it.
fn awaits_client(living: &Living) -> bool {
    living.job.ask.runner == Runner::Client && matches!(living.job.life, Life::Starting { .. })
}

/// `pid 4242 on gpu0.25a`.
pub(super) fn running(process: Process, job: &Job) -> String {
    format!("pid {} on {}", process.pid, place::labels(job))
}
