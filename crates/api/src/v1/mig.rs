//! MIG: GPU modes, instances, and placements for more instances.

use serde::{Deserialize, Serialize};

/// GPU mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GpuMode {
    /// Slices of any size, enforced by the limiter.
    Shared,
    /// MIG instances, which the daemon creates and destroys as jobs need them.
    Mig,
    /// Whole GPUs only.
    Exclusive,
    /// Shown, but never allocated.
    Unmanaged,
}

/// Body of `PATCH /v1/gpus/{gpu}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuChange {
    pub mode: GpuMode,
    /// Report the outcome without changing anything.
    #[serde(default)]
    pub dry_run: bool,
}

/// Outcome of a change of GPU mode, or of its dry run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct GpuChanged {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub from: GpuMode,
    pub mode: GpuMode,
    pub dry_run: bool,
    /// Steps of the change in order, as text: `turn MIG mode on`.
    pub steps: Vec<String>,
    /// Blockers, as text: `#12 holds gpu0.25a`. The daemon changes nothing while there is one.
    pub blockers: Vec<String>,
    /// Steps that remain for the administrator, as text: `reset the GPU`.
    #[serde(default)]
    pub remaining_steps: Option<String>,
}

/// A GPU in MIG mode.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Mig {
    /// Number of memory slots. They are numbered from 0; an instance takes adjacent slots.
    pub memory_slices: u8,
    pub compute_slices: u8,
    /// Profiles that the driver offers.
    pub profiles: Vec<MigProfile>,
    /// Instances, ordered by slot.
    pub instances: Vec<MigInstance>,
}

/// A MIG profile: a size of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigProfile {
    /// Name such as `1g.5gb`; the memory in a name is rounded up.
    pub name: String,
    /// Number of the profile in the driver.
    pub id: u32,
    pub memory_bytes: u64,
    pub memory_slices: u8,
    pub compute_slices: u8,
    pub multiprocessors: u32,
    /// Largest number of instances at the same time.
    pub max_instances: u8,
    /// Slots at which an instance can start.
    pub starts: Vec<u8>,
    /// Number of instances that jobs could get now, if nothing else started.
    pub available: u8,
}

/// One MIG instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigInstance {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub profile: String,
    /// First slot of the instance.
    pub start: u8,
    pub memory_slices: u8,
    pub memory_bytes: u64,
    pub state: MigState,
    /// Number of the job that holds it.
    pub job: Option<String>,
    /// UUID of the MIG device, for `CUDA_VISIBLE_DEVICES`. Absent before creation, and for unmanaged instances.
    pub uuid: Option<String>,
}

/// State of a MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MigState {
    /// A job holds it.
    InUse,
    /// Kept for the next job of its size, and destroyed once another job needs its slots.
    Idle,
    /// Not created by Divvy. Divvy leaves it unchanged.
    Unmanaged,
    /// Taken out of use after an error; no job gets it.
    Quarantined,
    /// Being destroyed.
    Destroying,
    /// Being created.
    Creating,
}

/// The MIG instance behind a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigSlice {
    pub profile: String,
    /// First slot of the instance.
    pub start: u8,
    pub memory_slices: u8,
    /// Actual memory in bytes; the profile's name rounds it up.
    pub memory_bytes: u64,
    /// UUID of the MIG device. Absent before creation.
    pub uuid: Option<String>,
}

/// Body of `POST /v1/mig/plan`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MigWanted {
    /// Profiles, one for each wanted instance: `1g.5gb`.
    pub profiles: Vec<String>,
    /// Indices of the GPUs to consider. Empty: any GPU.
    #[serde(default)]
    pub gpus_on: Vec<u32>,
}

/// Placement of one of the wanted instances.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct MigPlanned {
    pub profile: String,
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub start: u8,
    pub memory_slices: u8,
    pub memory_bytes: u64,
    /// An idle instance already exists at this place.
    pub reuses: bool,
    /// Idle instances that the daemon would destroy for it: `2g.10gb@2`.
    pub removes: Vec<String>,
}

/// Body of `POST /v1/mig/gc`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MigGc {
    /// Indices of the GPUs to consider. Empty: all GPUs.
    #[serde(default)]
    pub gpus_on: Vec<u32>,
    /// Report the instances to be destroyed without changing anything.
    #[serde(default)]
    pub dry_run: bool,
}
