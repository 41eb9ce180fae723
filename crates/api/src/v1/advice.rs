//! Advice: the amount to request, from earlier runs.

use serde::{Deserialize, Serialize};

use super::Amount;

/// Runs of one program, and the advice that follows from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Advice {
    /// Name of the newest run.
    pub name: String,
    /// The program without its options: `python train.py`. Runs of the same program are compared.
    pub program: String,
    /// Number of GPUs of each run; the figures are for each GPU.
    pub gpus: u32,
    /// Number of ended runs considered, at most the newest 50, and the number of runs in which the limiter refused
    /// memory.
    pub runs: u32,
    pub denied_runs: u32,
    /// Memory limit of the newest run, in bytes.
    pub memory_limit_bytes: u64,
    /// Median of the runs' memory peaks, and the highest peak, in bytes.
    pub memory_peak_median_bytes: u64,
    pub memory_peak_bytes: u64,
    /// Recommended memory on each GPU, in bytes.
    pub memory_bytes: u64,
    /// The recommendation as an amount. Absent if no GPU here has that much memory.
    pub amount: Option<Amount>,
    /// Number of the runs in which this limit would have refused memory.
    pub would_deny_runs: u32,
    /// Command of the newest run.
    pub command: Vec<String>,
}
