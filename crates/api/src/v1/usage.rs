//! Usage: allocated and used GPU time.

use serde::{Deserialize, Serialize};

/// Answer of `GET /v1/usage`. GPU time is in milliseconds of a whole GPU: a quarter of a GPU for four seconds is
/// 1000. `allocated` is `used` minus `loaned`, plus `idle`, plus `unknown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Day of the row in the caller's time zone, `2026-11-26`. Absent if rows are not grouped by day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// Absent, like all of these fields, if rows are not grouped by it.
    pub user: Option<String>,
    /// Absent also for jobs without a project.
    pub project: Option<String>,
    pub queue: Option<String>,
    pub gpu_index: Option<u32>,
    pub gpu_uuid: Option<String>,
    pub job: Option<String>,
    /// Name of the job.
    pub name: Option<String>,
    /// Namespace of the claims in the other scheduler (Kubernetes). Absent also for jobs that are no claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Number of different jobs.
    pub jobs: u64,
    /// GPU time that was allocated.
    pub allocated_gpu_ms: u64,
    /// GPU time in which kernels of the jobs ran, from the driver's samples.
    pub used_gpu_ms: u64,
    /// Used GPU time beyond the jobs' shares.
    pub loaned_gpu_ms: u64,
    /// Allocated GPU time that was measured and not used.
    pub idle_gpu_ms: u64,
    /// Allocated GPU time that was not measured.
    pub unknown_gpu_ms: u64,
    /// Allocated GPU time while the jobs were suspended.
    pub suspended_gpu_ms: u64,
    /// Allocated memory, in MiB times seconds.
    pub memory_mib_s: u64,
    /// GPU time of the whole machine in the row's period: its day, or the period of the call, each up to now. It counts
    /// the GPUs that the daemon manages now, and GPUs that jobs held in the period of the call.
    #[serde(default)]
    pub capacity_gpu_ms: u64,
}
