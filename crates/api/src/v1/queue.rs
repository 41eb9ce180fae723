//! Queues, in the order they are served.

use serde::{Deserialize, Serialize};

use super::Amount;

/// One queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Queue {
    pub name: String,
    /// From 1, served first.
    pub priority: u32,
    /// What each of its jobs gets; absent where each job asks for itself.
    pub amount: Option<Amount>,
    pub waiting: u32,
    pub running: u32,
    /// The job at its head, by id.
    pub head: Option<String>,
    /// Why the head waits.
    pub reason: Option<String>,
}
