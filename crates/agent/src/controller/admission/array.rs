//! Array jobs: the jobs of one submission, which differ only in their index.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::{Array, Error};
use divvy_core::{JobId, JobState};

use crate::controller::halt::journal_error;
use crate::controller::io::Io;
use crate::controller::reference;
use crate::controller::reference::JobRef;
use crate::controller::request::Milestone;
use crate::controller::state::Jobs;
use crate::model::job::{Job, NewJob};
use crate::model::policy::ArrayTask;
use crate::model::validate::limits::MOST_TASKS;
use crate::model::validate::usage;

/// The variable that gives a job of an array its index.
const INDEX: &str = "DIVVY_ARRAY_INDEX";

/// Refuses an invalid array.
pub(in crate::controller) fn check(array: &Array) -> Result<(), Error> {
    let different: BTreeSet<u32> = array.indices.iter().copied().collect();
    let count = array.indices.len();
    if count == 0 || count > MOST_TASKS || different.len() < count {
        return Err(
            usage(format!("an array has 1 to {MOST_TASKS} different indices"))
                .hint("write --array 0-9, --array 1,3,5 or --array 0-9%2"),
        );
    }
    if array.max_running == Some(0) {
        return Err(usage("an array with at most 0 running jobs never starts")
            .hint("give the number of jobs that may run at once after the %: --array 0-9%2"));
    }
    Ok(())
}

/// One job for each index; the first has the submission's idempotency key. `first`: the number of the array's first
/// job, once it is known.
pub(in crate::controller) fn task(
    new: &NewJob,
    array: &Array,
    index: u32,
    first: Option<JobId>,
) -> NewJob {
    let mut task = new.clone();
    task.spec.name = format!("{}[{index}]", new.spec.name);
    task.env.insert(INDEX.to_owned(), index.to_string());
    task.spec.policy.array = Some(ArrayTask {
        array: first,
        index,
        most: array.max_running,
        count: u32::try_from(array.indices.len()).ok(),
    });
    if first.is_some() {
        task.key = None;
    }
    task
}

impl Job {
    /// The array of the job, and how many of its jobs may be placed at once.
    fn array(&self) -> Option<(JobId, Option<u32>)> {
        let task = self.spec.policy.array?;
        Some((task.array.unwrap_or(self.id), task.most))
    }
}

/// How many more of each array's jobs may be placed now.
pub(in crate::controller) struct ArrayLimits(BTreeMap<JobId, u32>);

pub(in crate::controller) fn array_limits(jobs: &Jobs) -> ArrayLimits {
    let mut held: BTreeMap<JobId, u32> = BTreeMap::new();
    let mut most = BTreeMap::new();
    for active in jobs.active.values() {
        let Some((array, Some(limit))) = active.job.array() else {
            continue;
        };
        most.insert(array, limit);
        if !matches!(active.job.state, JobState::Queued | JobState::Ended { .. }) {
            *held.entry(array).or_default() += 1;
        }
    }
    let left = |(array, most): (JobId, u32)| {
        let held = held.get(&array).copied().unwrap_or(0);
        (array, most.saturating_sub(held))
    };
    ArrayLimits(most.into_iter().map(left).collect())
}

/// For jobs in the order of their numbers: the jobs of the same array that have to end before one may be placed. More
/// than have to, if the array may run several jobs at once.
#[derive(Default)]
pub(in crate::controller) struct ArrayPredecessors(BTreeMap<JobId, Vec<JobId>>);

impl ArrayPredecessors {
    /// Those of the next job. A job that is held up waits for all jobs before it, so the next one waits for it alone,
    /// and for the jobs in between: all lists together are as long as the array.
    pub(in crate::controller) fn of(&mut self, jobs: &Jobs, job: &Job) -> Vec<JobId> {
        let Some((array, Some(_))) = job.array() else {
            return Vec::new();
        };
        let before = self.0.entry(array).or_default();
        if job.state == JobState::Queued && !jobs.waits.contains_key(&job.id) {
            return std::mem::replace(before, vec![job.id]);
        }
        before.push(job.id);
        Vec::new()
    }
}

/// The reason of a job that waits because its array already runs as many jobs as it may.
pub(in crate::controller) fn array_block_reason(jobs: &Jobs, job: &Job) -> Option<String> {
    let (_, most) = job.array()?;
    let waits = job.state == JobState::Queued && !jobs.waits.contains_key(&job.id);
    let most = most.filter(|_| waits)?;
    let s = if most == 1 { "" } else { "s" };
    Some(format!("its array runs at most {most} job{s} at once"))
}

/// The next job of an array to wait for: the first that has not reached the milestone.
pub fn next_of_array(jobs: &Jobs, array: JobId, milestone: Milestone) -> Option<JobRef> {
    let waits = |job: &Job| match milestone {
        Milestone::Starting => job.state == JobState::Queued,
        _ => job.state.outcome().is_none(),
    };
    let jobs = reference::living_of_array(jobs, array).map(|active| &active.job);
    jobs.filter(|job| waits(job))
        .min_by_key(|job| job.spec.policy.array.map(|task| task.index))
        .map(JobRef::job)
}

/// The job of an array that `why` explains: the first pending one, else the first that has not ended, else the first.
pub(in crate::controller) fn representative_job(
    jobs: &Jobs,
    io: &Io,
    array: JobId,
) -> Result<JobId, Error> {
    let jobs = || reference::living_of_array(jobs, array).map(|active| &active.job);
    let waits = jobs().find(|job| job.state == JobState::Queued);
    if let Some(job) = waits.or_else(|| jobs().next()) {
        return Ok(job.id);
    }
    let kept = reference::first_kept(io, array).map_err(journal_error)?;
    Ok(kept.map_or(array, |job| job.id))
}

impl ArrayLimits {
    /// Whether this job may enter the plan; a job that may is counted.
    pub(in crate::controller) fn admits(&mut self, job: &Job) -> bool {
        let Some((array, Some(_))) = job.array() else {
            return true;
        };
        match self.0.get_mut(&array) {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }
}
