//! Forgetting the past: the rows, once their folders are gone.

use std::collections::BTreeSet;

use divvy_core::JobId;

use super::Cycle;
use crate::pruner::{Forgotten, Past};
use crate::store::StoreError;

impl Cycle {
    pub(super) fn forget_past(&mut self, past: Past, done: Forgotten) -> Result<(), StoreError> {
        match past {
            Past::Events(to) => self.store.forget_events(to)?,
            Past::Usage(to) => self.store.forget_usage(to)?,
            Past::UsageOf(users) => {
                for user in users {
                    self.store.forget_usage_of(user)?;
                }
            }
            Past::Full(users) => self.set_full(users),
            Past::Jobs(mut jobs) => {
                // Somebody may have been submitted to run after one of them meanwhile.
                let living = self.jobs.values();
                let after = living.flat_map(|living| &living.job.ask.terms.after);
                let followed: BTreeSet<JobId> = after.map(|after| after.job).collect();
                jobs.retain(|id| !followed.contains(id) && !self.jobs.contains_key(id));
                self.store.forget_jobs(&jobs)?;
            }
        }
        self.round.forgotten.push(done);
        Ok(())
    }
}
