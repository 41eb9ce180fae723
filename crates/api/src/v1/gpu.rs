//! GPUs and what is cut from them.

use serde::{Deserialize, Serialize};

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
    /// What one process costs before its first allocation, as measured here.
    pub context_overhead_bytes: u64,
    pub slices: Vec<GpuSlice>,
    /// Process ids that use the GPU and belong to no slice.
    pub unmanaged_pids: Vec<u32>,
    /// What holds memory limits here: `interposer`.
    pub enforcement: String,
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
}
