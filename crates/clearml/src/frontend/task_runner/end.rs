//! The end of a run: cancels the job, reports the result to the server, and removes the task's files.

use divvy_api::v1::{CancelJob, ErrorCode, JobState};

use super::job::{JobSight, end_of};
use super::start::{HOST_PROPERTY, JOB_PROPERTY};
use super::{TaskNotice, TaskRunner};
use crate::frontend::attribution::{of_running, of_waiting};
use crate::frontend::task_state::{Ending, Event, FinalStatus, JobEnd, Outcome, StopReason};
use crate::server::Subcode;

impl TaskRunner {
    pub(super) async fn cancel(&mut self, why: StopReason) -> Option<Event> {
        let id = self.record.job.clone();
        let how = CancelJob {
            because: Some(of_running(&self.context, why, &self.record.task).await),
            withdraw: false,
        };
        match self
            .context
            .agent(async |client| client.cancel_as(&id, &how).await)
            .await
        {
            // It ends, or has.
            Ok(_) => {}
            Err(error) if error.code == ErrorCode::NotFound => {
                return Some(Event::JobEnded(JobEnd::Lost));
            }
            Err(error) => tracing::debug!(job = %id, %error, "cannot cancel the job"),
        }
        loop {
            let job = self.job.borrow_and_update().clone();
            match job {
                JobSight::Unknown => return Some(Event::JobEnded(JobEnd::Lost)),
                JobSight::Is(job) if job.state == JobState::Ended => {
                    return Some(Event::JobEnded(end_of(&job)));
                }
                _ => {}
            }
            if self.job.changed().await.is_err() {
                return Some(Event::JobEnded(JobEnd::Lost));
            }
        }
    }

    pub(super) async fn report_end(&mut self, ending: Ending) -> Option<Event> {
        // The job's last output comes before the report of its end.
        if let Some(log_task) = self.log_task.take() {
            let _ = log_task.await;
        }
        let Some(word) = self.end_to_report(ending).await else {
            return Some(Event::EndReported);
        };
        let id = self.record.task.clone();
        let message = format!("Changed by divvy {}", self.record.worker);
        let trouble = std::mem::take(&mut self.trouble);
        let (line, reason) = match &self.withdrawn {
            Some(because) => {
                let host = &self.context.host;
                let reason = format!("{because} on {host} before it started");
                (format!("Process aborted: {reason}"), reason)
            }
            None => said(ending, word, &trouble),
        };
        self.say("DEBUG", &format!("{line}\n")).await;
        // A user who stops a task, resets it and queues it again within a second means the next run to go on.
        if word == FinalStatus::Stopped && self.end_to_report(ending).await != Some(word) {
            return Some(Event::EndReported);
        }
        let told = self.context.server.retry(async |server| match word {
            FinalStatus::Completed => server.completed(&id, &reason, &message).await,
            FinalStatus::Failed => server.failed(&id, &reason, &message).await,
            FinalStatus::Stopped => server.stopped(&id, &reason, &message).await,
        });
        match told.await {
            // Another client reported the end first, which is fine.
            Err(error)
                if matches!(
                    error.refusal(),
                    Some(Subcode::StatusChange | Subcode::NoTask)
                ) => {}
            Err(error) => tracing::error!(task = %id, %error, "cannot report how the task ended"),
            Ok(()) => {}
        }
        Some(Event::EndReported)
    }

    /// The status to write for this run, after a look at the task; `None` where the task is no longer this run's.
    async fn end_to_report(&mut self, ending: Ending) -> Option<FinalStatus> {
        let (seen, _) = self.see(false).await;
        let word = ending.final_status(seen)?;
        (!self.is_of_another_run()).then_some(word)
    }

    /// Whether the task has been started once more, there or here: its runtime properties name that run.
    fn is_of_another_run(&self) -> bool {
        let runtime = self.task.runtime.as_ref();
        let text = |name: &str| runtime?.get(name)?.as_str().map(str::to_owned);
        let job = text(JOB_PROPERTY);
        let host = text(HOST_PROPERTY);
        let differs = |is: Option<String>, own: &str| is.is_some_and(|is| is != own);
        self.marked && (differs(job, &self.record.job) || differs(host, &self.context.host))
    }

