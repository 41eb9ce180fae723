//! Request and response bodies of the API calls, as far as the front end reads and writes them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A queue of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct QueueFacts {
    pub id: String,
    pub name: String,
    pub tags: Vec<String>,
    /// Its tasks, the head first, as many as were asked for.
    pub entries: Vec<Entry>,
}

/// A task in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Entry {
    pub task: String,
}

/// The answer of `queues.get_next_task`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Popped {
    pub entry: Option<Entry>,
    pub task_info: Option<TaskInfo>,
}

/// Whose a popped task is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TaskInfo {
    pub company: Option<String>,
    pub user: Option<String>,
}

/// A task, as much of it as was asked for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Task {
    pub id: String,
    pub name: String,
    pub status: Status,
    pub status_message: Option<String>,
    pub container: Option<Container>,
    pub user: Option<String>,
    pub project: Option<String>,
    pub runtime: Option<Map<String, Value>>,
    /// Everything that came, for templates that name other fields.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Task {
    /// Id of the user that made the last change.
    pub fn last_changed_by(&self) -> Option<&str> {
        self.rest.get("last_changed_by")?.as_str()
    }

    /// The worker that runs it, or ran it last.
    pub fn last_worker(&self) -> Option<&str> {
        self.rest.get("last_worker")?.as_str()
    }

    /// Id of the queue that it was put into last.
    pub fn queue(&self) -> Option<&str> {
        self.rest.get("execution")?["queue"].as_str()
    }
}

/// A task's status.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Created,
    Queued,
    InProgress,
    Stopped,
    Published,
    Publishing,
    Closed,
    Failed,
    Completed,
    #[default]
    #[serde(other)]
    Unknown,
}

/// The container that a task asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Container {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// One string of shell words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup_shell_script: Option<String>,
}

/// A line or more of a task's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// `log`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub level: &'static str,
    pub task: String,
    pub worker: String,
    pub msg: String,
    /// Milliseconds since 1970.
    pub timestamp: i64,
}

/// `workers.status_report`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatusReport {
    pub worker: String,
    /// Milliseconds since 1970.
    pub timestamp: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    pub machine_stats: Stats,
    pub is_daemon: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}

/// Figures of a machine: one number, or one for each GPU or processor, by the server's names. Memory is in MiB, rates are in MiB
/// a second, as the stock agent sends them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Stats(pub BTreeMap<&'static str, Value>);

/// A worker of the server's list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Worker {
    pub id: String,
    /// The task that it runs. A slot has one from its first report on.
    pub task: Option<WorkerTask>,
    /// Its last sign of life, as the server writes times: `2026-11-29T17:20:01.123000+00:00`.
    pub last_activity_time: Option<String>,
    /// How long after that its entry ends, seconds.
    pub register_timeout: Option<u64>,
}

/// The task of a worker on the server's list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WorkerTask {
    pub id: String,
    pub name: Option<String>,
}
