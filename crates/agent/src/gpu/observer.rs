//! The observer thread: samples the driver often while there are jobs, seldom while there are none, and soon again on
//! request or after a suspicious sample.
//!
//! Only this thread calls the driver, and no caller waits for it without a bound: a driver may never answer, as when
//! its GPU has gone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_api::sync::lock;
use divvy_core::JobId;
use tokio::sync::watch;

use super::attribution::Attribution;
use super::sample::{self, NodeSample};
use super::source::{Source, SourceError};
use super::watched_jobs::{WatchedJob, WatchedJobs};
use super::{GpuOccupancy, Power};
use crate::host::process::Process;
use crate::host::process::evidence::KnownFiles;

/// Interval of observations while there are jobs.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// Interval of observations without jobs: only the memory of unmanaged processes can change then.
pub const IDLE_INTERVAL: Duration = Duration::from_secs(2);

/// The power draw is asked for no more often.
const POWER_INTERVAL: Duration = Duration::from_secs(1);

/// After a suspicious sample: long enough for an exiting process to be gone.
const AGAIN: Duration = Duration::from_millis(25);

/// How long a caller waits for a fresh sample; after that the last one has to do.
const FRESH_TIMEOUT: Duration = Duration::from_secs(2);

/// The observer, and the jobs that it watches.
pub struct Observer {
    source: Arc<Source>,
    marks: KnownFiles,
    /// A writer copies it only while a sample is in progress.
    roster: Mutex<Arc<WatchedJobs>>,
    /// Never held while the driver is asked.
    kin: Mutex<Attribution>,
    schedule: Mutex<PollSchedule>,
    changed: Condvar,
    /// What the GPUs drew when they were last asked, by index.
    power: Mutex<BTreeMap<u32, Power>>,
    /// How many of the requested observations the controller has received.
    completed: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PollSchedule {
    is_busy: bool,
    is_urgent: bool,
    /// How many observations were requested, ever.
    requested: u64,
    /// For how many of the requests an observation has begun.
    started: u64,
    /// Since when the driver is asked.
    in_flight_since: Option<Instant>,
}

impl PollSchedule {
    /// The current interval of observations.
    fn interval(self) -> Duration {
        match self {
            Self {
                requested: asked,
                started: begun,
                ..
            } if asked > begun => Duration::ZERO,
            Self {
                is_urgent: true, ..
            } => AGAIN,
            Self { is_busy: true, .. } => INTERVAL,
            Self { is_busy: false, .. } => IDLE_INTERVAL,
        }
    }
}

impl Observer {
    pub fn new(source: Arc<Source>, marks: KnownFiles) -> Self {
        Self {
            source,
            marks,
            roster: Mutex::default(),
            kin: Mutex::default(),
            schedule: Mutex::default(),
            changed: Condvar::new(),
            power: Mutex::default(),
            completed: watch::Sender::default(),
        }
    }

    /// A slice is to be observed from now on.
    pub fn register(&self, job: JobId, entry: WatchedJob) {
        Arc::make_mut(&mut *lock(&self.roster)).register(job, entry);
    }

    /// A process that the job's tree grows from.
    pub fn add_root(&self, job: JobId, root: Process) {
        Arc::make_mut(&mut *lock(&self.roster)).add_root(job, root);
    }

    /// The control group that a job's processes are born in.
    pub fn set_cgroup(&self, job: JobId, group: PathBuf) {
        Arc::make_mut(&mut *lock(&self.roster)).set_cgroup(job, group);
    }

    /// A slice is no more.
    pub fn unregister(&self, job: JobId) {
        Arc::make_mut(&mut *lock(&self.roster)).unregister(job);
    }

    /// The nearest job above a living process, by the kernel's word.
    pub fn job_of(&self, process: Process) -> Option<JobId> {
        let roster = Arc::clone(&lock(&self.roster));
        lock(&self.kin).owning_job(process, &roster)
    }

    /// Observes the GPUs now.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn observe(&self) -> Result<NodeSample, SourceError> {
        let roster = Arc::clone(&lock(&self.roster));
        let before = sample::read_ledgers(&roster);
        let at = sample::now();
        let observation = self.source.observe()?;
        let mut kin = lock(&self.kin);
        Ok(sample::build_sample(
            at,
            observation,
            before,
            &roster,
            &mut kin,
            &self.marks,
        ))
    }