    pub(super) async fn finish(&mut self, outcome: Outcome) {
        let id = self.record.job.clone();
        if !matches!(&*self.job.borrow(), JobSight::Is(job) if job.state == JobState::Ended) {
            let because = self.why_it_goes(outcome).await;
            // The user's own cancel leaves a row. A job of a task that did not run here leaves none.
            let withdraw = self.withdrawn.is_none() || outcome == Outcome::NotOurs;
            self.context.end_job(&id, because, withdraw).await;
        }
        if let Some(log_task) = self.log_task.take() {
            log_task.abort();
        }
        let task = self.record.task.clone();
        self.context.set_slot(&task, None);
        let worker = self.record.worker.clone();
        if self.may_be_listed(outcome) {
            // The server lists a worker again that it hears of later: no report may be under way.
            drop(self.context.slot_reports.lock().await);
            let gone = self
                .context
                .server
                .retry(async |server| server.unregister(&worker).await)
                .await;
            // A worker that never was on the list cannot be taken off it.
            if let Err(error) = gone {
                tracing::debug!(%worker, %error, "cannot unregister the worker");
            }
        }
        if let Err(error) = self.context.runner.clear(&task) {
            tracing::warn!(task, %error, "cannot remove the files of an ended task");
        }
        self.context.records.remove(&task);
        let _ = self.said.send(TaskNotice::Done {
            task,
            worker,
            outcome,
        });
    }

    /// Why a job goes that has not ended by itself, in words for its record.
    async fn why_it_goes(&self, outcome: Outcome) -> String {
        let (task, queue) = (&self.record.task, &self.record.queue_id);
        match (outcome, &self.withdrawn) {
            (Outcome::Ended | Outcome::Released, Some(because)) => because.clone(),
            (Outcome::NotOurs | Outcome::Released, _) => {
                let tasks = [task.clone()];
                let mut words = of_waiting(&self.context, queue, &tasks).await;
                words.remove(task).unwrap_or_default()
            }
            (Outcome::Returned, _) => "its task is back in its queue".to_owned(),
            (Outcome::Ended, None) => "its task has ended".to_owned(),
        }
    }

    /// Whether the slot's worker may be on the server's list: since it ran, here or before a restart.
    fn may_be_listed(&self, outcome: Outcome) -> bool {
        let ran = self.reported || self.running_since.is_some();
        ran && outcome != Outcome::NotOurs && self.record.worker != self.context.daemon
    }
}

/// The task's log and its status at the end of a run: a line, and the reason.
fn said(ending: Ending, word: FinalStatus, trouble: &str) -> (String, String) {
    let failed = |what: &str| (format!("Process failed: {what}"), what.to_owned());
    let because = |failure: &str| match trouble {
        "" => failure.to_owned(),
        trouble => format!("{failure}: {trouble}"),
    };
    match (word, ending) {
        (FinalStatus::Completed, _) => (
            "Process completed successfully".to_owned(),
            "worker execution done".to_owned(),
        ),
        (FinalStatus::Stopped, Ending::Stopped(StopReason::Shutdown)) => (
            "Process aborted: the Divvy daemon was stopped".to_owned(),
            "the Divvy daemon was stopped".to_owned(),
        ),
        (FinalStatus::Stopped, Ending::Job(JobEnd::Cancelled)) => {
            let how = match trouble {
                "" => "cancelled",
                trouble => trouble,
            };
            let reason = format!("its job was {how} on the worker's machine");
            (format!("Process aborted: {reason}"), reason)
        }
        (FinalStatus::Stopped, _) => (
            "User aborted: stopping task: the task was stopped\nProcess aborted by user".to_owned(),
            "task was stopped by tasks.stop".to_owned(),
        ),
        (FinalStatus::Failed, Ending::Job(JobEnd::Exited(code))) => (
            format!("Process failed, exit code {code}"),
            format!("worker execution exit code {code}"),
        ),
        (FinalStatus::Failed, Ending::Job(JobEnd::NotLaunched)) => {
            failed(&because("worker could not start the task"))
        }
        (FinalStatus::Failed, Ending::Job(JobEnd::Lost)) => {
            failed(&because("worker lost the task's process"))
        }
        (FinalStatus::Failed, Ending::Unfit) => failed(&because("worker cannot run the task")),
        (FinalStatus::Failed, _) => failed(&because("worker stopped the task")),
    }
}
