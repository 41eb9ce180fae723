//! When waiting jobs start: what the cycle knows is copied out of it, and the answer is worked out elsewhere, however long that takes.

use divvy_api::v1::{self, JobState};
use divvy_core::estimate::estimate_start;
use divvy_core::resize::memory::MemoryResidency;
use divvy_core::start_bound::{JobBounds, latest_start};
use divvy_core::{JobId, JobState as Life, Snapshot};
use jiff::{SignedDuration, Timestamp};

use crate::controller::admission::{array, dependencies};
use crate::controller::io::Io;
use crate::controller::lifecycle::schedule;
use crate::controller::state::State;
use crate::host::clock::now;
use crate::model::job::Job;

/// When a waiting job starts: what there is to know.
pub struct StartEstimator {
    pub(in crate::controller) id: JobId,
    at: Timestamp,
    /// As the planner has it, with how long each job runs if it runs as long as it may.
    pub(in crate::controller) snapshot: Snapshot,
    pub(in crate::controller) known_runs: JobBounds,
    /// With everybody who will stand in a queue, and by when each is gone whatever happens.
    full_snapshot: Snapshot,
    pub(in crate::controller) known: JobBounds,
    /// Nobody who holds nothing now can come and take what he had.
    is_certain: bool,
}

impl StartEstimator {
    /// Tells of a job that waits when it starts. Takes up to seconds.
    pub fn estimate_start(&self, job: &mut v1::Job) {
        if job.state != JobState::Queued {
            return;
        }
        let expected = estimate_start(&self.snapshot, self.id, &self.known_runs.remaining_s);
        let latest =
            (self.is_certain).then(|| latest_start(&self.full_snapshot, self.id, &self.known));
        job.expected_start = expected.and_then(|seconds| self.after(seconds));
        job.latest_start = latest.flatten().and_then(|seconds| self.after(seconds));
    }

    /// So many seconds from now.
    pub(in crate::controller) fn after(&self, seconds: u64) -> Option<Timestamp> {
        let seconds = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        self.at.checked_add(seconds).ok()
    }

    /// So many seconds ago.
    pub(in crate::controller) fn before(&self, seconds: u64) -> Option<Timestamp> {
        let seconds = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        self.at.checked_sub(seconds).ok()
    }
}

/// What is needed to say when a waiting job starts. `add`: puts a job there that has not been submitted.
pub(in crate::controller) fn start_estimator(
    state: &State,
    io: &Io,
    id: JobId,
    add: impl Fn(&mut Snapshot),
) -> StartEstimator {
    let [mut snapshot, mut everybody] = [
        schedule::snapshot(state, io),
        schedule::full_snapshot(state, io),
    ];
    add(&mut snapshot);
    add(&mut everybody);
    let [mut runs, mut known] = [JobBounds::default(), JobBounds::default()];
    for active in state.jobs.active.values() {
        let job = &active.job;
        let limit = job.spec.policy.time_limit_s;
        if let Some(left) = limit.map(|limit| limit.saturating_sub(job.ran_s())) {
            runs.remaining_s.insert(job.id, left);
        }
        if let Some(left) = max_remaining_s(io, job) {
            known.remaining_s.insert(job.id, left);
        }
        // One that waits for itself makes it too much to work out.
        let after = dependencies::awaited(&state.jobs, &active.after);
        let mut after = after.unwrap_or_else(|| vec![job.id]);
        after.extend(array::array_predecessors(&state.jobs, job));
        if job.state == Life::Queued && !after.is_empty() {
            known.dependencies.insert(job.id, after);
        }
    }
    StartEstimator {
        id,
        at: now(),
        snapshot,
        known_runs: runs,
        full_snapshot: everybody,
        known,
        is_certain: state
            .jobs
            .active
            .values()
            .all(|active| active.job.run_state.aside.memory != MemoryResidency::Aside),
    }
}

/// In how many seconds a job is gone at the latest once it holds something; `None` where nobody knows, as with one that may
/// be started again.
fn max_remaining_s(io: &Io, job: &Job) -> Option<u64> {
    // What ends it comes after its time, and it has the grace to go.
    let grace = io.config.grace.as_secs() + 1;
    if matches!(job.state, Life::Stopping { .. }) {
        return Some(grace);
    }
    let comes_back =
        job.spec.policy.retries > job.run_state.failures || job.spec.policy.preemptible;
    let is_asked_for = job.spec.policy.confirm_within_s.is_some();
    let is_sure = !comes_back && (!is_asked_for || job.state.process().is_some());
    let limit = job.spec.policy.time_limit_s.filter(|_| is_sure)?;
    Some(limit.saturating_sub(job.ran_s()).saturating_add(grace))
}
