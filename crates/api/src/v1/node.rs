//! The node and its daemon.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Answer of `GET /v1/node`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Node {
    pub hostname: String,
    /// Version of the daemon, with the commit of the build where it is known: `0.1.0+1a2b3c4`.
    pub version: String,
    /// Versions of the protocols between the parts of Divvy: `api`, `journal`, `ledger`, `record`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub protocols: BTreeMap<String, u32>,
    /// Process ID of the daemon.
    pub pid: u32,
    pub driver_version: String,
    /// Model and number of the simulated GPUs: `a100-80gb:3`. Absent for real GPUs.
    pub simulated: Option<String>,
    /// Order of the queues: `strict` or `fairness`.
    pub order: String,
    pub backfill: bool,
    /// Whether jobs over quota give way to jobs within quota: `on` or `off`. Empty if the daemon does not report it.
    #[serde(default)]
    pub preemption: String,
    pub home: String,
    /// Whether the daemon serves every user of the machine.
    #[serde(default)]
    pub system: bool,
    /// Policy for bypasses of the limiter: `warn`, `deny` or `kill`.
    #[serde(default)]
    pub on_bypass: String,
    /// Whether only claims get GPUs, and no jobs of users below the role admin.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub claims_only: bool,
    /// Differences that the daemon found when it started: GPUs that are missing, new or have another number since the start
    /// before, and queues whose jobs no GPU can serve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start_warnings: Vec<String>,
    /// Users and groups that the configuration names and the user database does not have, with line and column. Only for
    /// admins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_warnings: Vec<String>,
    /// Why the daemon starts no job now: its disk is full, or no GPU can be observed. Absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<String>,
    /// Why the system's daemon does not listen on its TCP address; it tries again every few seconds. Absent while it listens,
    /// or has no such address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen_error: Option<String>,
    /// Front end that takes jobs from another scheduler. Absent if there is none.
    #[serde(default)]
    pub front_end: Option<FrontEnd>,
    /// Image for jobs that name none. Absent if such jobs run as plain processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_image: Option<String>,
    /// Path of the configuration file that the daemon has read. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_file: Option<String>,
    /// Completeness of the journal when the daemon started.
    #[serde(default)]
    pub journal: Option<Journal>,
    /// The caller of this call, as the daemon sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<NodeCaller>,
}

/// The caller of a call: its user, and its role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct NodeCaller {
    /// Name of the user, as in the user's jobs.
    pub user: String,
    /// Role: `viewer`, `user`, `operator` or `admin`.
    pub role: String,
}

/// Jobs that the daemon found at its start besides the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Journal {
    /// Number of jobs that the daemon recovered from their records because the journal lacked them or their state.
    pub recovered: u32,
    /// Running jobs that the journal lacks and whose records are too incomplete to recover them.
    pub unknown: Vec<UnknownJob>,
}

/// A copy of the journal, written or restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct JournalFile {
    pub path: String,
    /// Number of jobs in it that have not ended.
    pub jobs_living: u64,
    pub jobs_ended: u64,
    /// Path to which a restore moved the previous journal.
    #[serde(default)]
    pub replaced: Option<String>,
}

/// A running job that the journal lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UnknownJob {
    pub job: String,
    /// Process IDs, at most 16.
    pub pids: Vec<u32>,
    /// Indices of the GPUs that stay reserved for the job.
    pub gpus: Vec<u32>,
}

/// A front end in the daemon's process, which takes jobs from another scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct FrontEnd {
    /// `clearml`.
    pub kind: String,
    /// Name of this worker there: `node1:dgpu0-2`.
    pub worker: String,
    /// Address of that scheduler.
    pub server: String,
    /// Queues that it serves there, in order. Empty: the queue that the server names.
    pub queues: Vec<String>,
}
