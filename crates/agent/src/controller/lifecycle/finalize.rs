//! The end of a job, or of one run of it: what is written down of how it went, and what is freed.

use std::time::Duration;

use divvy_core::job::{ProgramExit, StopReason};
use divvy_core::{JobId, JobState as Life};

use super::container::CONTAINER_GC_DELAY;
use super::job_sync::running;
use super::start::records;
use crate::controller::Controller;
use crate::gpu::slice;
use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::job_dir::{ExitRecord, RunOutcome};
use crate::journal::StoreError;
use crate::model::oom;

impl Controller {
    /// Writes down how a job ended and frees its slice; `None` when nobody knows. Not before its last process is gone:
    /// until then it keeps its slice, and the next tick looks again.
    pub(in crate::controller) fn finalize(
        &mut self,
        id: JobId,
        exit: Option<&ExitRecord>,
    ) -> Result<(), StoreError> {
        if self.has_orphans(id)? {
            return Ok(());
        }
        self.save_allocation_stats(id)?;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let (gone, words) = match living.job.bypasses.iter().find(|found| found.is_killed()) {
            Some(bypass) => {
                let words = format!("killed: {}: {}", bypass.describe(), bypass.cause());
                (ProgramExit::Bypass, Some(words))
            }
            None => gone(exit, living.supervisor_end.as_deref()),
        };
        let mut held = living.job.state.grants().iter();
        let (gone, words) = match held.find(|grant| self.lost_gpus.contains(&grant.gpu)) {
            Some(grant) if is_failure(&gone) => {
                let index = grant.index;
                let words = words.unwrap_or_default();
                (
                    ProgramExit::GpuLost,
                    Some(format!("GPU {index} is lost; {words}")),
                )
            }
            _ => (gone, words),
        };
        living.job.exit_code = exit.and_then(|exit| exit.outcome.code());
        let preempted = matches!(
            &living.job.state,
            Life::Stopping {
                why: StopReason::Preempt,
                ..
            }
        );
        self.counters.preempted_done += u64::from(preempted);
        let had_left = living.job.exited_before_stop(exit);
        let told = match &living.job.state {
            Life::Stopping {
                why: StopReason::Cancel,
                ..
            } => Some("cancelled"),
            Life::Stopping { why, .. } if !had_left => match why {
                StopReason::TimeLimit => Some("stopped by its time limit"),
                StopReason::Idle => Some("stopped by its idle rule"),
                StopReason::GpuLost => Some("one of its GPUs was lost"),
                StopReason::Preempt => Some("preempted"),
                StopReason::Release => Some("released"),
                StopReason::Requeue | StopReason::Cancel => Some("stopped to be requeued"),
            },
            _ => None,
        };
        living.job.reason = match (told, words) {
            (Some(told), Some(words)) => Some(format!("{told}; {words}")),
            (Some(told), None) => Some(format!("{told}; exited with code 0")),
            (None, words) => words,
        };
        living.job.ended_at = Some(exit.map_or_else(now, |exit| exit.at));
        // A short program has come and gone between two looks.
        let unseen = living.job.started_at.is_none();
        let dir = records(&self.config.home, id, &living.job);
        let ran = unseen.then(|| dir.started().ok().flatten()).flatten();
        if let Some(ran) = ran {
            living.job.started_at = Some(ran.at);
        }
        let starting = matches!(living.job.state, Life::Starting { .. });
        let ran = ran.filter(|_| starting);
        let ran = ran.map(|ran| running(ran.process, &living.job));
        let (event, failed) = living.job.exit_transition(gone, exit);
        living.job.run_state.failures += u32::from(failed);
        living.job.run_state.requeued |= !failed;
        living.job.apply_event(event);
        living.pending_instances.clear();
        self.journal_metered(id)?;
        self.free_slice(id);
        self.release_instances(id)?;
        self.close_bypasses(id)?;
        if unseen {
            self.warn_of_the_weaker_form(id);
        }
        if let Some(ran) = ran {
            self.record_event(Some(id), "running", &ran)?;
        }
        let job = &self.jobs[&id].job;
        if job.state != Life::Queued {
            return self.journal_end(id);
        }
        let words = job.reason.clone().unwrap_or_default();
        match failed {
            true => self.requeue_after_run(id, "retried", &words),
            false => self.requeue_after_run(id, "requeued", &words),
        }
    }

