//! The start of a claimed task: marks it as started on the server, and gives the job its command line.

use std::collections::BTreeMap;

use divvy_api::client::WaitFor;
use divvy_api::v1::{Confirm, Confirmation, ErrorCode, Job, JobState, Slice};
use serde_json::{Value, json};

use super::TaskRunner;
use super::job::{WAIT, end_of};
use crate::frontend::queue::NOTE;
use crate::frontend::task_state::{Event, JobEnd};
use crate::slot::{TaskSlot, share_text, slot_id};

/// Runtime properties of a task that name its run: the machine, as the stock agent writes it, and the job there.
pub(super) const HOST_PROPERTY: &str = "_exec_agent_hostname";
pub(super) const JOB_PROPERTY: &str = "_divvy_job";

impl TaskRunner {
    pub(super) async fn start(&mut self) -> Option<Event> {
        let (id, worker) = (self.record.task.clone(), self.record.worker.clone());
        let message = format!("pulled by {worker}");
        let started = self
            .context
            .server
            .retry(async |server| server.started(&id, &message).await)
            .await;
        if let Err(error) = started {
            tracing::warn!(task = %id, %error, "cannot mark the task as started");
            return Some(Event::StartRefused);
        }
        let line = format!(
            "task {id} pulled from {} by worker {worker}\n",
            self.record.queue_id
        );
        self.say("INFO", &line).await;
        if let Some(job) = self.fresh_job().await {
            if let Some(note) = job.labels.get(NOTE) {
                self.say("WARNING", &format!("divvy: {note}\n")).await;
            }
            let mut runtime = self.task.runtime.clone().unwrap_or_default();
            runtime.insert(HOST_PROPERTY.into(), json!(self.context.host));
            runtime.extend(facts(&job));
            let set = self
                .context
                .server
                .retry(async |server| server.set_runtime(&id, &runtime).await)
                .await;
            self.marked = set.is_ok();
            self.context
                .try_to("write the task's runtime properties", &id, set)
                .await;
        }
        Some(Event::Started)
    }

    /// The job as the agent has it now.
    async fn fresh_job(&self) -> Option<Job> {
        let id = &self.record.job;
        self.context
            .agent(async |client| client.job(id).await)
            .await
            .ok()
    }

    pub(super) async fn confirm(&mut self) -> Option<Event> {
        let Some(job) = self.fresh_job().await else {
            return Some(Event::NoSlice);
        };
        match (job.state, job.confirmation) {
            (JobState::Starting, Some(Confirmation::Awaiting)) => {}
            (JobState::Starting | JobState::Running, _) => {
                self.confirmed = Some(job.attempt);
                return Some(Event::Confirmed);
            }
            _ => return Some(self.no_slice(job).await),
        }
        let slot = self.slot(&job);
        if slot.worker != self.record.worker {
            let old = std::mem::replace(&mut self.record.worker, slot.worker.clone());
            let gone = self
                .context
                .server
                .retry(async |server| server.unregister(&old).await)
                .await;
            self.context
                .try_to("unregister a worker", &slot.worker, gone)
                .await;
            self.saved = None;
            self.save();
        }
        let launch = match self.context.runner.launch(&self.task, &slot) {
            Ok(launch) => launch,
            Err(error) => {
                self.trouble = error.to_string();
                return Some(Event::Unfit);
            }
        };
        self.say("INFO", &launch.lines.concat()).await;
        if let Some(container) = &launch.write_back {
            let id = &self.record.task;
            let set = self
                .context
                .server
                .retry(async |server| server.set_container(id, container).await)
                .await;
            self.context
                .try_to("write the task's container", id, set)
                .await;
        }
        let added = match &launch.container {
            Some(_) => {
                let id = &self.record.job;
                let args = self
                    .context
                    .agent(async |client| client.docker_args(id).await)
                    .await;
                args.map(|args| args.flags).unwrap_or_default()
            }
            None => Vec::new(),
        };
        self.say("INFO", &launch.executing(&added)).await;
        let confirm = Confirm {
            attempt: Some(job.attempt),
            command: Some(launch.command),
            container: launch.container,
            env: launch.env,
            labels: BTreeMap::new(),
        };
        let id = &self.record.job;
        match self
            .context
            .agent(async |client| client.confirm(id, &confirm).await)
            .await
        {
            Ok(_) => {
                self.confirmed = Some(job.attempt);
                Some(Event::Confirmed)
            }
            Err(error) if matches!(error.code, ErrorCode::Conflict | ErrorCode::NotFound) => {
                tracing::warn!(task = %self.record.task, %error, "the task has lost its slice");
                match self.fresh_job().await {
                    Some(job) => Some(self.no_slice(job).await),
                    None => Some(Event::NoSlice),
                }
            }
            Err(error) => {
                self.trouble = error.to_string();
                Some(Event::Unfit)
            }
        }
    }

    /// A job that cannot be confirmed has lost its slice, and its task goes back; but a cancelled one ends its task.
    async fn no_slice(&mut self, job: Job) -> Event {
        // A job that is being cancelled has no end yet, and looks like one that lost its slice.
        let job = match job.state {
            JobState::Stopping => {
                let id = &self.record.job;
                let ended = self
                    .context
                    .agent(async |client| client.wait(id, WaitFor::Ended, WAIT).await);
                ended.await.unwrap_or(job)
            }
            _ => job,
        };
        match end_of(&job) {
            JobEnd::Cancelled => {
                self.trouble = job.end_detail.clone().unwrap_or_default();
                Event::JobEnded(JobEnd::Cancelled)
            }
            _ => Event::NoSlice,
        }
    }

    fn slot(&self, job: &Job) -> TaskSlot {
        TaskSlot {
            worker: slot_id(
                &self.context.settings.worker_name,
                &self.context.mode,
                &job.slices,
            ),
            parent: self.context.daemon.clone(),
            queue_id: self.record.queue_id.clone(),
            queue_name: self.record.queue_name.clone(),
            job: job.id.clone(),
            slices: job.slices.clone(),
        }
    }
}

/// The properties of its slot on the task's page.
fn facts(job: &Job) -> impl Iterator<Item = (String, Value)> {
    let list =
        |of: &dyn Fn(&Slice) -> String| job.slices.iter().map(of).collect::<Vec<_>>().join(",");
    [
        (JOB_PROPERTY, json!(job.id)),
        (
            "_divvy_gpu",
            json!(list(&|slice| slice.gpu_index.to_string())),
        ),
        (
            "_divvy_gpu_fraction",
            json!(list(&|slice| share_text(slice.share))),
        ),
        (
            "_divvy_gpu_memory_limit_bytes",
            json!(list(&|slice| slice.memory_limit_bytes.to_string())),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
}
