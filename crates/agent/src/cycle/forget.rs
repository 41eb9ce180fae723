//! Forgetting the past: the rows, once their folders are gone.

use super::Cycle;
use crate::pruner::{Forgotten, Past};
use crate::store::{Needed, StoreError};

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
                let mut needed = Needed::default();
                for living in self.jobs.values() {
                    needed.add(&living.job.ask.terms);
                }
                jobs.retain(|id| !needed.contains(*id) && !self.jobs.contains_key(id));
                self.store.forget_jobs(&jobs)?;
            }
        }
        self.round.forgotten.push(done);
        Ok(())
    }
}
