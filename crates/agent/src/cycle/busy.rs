//! Which jobs a look at everybody is about: those that hold something, and those whose clients are waited for. Of ten thousand that wait
//! in their queues nothing can be seen, and going through them each time would cost more than all that there is to see.
//!
//! Whatever changes a job's life is journaled in the same round, so the list is the same until the journal changes.

use divvy_api::v1::Runner;
use divvy_core::{Job as Life, JobId};

use super::{Cycle, Living};

/// The list, as it was at one state of the journal.
#[derive(Debug, Default)]
pub(super) struct Busy {
    jobs: Vec<JobId>,
    /// Rows that had been changed by then ([`changes`](crate::store::Store::changes)).
    at: Option<u64>,
    /// The same of when those were dropped that have ended.
    dropped: Option<u64>,
}

/// Whether there is something to be seen of a job.
fn is_busy(living: &Living) -> bool {
    match living.job.life {
        Life::Queued => living.job.ask.runner == Runner::Client,
        Life::Starting { .. }
        | Life::Running { .. }
        | Life::Lent { .. }
        | Life::Stopping { .. }
        | Life::Ended { .. } => true,
    }
}

impl Cycle {
    /// The jobs of which there is something to be seen, oldest first. One of them may be gone by now.
    pub(super) fn busy(&mut self) -> Vec<JobId> {
        let changes = self.store.changes();
        if self.busy.at != Some(changes) {
            self.busy.jobs = self.list_busy();
            self.busy.at = Some(changes);
        }
        self.busy.jobs.clone()
    }

    fn list_busy(&self) -> Vec<JobId> {
        let jobs = self.jobs.iter();
        let busy = jobs.filter(|(_, living)| is_busy(living));
        busy.map(|(id, _)| *id).collect()
    }

    /// Calls this with each of them that is there.
    pub(super) fn each_busy(&mut self, mut with: impl FnMut(JobId, &mut Living)) {
        for id in self.busy() {
            if let Some(living) = self.jobs.get_mut(&id) {
                with(id, living);
            }
        }
    }

    /// Lets go of those that have ended, of whose ends everybody was told.
    pub(super) fn drop_ended(&mut self) {
        let changes = Some(self.store.changes());
        if std::mem::replace(&mut self.busy.dropped, changes) != changes {
            self.leave_ended();
        }
    }

    /// In debug builds, that the list lacks nobody.
    pub(super) fn check_busy(&self) {
        let is_right = self.busy.at != Some(self.store.changes())
            || self
                .list_busy()
                .iter()
                .all(|id| self.busy.jobs.contains(id));
        assert!(
            is_right,
            "a job's state has changed without a journal entry"
        );
        self.check_sums();
    }
}
