//! Which jobs a look at everybody is about: those that hold something, and those whose clients are waited for. Of ten thousand that wait
//! in their queues nothing can be seen, and going through them each time would cost more than all that there is to see.
//!
//! Whatever changes a job's life is journaled in the same round, so the list is the same until the journal changes.

use divvy_api::v1::Runner;
use divvy_core::{JobId, JobState as Life};

use super::{ActiveJob, Controller};

/// The list, as it was at one state of the journal.
#[derive(Debug, Default)]
pub(super) struct ActiveSet {
    jobs: Vec<JobId>,
    /// Rows that had been changed by then ([`changes`](crate::journal::Store::changes)).
    journal_version: Option<u64>,
    /// The same of when those were dropped that have ended.
    dropped: Option<u64>,
}

/// Whether there is something to be seen of a job.
fn is_active(living: &ActiveJob) -> bool {
    match living.job.state {
        Life::Queued => living.job.spec.runner == Runner::Client,
        Life::Starting { .. }
        | Life::Running { .. }
        | Life::Lent { .. }
        | Life::Stopping { .. }
        | Life::Ended { .. } => true,
    }
}

impl Controller {
    /// The jobs of which there is something to be seen, oldest first. One of them may be gone by now.
    pub(super) fn active_jobs(&mut self) -> Vec<JobId> {
        let changes = self.store.changes();
        if self.active_set.journal_version != Some(changes) {
            self.active_set.jobs = self.list_active();
            self.active_set.journal_version = Some(changes);
        }
        self.active_set.jobs.clone()
    }

    fn list_active(&self) -> Vec<JobId> {
        let jobs = self.jobs.iter();
        let busy = jobs.filter(|(_, living)| is_active(living));
        busy.map(|(id, _)| *id).collect()
    }

    /// Calls this with each of them that is there.
    pub(super) fn for_each_active(&mut self, mut with: impl FnMut(JobId, &mut ActiveJob)) {
        for id in self.active_jobs() {
            if let Some(living) = self.jobs.get_mut(&id) {
                with(id, living);
            }
        }
    }

    /// Lets go of those that have ended, of whose ends everybody was told.
    pub(super) fn drop_ended(&mut self) {
        let changes = Some(self.store.changes());
        if std::mem::replace(&mut self.active_set.dropped, changes) != changes {
            self.remove_ended();
        }
    }

    /// In debug builds, that the list lacks nobody.
    pub(super) fn check_active_set(&self) {
        let is_right = self.active_set.journal_version != Some(self.store.changes())
            || self
                .list_active()
                .iter()
                .all(|id| self.active_set.jobs.contains(id));
        assert!(
            is_right,
            "a job's state has changed without a journal entry"
        );
        self.check_sums();
    }
}
