//! Requeue: a job goes back into its queue after its program was started, because of preemption, a request or a retry.
//!
//! The next run has its own folder, so that the records of two runs cannot be confused. The journal's step from
//! `stopping` to `queued` is also the step from one folder to the next.

use divvy_core::job::{Event, ProgramExit, StopReason};
use divvy_core::{JobId, JobState};

use crate::controller::effects::{Effects, RunOver};
use crate::controller::io::Io;
use crate::controller::lifecycle::{end, start_failure};
use crate::controller::mig::release;
use crate::controller::runtime::{Runtime, Waiting};
use crate::controller::state::Jobs;
use crate::controller::state::mig::MigManager;
use crate::job_dir::{ExitRecord, RunOutcome};
use crate::journal::StoreError;
use crate::model::cause::StopRecord;
use crate::model::gpu_memory::GpuMemoryState;
use crate::model::job::Job;

impl Job {
    /// Whether a program that ended in this way is started again.
    pub(in crate::controller) fn should_retry(&self, gone: &ProgramExit) -> bool {
        let failed = match gone {
            ProgramExit::Exited(code) => *code != 0,
            ProgramExit::Signaled(_) | ProgramExit::SupervisorLost | ProgramExit::GpuLost => true,
            // Another start would fail in the same way; and a job that bypassed the limiter gets no second chance.
            ProgramExit::LaunchFailed(_) | ProgramExit::Bypass => false,
        };
        failed && self.run_state.failures < self.spec.policy.retries
    }

    /// Whether its program had ended before the job was stopped.
    pub(in crate::controller) fn exited_before_stop(&self, exit: Option<&ExitRecord>) -> bool {
        match (self.run_state.stop, exit) {
            (Some((_, stopped_at)), Some(exit)) => exit.at < stopped_at,
            _ => false,
        }
    }
}

impl Job {
    /// The state transition for a program that ended in this way, and whether it counts as a failure that is retried. A
    /// job that never ran was only cancelled; for every other end there is a record.
    pub(in crate::controller) fn exit_transition(
        &self,
        gone: ProgramExit,
        exit: Option<&ExitRecord>,
    ) -> (Event, bool) {
        let withdrawn =
            exit.is_some_and(|exit| matches!(exit.outcome, RunOutcome::Withdrawn { .. }));
        let (exited_first, again) = (self.exited_before_stop(exit), self.should_retry(&gone));
        match &self.state {
            JobState::Stopping { process: None, .. } if withdrawn => (Event::NeverStarted, false),
            // The job is requeued anyway; its own failure counts as a retry.
            JobState::Stopping { why, .. } if exited_first && again && why.requeues() => {
                (Event::Exited(gone), true)
            }
            JobState::Stopping { .. } if exited_first => (Event::ExitedBeforeStop(gone), false),
            // Another GPU may work, however the program reacted to the loss of this one.
            JobState::Stopping {
                why: StopReason::GpuLost,
                ..
            } if self.should_retry(&ProgramExit::GpuLost) => (Event::Failed, true),
            JobState::Stopping { .. } => (Event::Exited(gone), false),
            _ if again => (Event::Failed, true),
            _ => (Event::Exited(gone), false),
        }
    }
}

/// Journals that a job is queued again. Its slice is freed, and none of its processes runs.
pub(in crate::controller) fn requeue_after_run(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    kind: &str,
    words: &str,
) -> Result<(), StoreError> {
    fx.jobs.over.push(RunOver {
        job: id,
        dir: jobs.dir(&io.config.home, id),
        is_last: false,
    });
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    assert_eq!(
        active.job.state,
        JobState::Queued,
        "the caller has queued it"
    );
    active.runtime = Runtime::Waiting(Waiting::default());
    let job = &mut active.job;
    job.run_state.runs += 1;
    let (stop, cause) = (job.run_state.stop.take(), job.run_state.cause.take());
    job.run_state.stopped_before =
        (cause.zip(stop)).map(|(cause, (_, at))| StopRecord { cause, at });
    job.run_state.suspended = false;
    job.run_state.aside = GpuMemoryState::default();
    // What it held is counted up to the end of the run, which goes then.
    io.store.release_allocations(job)?;
    (job.started_at, job.ended_at, job.exit_code) = (None, None, None);
    save_queued(job, fx, io, kind, words)
}

