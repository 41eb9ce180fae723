//! What size earlier runs suggest.

use serde::{Deserialize, Serialize};

use super::Amount;

/// One program's runs, and what follows from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Advice {
    /// The name of the newest run.
    pub name: String,
    /// What ran, without its options: `python train.py`. Runs of the same are compared.
    pub program: String,
    /// How many GPUs each run had; the figures are for each of them.
    pub gpus: u32,
    /// How many ended runs it is from, the newest 50 at most, and how many of them were refused memory.
    pub runs: u32,
    pub denied_runs: u32,
    /// The newest run's limit.
    pub memory_limit_bytes: u64,
    /// The middle one of the runs' peaks, and the highest.
    pub memory_peak_median_bytes: u64,
    pub memory_peak_bytes: u64,
    /// What to ask for on each GPU.
    pub memory_bytes: u64,
    /// The same as it is asked for; absent where no GPU here has that much.
    pub amount: Option<Amount>,
    /// How many of the runs would have been refused memory with that.
    pub would_deny_runs: u32,
    /// The newest run's command.
    pub command: Vec<String>,
}
