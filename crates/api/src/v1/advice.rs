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
    /// The most that a run needed at least, in bytes: a program that was refused memory may have requested more later.
    pub memory_at_least_bytes: u64,
    /// Recommended memory on each GPU, in bytes. Absent if no run without a refusal needed `memory_at_least_bytes`.
    pub memory_bytes: Option<u64>,
    /// The recommendation as an amount. Absent without one, and if no GPU here has that much memory.
    pub amount: Option<Amount>,
    /// Command of the newest run.
    pub command: Vec<String>,
}
