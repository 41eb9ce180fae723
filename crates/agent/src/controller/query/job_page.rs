//! Pages of a list: the filters run over the jobs that have not ended before any of them is summarized.

use std::sync::Arc;

use divvy_api::v1::{Error, JobState};
use divvy_core::JobId;

use crate::controller::io::Io;
use crate::controller::query;
use crate::controller::query::job_summary::JobSummary;
use crate::controller::query::summary;
use crate::controller::query::view;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::{GpuState, State};
use crate::host::clock::now;
use crate::journal::Span;
use crate::model::job_filter::{Field, GpuFilter, JobFilter, Key};
use crate::model::validate::usage;

/// The numbers of the jobs that match a filter and have not ended, in order.
///
/// Filters read only what the journal has, so the numbers stay right until the journal changes.
#[derive(Clone, Debug)]
pub struct Matches {
    journal_version: u64,
    jobs: Arc<[JobId]>,
}

/// Jobs of a page that have not ended.
pub struct LivingPage {
    pub jobs: Vec<JobSummary>,
    pub matches: Matches,
}

impl Matches {
    /// Number of jobs that match.
    pub fn count(&self) -> usize {
        self.jobs.len()
    }

    /// The jobs of this part of the list.
    fn page(&self, span: Span) -> impl Iterator<Item = JobId> {
        let most = span.most.unwrap_or(usize::MAX);
        let jobs = &self.jobs;
        let (from, to) = match span.after {
            None => (0, jobs.len()),
            Some(after) if span.descending => (0, jobs.partition_point(|id| *id < after)),
            Some(after) => (jobs.partition_point(|id| *id <= after), jobs.len()),
        };
        let count = most.min(to.saturating_sub(from));
        let (from, to) = match span.descending {
            false => (from, from + count),
            true => (to - count, to),
        };
        let page = jobs.get(from..to).unwrap_or_default().iter().copied();
        let (forward, backward) = match span.descending {
            false => (Some(page), None),
            true => (None, Some(page.rev())),
        };
        forward
            .into_iter()
            .flatten()
            .chain(backward.into_iter().flatten())
    }
}

/// The jobs that match and have not ended, in this part of the list by number. `known`: the matches of an earlier page.
///
/// # Errors
/// `ErrorCode::Usage` for a GPU that this node does not have.
pub fn job_page(
    state: &State,
    io: &Io,
    filter: &JobFilter,
    span: Span,
    known: Option<Matches>,
) -> Result<LivingPage, Error> {
    check_gpu(&state.gpus, filter)?;
    let journal_version = io.store.changes();
    let known = known.filter(|known| known.journal_version == journal_version);
    let matches = known.unwrap_or_else(|| {
        let jobs = state.jobs.active.values();
        let jobs = jobs.filter(|active| filter.matches(&active.job));
        Matches {
            journal_version,
            jobs: jobs.map(|active| active.job.id).collect(),
        }
    });
    let page = matches.page(span);
    let page = page.filter_map(|id| state.jobs.active.get(&id));
    Ok(LivingPage {
        jobs: page
            .map(|active| summary::job_summary(state, io, active))
            .collect(),
        matches,
    })
}

/// The values by which the jobs that match and have not ended are sorted.
///
/// # Errors
/// As [`job_page`].
pub fn job_keys(
    state: &State,
    io: &Io,
    filter: &JobFilter,
    by: Field,
) -> Result<Vec<(JobId, Option<Key>)>, Error> {
    check_gpu(&state.gpus, filter)?;
    let jobs = state.jobs.active.values();
    let jobs = jobs.filter(|active| filter.matches(&active.job));
    Ok(jobs
        .map(|active| (active.job.id, key(state, io, active, by)))
        .collect())
}

