//! Queues, in the order in which the daemon serves them.

use serde::{Deserialize, Serialize};

use super::Amount;

/// One queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Queue {
    pub name: String,
    /// Position in that order, from 1.
    pub priority: u32,
    /// Amount of each of its jobs. Absent if each job requests its own.
    pub amount: Option<Amount>,
    pub waiting: u32,
    pub running: u32,
    /// Number of the first pending job.
    pub head: Option<String>,
    /// Reason why the first job waits.
    pub reason: Option<String>,
}
