//! Forgetting the past: the rows, once their folders are gone.

use crate::controller::Controller;
use crate::journal::retention::{PruneBatch, PruneDone};
use crate::journal::{ReferencedJobs, StoreError};

impl Controller {
    pub(in crate::controller) fn prune(
        &mut self,
        past: PruneBatch,
        done: PruneDone,
    ) -> Result<(), StoreError> {
        match past {
            PruneBatch::Events(to) => self.store.forget_events(to)?,
            PruneBatch::Usage(to) => self.store.forget_usage(to)?,
            PruneBatch::UserUsage(users) => {
                for user in users {
                    self.store.forget_usage_of(user)?;
                }
            }
            PruneBatch::UsersOverLimit(users) => self.set_users_over_limit(users),
            PruneBatch::Jobs(mut jobs) => {
                // Somebody may have been submitted to run after one of them meanwhile.
                let mut needed = ReferencedJobs::default();
                for living in self.jobs.values() {
                    needed.add(&living.job.spec.policy);
                }
                jobs.retain(|id| !needed.contains(*id) && !self.jobs.contains_key(id));
                self.store.forget_jobs(&jobs)?;
            }
        }
        self.effects.prune_replies.push(done);
        Ok(())
    }
}
