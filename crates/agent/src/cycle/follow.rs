//! Following jobs by their records: who has started, who has ended, who was lost; after a restart as on any day.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use divvy_api::v1::Runner;
use divvy_core::job::{Event, Gone, Stop};
use divvy_core::{Job as Life, JobId};
use jiff::Timestamp;

use super::left::its_own;
use super::mig::is_divided;
use super::start::{Shortage, not_started, records};
use super::{Cycle, Living, place};
use crate::clock::{Instant, now};
use crate::failpoint::reach;
use crate::gpu::roster::Entry;
use crate::gpu::slice;
use crate::job::Job;
use crate::oom;
use crate::process::Process;
use crate::records::{Begun, Exit, JobDir, Outcome, RecordError};
use crate::store::StoreError;
use crate::supervise::{chain, survivors};

/// How long a client may be silent while its job waits.
const CLIENT_SILENCE: Duration = Duration::from_secs(30);

/// How long a client may take to start its job once it has its slice.
const CLIENT_START: Duration = Duration::from_secs(10);

/// How long a nursery may take to say how a supervisor ended. It says it as soon as it runs; one that somebody has stopped does
/// not.
const UNHEARD: Duration = Duration::from_secs(30);

/// How often a supervisor may end before it has started anything, under one agent: an agent that was killed before it
/// started one is no reason to give the job up.
const FALSE_STARTS: u32 = 3;

