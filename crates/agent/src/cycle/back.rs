//! Jobs that go back into their queue after their program had been started: preempted, requeued, tried again.
//!
//! Their next run has a folder of its own, so that no record of this one is mistaken for one of that: the journal's one
//! step from `stopping` to `queued` is also the step from one folder to the next.

use std::time::Instant;

use divvy_core::job::Gone;
use divvy_core::{Job as Life, JobId};

use super::Cycle;
use crate::job::Job;
use crate::records::Exit;
use crate::store::StoreError;
use crate::supervise::chain;

impl Job {
    /// Whether a program that left like this is started again.
    pub(super) fn tries_again(&self, gone: &Gone) -> bool {
        let failed = match gone {
            Gone::Exited(code) => *code != 0,
            Gone::Signaled(_) | Gone::SupervisorLost => true,
            // It would not be started the next time either; and who got past the limiter had its chance.
            Gone::LaunchFailed(_) | Gone::Bypass => false,
        };
        failed && self.course.failures < self.ask.terms.retries
    }

    /// Whether its program had left before the job was told to stop.
    pub(super) fn had_left(&self, exit: Option<&Exit>) -> bool {
        match (self.course.stop, exit) {
            (Some((_, told)), Some(exit)) => exit.at < told,
            _ => false,
        }
    }
}

impl Cycle {
    /// Journals that a job waits again. Its slice has been given back, and nothing of it runs.
    pub(super) fn waits_again(
        &mut self,
        id: JobId,
        kind: &str,
        words: &str,
    ) -> Result<(), StoreError> {
        if let Err(error) = self.job_dir(id).forget_spec() {
            tracing::warn!(job = %id, error = chain(&error), "its spec, with its environment, stays on disk");
        }
        if let Some(watch) = &self.watch {
            watch.remove(id);
        }
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        assert_eq!(
            living.job.life,
            Life::Queued,
            "whoever calls has put it there"
        );
        let now = Instant::now();
        (living.since, living.heard) = (now, now);
        living.supervisor = None;
        living.supervisor_end = None;
        living.failed = None;
        living.false_starts = 0;
        living.refusals = 0;
        living.damaged = false;
        living.ledgers.clear();
        living.members.clear();
        let job = &mut living.job;
        job.course.runs += 1;
        job.course.stop = None;
        job.course.suspended = false;
        (job.started_at, job.ended_at, job.exit_code) = (None, None, None);
        let released = job.clone();
        job.holdings.clear();
        let job = job.clone();
        self.store.release(&released)?;
        self.store.save(&job)?;
        self.tell(Some(id), kind, words)?;
        self.round.replan = true;
        Ok(())
    }
}
