//! Status reports of a task to the server: why it waits, where it runs, how it ended, whether it was requeued.

use std::time::{Duration, Instant};

use divvy_clearml::frontend::requeue::{RequeueStep, requeue_steps};
use divvy_clearml::frontend::task_state::TaskState;
use divvy_clearml::server::{Status, Subcode, Task};

use super::{GlueController, OperationError};
use crate::glue::record::{Record, name};
use crate::glue::task_state::{FinalStatus, TaskFacts};

/// Between two lines of a task's log that say why it waits. A night of waiting leaves some hundred lines; a minute
/// would leave five times as many.
const REASON_LINES: Duration = Duration::from_secs(300);

impl GlueController {
    /// Shows the pod on the task's page.
    pub(super) async fn show(&self, task: &Task) {
        let objects = &self.context.objects;
        let mut runtime = task.runtime.clone().unwrap_or_default();
        let pod = format!("{}/{}", objects.namespace, name(&task.id));
        runtime.insert("_divvy_pod".to_owned(), pod.into());
        if let Err(error) = self.context.server.set_runtime(&task.id, &runtime).await {
            tracing::warn!(task = task.id, %error, "cannot write the task's runtime properties");
        }
    }

    /// Says why a task waits, when that changes. A reason that changes often, as the free memory of GPUs does, is in the log now
    /// and then only.
    pub(super) async fn wait(&mut self, task: &str, why: &str) -> Result<(), OperationError> {
        let Some(memory) = self.tasks.get_mut(task) else {
            return Ok(());
        };
        if memory.said.as_deref() == Some(why) {
            return Ok(());
        }
        let line = format!("waiting in Kubernetes: {why}");
        self.context.server.say_status(task, &line).await?;
        memory.said = Some(why.to_owned());
        if memory
            .logged_reason
            .is_some_and(|at| at.elapsed() < REASON_LINES)
        {
            return Ok(());
        }
        memory.logged_reason = Some(Instant::now());
        tracing::info!(task, reason = why, "ClearML task: waits");
        self.context
            .append_to_log(task, "INFO", &format!("{line}\n"))
            .await;
        Ok(())
    }

    pub(super) async fn report_end(
        &mut self,
        id: &str,
        facts: &TaskFacts,
        word: &FinalStatus,
    ) -> Result<bool, OperationError> {
        let context = &self.context;
        let message = format!("Changed by divvy {}", context.worker);
        let line = match word {
            FinalStatus::Completed => "Process completed successfully".to_owned(),
            FinalStatus::Stopped => "Process aborted by user".to_owned(),
            FinalStatus::Failed(why) => format!("Process failed: {why}"),
        };
        context
            .append_to_log(id, "DEBUG", &format!("{line}\n"))
            .await;
        let told = match word {
            FinalStatus::Completed => {
                context
                    .server
                    .completed(id, "worker execution exit code 0", &message)
                    .await
            }
            FinalStatus::Stopped => {
                context
                    .server
                    .stopped(id, "task was stopped by tasks.stop", &message)
                    .await
            }
            FinalStatus::Failed(why) => {
                let reason = format!("worker execution: {why}");
                match facts.status {
                    // From `queued` there is no way to `failed` but this.
                    Some(Status::Queued) => {
                        context.server.failed_unstarted(id, &reason, &message).await
                    }
                    _ => context.server.failed(id, &reason, &message).await,
                }
            }
        };
        match told {
            // Another client was faster; the next observation shows its status.
            Err(error)
                if matches!(
                    error.refusal(),
                    Some(Subcode::StatusChange | Subcode::NoTask)
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
            Ok(()) => {
                tracing::info!(task = id, ?word, "ClearML task");
                Ok(true)
            }
        }
    }

    pub(super) async fn put_back(
        &self,
        record: &Record,
        facts: &TaskFacts,
    ) -> Result<(), OperationError> {
        let (server, queue, task) = (&self.context.server, &record.queue_id, &record.task);
        // The queue may be one that is not served, and was not looked at.
        let head = server.head(queue, usize::from(u16::MAX)).await;
        let listed = head.is_ok_and(|facts| facts.entries.iter().any(|entry| entry.task == *task));
        let seen = TaskState {
            status: facts.status,
            stopping: facts.stopping,
        };
        for step in requeue_steps(seen, listed) {
            let done = match step {
                RequeueStep::Add => server.add(queue, task).await,
                RequeueStep::Reset => server.reset(task).await,
                RequeueStep::Enqueue => server.enqueue(queue, task).await,
                RequeueStep::Front => server.move_to_front(queue, task).await,
                RequeueStep::Stop => {
                    let message = format!("Changed by divvy {}", self.context.worker);
                    server
                        .stopped(task, "task was stopped by tasks.stop", &message)
                        .await
                }
            };
            match done {
                Err(error) if error.passes() => return Err(error.into()),
                Err(error) if error.refusal() != Some(Subcode::AlreadyQueued) => {
                    tracing::warn!(task, %error, "cannot put the task back into its queue");
                }
                _ => {}
            }
        }
        Ok(())
    }
}