/// Those of these jobs that match and have not ended, in the order of the list.
pub fn job_rows(state: &State, io: &Io, ids: &[JobId], filter: &JobFilter) -> Vec<JobSummary> {
    let active = ids.iter().filter_map(|id| state.jobs.active.get(id));
    let active = active.filter(|active| filter.matches(&active.job));
    active
        .map(|active| summary::job_summary(state, io, active))
        .collect()
}

fn key(state: &State, io: &Io, active: &ActiveJob, by: Field) -> Option<Key> {
    let job = &active.job;
    let text = |text: &str| Some(Key::Text(text.to_owned()));
    let number = |number: u64| Some(Key::Number(i64::try_from(number).unwrap_or(i64::MAX)));
    let time = |time: jiff::Timestamp| Some(Key::Number(time.as_microsecond()));
    let sum = |of: fn(&divvy_api::v1::Slice) -> u64| {
        if job.allocations.is_empty() {
            return None;
        }
        let slices = query::active_job_view(state, io, active).slices;
        number(slices.iter().map(of).fold(0, u64::saturating_add))
    };
    match by {
        Field::Id => number(job.id.0),
        Field::Name => text(&job.spec.name),
        Field::User => text(&job.spec.user),
        Field::Queue => text(job.spec.queue.as_str()),
        Field::Project => job.spec.project.as_deref().and_then(text),
        Field::State => {
            let state = view::state(&job.state);
            let place = JobState::ALL.iter().position(|one| *one == state);
            place.and_then(|place| number(place as u64))
        }
        Field::Memory => sum(|slice| slice.memory_used_bytes),
        Field::Peak => sum(|slice| slice.memory_peak_bytes),
        Field::Share => sum(|slice| u64::from(slice.share)),
        Field::Submitted => time(job.submitted_at),
        Field::Started => job.started_at.and_then(time),
        Field::Ended => job.ended_at.and_then(time),
        Field::Elapsed => (job.started_at)
            .map(|started| Key::Number(now().as_microsecond() - started.as_microsecond())),
        Field::Place => {
            let wait = state.jobs.waits.get(&job.id)?;
            number(wait.place as u64)
        }
    }
}

/// Refuses a GPU that this node does not have: an empty list would hide the mistake.
pub(in crate::controller) fn check_gpu(gpus: &GpuState, filter: &JobFilter) -> Result<(), Error> {
    let Some(gpu) = &filter.gpu else {
        return Ok(());
    };
    let is_known = gpus.devices.iter().any(|device| match gpu {
        GpuFilter::Index(index) => device.gpu.index == *index,
        GpuFilter::Uuid(uuid) => device.gpu.uuid.as_str() == uuid,
    });
    if is_known {
        return Ok(());
    }
    let given = match gpu {
        GpuFilter::Index(index) => index.to_string(),
        GpuFilter::Uuid(uuid) => format!("{uuid:?}"),
    };
    let known = gpus
        .devices
        .iter()
        .map(|device| device.gpu.index.to_string());
    let known = known.collect::<Vec<_>>().join(", ");
    Err(usage(format!("gpu={given} is unknown")).hint(format!(
        "use an index ({known}) or a UUID; list them: divvy gpus -o wide"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_a_part_of_the_matches() {
        let matches = Matches {
            journal_version: 0,
            jobs: [2, 3, 5, 8, 9].map(JobId).into(),
        };
        for after in [None, Some(0), Some(3), Some(4), Some(9), Some(10)] {
            for descending in [false, true] {
                for most in [None, Some(0), Some(2), Some(9)] {
                    let span = Span {
                        after: after.map(JobId),
                        descending,
                        most,
                    };
                    let mut expected: Vec<JobId> = matches.jobs.to_vec();
                    if descending {
                        expected.reverse();
                    }
                    expected.retain(|id| span.has(*id));
                    expected.truncate(most.unwrap_or(usize::MAX));
                    let found: Vec<JobId> = matches.page(span).collect();
                    assert_eq!(found, expected, "{span:?}");
                }
            }
        }
    }
}
