//! Start estimates: the controller copies what it knows, and another thread computes the estimate, which may take long.

use std::sync::{Arc, OnceLock};

use divvy_core::JobState;
use divvy_core::resize::memory::MemoryResidency;
use divvy_core::start_bound::JobBounds;

use crate::controller::admission::{array, dependencies};
use crate::controller::io::Io;
use crate::controller::state::State;
use crate::controller::state::estimate::{EstimateInput, FullSnapshot, Run};
use crate::host::clock::now;
use crate::model::job::Job;

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
