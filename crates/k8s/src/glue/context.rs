//! The shared context of the glue: the server, the cluster, and the configuration.

use std::time::Duration;

use divvy_clearml::container::{self, Setup};
use divvy_clearml::frontend::log::events;
use divvy_clearml::server::{Server, now_ms};
use divvy_clearml::{Settings, secret::Secret};
use serde_json::Value;

use super::objects::Objects;
use super::values::{Queue, Values};

pub struct GlueContext {
    pub server: Server,
    pub objects: Objects,
    pub settings: Settings,
    pub setup: Setup,
    pub values: Values,
    /// The manifest that lies under every template.
    pub manifest: Value,
    /// The configuration as tasks get it.
    pub config: String,
    pub token: Option<Secret>,
    /// The glue's own worker id.
    pub worker: String,
    /// In the order they are served.
    pub queues: Vec<ServedQueue>,
    pub poll: Duration,
}

/// A queue that is served, and its id on the server.
#[derive(Clone, Debug)]
pub struct ServedQueue {
    pub id: String,
    pub queue: Queue,
}

impl GlueContext {
    /// The worker that a task's own agent registers as, as under the stock glue.
    pub fn child(&self, task: &str) -> String {
        format!("{}:{task}", self.worker)
    }

    pub fn served(&self, queue_id: &str) -> Option<&ServedQueue> {
        self.queues.iter().find(|served| served.id == queue_id)
    }

    /// A line for a task's log. One that cannot be sent is said here.
    pub async fn append_to_log(&self, task: &str, level: &'static str, text: &str) {
        let events = events(task, &self.worker, level, text, now_ms());
        if let Err(error) = self.server.add_events(&events).await {
            tracing::warn!(task, %error, "cannot send a line of the task's log; it is lost");
        }
    }

    /// The script of a task's container: the stock agent's own.
    pub fn script(&self, task: &str, own: Option<&str>) -> String {
        let asked = container::ScriptSpec {
            task,
            setup: own,
            ssh_copy: None,
            ssh_inside: "",
            git_copy: None,
            agent: &self.setup.script.agent,
            visible: "all",
            // A task that is no longer queued, as its user has stopped it, is not run.
            flags: "--full-monitoring --require-queue",
        };
        container::script(&self.setup.script, &asked) + "\n"
    }
}
