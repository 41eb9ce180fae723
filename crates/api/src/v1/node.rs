//! The node and its agent.

use serde::{Deserialize, Serialize};

/// `GET /v1/node`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Node {
    pub hostname: String,
    pub version: String,
    /// Process id of the agent.
    pub pid: u32,
    pub driver_version: String,
    /// Set when the GPUs are simulated: `a100-80gb:3`.
    pub simulated: Option<String>,
    /// `strict` or `fairness`.
    pub order: String,
    pub backfill: bool,
    pub home: String,
    /// It serves every user of the machine.
    #[serde(default)]
    pub system: bool,
    /// What is done about a job that holds GPU memory past the limiter: `warn`, `deny` or `kill`.
    #[serde(default)]
    pub on_bypass: String,
    /// What brings jobs from elsewhere; absent where nothing does.
    #[serde(default)]
    pub front_end: Option<FrontEnd>,
    /// The image that a job runs in which names none; absent where such a job is a plain process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_image: Option<String>,
    /// How far the journal was complete when the daemon started.
    #[serde(default)]
    pub journal: Option<Journal>,
}

/// What the daemon found besides its journal when it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Journal {
    /// Jobs that the journal did not have, or not as they were, and that the daemon recovered from their records.
    pub recovered: u32,
    /// Jobs that run, that the journal does not have, and whose records do not tell enough to recover them.
    pub unknown: Vec<UnknownJob>,
}

/// A copy of the journal that was written, or one that was restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JournalFile {
    pub path: String,
    /// Jobs in it that have not ended.
    pub jobs_living: u64,
    pub jobs_ended: u64,
    /// Where a restore has put the journal that was there.
    #[serde(default)]
    pub replaced: Option<String>,
}

/// A job that runs and that the journal does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UnknownJob {
    pub job: String,
    /// Process ids, at most 16 of them.
    pub pids: Vec<u32>,
    /// Indices of the GPUs that stay reserved for it.
    pub gpus: Vec<u32>,
}

/// A part of the agent's process that brings jobs from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct FrontEnd {
    /// `clearml`.
    pub kind: String,
    /// What it is called there: `node1:dgpu0-2`.
    pub worker: String,
    /// Where that is.
    pub server: String,
    /// Queues that it serves there, the first served first; none: the one that the server says.
    pub queues: Vec<String>,
}
