//! Folded arrays: the queued tasks of an array with one queue and one request are one row, at the place of the first.

use std::collections::HashMap;

use divvy_api::v1::Folded;
use divvy_core::{Amount, JobId, JobState as Life, QueueName};

use crate::controller::io::Io;
use crate::controller::query::job_summary::JobSummary;
use crate::controller::query::summary;
use crate::controller::reference::living_of_array;
use crate::controller::state::State;
use crate::model::job::Job;
use crate::model::job_filter::JobFilter;

/// The tasks that a row stands for have this in common. Tasks on hold wait for a user, so they are a row of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FoldKey {
    array: JobId,
    queue: QueueName,
    amount: Amount,
    is_held: bool,
}

impl FoldKey {
    /// The key of a job; `None` for one that is no queued task of an array.
    pub fn of(job: &Job) -> Option<Self> {
        let task = job.spec.policy.array?;
        (job.state == Life::Queued).then(|| Self {
            array: task.array_of(job.id),
            queue: job.spec.queue.clone(),
            amount: job.amount(),
            is_held: job.run_state.hold.is_some(),
        })
    }

    /// Whether it is the key of a job; without a key for the comparison, as an array may have ten thousand tasks.
    pub fn is_of(&self, job: &Job) -> bool {
        let task = job.spec.policy.array;
        job.state == Life::Queued
            && task.is_some_and(|task| task.array_of(job.id) == self.array)
            && job.spec.queue == self.queue
            && job.amount() == self.amount
            && job.run_state.hold.is_some() == self.is_held
    }
}

/// An item of a list, with the tasks that it stands for if there are several.
pub struct ListItem {
    pub job: JobSummary,
    pub folded: Option<Folded>,
}

impl From<JobSummary> for ListItem {
    fn from(job: JobSummary) -> Self {
        Self { job, folded: None }
    }
}

/// The rows of these jobs in their order, each by its last task: the one that leaves the queue last, so that a page that
/// a client reads later still finds the row.
pub fn rows(state: &State, ids: &[JobId]) -> Vec<JobId> {
    let (mut rows, mut known) = (Vec::new(), HashMap::new());
    for &id in ids {
        let active = state.jobs.active.get(&id);
        match active.and_then(|active| FoldKey::of(&active.job)) {
            None => rows.push(id),
            Some(key) => {
                let at = *known.entry(key).or_insert(rows.len());
                match rows.get_mut(at) {
                    Some(last) => *last = id,
                    None => rows.push(id),
                }
            }
        }
    }
    rows
}

/// The tasks that match and have this key: the first of them, and the fold if there are several.
pub fn fold<'a>(
    state: &'a State,
    key: &FoldKey,
    filter: Option<&JobFilter>,
) -> (Option<&'a Job>, Option<Folded>) {
    let tasks = living_of_array(&state.jobs, key.array).map(|active| &active.job);
    let tasks = tasks.filter(|job| key.is_of(job));
    let mut tasks = tasks.filter(|job| filter.is_none_or(|filter| filter.matches(job)));
    let Some(first) = tasks.next() else {
        return (None, None);
    };
    let all = std::iter::once(first).chain(tasks);
    let indices = all.filter_map(|job| job.spec.policy.array.map(|task| task.index));
    let most = first.spec.policy.array.and_then(|task| task.most);
    let folded = Folded::of(indices.collect(), most);
    (Some(first), Some(folded).filter(|folded| folded.count > 1))
}

/// Items of the rows that [`rows`] returned, as far as their jobs match and have not ended.
pub fn items(state: &State, io: &Io, ids: &[JobId], filter: &JobFilter) -> Vec<ListItem> {
    let mut items = Vec::with_capacity(ids.len());
    for id in ids {
        let Some(active) = state.jobs.active.get(id) else {
            continue;
        };
        let (first, folded) = match FoldKey::of(&active.job) {
            Some(key) => fold(state, &key, Some(filter)),
            None => (Some(&active.job).filter(|job| filter.matches(job)), None),
        };
        let first = first.and_then(|job| state.jobs.active.get(&job.id));
        items.extend(first.map(|active| ListItem {
            job: summary::job_summary(state, io, active),
            folded,
        }));
    }
    items
}
