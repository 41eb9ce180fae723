//! GPUs and what is cut from them.

use serde::{Deserialize, Serialize};

use super::{ComputeTime, Mig, MigSlice};

/// One GPU of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Gpu {
    pub uuid: String,
    pub index: u32,
    pub model: String,
    /// `shared`, `mig`, `exclusive` or `unmanaged`.
    pub mode: String,
    pub memory_total_bytes: u64,
    /// Total less what the driver reserves.
    pub memory_usable_bytes: u64,
    /// Promised to slices.
    pub memory_allocated_bytes: u64,
    /// In use now, by the driver's account.
    pub memory_used_bytes: u64,
    /// Held by processes that belong to no slice.
    pub memory_unmanaged_bytes: u64,
    /// Thousandths promised to slices.
    pub share_allocated: u16,
    /// Percent of time a kernel was running, by the driver's account.
    pub utilization_percent: Option<u32>,
    /// Degrees of its die; absent where the driver does not say.
    #[serde(default)]
    pub temperature_celsius: Option<u32>,
    /// What one process costs before its first allocation, as measured here.
    pub context_overhead_bytes: u64,
    pub slices: Vec<GpuSlice>,
    /// Process ids that use the GPU and belong to no slice.
    pub unmanaged_pids: Vec<u32>,
    /// What holds memory limits here: `interposer` or `mig`.
    pub enforcement: String,
    /// Whether the driver says how much each process holds. Where it does not, limits rest on the slices' own accounts alone.
    #[serde(default)]
    pub process_memory_known: bool,
    /// Errors of the slices' accounts, added up without their signs; absent where none can be compared.
    #[serde(default)]
    pub memory_mismatch_bytes: Option<u64>,
    /// The largest error of one account here since the daemon started.
    #[serde(default)]
    pub memory_mismatch_max_bytes: u64,
    /// Process ids that belong to a job and hold memory here past the limiter.
    #[serde(default)]
    pub bypass_pids: Vec<u32>,
    /// Present while it is cut into MIG instances.
    #[serde(default)]
    pub mig: Option<Mig>,
    /// What keeps it from being given out as it was told to be: a reset that is to come, instances that cannot be read.
    #[serde(default)]
    pub problem: Option<String>,
    /// Present while it does not answer; its mode is `unmanaged` then, since it is given out no more.
    #[serde(default)]
    pub lost: Option<GpuLost>,
}

/// What became of a GPU that does not answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GpuLost {
    /// The mode that it has again once it answers.
    pub mode: String,
    /// It has fallen off the bus or needs a reset: what was on it is lost. Otherwise it may answer again as it was.
    pub for_good: bool,
}

/// A slice on a GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GpuSlice {
    pub job: String,
    pub label: String,
    pub memory_limit_bytes: u64,
    pub memory_used_bytes: u64,
    pub share: u16,
    /// As in the job's slice.
    #[serde(default)]
    pub memory_driver_bytes: Option<u64>,
    #[serde(default)]
    pub memory_mismatch_bytes: Option<i64>,
    /// As in the job.
    #[serde(default)]
    pub compute_time: Option<ComputeTime>,
    /// What holds the limit: `interposer` or `mig`.
    #[serde(default)]
    pub enforcement: String,
    #[serde(default)]
    pub mig: Option<MigSlice>,
    /// The journal does not have the job: the slice stays reserved until the job's processes have ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}