/// Journals that a job is queued, and holds nothing any more.
fn save_queued(
    job: &mut Job,
    fx: &mut Effects,
    io: &Io,
    kind: &str,
    words: &str,
) -> Result<(), StoreError> {
    job.allocations.clear();
    io.store.save(job)?;
    fx.record_event(io, Some(job.id), kind, words)?;
    fx.replan = true;
    Ok(())
}

/// Puts a job that was never started back into its queue, at its former place.
pub(in crate::controller) fn requeue_unstarted(
    jobs: &mut Jobs,
    mig: &mut MigManager,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    why: &str,
) -> Result<(), StoreError> {
    if jobs.is_claim(id) {
        // A claim is in no queue.
        start_failure::give_up_claim(jobs, fx, id, why);
        return Ok(());
    }
    end::free_slice(jobs, fx, id);
    release::release_instances(mig, io, id)?;
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    active.job.apply_event(Event::NeverStarted);
    active.return_unstarted();
    io.store.release_allocations(&active.job)?;
    save_queued(&mut active.job, fx, io, "requeued", why)
}

/// How often a job's instances may be refused without an obstacle on the GPU; then the job fails. One may be a race
/// with another change; more would hold the GPU for a job that cannot start.
const MAX_REFUSALS: u32 = 3;

/// Requeues a job that cannot get its instances, or fails it: if the error is final, or after too many refusals.
pub(in crate::controller) fn requeue_or_fail(
    jobs: &mut Jobs,
    mig: &mut MigManager,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    why: &str,
    is_final: bool,
) -> Result<(), StoreError> {
    let Some(placed) = (jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) else {
        return Ok(());
    };
    placed.attempts.refusals += 1;
    if is_final || placed.attempts.refusals >= MAX_REFUSALS {
        placed.start.pending_instances.clear();
        start_failure::fail_start(jobs, fx, io, id, why);
        return Ok(());
    }
    requeue_unstarted(jobs, mig, fx, io, id, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::clock::now;
    use crate::model::job::{Credentials, JobSpec, NewJob};
    use crate::model::policy::JobPolicy;
    use divvy_api::v1::Runner;
    use divvy_core::{Amount, QueueName};
    use jiff::ToSpan;
    use std::collections::BTreeMap;

    #[test]
    fn a_job_that_failed_just_before_it_had_to_leave_is_tried_again() {
        let ask = JobSpec {
            name: "train".into(),
            user: "ana".into(),
            credentials: Credentials::current(),
            project: None,
            queue: QueueName::default_queue(),
            request: Amount::ONE_GPU.into(),
            runner: Runner::Supervisor,
            command: vec!["false".into()],
            container: None,
            cwd: "/".into(),
            policy: JobPolicy {
                retries: 1,
                ..JobPolicy::default()
            },
            secrets: Vec::new(),
        };
        let new = NewJob {
            spec: ask,
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
        let exit = |at| ExitRecord {
            outcome: RunOutcome::Exited { exit_code: 1 },
            at,
        };
        let (before, failed) = (exit(now() - 1.hour()), ProgramExit::Exited(1));
        let preempted = stopped(StopReason::Preempt);
        let tried_again = (Event::Exited(failed.clone()), true);
        assert_eq!(
            preempted.exit_transition(failed.clone(), Some(&before)),
            tried_again
        );
        let mut again = preempted.clone();
        again.apply_event(tried_again.0);
        assert_eq!(again.state, JobState::Queued);
        // Its wait begins anew with the stop, not with its submission.
        assert_eq!(again.waits_since(), new.at);
        let at = new.at + 5.hours();
        let cause = "preempted".into();
        again.run_state.stopped_before = Some(StopRecord { cause, at });
        assert_eq!(again.waits_since(), at);

        let mut spent = preempted.clone();
        spent.run_state.failures = 1;
        let ended = (Event::ExitedBeforeStop(failed.clone()), false);
        assert_eq!(spent.exit_transition(failed.clone(), Some(&before)), ended);
        let cancelled = stopped(StopReason::Cancel);
        assert_eq!(
            cancelled.exit_transition(failed.clone(), Some(&before)),
            ended
        );
        // The program failed after the stop, so the stop explains the failure.
        let after = exit(now() + 1.hour());
        assert_eq!(
            preempted.exit_transition(failed.clone(), Some(&after)),
            (Event::Exited(failed), false)
        );
    }
}
