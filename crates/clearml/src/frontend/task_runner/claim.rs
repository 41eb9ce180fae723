//! The claim of a task: takes it from its queue, or puts it back.

use super::{LOOK_AGAIN, TaskRunner};
use crate::frontend::requeue::{RequeueStep, requeue_steps};
use crate::frontend::task_state::{ClaimPhase, Event, TaskState};
use crate::frontend::watch::is_stopping;
use crate::server::{Entry, Subcode};

impl TaskRunner {
    pub(super) async fn observe(&mut self, with_queue: bool) -> Option<Event> {
        let (seen, listed) = self.see(with_queue).await;
        Some(Event::Seen { seen, listed })
    }

    pub(super) async fn see(&mut self, with_queue: bool) -> (TaskState, bool) {
        let listed = with_queue && self.is_listed().await;
        let id = self.record.task.clone();
        let found = self
            .context
            .server
            .retry(async |server| server.task(&id).await)
            .await;
        let task = match found {
            Ok(task) => task,
            Err(error) => {
                if error.refusal() != Some(Subcode::NoTask) {
                    tracing::warn!(task = %id, %error, "cannot read the task");
                }
                None
            }
        };
        let seen = TaskState {
            status: task.as_ref().map(|task| task.status),
            stopping: task.as_ref().is_some_and(is_stopping),
        };
        if let Some(task) = task {
            self.task = task;
        }
        (seen, listed)
    }

    async fn is_listed(&self) -> bool {
        let queue = &self.record.queue_id;
        let found = self
            .context
            .server
            .retry(async |server| server.head(queue, usize::from(u16::MAX)).await)
            .await;
        let is_it = |entry: &Entry| entry.task == self.record.task;
        found.is_ok_and(|queue| queue.entries.iter().any(is_it))
    }

    pub(super) async fn pop(&mut self) -> Option<Event> {
        if self.saved != Some(ClaimPhase::Claiming) {
            // Without its record the task could be lost.
            tokio::time::sleep(LOOK_AGAIN).await;
            return None;
        }
        let (queue, task) = (self.record.queue_id.clone(), self.record.task.clone());
        match self.context.server.pop(&queue, &task).await {
            Ok(popped) => match popped.entry {
                Some(entry) if entry.task == task => Some(Event::Popped),
                Some(other) => {
                    let back = self.context.server.add_first(&queue, &other.task).await;
                    let what = "put back a task that was not requested";
                    self.context.try_to(what, &other.task, back).await;
                    Some(Event::NotPopped)
                }
                None => Some(Event::NotPopped),
            },
            Err(error) if error.passes() => {
                tracing::warn!(task, %error, "no answer to the claim of the task; checking its status");
                Some(Event::PopLost)
            }
            Err(error) => {
                tracing::warn!(task, %error, "cannot claim the task");
                Some(Event::NotPopped)
            }
        }
    }

    pub(super) async fn remove(&mut self) -> Option<Event> {
        if self.saved != Some(ClaimPhase::Claiming) {
            tokio::time::sleep(LOOK_AGAIN).await;
            return None;
        }
        let (queue, task) = (self.record.queue_id.clone(), self.record.task.clone());
        match self.context.server.remove(&queue, &task).await {
            Ok(true) => Some(Event::Popped),
            Ok(false) => Some(Event::NotPopped),
            Err(error) if error.passes() => {
                tracing::warn!(task, %error, "no answer to the claim of the task; checking its status");
                Some(Event::PopLost)
            }
            Err(error) => {
                tracing::warn!(task, %error, "cannot claim the task");
                Some(Event::NotPopped)
            }
        }
    }

    pub(super) async fn put_back(&mut self) -> Option<Event> {
        let (queue, task) = (self.record.queue_id.clone(), self.record.task.clone());
        let (seen, listed) = self.see(true).await;
        for step in requeue_steps(seen, listed) {
            let done = self.context.server.retry(async |server| match step {
                RequeueStep::Add => server.add(&queue, &task).await,
                RequeueStep::Reset => server.reset(&task).await,
                RequeueStep::Enqueue => server.enqueue(&queue, &task).await,
                RequeueStep::Front => server.move_to_front(&queue, &task).await,
                RequeueStep::Stop => {
                    let message = format!("Changed by divvy {}", self.record.worker);
                    server
                        .stopped(&task, "task was stopped by tasks.stop", &message)
                        .await
                }
            });
            match done.await {
                Err(error) if error.refusal() == Some(Subcode::AlreadyQueued) => {}
                done => {
                    self.context
                        .try_to("put the task back into its queue", &task, done)
                        .await
                }
            }
        }
        Some(Event::PutBack)
    }
}
