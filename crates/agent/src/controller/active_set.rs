//! Active set: the jobs that a tick checks. It has each job that holds something, and each pending job with a client to
//! wait for. A tick over ten thousand pending jobs would cost more than all its checks.
//!
//! Every change of a job's state is journaled in the same round, so the list stays valid until the journal changes.

use divvy_api::v1::Runner;
use divvy_core::{JobId, JobState};

use crate::controller::admission::text_budget;
use crate::controller::io::Io;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::Jobs;

/// Whether a tick has to check a job.
fn is_active(active: &ActiveJob) -> bool {
    match active.job.state {
        JobState::Queued => active.job.spec.runner == Runner::Client,
        JobState::Starting { .. }
        | JobState::Running { .. }
        | JobState::Bound { .. }
        | JobState::Stopping { .. }
        | JobState::Ended { .. } => true,
    }
}

/// The jobs that a tick checks, oldest first. A job of the list may be gone already.
pub(super) fn active_jobs(jobs: &mut Jobs, io: &Io) -> Vec<JobId> {
    update(jobs, io);
    jobs.active_set.jobs.clone()
}

/// The jobs that are tied to a client which has ended, oldest first. `boot`: the kernel's id of this boot. It looks at
/// each client once, however many jobs are tied to it.
pub(super) fn jobs_of_ended_clients(jobs: &mut Jobs, io: &Io, boot: &str) -> Vec<JobId> {
    update(jobs, io);
    let tied = jobs.active_set.tied.iter();
    let ended = tied.filter(|(tie, _)| tie.is_over(boot));
    let mut ended: Vec<JobId> = ended.flat_map(|(_, jobs)| jobs).copied().collect();
    ended.sort_unstable();
    ended
}

fn update(jobs: &mut Jobs, io: &Io) {
    let changes = io.store.changes();
    if jobs.active_set.journal_version == Some(changes) {
        return;
    }
    jobs.active_set.jobs = list_active(jobs);
    jobs.active_set.tied.clear();
    for (id, active) in &jobs.active {
        if let Some(tie) = &active.job.spec.policy.tie {
            let tied = &mut jobs.active_set.tied;
            tied.entry(tie.clone()).or_default().push(*id);
        }
    }
    jobs.active_set.journal_version = Some(changes);
}

fn list_active(jobs: &Jobs) -> Vec<JobId> {
    let jobs = jobs.active.iter();
    let busy = jobs.filter(|(_, active)| is_active(active));
    busy.map(|(id, _)| *id).collect()
}

/// Calls `with` for each active job that is still in memory.
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

/// Removes ended jobs, once their clients have their replies.
pub(super) fn drop_ended(jobs: &mut Jobs, io: &Io) {
    let changes = Some(io.store.changes());
    if std::mem::replace(&mut jobs.active_set.dropped, changes) != changes {
        text_budget::remove_ended(jobs);
    }
}

/// Checks in debug builds that the list is complete.
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
