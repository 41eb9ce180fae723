//! Out-of-memory reports: refusals of GPU memory, as the limiter recorded them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Amount, JobState};

/// Answer of `GET /v1/jobs/{id}/oom`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Oom {
    pub job: String,
    pub name: String,
    pub state: JobState,
    /// Number of refusals at the limit. Not every refusal has a record.
    pub denials: u64,
    /// Records, oldest first: the first ones and the last ones.
    pub records: Vec<OomRecord>,
    /// A request with head room: twice the largest limit that a refused call needs, or whole GPUs. Absent if the limit
    /// was not the cause, and if no GPU here has what the call needs.
    #[serde(default)]
    pub suggested: Option<Amount>,
}

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OomRecord {
    /// Number of the record, counted from 0 over all records of the job, including those not kept.
    pub number: u64,
    pub at: Timestamp,
    /// Process ID in the process's own PID namespace.
    pub pid: u32,
    /// Name of the program as the kernel reports it (at most 15 bytes).
    pub program: String,
    /// Function that the program called: `cuMemAlloc_v2`.
    pub api: String,
    pub cause: OomCause,
    /// UUID of the GPU. Absent for a GPU outside the slice.
    pub gpu_uuid: Option<String>,
    pub gpu_index: Option<u32>,
    /// Requested bytes as the limit counts them. 0 if unknown.
    pub asked_bytes: u64,
    /// The limit at that moment, and the slice's use, in bytes.
    pub limit_bytes: u64,
    pub used_bytes: u64,
    /// Part of `used_bytes` that belongs to this process or to no process.
    pub own_bytes: u64,
    pub unaccounted_bytes: u64,
    /// Free and total memory of the GPU according to the driver, in bytes. Absent if the limiter did not ask.
    pub gpu_free_bytes: Option<u64>,
    pub gpu_total_bytes: Option<u64>,
    /// Smallest limit under which this call would have passed, in bytes. The whole need is unknown: the program may request
    /// more after it. Absent if the limit was not the cause.
    pub sufficient_limit_bytes: Option<u64>,
    /// Refusals of the same process since the previous record, which have no record of their own.
    pub skipped: u64,
    /// The process's allocations on the GPU: their number, and the sizes with the most bytes.
    pub allocations: u64,
    pub largest: Vec<OomAllocation>,
    /// The slice's other processes on the GPU: their number, and those with the most bytes.
    pub peer_count: u64,
    pub peers: Vec<OomPeer>,
}

/// Cause of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OomCause {
    /// The slice was full: the allocation would have exceeded its limit.
    SliceFull,
    /// The slice had room, but the GPU was full.
    GpuFull,
    /// The GPU does not belong to the job.
    NotInSlice,
    /// The driver lacked another resource; the call requested no counted memory.
    Other,
}

/// Allocations of one size and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OomAllocation {
    /// Size of each in bytes.
    pub bytes: u64,
    pub count: u32,
    pub kind: OomKind,
}

/// Kind of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OomKind {
    Linear,
    Managed,
    /// A memory pool with all its allocations.
    Pool,
    /// Allocated by handle (`cuMemCreate`).
    Handle,
    Array,
    Graph,
    /// Imported from another process.
    Imported,
    Context,
    Other,
}

/// Another process of the slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OomPeer {
    pub pid: u32,
    pub used_bytes: u64,
}
