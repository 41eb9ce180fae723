//! A running task: observes its job, follows its user's requests, and reports its worker and log.

use std::sync::Arc;
use std::time::Duration;

use divvy_api::v1::{Confirmation, EndReason, Job, JobState};

use super::TaskRunner;
use super::job::{JobSight, end_of};
use crate::frontend::context::RunningSlot;
use crate::frontend::heartbeat::of_slot;
use crate::frontend::log_forwarder::forward_log;
use crate::frontend::task_state::{Event, JobEnd, StopReason};
use crate::frontend::watch::WatchDecision;

impl TaskRunner {
    /// Waits for the first event.
    pub(super) async fn watch(&mut self) -> Option<Event> {
        if self.log_task.is_none() {
            let (task, job, worker) = (
                self.record.task.clone(),
                self.record.job.clone(),
                self.record.worker.clone(),
            );
            self.log_task = Some(tokio::task::spawn_local(forward_log(
                Arc::clone(&self.context),
                task,
                job,
                worker,
            )));
        }
        self.running_since
            .get_or_insert_with(|| self.context.elapsed());
        let ping = match self.context.settings.ping {
            Duration::ZERO => Duration::MAX,
            ping => ping,
        };
        loop {
            if let Some(event) = self.job_event() {
                return Some(event);
            }
            self.report().await;
            tokio::select! {
                changed = self.job.changed() => if changed.is_err() {
                    return Some(Event::JobEnded(JobEnd::Lost));
                },
                Ok(()) = self.snapshots.changed() => {
                    if let Some(event) = self.looked().await {
                        return Some(event);
                    }
                }
                () = self.stop.requested() => return None,
                () = tokio::time::sleep(ping) => {
                    let id = self.record.task.clone();
                    let pinged = self.context.server.retry(async |server| server.ping(&id).await).await;
                    self.context.try_to("ping", &id, pinged).await;
                }
            }
        }
    }

    /// The slot's worker is on the server's list as soon as the task runs.
    async fn report(&mut self) {
        let slot = self.context.slots().get(&self.record.task).cloned();
        let Some(slot) = slot.filter(|_| !self.reported) else {
            return;
        };
        self.reported = true;
        if slot.worker != self.context.daemon {
            let report = of_slot(&self.context, &self.record.task, &slot);
            if let Err(error) = self.context.server.report(&report).await {
                tracing::debug!(worker = slot.worker, %error, "cannot report a slot");
            }
        }
    }

    fn set_slot(&self, job: &Job) {
        let slot = RunningSlot {
            worker: self.record.worker.clone(),
            shares: job.slices.iter().map(|slice| slice.share).collect(),
        };
        self.context.set_slot(&self.record.task, Some(slot));
    }

    fn job_event(&mut self) -> Option<Event> {
        let job = self.job.borrow_and_update().clone();
        match job {
            JobSight::NotYet => None,
            JobSight::Unknown => Some(Event::JobEnded(JobEnd::Lost)),
            JobSight::Is(job) => {
                if job.state == JobState::Ended {
                    let words = match job.end_reason {
                        // It names the user.
                        Some(EndReason::Cancelled) => job.end_detail.as_ref(),
                        _ => job.reason.as_ref(),
                    };
                    self.trouble = words.cloned().unwrap_or_default();
                    return Some(Event::JobEnded(end_of(&job)));
                }
                let again = job.confirmation == Some(Confirmation::Awaiting)
                    && self.confirmed.is_none_or(|attempt| attempt < job.attempt);
                if again {
                    return Some(Event::GrantedAgain);
                }
                self.set_slot(&job);
                None
            }
        }
    }

    async fn looked(&mut self) -> Option<Event> {
        let snapshot = self.snapshots.borrow_and_update().clone()?;
        if self
            .running_since
            .is_none_or(|since| snapshot.begun < since)
        {
            return None;
        }
        let task = snapshot.tasks.get(&self.record.task)?.as_ref();
        let most = self.context.settings.abort_callback_max;
        let (worker, now) = (&self.record.worker, self.context.elapsed());
        match self.watcher.look_at(task, worker, now, most) {
            WatchDecision::Go => None,
            WatchDecision::Wait(line) => {
                self.say("DEBUG", &format!("{line}\n")).await;
                None
            }
            WatchDecision::Stop(why, line) => {
                if let Some(line) = line {
                    self.say("DEBUG", &format!("{line}\n")).await;
                }
                // The result of an abort is reported at its end, unless the task's own agent reports it.
                if matches!(why, StopReason::Changed | StopReason::Reset) {
                    let reason = match why {
                        StopReason::Reset => "the task was reset",
                        _ => "the task's status was changed",
                    };
                    self.say("ERROR", &format!("User aborted: stopping task: {reason}\n"))
                        .await;
                }
                Some(Event::Verdict(why))
            }
        }
    }
}
