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
}
