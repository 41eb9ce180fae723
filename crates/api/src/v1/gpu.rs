//! GPUs, and the slices on them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{ComputeTime, Mig, MigSlice};

/// One GPU of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Gpu {
    pub uuid: String,
    pub index: u32,
    pub model: String,
    /// GPU mode: `shared`, `mig`, `exclusive` or `unmanaged`.
    pub mode: String,
    pub memory_total_bytes: u64,
    /// Total memory minus the driver's reserve, in bytes.
    pub memory_usable_bytes: u64,
    /// Memory allocated to slices, in bytes.
    pub memory_allocated_bytes: u64,
    /// Memory in use now, according to the driver, in bytes.
    pub memory_used_bytes: u64,
    /// Memory in use that belongs to no slice of any daemon, in bytes.
    pub memory_unmanaged_bytes: u64,
    /// The part of it that the driver lists for no process, in bytes.
    #[serde(default)]
    pub memory_unlisted_bytes: u64,
    /// The job that may hold that part. Absent if no process of a job on this GPU has such descriptors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_unlisted_holder: Option<UnlistedHolder>,
    /// Share allocated to slices, in thousandths.
    pub share_allocated: u16,
    /// Percentage of time in which a kernel was running, according to the driver.
    pub utilization_percent: Option<u32>,
    /// Temperature of the die in degrees Celsius. Absent if the driver does not report it.
    #[serde(default)]
    pub temperature_celsius: Option<u32>,
    /// Measured GPU memory of one process before its first allocation, in bytes.
    pub context_overhead_bytes: u64,
    pub slices: Vec<GpuSlice>,
    /// IDs of processes that use the GPU and belong to no slice.
    pub unmanaged_pids: Vec<u32>,
    /// Enforcement of memory limits on this GPU: `interposer` (the limiter), `driver` (its own limit, with the limiter on
    /// top) or `mig`.
    pub enforcement: String,
    /// Why the driver's own limit is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement_reason: Option<String>,
    /// Whether the driver reports the memory of each process. If not, limits rely on the slices' ledgers alone.
    #[serde(default)]
    pub process_memory_known: bool,
    /// Sum of the absolute mismatches between the driver and the slices' ledgers, in bytes. Absent if none can be
    /// compared.
    #[serde(default)]
    pub memory_mismatch_bytes: Option<u64>,
    /// Largest mismatch of one ledger on this GPU since the daemon started, in bytes.
    #[serde(default)]
    pub memory_mismatch_max_bytes: u64,
    /// IDs of processes of jobs that hold memory here which the limiter did not count.
    #[serde(default)]
    pub bypass_pids: Vec<u32>,
    /// Present while the GPU is in MIG mode.
    #[serde(default)]
    pub mig: Option<Mig>,
    /// Problem that keeps the GPU from its configured use: a pending reset, or instances that cannot be read.
    #[serde(default)]
    pub problem: Option<String>,
    /// Present while the GPU does not respond. Its mode is then `unmanaged`, and the daemon places nothing on it.
    #[serde(default)]
    pub lost: Option<GpuLost>,
    /// Present while the GPU is out of service. Its mode is then `unmanaged`: running jobs continue, and no job starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_service: Option<OutOfService>,
    /// Parts of the GPU that other daemons of this machine hold. This daemon does not allocate them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_elsewhere: Vec<GpuHeldElsewhere>,
    /// Power draw in watts. Absent if the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<u32>,
    /// The GPU is powered down. The daemon leaves it asleep, and the figures are the last known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
    /// Processes on this GPU that belong to no slice, the largest first; at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<GpuProcess>,
    /// The largest job that would get room on this GPU now. Absent if no job would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<GpuAvailable>,
}

/// A process of a job that may hold memory which the driver lists for no process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct UnlistedHolder {
    pub job: String,
    pub pid: u32,
    /// Number of its open descriptors that can hold GPU memory. Their sizes are unknown.
    pub descriptors: u64,
    /// Memory of the GPU that the driver lists for no process, in bytes.
    pub memory_bytes: u64,
}

/// A process on a GPU that belongs to no slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GpuProcess {
    pub pid: u32,
    /// Absent if the process has ended, or belongs to another machine's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Name of the program, as the kernel shows it to all users (`comm`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// GPU memory in bytes. Absent if the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The largest job that would get room on a GPU: a part of it by share, or a slice by memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GpuAvailable {
    /// Largest `-g`, in thousandths of the GPU; 0 if only a request by memory fits.
    pub share: u16,
    /// Largest `--gpu-memory`, in bytes; 0 if only a request by share fits.
    pub memory_bytes: u64,
}

/// Part of a GPU that another daemon of this machine holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GpuHeldElsewhere {
    /// The holder: `ana's daemon`, `ana's run`, `the system's daemon`.
    pub holder: String,
    /// Share of the GPU, in thousandths.
    pub share: u16,
    pub memory_bytes: u64,
}

/// State of a GPU that does not respond.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GpuLost {
    /// Mode that the GPU returns to once it responds.
    pub mode: String,
    /// The GPU fell off the bus or needs a reset, so that its memory is lost. Otherwise it may respond again
    /// unchanged.
    pub for_good: bool,
}

/// Why a GPU is out of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct OutOfService {
    /// User that took it out of service. Absent if the daemon did, because the GPU has a fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    pub since: Timestamp,
    /// When it returns by itself. Absent if nothing is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    pub reason: String,
    /// Mode that the GPU returns to.
    pub mode: String,
}

/// Body of `POST /v1/gpus/drain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Indices or UUIDs; all GPUs if it is empty.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// Shown with each job that waits for these GPUs.
    pub reason: String,
    /// When the GPUs return to service by themselves.
    #[serde(default)]
    pub until: Option<Timestamp>,
}

/// Body of `POST /v1/gpus/undrain`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Undrain {
    /// Indices or UUIDs; all GPUs if it is empty.
    #[serde(default)]
    pub gpus: Vec<String>,
}

/// A slice on a GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GpuSlice {
    pub job: String,
    /// User of the job. Empty if the journal lacks the job.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
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
    /// Enforcement of the limit: `interposer`, `driver` or `mig`.
    #[serde(default)]
    pub enforcement: String,
    #[serde(default)]
    pub mig: Option<MigSlice>,
    /// The journal lacks the job: the slice stays reserved until the job's processes have ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}