/// What a restart found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    pub queued: usize,
    /// Run on, with the slices they had.
    pub adopted: usize,
    /// Ended while no agent ran, or were never started.
    pub settled: usize,
}

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
    /// A job that a build with other records has started, and that still runs.
    pub fn earlier(&self) -> Option<JobId> {
        let mut jobs = self.jobs.keys().copied();
        jobs.find(|id| self.job_dir(*id).is_attended_earlier())
    }

    /// Compares the journal with the world after a start: adopts, settles, puts back.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn resume(&mut self) -> Result<Resumed, StoreError> {
        let before: Vec<JobId> = self.jobs.keys().copied().collect();
        self.remove_orphaned_slices();
        self.sweep_devices();
        self.secrets.sweep(|job| self.jobs.contains_key(&job));
        crate::records::sweep(&self.config.home.jobs(), |job| self.jobs.contains_key(&job));
        self.store.begin()?;
        for id in &before {
            let Some(living) = self.jobs.get_mut(id) else {
                continue;
            };
            if living.job.life == Life::Queued {
                self.follow(*id)?;
                continue;
            }
            if living.job.claim().is_some() {
                self.resume_claim(*id)?;
                continue;
            }
            if living.job.awaits_confirmation() {
                // Of its slice there is only what the journal says. Instances may not have been made.
                if is_divided(living.job.life.grants()) {
                    self.put_back(*id, "its daemon was killed before it was confirmed")?;
                }
                continue;
            }
            if living.job.course.suspended {
                // It may not have been stopped.
                self.round.pauses.push(*id);
            }
            if matches!(living.job.life, Life::Stopping { .. }) {
                // It may not have been told.
                self.round.stops.push(*id);
            }
            // Killed right after it was placed, it has neither, and is put back.
            let dir = records(&self.config.home, *id, &living.job);
            if dir.path().is_dir() {
                if is_divided(living.job.life.grants()) {
                    self.observer.enlist(*id, Entry::without_account());
                } else {
                    match slice::HeldSlice::adopt(&self.config.home.slice(&id.to_string())) {
                        Ok(slice) => {
                            self.observer.enlist(*id, slice.entry(Vec::new()));
                            living.slice = Some(slice);
                        }
                        Err(error) => {
                            tracing::warn!(job = %id, error = chain(&error), "its slice cannot be adopted");
                        }
                    }
                }
                self.watch_job(*id);
                self.take_roots(*id);
                // An agent may have been killed between the journal and the slice.
                self.apply_limits(*id);
            }
            self.look(*id)?;
        }
        self.let_go_of_strays()?;
        self.remember_bypasses();
        // Who is whose is known from here on, and what strangers hold before the first plan.
        match self.observer.look() {
            Ok(look) => self.observed(&look)?,
            Err(error) => self.blinded(chain(&error))?,
        }
        self.finish_switches()?;
        let count = |wanted: fn(&Life) -> bool| {
            before
                .iter()
                .filter(|id| {
                    self.jobs
                        .get(id)
                        .is_some_and(|living| wanted(&living.job.life))
                })
                .count()
        };
        let resumed = Resumed {
            queued: count(|life| *life == Life::Queued),
            adopted: count(|life| !life.grants().is_empty()),
            settled: count(|life| life.outcome().is_some()),
        };
        self.counted.adopted = u64::try_from(resumed.adopted).unwrap_or(u64::MAX);
        self.counted.settled = u64::try_from(resumed.settled).unwrap_or(u64::MAX);
        self.finish_round()?;
        Ok(resumed)
    }

    /// Slice folders without a job: an agent was killed between removing the last trace of a job and its folder.
    fn remove_orphaned_slices(&self) {
        let folders = std::fs::read_dir(self.config.home.slices())
            .into_iter()
            .flatten()
            .flatten();
        for folder in folders {
            let job = folder
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let holds = |id: &JobId| {
                self.jobs
                    .get(id)
                    .is_some_and(|living| !living.job.life.grants().is_empty())
            };
            if job.as_ref().is_none_or(|id| !holds(id))
                && let Err(error) = slice::remove(&folder.path())
            {
                tracing::warn!(error = chain(&error), "a slice without a job stays");
            }
        }
    }

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
        self.draw(id, found)
    }

    /// Draws the consequences of what was found.
    fn draw(&mut self, id: JobId, found: Result<Found, RecordError>) -> Result<(), StoreError> {
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
                tracing::warn!(job = %id, error = chain(&error), "its records cannot be read");
                Ok(())
            }
        }
    }

    /// A job that could have had the wrapper and got the preload instead.
    fn warn_of_the_weaker_form(&self, id: JobId) {
        if let Ok(Some(limiter)) = self.job_dir(id).limiter()
            && limiter.failed
        {
            let why = limiter.because.unwrap_or_default();
            tracing::warn!(job = %id, why, "its limiter is a preload, which is easier to go past than a wrapper");
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
                withdrawn: "before it was started".into(),
            })
        } else if awaits_client(living) {
            let seconds = CLIENT_START.as_secs();
            Some(not_started(&format!(
                "the client that was to run it has not come for it in {seconds} s"
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

    /// Writes down how a job ended and frees its slice; `None` when nobody knows. Not before its last process is gone:
    /// until then it keeps its slice, and the next tick looks again.
    fn settle(&mut self, id: JobId, exit: Option<&Exit>) -> Result<(), StoreError> {
        if self.is_held(id)? {
            return Ok(());
        }
        self.keep_traces(id)?;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let (gone, words) = match living.job.bypasses.iter().find(|found| found.is_killed()) {
            Some(bypass) => {
                let words = format!("killed: {}: {}", bypass.what(), bypass.cause());
                (Gone::Bypass, Some(words))
            }
            None => gone(exit, living.supervisor_end.as_deref()),
        };
        let mut held = living.job.life.grants().iter();
        let (gone, words) = match held.find(|grant| self.lost.contains(&grant.gpu)) {
            Some(grant) if is_failure(&gone) => {
                let index = grant.index;
                let words = words.unwrap_or_default();
                (Gone::GpuLost, Some(format!("GPU {index} is lost; {words}")))
            }
            _ => (gone, words),
        };
        living.job.exit_code = exit.and_then(|exit| exit.outcome.code());
        let preempted = matches!(
            &living.job.life,
            Life::Stopping {
                why: Stop::Preempt,
                ..
            }
        );
        self.counted.given_way += u64::from(preempted);
        let had_left = living.job.had_left(exit);
        let told = match &living.job.life {
            Life::Stopping {
                why: Stop::Cancel, ..
            } => Some("cancelled"),
            Life::Stopping { why, .. } if !had_left => match why {
                Stop::TimeLimit => Some("stopped at the end of its time"),
                Stop::Idle => Some("stopped as it did nothing"),
                Stop::GpuLost => Some("a GPU that it was on is lost"),
                Stop::Preempt => Some("preempted"),
                Stop::Release => Some("given back"),
                Stop::Requeue | Stop::Cancel => Some("stopped to be started anew"),
            },
            _ => None,
        };
        living.job.reason = match (told, words) {
            (Some(told), Some(words)) => Some(format!("{told}; {words}")),
            (Some(told), None) => Some(format!("{told}; exited with code 0")),
            (None, words) => words,
        };
        living.job.ended_at = Some(exit.map_or_else(now, |exit| exit.at));
        // A short program has come and gone between two looks.
        let unseen = living.job.started_at.is_none();
        let dir = records(&self.config.home, id, &living.job);
        let ran = dir.started().ok().flatten().filter(|_| unseen);
        if let Some(ran) = ran {
            living.job.started_at = Some(ran.at);
        }
        let starting = matches!(living.job.life, Life::Starting { .. });
        let ran = ran.filter(|_| starting);
        let ran = ran.map(|ran| running(ran.process, &living.job));
        let (event, failed) = living.job.leaving(gone, exit);
        living.job.course.failures += u32::from(failed);
        living.job.course.requeued |= !failed;
        living.job.step(event);
        living.awaits.clear();
        self.journal_metered(id)?;
        self.free_slice(id);
        self.let_go(id)?;
        self.close_bypasses(id)?;
        if unseen {
            self.warn_of_the_weaker_form(id);
        }
        if let Some(ran) = ran {
            self.tell(Some(id), "running", &ran)?;
        }
        let job = &self.jobs[&id].job;
        if job.life != Life::Queued {
            return self.ended(id);
        }
        let words = job.reason.clone().unwrap_or_default();
        match failed {
            true => self.waits_again(id, "retried", &words),
            false => self.waits_again(id, "requeued", &words),
        }
    }

    /// Takes over what its slice remembers, before that goes.
    pub(super) fn keep_traces(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let mut alarms = 0;
        if let Some(slice) = &living.slice
            && let Ok(snapshot) = slice.read()
        {
            alarms = snapshot.alarms();
            for (gpu, holding) in living.job.holdings.iter_mut().enumerate() {
                holding.traces = slice::traces(&snapshot, gpu);
            }
            if let Ok((denials, _)) = slice.denials() {
                let records = oom::records(&denials, &living.job.holdings);
                self.store.keep_denials(id, &records)?;
            }
        }
        for (holding, ledger) in living.job.holdings.iter_mut().zip(&living.ledgers) {
            holding.traces.mismatch_max = ledger.mismatch_max;
        }
        self.alarmed(id, alarms)
    }

    /// Journals a job that has just ended, and lets everybody know.
    pub(super) fn ended(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let job = living.job.clone();
        self.store.release(&job)?;
        self.store.save(&job)?;
        let text = match (job.life.outcome(), job.exit_code) {
            (Some(outcome), _) => outcome.to_string(),
            (None, _) => String::new(),
        };
        self.tell(Some(id), "ended", &text)?;
        if let Some(watch) = &self.watch {
            watch.remove(id);
        }
        if let Some(group) = self.job_dir(id).group() {
            group.remove();
        }
        if let Err(error) = self.job_dir(id).forget_spec() {
            tracing::warn!(job = %id, error = chain(&error), "its spec, with its environment, stays on disk");
        }
        reach("end.forgotten");
        self.waits.remove(&id);
        self.round.forgets.push(id);
        self.round.reached.push(id);
        self.round.ended.push(id);
        self.round.replan = true;
        Ok(())
    }

    pub(super) fn free_slice(&mut self, id: JobId) {
        self.observer.strike(id);
        self.keeper.release(id);
        self.watch_no_more(id);
        let slice = self
            .jobs
            .get_mut(&id)
            .and_then(|living| living.slice.take());
        let removed = match slice {
            Some(slice) => slice.remove(),
            None => slice::remove(&self.config.home.slice(&id.to_string())),
        };
        reach("end.freed");
        if let Err(error) = removed {
            tracing::warn!(job = %id, error = chain(&error), "its slice folder stays until the next start");
        }
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

    /// What the tick does: looks at every active job, at silent clients, at supervisors that have ended.
    pub(super) fn sweep(&mut self) -> Result<(), StoreError> {
        self.reap_supervisors();
        self.unbar();
        self.enforce_time_limits()?;
        self.keep_books()?;
        self.look_for_idle()?;
        // Somebody has run for its minimum by now.
        self.round.replan |= self.again_at.is_some_and(|at| at <= Instant::now());
        let mut silent = Vec::new();
        let mut unconfirmed = Vec::new();
        let mut active = Vec::new();
        let mut overdue = Vec::new();
        let mut hung = Vec::new();
        for (id, living) in &mut self.jobs {
            match &living.job.life {
                Life::Queued if living.job.ask.runner == Runner::Client => {
                    living.waiters.retain(|waiter| !waiter.reply.is_closed());
                    if !living.waiters.is_empty() {
                        living.heard = Instant::now();
                    } else if living.heard.elapsed() > CLIENT_SILENCE {
                        silent.push(*id);
                    }
                }
                Life::Queued | Life::Ended { .. } => {}
                Life::Starting { .. } if living.job.awaits_confirmation() => {
                    living.waiters.retain(|waiter| !waiter.reply.is_closed());
                    if !living.waiters.is_empty() || !living.awaits.is_empty() {
                        living.heard = Instant::now();
                    } else if living.heard.elapsed() > living.job.patience() {
                        unconfirmed.push(*id);
                    }
                }
                Life::Stopping { process, .. } => {
                    active.push(*id);
                    if process.is_none() && living.since.elapsed() > self.config.grace {
                        hung.push(*id);
                    }
                    // The supervisor has had its time; perhaps it is stopped itself.
                    if living.since.elapsed() > self.config.grace + CLIENT_START {
                        overdue.push(*id);
                    }
                }
                Life::Starting { .. } | Life::Running { .. } | Life::Lent { .. } => {
                    active.push(*id)
                }
            }
        }
        for id in silent {
            self.stop_job(
                id,
                Stop::Cancel,
                "its client has not been heard of for 30 s",
            )?;
        }
        for id in unconfirmed {
            self.give_up_waiting(id)?;
        }
        for id in overdue {
            self.kill(id);
        }
        for id in hung {
            self.give_up(id);
        }
        for id in active {
            self.look(id)?;
        }
        Ok(())
    }
}

impl Cycle {
    /// Waits for the supervisors that have ended, and notes how they did: one that leaves no record leaves at least that.
    fn reap_supervisors(&mut self) {
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

    /// Tells the observer from which processes the job's tree grows, as far as the records say.
    fn take_roots(&self, id: JobId) {
        let dir = self.job_dir(id);
        let roots = [dir.launch(), dir.started()];
        for begun in roots.into_iter().flatten().flatten() {
            self.observer.root(id, begun.process);
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

/// What the records say that is not known.
fn news(dir: &JobDir, living: &Living) -> Result<Found, RecordError> {
    if let Some(exit) = dir.exit()? {
        return Ok(Found::Ended(exit));
    }
    if living.job.life.process().is_some() {
        return Ok(Found::Nothing);
    }
    Ok(dir.started()?.map_or(Found::Nothing, Found::Runs))
}

/// Whether a client has yet to come for its job. Trying the lock then might be what makes it fail to take it.
fn awaits_client(living: &Living) -> bool {
    living.job.ask.runner == Runner::Client && matches!(living.job.life, Life::Starting { .. })
}

fn gone(exit: Option<&Exit>, supervisor: Option<&str>) -> (Gone, Option<String>) {
    let Some(exit) = exit else {
        // Only of one that this agent started is known how it ended.
        let words = match supervisor {
            Some(end) => {
                format!("its supervisor {end} and left no record; the exit code is unknown")
            }
            None => {
                "its supervisor is gone and left no record; the exit code is unknown".to_owned()
            }
        };
        return (Gone::SupervisorLost, Some(words));
    };
    match &exit.outcome {
        Outcome::Launch { launch_error, .. } => (
            Gone::LaunchFailed(launch_error.clone()),
            Some(launch_error.clone()),
        ),
        Outcome::Withdrawn { withdrawn } => (
            Gone::LaunchFailed(withdrawn.clone()),
            Some(withdrawn.clone()),
        ),
        Outcome::Lost { lost } => (Gone::SupervisorLost, Some(lost.clone())),
        Outcome::Exited { exit_code: 0 } => (Gone::Exited(0), None),
        Outcome::Exited { exit_code } => (
            Gone::Exited(*exit_code),
            Some(format!("exited with code {exit_code}")),
        ),
        Outcome::Signaled { signal } => (
            Gone::Signaled(*signal),
            Some(format!("ended by signal {signal}")),
        ),
    }
}

/// Whether a program that left like this may have done so because its GPU was gone.
fn is_failure(gone: &Gone) -> bool {
    match gone {
        Gone::Exited(code) => *code != 0,
        Gone::Signaled(_) | Gone::SupervisorLost => true,
        Gone::LaunchFailed(_) | Gone::Bypass | Gone::GpuLost => false,
    }
}

/// `pid 4242 on gpu0.25a`.
fn running(process: Process, job: &Job) -> String {
    format!("pid {} on {}", process.pid, place::labels(job))
}
