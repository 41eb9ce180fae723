//! Job summaries: compact list rows. A pending job costs little more than a pointer, as there may be ten thousand.

use std::sync::Arc;

use divvy_api::v1::JobState;
use divvy_core::JobId;

use crate::controller::io::Io;
use crate::controller::lifecycle::idle;
use crate::controller::query;
use crate::controller::query::job_summary::JobSummary;
use crate::controller::query::view;
use crate::controller::reference;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::State;
use crate::model::job::Job;

/// Jobs that have left their queue and have not ended, oldest first.
pub fn started_job_summaries(state: &State, io: &Io) -> Vec<JobSummary> {
    let active = state.jobs.active.values();
    let started = active.filter(|active| view::state(&active.job.state) != JobState::Queued);
    started
        .map(|active| job_summary(state, io, active))
        .collect()
}

/// The jobs of this list that have not ended before this round.
pub(in crate::controller) fn summaries_of(
    state: &State,
    io: &Io,
    jobs: &[JobId],
) -> Vec<JobSummary> {
    let active = jobs.iter().filter_map(|id| state.jobs.active.get(id));
    active
        .map(|active| job_summary(state, io, active))
        .collect()
}

/// An array's jobs that have not ended, oldest first.
pub fn array_summaries(state: &State, io: &Io, array: JobId) -> Vec<JobSummary> {
    let active = reference::living_of_array(&state.jobs, array);
    active
        .map(|active| job_summary(state, io, active))
        .collect()
}

pub(super) fn job_summary(state: &State, io: &Io, active: &ActiveJob) -> JobSummary {
    let job = &active.job;
    let plain = Job {
        resized: job.resized,
        redivided: job.redivided,
        ..Job::waiting(job.id, Arc::clone(&job.spec), job.submitted_at)
    };
    match state.jobs.waits.get(&job.id) {
        Some(wait) if *job == plain => JobSummary::Pending {
            id: job.id,
            ask: plain.spec,
            resized: job.resized,
            redivided: job.redivided,
            since: job.submitted_at,
            place: wait.place,
            reason: wait.reason.clone(),
            idle: idle::idle_rule(io, job),
        },
        _ => query::active_job_view(state, io, active).into(),
    }
}
