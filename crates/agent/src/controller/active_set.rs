//! Which jobs a look at everybody is about: those that hold something, and those whose clients are waited for. Of ten thousand that wait
//! in their queues nothing can be seen, and going through them each time would cost more than all that there is to see.
//!
//! Whatever changes a job's life is journaled in the same round, so the list is the same until the journal changes.

use divvy_api::v1::Runner;
use divvy_core::{JobId, JobState};

use crate::controller::admission::text_budget;
use crate::controller::io::Io;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::Jobs;

/// The list, as it was at one state of the journal.
#[derive(Debug, Default)]
pub struct ActiveSet {
    jobs: Vec<JobId>,
    /// Rows that had been changed by then ([`changes`](crate::journal::Store::changes)).
    journal_version: Option<u64>,
    /// The same of when those were dropped that have ended.
    dropped: Option<u64>,
}

/// Whether there is something to be seen of a job.
fn is_active(active: &ActiveJob) -> bool {
    match active.job.state {
        JobState::Queued => active.job.spec.runner == Runner::Client,
        JobState::Starting { .. }
        | JobState::Running { .. }
        | JobState::Lent { .. }
        | JobState::Stopping { .. }
        | JobState::Ended { .. } => true,
    }
}

/// The jobs of which there is something to be seen, oldest first. One of them may be gone by now.
pub(super) fn active_jobs(jobs: &mut Jobs, io: &Io) -> Vec<JobId> {
    let changes = io.store.changes();
    if jobs.active_set.journal_version != Some(changes) {
        jobs.active_set.jobs = list_active(jobs);
        jobs.active_set.journal_version = Some(changes);
    }
    jobs.active_set.jobs.clone()
}

fn list_active(jobs: &Jobs) -> Vec<JobId> {
    let jobs = jobs.active.iter();
    let busy = jobs.filter(|(_, active)| is_active(active));
    busy.map(|(id, _)| *id).collect()
}

/// Calls this with each of them that is there.
pub(super) fn for_each_active(
    jobs: &mut Jobs,
    io: &Io,
    mut with: impl FnMut(JobId, &mut ActiveJob),
) {
    for id in active_jobs(jobs, io) {
        if let Some(active) = jobs.active.get_mut(&id) {
            with(id, active);
        }
    }
}

/// Lets go of those that have ended, of whose ends everybody was told.
pub(super) fn drop_ended(jobs: &mut Jobs, io: &Io) {
    let changes = Some(io.store.changes());
    if std::mem::replace(&mut jobs.active_set.dropped, changes) != changes {
        text_budget::remove_ended(jobs);
    }
}

/// In debug builds, that the list lacks nobody.
pub(super) fn check_active_set(jobs: &Jobs, io: &Io) {
    let is_right = jobs.active_set.journal_version != Some(io.store.changes())
        || list_active(jobs)
            .iter()
            .all(|id| jobs.active_set.jobs.contains(id));
    assert!(
        is_right,
        "a job's state has changed without a journal entry"
    );
    text_budget::check_sums(jobs);
}