    /// Takes over what its slice remembers, before that goes.
    pub(in crate::controller) fn save_allocation_stats(
        &mut self,
        id: JobId,
    ) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let mut alarms = 0;
        if let Some(slice) = &living.slice
            && let Ok(snapshot) = slice.read()
        {
            alarms = snapshot.alarms();
            for (gpu, holding) in living.job.allocations.iter_mut().enumerate() {
                holding.stats = slice::allocation_stats(&snapshot, gpu);
            }
            if let Ok((denials, _)) = slice.denials() {
                let records = oom::to_api(&denials, &living.job.allocations);
                self.store.keep_denials(id, &records)?;
            }
        }
        for (holding, ledger) in living.job.allocations.iter_mut().zip(&living.slice_usage) {
            holding.stats.mismatch_max = ledger.mismatch_max;
        }
        self.record_alarms(id, alarms)
    }

    /// Journals a job that has just ended, and lets everybody know.
    pub(in crate::controller) fn journal_end(&mut self, id: JobId) -> Result<(), StoreError> {
        self.queue_notification(id)?;
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let job = living.job.clone();
        let folder = self.config.home.job(&id.to_string());
        if job.spec.container.is_some() && folder.is_dir() {
            // Whoever has it takes away what was made for it.
            let dir = self.job_dir(id);
            let is_attended = dir.path().is_dir() && !matches!(dir.lock(), Ok(Some(_)));
            self.schedule_container_gc(match is_attended {
                true => CONTAINER_GC_DELAY,
                false => Duration::ZERO,
            });
        }
        self.store.release_allocations(&job)?;
        self.store.save(&job)?;
        let text = match (job.state.outcome(), job.exit_code) {
            (Some(outcome), _) => outcome.to_string(),
            (None, _) => String::new(),
        };
        self.record_event(Some(id), "ended", &text)?;
        if let Some(watch) = &self.watch {
            watch.remove(id);
        }
        if let Some(group) = self.job_dir(id).group() {
            group.remove();
        }
        if let Err(error) = self.job_dir(id).erase_spec() {
            tracing::warn!(job = %id, error = error_chain(&error), "cannot delete the job's spec, which contains its environment");
        }
        self.job_dir(id).remove_replica();
        reach("end.forgotten");
        self.waits.remove(&id);
        self.effects.expired_secrets.push(id);
        self.effects.milestones_reached.push(id);
        self.effects.ended.push(id);
        self.effects.replan = true;
        Ok(())
    }

    pub(in crate::controller) fn free_slice(&mut self, id: JobId) {
        self.observer.unregister(id);
        self.compute_scheduler.remove_slice(id);
        self.stop_launch_watch(id);
        let slice = self
            .jobs
            .get_mut(&id)
            .and_then(|living| living.slice.take());
        let removed = match slice {
            Some(slice) => slice.remove(),
            None => slice::remove(&self.config.home.slice(&id.to_string())),
        };
        reach("end.freed");
        if let Err(error) = removed {
            tracing::warn!(job = %id, error = error_chain(&error), "cannot remove the slice folder; it stays until the next start");
        }
    }
}

fn gone(exit: Option<&ExitRecord>, supervisor: Option<&str>) -> (ProgramExit, Option<String>) {
    let Some(exit) = exit else {
        // Only of one that this agent started is known how it ended.
        let words = match supervisor {
            Some(end) => {
                format!("its supervisor {end} and left no record; the exit code is unknown")
            }
            None => {
                "its supervisor is gone and left no record; the exit code is unknown".to_owned()
            }
        };
        return (ProgramExit::SupervisorLost, Some(words));
    };
    match &exit.outcome {
        RunOutcome::Launch { launch_error, .. } => (
            ProgramExit::LaunchFailed(launch_error.clone()),
            Some(launch_error.clone()),
        ),
        RunOutcome::Withdrawn { withdrawn } => (
            ProgramExit::LaunchFailed(withdrawn.clone()),
            Some(withdrawn.clone()),
        ),
        RunOutcome::Lost { lost } => (ProgramExit::SupervisorLost, Some(lost.clone())),
        RunOutcome::Exited { exit_code: 0 } => (ProgramExit::Exited(0), None),
        RunOutcome::Exited { exit_code } => (
            ProgramExit::Exited(*exit_code),
            Some(format!("exited with code {exit_code}")),
        ),
        RunOutcome::Signaled { signal } => (
            ProgramExit::Signaled(*signal),
            Some(format!("ended by signal {signal}")),
        ),
    }
}

/// Whether a program that left like this may have done so because its GPU was gone.
fn is_failure(gone: &ProgramExit) -> bool {
    match gone {
        ProgramExit::Exited(code) => *code != 0,
        ProgramExit::Signaled(_) | ProgramExit::SupervisorLost => true,
        ProgramExit::LaunchFailed(_) | ProgramExit::Bypass | ProgramExit::GpuLost => false,
    }
}
