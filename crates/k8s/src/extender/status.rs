//! The state of the extender for people: which policy chooses, and why.

use serde::{Deserialize, Serialize};

/// `GET /status`, and the key `status.json` of the ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// `learned` or `best-fit`.
    pub policy: String,
    /// Why it is best fit; absent for the learned table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Requests in the history.
    pub requests: u64,
    /// Different ones.
    pub kinds: usize,
    /// Nodes with GPUs that pods share.
    pub nodes: usize,
    /// Thousandths of GPUs, and those that are free.
    pub gpu_milli: u64,
    pub free_gpu_milli: u64,
    /// Pods that were scored and have not shown up on a node yet.
    pub assumed: usize,
}
