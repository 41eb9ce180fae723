//! MIG: how a GPU may be used, what instances it is cut into, where more of them would go.

use serde::{Deserialize, Serialize};

/// How a GPU may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GpuMode {
    /// Slices of any size, held by the limiter.
    Shared,
    /// MIG instances, made and removed as jobs need them.
    Mig,
    /// Whole jobs only.
    Exclusive,
    /// Seen and shown, never given out.
    Unmanaged,
}

/// `PATCH /v1/gpus/{gpu}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuChange {
    pub mode: GpuMode,
    /// Say what would happen and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a change of a GPU's mode did, or would do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GpuChanged {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub from: GpuMode,
    pub mode: GpuMode,
    pub dry_run: bool,
    /// What is done, in order, as text: `turn MIG mode on`.
    pub steps: Vec<String>,
    /// What has to go first, as text: `#12 holds gpu0.25a`. Nothing is changed while there is any.
    pub blockers: Vec<String>,
    /// What is left for a person to do, as text: `reset the GPU`.
    #[serde(default)]
    pub remaining_steps: Option<String>,
}

/// A GPU that is cut into MIG instances.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Mig {
    /// Slots of memory, numbered from 0; an instance takes some of them, side by side.
    pub memory_slices: u8,
    pub compute_slices: u8,
    /// What it can be cut into, as the driver says.
    pub profiles: Vec<MigProfile>,
    /// What it is cut into, by place.
    pub instances: Vec<MigInstance>,
}

/// A size that an instance can have.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigProfile {
    /// `1g.5gb`; the memory in a name is rounded up.
    pub name: String,
    /// The driver's number of it.
    pub id: u32,
    pub memory_bytes: u64,
    pub memory_slices: u8,
    pub compute_slices: u8,
    pub multiprocessors: u32,
    /// How many there can be at once.
    pub max_instances: u8,
    /// The slots that it can begin at.
    pub starts: Vec<u8>,
    /// How many jobs could have one now, if nothing else started.
    pub available: u8,
}

/// One instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigInstance {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub profile: String,
    /// The slot that it begins at.
    pub start: u8,
    pub memory_slices: u8,
    pub memory_bytes: u64,
    pub state: MigState,
    /// The job that holds it.
    pub job: Option<String>,
    /// Of the MIG device: what `CUDA_VISIBLE_DEVICES` takes. Absent before it is made and where it is not Divvy's.
    pub uuid: Option<String>,
}

/// What an instance is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MigState {
    /// A job holds it.
    InUse,
    /// Kept for the next job of its size; removed once its slots are needed for another.
    Idle,
    /// Somebody else made it. It is left alone.
    Unmanaged,
    /// Something went wrong with it, and it is given to nobody.
    Quarantined,
    /// It is being removed.
    Destroying,
    /// It is being made.
    Creating,
}

/// The instance that a slice is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigSlice {
    pub profile: String,
    /// The slot that it begins at.
    pub start: u8,
    pub memory_slices: u8,
    /// What it really has; the name says it rounded up.
    pub memory_bytes: u64,
    /// Of the MIG device; absent before it is made.
    pub uuid: Option<String>,
}

/// `POST /v1/mig/plan`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MigWanted {
    /// `1g.5gb`, one for each instance.
    pub profiles: Vec<String>,
    /// Only GPUs with these indices; empty means any.
    #[serde(default)]
    pub gpus_on: Vec<u32>,
}

/// Where one of the wanted instances would go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigPlanned {
    pub profile: String,
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub start: u8,
    pub memory_slices: u8,
    pub memory_bytes: u64,
    /// An idle instance is there already.
    pub reuses: bool,
    /// Idle instances that would be removed for it: `2g.10gb@2`.
    pub removes: Vec<String>,
}

/// `POST /v1/mig/gc`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MigGc {
    /// Only GPUs with these indices; empty means all.
    #[serde(default)]
    pub gpus_on: Vec<u32>,
    /// Say what would be removed and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}
