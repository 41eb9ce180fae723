//! The end of a job, or of one run of it: what is written down of how it went, and what is freed.

use std::time::Duration;

use divvy_core::job::{Gone, Stop};
use divvy_core::{Job as Life, JobId};

use super::Cycle;
use super::container::AFTERWARDS;
use super::follow::running;
use super::start::records;
use crate::clock::now;
use crate::failpoint::reach;
use crate::gpu::slice;
use crate::oom;
use crate::records::{Exit, Outcome};
use crate::store::StoreError;
use crate::supervise::chain;

impl Cycle {
    /// Writes down how a job ended and frees its slice; `None` when nobody knows. Not before its last process is gone:
    /// until then it keeps its slice, and the next tick looks again.
    pub(super) fn settle(&mut self, id: JobId, exit: Option<&Exit>) -> Result<(), StoreError> {
        if self.is_held(id)? {
            return Ok(());
        }
        self.keep_traces(id)?;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let (gone, words) = match living.job.bypasses.iter().find(|found| found.is_killed()) {
            Some(bypass) => {
                let words = format!("killed: {}: {}", bypass.what(), bypass.cause());
                (Gone::Bypass, Some(words))
            }
            None => gone(exit, living.supervisor_end.as_deref()),
        };
        let mut held = living.job.life.grants().iter();
        let (gone, words) = match held.find(|grant| self.lost.contains(&grant.gpu)) {
            Some(grant) if is_failure(&gone) => {
                let index = grant.index;
                let words = words.unwrap_or_default();
                (Gone::GpuLost, Some(format!("GPU {index} is lost; {words}")))
            }
            _ => (gone, words),
        };
        living.job.exit_code = exit.and_then(|exit| exit.outcome.code());
        let preempted = matches!(
            &living.job.life,
            Life::Stopping {
                why: Stop::Preempt,
                ..
            }
        );
        self.counted.given_way += u64::from(preempted);
        let had_left = living.job.had_left(exit);
        let told = match &living.job.life {
            Life::Stopping {
                why: Stop::Cancel, ..
            } => Some("cancelled"),
            Life::Stopping { why, .. } if !had_left => match why {
                Stop::TimeLimit => Some("stopped by its time limit"),
                Stop::Idle => Some("stopped by its idle rule"),
                Stop::GpuLost => Some("one of its GPUs was lost"),
                Stop::Preempt => Some("preempted"),
                Stop::Release => Some("released"),
                Stop::Requeue | Stop::Cancel => Some("stopped to be requeued"),
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
        let starting = matches!(living.job.life, Life::Starting { .. });
        let ran = ran.filter(|_| starting);
        let ran = ran.map(|ran| running(ran.process, &living.job));
        let (event, failed) = living.job.leaving(gone, exit);
        living.job.course.failures += u32::from(failed);
        living.job.course.requeued |= !failed;
        living.job.step(event);
        living.awaits.clear();
        self.journal_metered(id)?;
        self.free_slice(id);
        self.let_go(id)?;
        self.close_bypasses(id)?;
        if unseen {
            self.warn_of_the_weaker_form(id);
        }
        if let Some(ran) = ran {
            self.tell(Some(id), "running", &ran)?;
        }
        let job = &self.jobs[&id].job;
        if job.life != Life::Queued {
            return self.ended(id);
        }
        let words = job.reason.clone().unwrap_or_default();
        match failed {
            true => self.waits_again(id, "retried", &words),
            false => self.waits_again(id, "requeued", &words),
        }
    }

    /// Takes over what its slice remembers, before that goes.
    pub(super) fn keep_traces(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let mut alarms = 0;
        if let Some(slice) = &living.slice
            && let Ok(snapshot) = slice.read()
        {
            alarms = snapshot.alarms();
            for (gpu, holding) in living.job.holdings.iter_mut().enumerate() {
                holding.traces = slice::traces(&snapshot, gpu);
            }
            if let Ok((denials, _)) = slice.denials() {
                let records = oom::records(&denials, &living.job.holdings);
                self.store.keep_denials(id, &records)?;
            }
        }
        for (holding, ledger) in living.job.holdings.iter_mut().zip(&living.ledgers) {
            holding.traces.mismatch_max = ledger.mismatch_max;
        }
        self.alarmed(id, alarms)
    }

    /// Journals a job that has just ended, and lets everybody know.
    pub(super) fn ended(&mut self, id: JobId) -> Result<(), StoreError> {
        self.note_end(id)?;
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let job = living.job.clone();
        let folder = self.config.home.job(&id.to_string());
        if job.ask.container.is_some() && folder.is_dir() {
            // Whoever has it takes away what was made for it.
            let dir = self.job_dir(id);
            let is_attended = dir.path().is_dir() && !matches!(dir.lock(), Ok(Some(_)));
            self.may_be_left(match is_attended {
                true => AFTERWARDS,
                false => Duration::ZERO,
            });
        }
        self.store.release(&job)?;
        self.store.save(&job)?;
        let text = match (job.life.outcome(), job.exit_code) {
            (Some(outcome), _) => outcome.to_string(),
            (None, _) => String::new(),
        };
        self.tell(Some(id), "ended", &text)?;
        if let Some(watch) = &self.watch {
            watch.remove(id);
        }
        if let Some(group) = self.job_dir(id).group() {
            group.remove();
        }
        if let Err(error) = self.job_dir(id).forget_spec() {
            tracing::warn!(job = %id, error = chain(&error), "cannot delete the job's spec, which contains its environment");
        }
        self.job_dir(id).forget_replica();
        reach("end.forgotten");
        self.waits.remove(&id);
        self.round.forgets.push(id);
        self.round.reached.push(id);
        self.round.ended.push(id);
        self.round.replan = true;
        Ok(())
    }

    pub(super) fn free_slice(&mut self, id: JobId) {
        self.observer.strike(id);
        self.keeper.release(id);
        self.watch_no_more(id);
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
            tracing::warn!(job = %id, error = chain(&error), "cannot remove the slice folder; it stays until the next start");
        }
    }
}

fn gone(exit: Option<&Exit>, supervisor: Option<&str>) -> (Gone, Option<String>) {
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
        return (Gone::SupervisorLost, Some(words));
    };
    match &exit.outcome {
        Outcome::Launch { launch_error, .. } => (
            Gone::LaunchFailed(launch_error.clone()),
            Some(launch_error.clone()),
        ),
        Outcome::Withdrawn { withdrawn } => (
            Gone::LaunchFailed(withdrawn.clone()),
            Some(withdrawn.clone()),
        ),
        Outcome::Lost { lost } => (Gone::SupervisorLost, Some(lost.clone())),
        Outcome::Exited { exit_code: 0 } => (Gone::Exited(0), None),
        Outcome::Exited { exit_code } => (
            Gone::Exited(*exit_code),
            Some(format!("exited with code {exit_code}")),
        ),
        Outcome::Signaled { signal } => (
            Gone::Signaled(*signal),
            Some(format!("ended by signal {signal}")),
        ),
    }
}

/// Whether a program that left like this may have done so because its GPU was gone.
fn is_failure(gone: &Gone) -> bool {
    match gone {
        Gone::Exited(code) => *code != 0,
        Gone::Signaled(_) | Gone::SupervisorLost => true,
        Gone::LaunchFailed(_) | Gone::Bypass | Gone::GpuLost => false,
    }
}
