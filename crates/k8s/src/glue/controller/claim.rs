//! The claim of tasks from the front of their queues; the record is written first.

use std::collections::BTreeMap;
use std::rc::Rc;

use divvy_clearml::server::{QueueFacts, Status};

use super::{GlueController, OperationError};
use crate::glue::context::ServedQueue;
use crate::glue::objects::TaskObjects;
use crate::glue::pod_status::{PodState, pod_status};
use crate::glue::record::{Logged, Record};
use crate::glue::task_state::ClaimPhase;

impl GlueController {
    /// Claims a queue's first tasks while there is room for their pods; `true`: there is a new one.
    pub(super) async fn claim(
        &mut self,
        served: &ServedQueue,
        head: &QueueFacts,
        found: &BTreeMap<String, TaskObjects>,
    ) -> Result<bool, OperationError> {
        if !self.gate.is_open(&head.tags, jiff::Zoned::now().datetime()) {
            return Ok(false);
        }
        let lives = |found: &&TaskObjects| {
            let pod = found.pod.as_ref().map(|pod| pod_status(pod).state);
            found.record.queue_id == served.id && !matches!(pod, Some(PodState::Ended(_)))
        };
        let living = found.values().filter(lives).count();
        let most = served
            .queue
            .max_pods
            .map_or(usize::MAX, |most| most as usize);
        let mut is_more = false;
        for entry in head.entries.iter().take(most.saturating_sub(living)) {
            if found.contains_key(&entry.task) || !self.pop(served, &entry.task).await? {
                break;
            }
            is_more = true;
        }
        Ok(is_more)
    }

    /// Takes a task from the front of its queue; `true`: it is ours.
    async fn pop(&mut self, served: &ServedQueue, id: &str) -> Result<bool, OperationError> {
        let context = Rc::clone(&self.context);
        let was = context.server.task(id).await?.map(|task| task.status);
        let record = Record {
            task: id.to_owned(),
            queue_id: served.id.clone(),
            queue_name: served.queue.name.clone(),
            mark: ClaimPhase::Claiming,
            was_stopped: was == Some(Status::Stopped),
            logged: Logged::Nothing,
        };
        if !context.objects.make_record(&record).await? {
            // Another glue of this name may have made it since the look; the next look shows that.
            let before = self.conflicts.insert(served.id.clone(), id.to_owned());
            if before.as_deref() == Some(id) {
                tracing::warn!(
                    task = id,
                    "cannot take the task: a Secret with its name exists and is not Divvy's; its queue is blocked until you delete the Secret"
                );
            }
            return Ok(false);
        }
        self.conflicts.remove(&served.id);
        let popped = match context.server.pop(&served.id, id).await {
            Ok(popped) => popped,
            // The record stays: whether it was claimed shows.
            Err(error) if error.passes() => return Err(error.into()),
            Err(error) => {
                context.objects.remove_record(id).await?;
                return Err(error.into());
            }
        };
        match popped.entry {
            Some(entry) if entry.task == id => {
                let record = Record {
                    mark: ClaimPhase::Ours,
                    ..record
                };
                context.objects.write_mark(&record).await?;
                Ok(true)
            }
            other => {
                if let Some(other) = other {
                    let back = context.server.add_first(&served.id, &other.task).await;
                    if let Err(error) = back {
                        tracing::error!(task = other.task, %error, "the server returned another task than requested, and it cannot be put back into its queue");
                    }
                }
                context.objects.remove_record(id).await?;
                Ok(false)
            }
        }
    }
}
