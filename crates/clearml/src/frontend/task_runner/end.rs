//! The end of a run: cancels the job, reports the result to the server, and removes the task's files.

use divvy_api::v1::{ErrorCode, JobState};

use super::job::{JobSight, end_of};
use super::{TaskNotice, TaskRunner};
use crate::frontend::task_state::{Ending, Event, FinalStatus, JobEnd, Outcome, StopReason};
use crate::server::Subcode;

impl TaskRunner {
    pub(super) async fn cancel(&mut self) -> Option<Event> {
        let id = self.record.job.clone();
        match self
            .context
            .agent(async |client| client.cancel(&id).await)
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
        let (seen, _) = self.see(false).await;
        let Some(word) = ending.final_status(seen) else {
            return Some(Event::EndReported);
        };
        let id = self.record.task.clone();
        let message = format!("Changed by divvy {}", self.record.worker);
        let trouble = std::mem::take(&mut self.trouble);
        let (line, reason) = said(ending, word, &trouble);
        self.say("DEBUG", &format!("{line}\n")).await;
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

    pub(super) async fn finish(&mut self, outcome: Outcome) {
        let id = self.record.job.clone();
        if !matches!(&*self.job.borrow(), JobSight::Is(job) if job.state == JobState::Ended) {
            // An error says that it has ended, or is gone.
            let _ = self
                .context
                .agent(async |client| client.cancel(&id).await)
                .await;
        }
        if let Some(log_task) = self.log_task.take() {
            log_task.abort();
        }
        let task = self.record.task.clone();
        self.context.set_slot(&task, None);
        let worker = self.record.worker.clone();
        if self.may_be_listed(outcome) {
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
        (FinalStatus::Stopped, Ending::Job(JobEnd::Cancelled)) => (
            "Process aborted: its job was cancelled on the worker's machine".to_owned(),
            "its job was cancelled on the worker's machine".to_owned(),
        ),
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
