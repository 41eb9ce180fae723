//! History: what GPUs, jobs, queues, users and projects held and used, over time.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Steps of the stored history, each with the time that the daemon keeps it, in seconds.
pub const STEPS: [(u32, u32); 3] = [(1, 600), (10, 6 * 3600), (60, 7 * 86_400)];

/// Answer of `GET /v1/history`: one subject, one row of figures a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct History {
    /// The subject: `node`, `gpu:0`, `job:7`, `queue:default`, `user:ana` or `project:vision`.
    pub of: String,
    /// Seconds between two points: 1, 10 or 60.
    pub step_s: u32,
    /// Time of the first point, a multiple of the step.
    pub from: Timestamp,
    pub figures: Vec<HistoryFigure>,
}

/// One figure over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct HistoryFigure {
    /// Name with its unit: `memory_used_bytes`, `memory_limit_bytes`, `share`, `share_used`, `utilization_percent`,
    /// `power_watts`, `temperature_celsius`, `running`, `waiting`. Shares are thousandths of one GPU.
    pub name: String,
    /// One value a step: the mean of the step. `null` where the daemon measured nothing, or was down.
    pub values: Vec<Option<f64>>,
}
