//! Looks by itself: often while there are jobs, seldom while there are none, and soon again when something was suspicious or somebody asks.
//!
//! One thread asks the driver, and nobody waits for it without a bound: a driver may never answer, as one whose GPU has gone may not.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use divvy_core::JobId;
use tokio::sync::watch;

use super::kin::Kin;
use super::look::{self, Look};
use super::roster::{Entry, Roster};
use super::source::{Source, SourceError};
use super::{Occupied, Power};
use crate::mailbox::{Mailbox, Message};
use crate::process::Process;
use crate::process::inside::Marks;
use crate::supervise::chain;

/// Between two looks while there are jobs.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// Between two looks while there are none: then only what strangers hold can change.
pub const IDLE: Duration = Duration::from_secs(2);

/// After a look that made somebody suspect: long enough for a process that is just leaving to have left.
const AGAIN: Duration = Duration::from_millis(25);

/// How long who asks for a fresh look waits for it; then what the last one showed has to do.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who looks, and at what.
pub struct Observer {
    source: Arc<Source>,
    marks: Marks,
    /// Copied only by who changes it while somebody looks.
    roster: Mutex<Arc<Roster>>,
    /// Never held while the driver is asked.
    kin: Mutex<Kin>,
    pace: Mutex<Pace>,
    changed: Condvar,
    /// How many of the looks that were asked for the cycle has been told of.
    told: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    busy: bool,
    hurry: bool,
    /// How many looks were asked for, ever.
    asked: u64,
    /// How many of them a look was begun for.
    begun: u64,
    /// Since when the driver is asked.
    since: Option<Instant>,
}

impl Pace {
    /// From one look to the next.
    fn due(self) -> Duration {
        match self {
            Self { asked, begun, .. } if asked > begun => Duration::ZERO,
            Self { hurry: true, .. } => AGAIN,
            Self { busy: true, .. } => INTERVAL,
            Self { busy: false, .. } => IDLE,
        }
    }
}

impl Observer {
    pub fn new(source: Arc<Source>, marks: Marks) -> Self {
        Self {
            source,
            marks,
            roster: Mutex::default(),
            kin: Mutex::default(),
            pace: Mutex::default(),
            changed: Condvar::new(),
            told: watch::Sender::default(),
        }
    }

    /// A slice is to be looked at from now on.
    pub fn enlist(&self, job: JobId, entry: Entry) {
        Arc::make_mut(&mut *lock(&self.roster)).enlist(job, entry);
    }

    /// A process that the job's tree grows from.
    pub fn root(&self, job: JobId, root: Process) {
        Arc::make_mut(&mut *lock(&self.roster)).root(job, root);
    }

    /// The control group that a job's processes are born in.
    pub fn group(&self, job: JobId, group: PathBuf) {
        Arc::make_mut(&mut *lock(&self.roster)).group(job, group);
    }

    /// A slice is no more.
    pub fn strike(&self, job: JobId) {
        Arc::make_mut(&mut *lock(&self.roster)).strike(job);
    }

    /// The nearest job above a living process, by the kernel's word.
    pub fn job_of(&self, process: Process) -> Option<JobId> {
        let roster = Arc::clone(&lock(&self.roster));
        lock(&self.kin).descent(process, &roster)
    }

    /// Looks now.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn look(&self) -> Result<Look, SourceError> {
        let roster = Arc::clone(&lock(&self.roster));
        let before = look::before(&roster);
        let at = look::now();
        let observation = self.source.observe()?;
        let mut kin = lock(&self.kin);
        Ok(look::put_together(
            at,
            observation,
            before,
            &roster,
            &mut kin,
            &self.marks,
        ))
    }

    /// Waits until the cycle has been told of a look that began after this call; of a driver that does not answer, not for long.
    pub async fn fresh(&self) {
        if self.is_silent() {
            return;
        }
        let mut told = self.told.subscribe();
        let asked = {
            let mut pace = lock(&self.pace);
            pace.asked += 1;
            self.changed.notify_all();
            pace.asked
        };
        // Late is as good as never here: who asked goes by the look before.
        let _ = tokio::time::timeout(PATIENCE, told.wait_for(|told| *told >= asked)).await;
    }

    /// Whether what is known of the GPUs is older than who asked for a fresh look has waited for one.
    pub fn is_silent(&self) -> bool {
        self.silent_for().is_some_and(|silent| silent >= PATIENCE)
    }

    /// For how long the driver has been asked without an answer.
    pub fn silent_for(&self) -> Option<Duration> {
        lock(&self.pace).since.map(|since| since.elapsed())
    }

    /// What GPUs draw, by index.
    pub fn power(&self) -> BTreeMap<u32, Power> {
        self.source.power()
    }

    /// What is on the GPUs now.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn occupied(&self) -> Result<Vec<Occupied>, SourceError> {
        self.source.occupied()
    }

    /// Whether there is anything to look at often.
    pub fn set_busy(&self, busy: bool) {
        let mut pace = lock(&self.pace);
        if std::mem::replace(&mut pace.busy, busy) != busy {
            self.changed.notify_all();
        }
    }

    pub fn is_busy(&self) -> bool {
        lock(&self.pace).busy
    }

    /// The next look is to come soon.
    pub fn hurry(&self) {
        lock(&self.pace).hurry = true;
        self.changed.notify_all();
    }

    /// Tells the cycle what there is, for as long as the process lives.
    pub fn report(self: Arc<Self>, mailbox: Mailbox) -> std::io::Result<()> {
        let run = move || {
            loop {
                let begun = self.wait(Instant::now());
                let message = match self.look() {
                    Ok(look) => Message::Looked(Box::new(look)),
                    Err(error) => Message::Blind(chain(&error)),
                };
                lock(&self.pace).since = None;
                mailbox.post(message);
                self.told.send_replace(begun);
            }
        };
        std::thread::Builder::new()
            .name("observe".into())
            .spawn(run)
            .map(drop)
    }

    /// Waits until the next look is due, after one that was at `last`; for how many that were asked for it is.
    fn wait(&self, last: Instant) -> u64 {
        let mut pace = lock(&self.pace);
        loop {
            let left = pace.due().saturating_sub(last.elapsed());
            if left.is_zero() {
                pace.hurry = false;
                pace.begun = pace.asked;
                pace.since = Some(Instant::now());
                return pace.begun;
            }
            let waited = self.changed.wait_timeout(pace, left);
            pace = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is past the limiter is told at the second look that finds him so, and that is promised within a second of the first.
    #[test]
    fn while_there_are_jobs_a_second_look_comes_well_within_a_second() {
        for hurry in [true, false] {
            let pace = Pace {
                busy: true,
                hurry,
                ..Pace::default()
            };
            assert!(pace.due() * 2 < Duration::from_secs(1), "{pace:?}");
        }
        assert!(AGAIN < INTERVAL, "and sooner where something is suspicious");
    }
}
