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
