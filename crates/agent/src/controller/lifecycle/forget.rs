//! Retention: deletes rows of the journal, after the retention thread has deleted their folders.

use crate::controller::admission::text_budget;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::state::Jobs;
use crate::journal::retention::{PRUNE_CLOCK, PruneBatch, PruneDone};
use crate::journal::{ReferencedJobs, StoreError};

pub(in crate::controller) fn prune(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    past: PruneBatch,
    done: PruneDone,
) -> Result<(), StoreError> {
    match past {
        PruneBatch::Events(expired) => io.store.forget_events(&expired)?,
        PruneBatch::Clock(clock) => io.store.set_setting(PRUNE_CLOCK, &clock)?,
        PruneBatch::Usage(to) => io.store.forget_usage(to)?,
        PruneBatch::UserUsage(users) => {
            for user in users {
                io.store.forget_usage_of(user)?;
            }
        }
        PruneBatch::UsersOverLimit(users) => text_budget::set_users_over_limit(jobs, users),
        PruneBatch::Jobs(mut ended) => {
            // A job that depends on one of these may have been submitted meanwhile.
            let mut needed = ReferencedJobs::default();
            for active in jobs.active.values() {
                needed.add(&active.job.spec.policy);
            }
            ended.retain(|id| !needed.contains(*id) && !jobs.active.contains_key(id));
            io.store.forget_jobs(&ended)?;
            fx.machine.forgotten.extend(ended);
        }
    }
    fx.replies.prunes.push(done);
    Ok(())
}
