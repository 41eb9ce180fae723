//! The input of start estimates: a copy of what decides when pending jobs start.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};

use divvy_api::v1;
use divvy_core::estimate::estimate_start;
use divvy_core::start_bound::{JobBounds, latest_start};
use divvy_core::{JobId, JobState, Snapshot};
use jiff::{SignedDuration, Timestamp};

use crate::model::job::{Job, JobSpec};

/// The planner's input with all pending jobs. Jobs that it does not plan yet wait for a dependency, for their array or
/// for a retry, and stand at their future places.
#[derive(Clone)]
pub(in crate::controller) struct FullSnapshot {
    pub(in crate::controller) snapshot: Snapshot,
    pub(in crate::controller) blocked: HashSet<JobId>,
    /// Queues of the configuration; others are there for their jobs.
    pub(in crate::controller) configured: usize,
}

impl FullSnapshot {
    /// The input of the planner: without the jobs that it does not plan yet.
    pub(in crate::controller) fn planned(&self) -> Snapshot {
        let mut planned = self.snapshot.clone();
        for queue in &mut planned.queues {
            let waiting = &mut queue.waiting;
            waiting.retain(|waiting| !self.blocked.contains(&waiting.job));
        }
        let mut queues = 0..;
        planned.queues.retain(|queue| {
            let is_configured = queues.next().is_some_and(|at| at < self.configured);
            is_configured || !queue.waiting.is_empty()
        });
        planned
    }
}

/// What the controller knows that decides when pending jobs start. It is copied once between two rounds, for all calls.
#[derive(Clone)]
pub struct EstimateInput {
    pub(in crate::controller) at: Timestamp,
    pub(in crate::controller) full: FullSnapshot,
    /// The planner's input, for the first thread that needs it.
    pub(in crate::controller) planned: OnceLock<Snapshot>,
    /// The longest remaining run of each job with a time limit.
    pub(in crate::controller) known_runs: JobBounds,
    /// The time by which each job certainly ends.
    pub(in crate::controller) known: JobBounds,
    /// All active jobs.
    pub(in crate::controller) active: BTreeMap<JobId, Run>,
    /// No job is offloaded: such a job could return, and would take room that the bound counts on.
    pub(in crate::controller) is_certain: bool,
}

/// A job that runs, or will run.
#[derive(Clone)]
pub(in crate::controller) struct Run {
    pub(in crate::controller) ask: Arc<JobSpec>,
    pub(in crate::controller) ran_s: u64,
    /// The job runs on, so that it may end after its usual run time.
    pub(in crate::controller) goes_on: bool,
}

impl Run {
    pub(in crate::controller) fn of(job: &Job) -> Self {
        Self {
            ask: Arc::clone(&job.spec),
            ran_s: job.ran_s(),
            goes_on: !job.run_state.suspended && !matches!(job.state, JobState::Stopping { .. }),
        }
    }
}

/// The input for the start estimate of one pending job.
pub struct StartEstimator {
    pub(in crate::controller) id: JobId,
    pub(in crate::controller) input: Arc<EstimateInput>,
}

impl StartEstimator {
    /// Sets the start times of a pending job. Takes up to seconds.
    pub fn estimate_start(&self, job: &mut v1::Job) {
        if job.state != v1::JobState::Queued {
            return;
        }
        (job.expected_start, job.latest_start) = self.input.starts_of(self.id);
    }
}

impl EstimateInput {
    /// The expected and the latest start of a pending job. Takes up to seconds.
    pub fn starts_of(&self, id: JobId) -> (Option<Timestamp>, Option<Timestamp>) {
        let expected = estimate_start(self.snapshot(), id, &self.known_runs.remaining_s);
        let latest = (self.is_certain).then(|| latest_start(&self.full.snapshot, id, &self.known));
        (
            expected.and_then(|seconds| self.after(seconds)),
            latest.flatten().and_then(|seconds| self.after(seconds)),
        )
    }

    /// The time in so many seconds.
    pub(in crate::controller) fn after(&self, seconds: u64) -> Option<Timestamp> {
        let seconds = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        self.at.checked_add(seconds).ok()
    }

    /// The time so many seconds ago.
    pub(in crate::controller) fn before(&self, seconds: u64) -> Option<Timestamp> {
        let seconds = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        self.at.checked_sub(seconds).ok()
    }

    /// With this added to the planner's input, such as a job that has not been submitted.
    pub(in crate::controller) fn with(mut self, add: impl Fn(&mut Snapshot)) -> Self {
        add(&mut self.full.snapshot);
        self
    }

    /// The planner's input.
    pub(in crate::controller) fn snapshot(&self) -> &Snapshot {
        self.planned.get_or_init(|| self.full.planned())
    }
}
