//! What a job's refusals of GPU memory looked like, in the words of the processes that met them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::JobState;

/// `GET /v1/jobs/{id}/oom`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Oom {
    pub job: String,
    pub name: String,
    pub state: JobState,
    /// How often its limit refused memory. Not every refusal is recorded.
    pub denials: u64,
    /// Oldest first: the first ones and the last ones.
    pub records: Vec<OomRecord>,
}

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OomRecord {
    /// Counted from 0 over all records of the job, also those that are not kept.
    pub number: u64,
    pub at: Timestamp,
    /// As seen in the process's own PID namespace.
    pub pid: u32,
    /// The program's name, as the kernel has it (at most 15 bytes).
    pub program: String,
    /// The function that was called: `cuMemAlloc_v2`.
    pub api: String,
    pub cause: OomCause,
    /// Absent for a GPU that is not in the slice.
    pub gpu_uuid: Option<String>,
    pub gpu_index: Option<u32>,
    /// As the limit would have counted it; 0 where it is not known.
    pub asked_bytes: u64,
    /// The limit at that moment, and what the slice used of it.
    pub limit_bytes: u64,
    pub used_bytes: u64,
    /// Part of `used_bytes`: this process's, and what no process was charged.
    pub own_bytes: u64,
    pub unaccounted_bytes: u64,
    /// What the driver said of the GPU itself, where it was asked.
    pub gpu_free_bytes: Option<u64>,
    pub gpu_total_bytes: Option<u64>,
    /// The smallest limit under which it would have passed; absent where the limit was not what was short.
    pub sufficient_limit_bytes: Option<u64>,
    /// Refusals of the same process since the record before, which have none of their own.
    pub skipped: u64,
    /// The process's allocations on the GPU: how many, and those that come to the most bytes.
    pub allocations: u64,
    pub largest: Vec<OomAllocation>,
    /// The slice's other processes on the GPU: how many, and those that use the most.
    pub peer_count: u64,
    pub peers: Vec<OomPeer>,
}

/// Why memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OomCause {
    /// It would have taken the slice beyond its limit.
    SliceFull,
    /// The slice had room, and the GPU had none.
    GpuFull,
    /// The GPU is not one of the job's.
    NotInSlice,
    /// The driver had none of something else: the call asked for no memory that is counted.
    Other,
}

/// Allocations of one size and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OomAllocation {
    /// Bytes of each.
    pub bytes: u64,
    pub count: u32,
    pub kind: OomKind,
}

/// What kind of call made an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OomKind {
    Linear,
    Managed,
    /// A memory pool with all that is allocated from it.
    Pool,
    /// By handle (`cuMemCreate`).
    Handle,
    Array,
    Graph,
    /// Of another process.
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
