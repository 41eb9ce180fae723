//! What the server is told of a task: why it waits, where it runs, how it ended, that it is back.

use divvy_clearml::frontend::back::{Back, way};
use divvy_clearml::frontend::life::Seen;
use divvy_clearml::server::{Status, Subcode, Task};

use super::{Desk, Trouble};
use crate::glue::life::{Facts, Word};
use crate::glue::record::{Record, name};

impl Desk {
    /// What the task's page shows of its pod.
    pub(super) async fn show(&self, task: &Task) {
        let objects = &self.hand.objects;
        let mut runtime = task.runtime.clone().unwrap_or_default();
        let pod = format!("{}/{}", objects.namespace, name(&task.id));
        runtime.insert("_divvy_pod".to_owned(), pod.into());
        if let Err(error) = self.hand.server.set_runtime(&task.id, &runtime).await {
            tracing::warn!(task = task.id, %error, "cannot write the task's runtime properties");
        }
    }

    /// Says why a task waits, once.
    pub(super) async fn wait(&mut self, task: &str, why: &str) -> Result<(), Trouble> {
        let Some(memory) = self.tasks.get_mut(task) else {
            return Ok(());
        };
        if memory.said.as_deref() == Some(why) {
            return Ok(());
        }
        self.hand
            .server
            .say_status(task, &format!("waiting in Kubernetes: {why}"))
            .await?;
        memory.said = Some(why.to_owned());
        self.hand
            .say(task, "INFO", &format!("waiting in Kubernetes: {why}\n"))
            .await;
        Ok(())
    }

    pub(super) async fn tell(
        &mut self,
        id: &str,
        facts: &Facts,
        word: &Word,
    ) -> Result<bool, Trouble> {
        let hand = &self.hand;
        let message = format!("Changed by divvy {}", hand.worker);
        let line = match word {
            Word::Completed => "Process completed successfully".to_owned(),
            Word::Stopped => "Process aborted by user".to_owned(),
            Word::Failed(why) => format!("Process failed: {why}"),
        };
        hand.say(id, "DEBUG", &format!("{line}\n")).await;
        let told = match word {
            Word::Completed => {
                hand.server
                    .completed(id, "worker execution exit code 0", &message)
                    .await
            }
            Word::Stopped => {
                hand.server
                    .stopped(id, "task was stopped by tasks.stop", &message)
                    .await
            }
            Word::Failed(why) => {
                let reason = format!("worker execution: {why}");
                match facts.status {
                    // From `queued` there is no way to `failed` but this.
                    Some(Status::Queued) => {
                        hand.server.failed_unstarted(id, &reason, &message).await
                    }
                    _ => hand.server.failed(id, &reason, &message).await,
                }
            }
        };
        match told {
            // Somebody else was faster: the next look shows what they said.
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

    pub(super) async fn put_back(&self, record: &Record, facts: &Facts) -> Result<(), Trouble> {
        let (server, queue, task) = (&self.hand.server, &record.queue_id, &record.task);
        // The queue may be one that is not served, and was not looked at.
        let head = server.head(queue, usize::from(u16::MAX)).await;
        let listed = head.is_ok_and(|facts| facts.entries.iter().any(|entry| entry.task == *task));
        let seen = Seen {
            status: facts.status,
            stopping: facts.stopping,
        };
        for step in way(seen, listed) {
            let done = match step {
                Back::Add => server.add(queue, task).await,
                Back::Reset => server.reset(task).await,
                Back::Enqueue => server.enqueue(queue, task).await,
                Back::Front => server.move_to_front(queue, task).await,
                Back::Stop => {
                    let message = format!("Changed by divvy {}", self.hand.worker);
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