    /// Waits until the controller has received an observation that began after this call. If the driver does not
    /// answer, the wait is short.
    pub async fn wait_for_fresh_sample(&self) {
        if self.is_unresponsive() {
            return;
        }
        let mut told = self.completed.subscribe();
        let asked = {
            let mut pace = lock(&self.schedule);
            pace.requested += 1;
            self.changed.notify_all();
            pace.requested
        };
        // A late sample counts as missing: the caller uses the one before.
        let _ = tokio::time::timeout(FRESH_TIMEOUT, told.wait_for(|told| *told >= asked)).await;
    }

    /// Whether the last sample is older than the time that a caller waits for a fresh one.
    pub fn is_unresponsive(&self) -> bool {
        self.unresponsive_for()
            .is_some_and(|silent| silent >= FRESH_TIMEOUT)
    }

    /// For how long the driver has been asked without an answer.
    pub fn unresponsive_for(&self) -> Option<Duration> {
        lock(&self.schedule)
            .in_flight_since
            .map(|since| since.elapsed())
    }

    /// What GPUs drew lately, by index: at most a second ago, or an observation if these are rarer. The driver is not
    /// asked for it.
    pub fn power(&self) -> BTreeMap<u32, Power> {
        lock(&self.power).clone()
    }

    /// Asks the driver for the power draw, behind an observation, so that no observation takes longer for it.
    fn ask_power(&self) {
        let power = self.source.power();
        *lock(&self.power) = power;
    }

    /// What is on the GPUs now.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn occupancy(&self) -> Result<Vec<GpuOccupancy>, SourceError> {
        self.source.occupancy()
    }

    /// Sets whether there are jobs that need frequent observation.
    pub fn set_busy(&self, busy: bool) {
        let mut pace = lock(&self.schedule);
        if std::mem::replace(&mut pace.is_busy, busy) != busy {
            self.changed.notify_all();
        }
    }

    pub fn is_busy(&self) -> bool {
        lock(&self.schedule).is_busy
    }

    /// Requests an observation soon.
    pub fn sample_soon(&self) {
        lock(&self.schedule).is_urgent = true;
        self.changed.notify_all();
    }

    /// Gives every sample to `report`, for as long as the process lives.
    pub fn spawn(
        self: Arc<Self>,
        report: impl Fn(Result<NodeSample, SourceError>) + Send + 'static,
    ) -> std::io::Result<()> {
        let run = move || {
            let mut power_at: Option<Instant> = None;
            loop {
                let begun = self.wait_until_due(Instant::now());
                let sample = self.observe();
                lock(&self.schedule).in_flight_since = None;
                report(sample);
                self.completed.send_replace(begun);
                if power_at.is_none_or(|at| at.elapsed() >= POWER_INTERVAL) {
                    power_at = Some(Instant::now());
                    lock(&self.schedule).in_flight_since = power_at;
                    self.ask_power();
                    lock(&self.schedule).in_flight_since = None;
                }
            }
        };
        std::thread::Builder::new()
            .name("observe".into())
            .spawn(run)
            .map(drop)
    }

    /// Waits until the next observation is due, after one at `last`; returns the number of requests that it answers.
    fn wait_until_due(&self, last: Instant) -> u64 {
        let mut pace = lock(&self.schedule);
        loop {
            let left = pace.interval().saturating_sub(last.elapsed());
            if left.is_zero() {
                pace.is_urgent = false;
                pace.started = pace.requested;
                pace.in_flight_since = Some(Instant::now());
                return pace.started;
            }
            let waited = self.changed.wait_timeout(pace, left);
            pace = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bypass is reported at the second sample that finds it, which is promised within a second of the first.
    #[test]
    fn while_there_are_jobs_a_second_look_comes_well_within_a_second() {
        for hurry in [true, false] {
            let pace = PollSchedule {
                is_busy: true,
                is_urgent: hurry,
                ..PollSchedule::default()
            };
            assert!(pace.interval() * 2 < Duration::from_secs(1), "{pace:?}");
        }
        assert!(AGAIN < INTERVAL, "and sooner where something is suspicious");
    }
}
