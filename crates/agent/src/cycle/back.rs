//! Jobs that go back into their queue after their program had been started: preempted, requeued, tried again.
//!
//! Their next run has a folder of its own, so that no record of this one is mistaken for one of that: the journal's one
//! step from `stopping` to `queued` is also the step from one folder to the next.

use divvy_core::job::{Event, Gone, Stop};
use divvy_core::{Job as Life, JobId};

use super::Cycle;
use crate::aside::Aside;
use crate::clock::Instant;
use crate::job::Job;
use crate::records::{Exit, Outcome, Stopped};
use crate::store::StoreError;
use crate::supervise::chain;

impl Job {
    /// Whether a program that left like this is started again.
    pub(super) fn tries_again(&self, gone: &Gone) -> bool {
        let failed = match gone {
            Gone::Exited(code) => *code != 0,
            Gone::Signaled(_) | Gone::SupervisorLost | Gone::GpuLost => true,
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

impl Job {
    /// What it means for its life that its program has left like this, and whether that is a failure that it tries again
    /// after. A job that never ran was only cancelled; every other end is one that the records tell.
    pub(super) fn leaving(&self, gone: Gone, exit: Option<&Exit>) -> (Event, bool) {
        let withdrawn = exit.is_some_and(|exit| matches!(exit.outcome, Outcome::Withdrawn { .. }));
        let (had_left, again) = (self.had_left(exit), self.tries_again(&gone));
        match &self.life {
            Life::Stopping { process: None, .. } if withdrawn => (Event::NeverStarted, false),
            // It comes back whatever it did, so it comes back for its own failure.
            Life::Stopping { why, .. } if had_left && again && why.comes_back() => {
                (Event::Gone(gone), true)
            }
            Life::Stopping { .. } if had_left => (Event::GoneBefore(gone), false),
            // Another GPU may do, however its program took the loss of this one.
            Life::Stopping {
                why: Stop::GpuLost, ..
            } if self.tries_again(&Gone::GpuLost) => (Event::Failed, true),
            Life::Stopping { .. } => (Event::Gone(gone), false),
            _ if again => (Event::Failed, true),
            _ => (Event::Gone(gone), false),
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
        if let Some(watch) = &self.watch {
            watch.remove(id);
        }
        if let Err(error) = self.job_dir(id).forget_spec() {
            tracing::warn!(job = %id, error = chain(&error), "cannot delete the job's spec, which contains its environment");
        }
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        assert_eq!(living.job.life, Life::Queued, "the caller has queued it");
        let now = Instant::now();
        (living.since, living.heard) = (now, now);
        living.supervisor = None;
        living.supervisor_end = None;
        living.unheard = None;
        living.failed = None;
        living.false_starts = 0;
        living.refusals = 0;
        living.damaged = false;
        living.ledgers.clear();
        living.members.clear();
        let job = &mut living.job;
        job.course.runs += 1;
        let (stop, cause) = (job.course.stop.take(), job.course.cause.take());
        job.course.stopped_before = (cause.zip(stop)).map(|(cause, (_, at))| Stopped { cause, at });
        job.course.suspended = false;
        job.course.aside = Aside::default();
        let released = job.clone();
        (job.started_at, job.ended_at, job.exit_code) = (None, None, None);
        job.holdings.clear();
        let job = job.clone();
        self.store.release(&released)?;
        self.store.save(&job)?;
        self.tell(Some(id), kind, words)?;
        self.round.replan = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;
    use crate::job::{Ask, NewJob, Submitter};
    use crate::terms::Terms;
    use divvy_api::v1::Runner;
    use divvy_core::{Amount, QueueName};
    use jiff::ToSpan;
    use std::collections::BTreeMap;

    #[test]
    fn a_job_that_failed_just_before_it_had_to_leave_is_tried_again() {
        let ask = Ask {
            name: "train".into(),
            user: "ana".into(),
            by: Submitter::me(),
            project: None,
            queue: QueueName::default_queue(),
            request: Amount::ONE_GPU.into(),
            runner: Runner::Supervisor,
            command: vec!["false".into()],
            container: None,
            cwd: "/".into(),
            terms: Terms {
                retries: 1,
                ..Terms::default()
            },
            secrets: Vec::new(),
        };
        let new = NewJob {
            ask,
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            key: None,
            at: now(),
            hold: None,
        };
        let stopped = |why| {
            let mut job = Job::queued(JobId(1), &new);
            job.place(Vec::new());
            job.stop(why);
            job
        };
        let exit = |at| Exit {
            outcome: Outcome::Exited { exit_code: 1 },
            at,
        };
        let (before, failed) = (exit(now() - 1.hour()), Gone::Exited(1));
        let preempted = stopped(Stop::Preempt);
        let tried_again = (Event::Gone(failed.clone()), true);
        assert_eq!(
            preempted.leaving(failed.clone(), Some(&before)),
            tried_again
        );
        let mut again = preempted.clone();
        again.step(tried_again.0);
        assert_eq!(again.life, Life::Queued);

        let mut spent = preempted.clone();
        spent.course.failures = 1;
        let ended = (Event::GoneBefore(failed.clone()), false);
        assert_eq!(spent.leaving(failed.clone(), Some(&before)), ended);
        let cancelled = stopped(Stop::Cancel);
        assert_eq!(cancelled.leaving(failed.clone(), Some(&before)), ended);
        // Later than it was told: that is how it left, not a failure.
        let after = exit(now() + 1.hour());
        assert_eq!(
            preempted.leaving(failed.clone(), Some(&after)),
            (Event::Gone(failed), false)
        );
    }
}
