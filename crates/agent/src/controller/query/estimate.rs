//! Start estimates: the controller copies what it knows, and another thread computes the estimate, which may take long.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use divvy_api::v1;
use divvy_core::estimate::estimate_start;
use divvy_core::resize::memory::MemoryResidency;
use divvy_core::start_bound::{JobBounds, latest_start};
use divvy_core::{JobId, JobState, Snapshot};
use jiff::{SignedDuration, Timestamp};

use crate::controller::admission::{array, dependencies};
use crate::controller::io::Io;
use crate::controller::lifecycle::schedule::FullSnapshot;
use crate::controller::state::State;
use crate::host::clock::now;
use crate::model::job::{Job, JobSpec};

/// What the controller knows that decides when pending jobs start. It is copied once between two rounds, for all calls.
#[derive(Clone)]
pub struct EstimateInput {
    at: Timestamp,
    full: FullSnapshot,
    /// The planner's input, for the first thread that needs it.
    planned: OnceLock<Snapshot>,
    /// The longest remaining run of each job with a time limit.
    pub(in crate::controller) known_runs: JobBounds,
    /// The time by which each job certainly ends.
    pub(in crate::controller) known: JobBounds,
    /// All active jobs.
    pub(in crate::controller) active: BTreeMap<JobId, Run>,
    /// No job is offloaded: such a job could return, and would take room that the bound counts on.
    is_certain: bool,
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
    fn of(job: &Job) -> Self {
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

/// The input of estimates for a query.
pub(in crate::controller) fn input(state: &State, io: &Io) -> Arc<EstimateInput> {
    let known = state.estimates.get_or_init(|| Arc::new(copy(state, io)));
    Arc::clone(known)
}

/// Copies what decides when pending jobs start.
pub(in crate::controller) fn copy(state: &State, io: &Io) -> EstimateInput {
    let [mut runs, mut known] = [JobBounds::default(), JobBounds::default()];
    let mut of_arrays = array::ArrayPredecessors::default();
    for active in state.jobs.active.values() {
        let job = &active.job;
        let limit = job.spec.policy.time_limit_s;
        if let Some(left) = limit.map(|limit| limit.saturating_sub(job.ran_s())) {
            runs.remaining_s.insert(job.id, left);
        }
        if let Some(left) = max_remaining_s(io, job) {
            known.remaining_s.insert(job.id, left);
        }
        // With too many dependencies, the job is set to depend on itself; so its start stays unknown.
        let after = dependencies::awaited(&state.jobs, &active.after);
        let mut after = after.unwrap_or_else(|| vec![job.id]);
        after.extend(of_arrays.of(&state.jobs, job));
        if job.state == JobState::Queued && !after.is_empty() {
            known.dependencies.insert(job.id, after);
        }
    }
    let active_jobs = state.jobs.active.iter();
    EstimateInput {
        at: now(),
        full: FullSnapshot::of(state, io),
        planned: OnceLock::new(),
        known_runs: runs,
        known,
        active: active_jobs
            .map(|(id, active)| (*id, Run::of(&active.job)))
            .collect(),
        is_certain: state
            .jobs
            .active
            .values()
            .all(|active| active.job.run_state.aside.memory != MemoryResidency::Offloaded),
    }
}

/// The most seconds until a placed job has ended; `None` if that is unknown, as for a job that may be started again.
fn max_remaining_s(io: &Io, job: &Job) -> Option<u64> {
    // The stop follows the time limit, and the job then has its grace period.
    let grace = io.config.grace.as_secs() + 1;
    if matches!(job.state, JobState::Stopping { .. }) {
        return Some(grace);
    }
    let comes_back =
        job.spec.policy.retries > job.run_state.failures || job.spec.policy.preemptible;
    let is_asked_for = job.spec.policy.confirm_within_s.is_some();
    let is_sure = !comes_back && (!is_asked_for || job.state.process().is_some());
    let limit = job.spec.policy.time_limit_s.filter(|_| is_sure)?;
    Some(limit.saturating_sub(job.ran_s()).saturating_add(grace))
}
