//! MIG state: the daemon's instances, the instances of each GPU, and counts of operations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use divvy_api::v1::GpuChanged;
use divvy_core::mig::recover::InstanceState;
use divvy_core::mig::{Placement, UnallocatedState};
use divvy_core::{GpuUuid, Grant};

use crate::container::driver::GpuDevice;
use crate::controller::request::Reply;
use crate::gpu::mig as instances;
use crate::gpu::mig::GpuMigState;
use crate::gpu::mig::discover::DiscoveredInstance;
use crate::host::clock::Instant;
use crate::model::gpu_mode::RequestedMode;
use crate::model::mig_instance::{ManagedInstance, MigSlot};

/// What the controller knows of MIG.
pub struct MigManager {
    /// The kernel's ID of this boot.
    pub boot: String,
    /// The instances of Divvy, as the journal has them.
    pub instances: BTreeMap<MigSlot, ManagedInstance>,
    /// Slots with a command under way. The job that holds one may end meanwhile; no other job gets the slot before the
    /// report.
    pub busy_slots: BTreeSet<MigSlot>,
    pub gpus: BTreeMap<GpuUuid, MigGpuState>,
    /// The generation of the next instance.
    pub generation: u64,
    /// Why instances are being destroyed, by generation.
    pub destroy_reasons: BTreeMap<u64, DestroyReason>,
    /// Processes in instances where they do not belong, that an event has reported.
    pub reported_processes: BTreeSet<(MigSlot, u32)>,
    pub counts: MigCounts,
}

/// One GPU in MIG mode.
#[derive(Default)]
pub struct MigGpuState {
    /// Instances on it that Divvy did not create, with their sizes.
    pub unmanaged: Vec<(Placement, u8)>,
    /// The last observation during which no command ran.
    pub observed: Vec<DiscoveredInstance>,
    /// Commands without a report.
    pub outstanding: usize,
    /// Observations with an older epoch are out of date.
    pub epoch: u64,
    /// No instance is created before this time: anywhere on the GPU (`None`), or at one placement.
    pub backoff_until: BTreeMap<Option<Placement>, Instant>,
    /// Refusals in a row, because a process has the GPU open, or because an instance could not be checked.
    pub busy_refusals: u32,
    /// When the daemon last tried to destroy a quarantined instance.
    pub last_destroy_attempt: BTreeMap<Placement, Instant>,
    pub trouble: Option<String>,
    pub switch: Option<ModeChange>,
}

/// Why Divvy destroys an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestroyReason {
    /// Another instance needs its place.
    MakeRoom,
    /// A program of another tenant was in it last.
    PreviousTenant,
    /// It is not in its initial state.
    Unclean,
    /// Idle instances are collected.
    Collected,
    /// The GPU switches to another mode.
    Mode,
    /// An earlier daemon left it unfinished, or it was quarantined.
    Leftover,
}

impl DestroyReason {
    /// The reason in words, after "destroyed".
    pub fn describe(self) -> &'static str {
        match self {
            Self::MakeRoom => "to make room",
            Self::PreviousTenant => "because another user's program ran in it",
            Self::Unclean => "because it was not in its initial state",
            Self::Collected => "because it was idle",
            Self::Mode => "to change the mode of the GPU",
            Self::Leftover => "because no job can use it",
        }
    }
}

/// MIG operations since the daemon's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigCounts {
    pub created: OpStats,
    pub reused: OpStats,
    pub destroyed: OpStats,
    /// Destroyed because another instance needed the place.
    pub reclaimed: OpStats,
    pub quarantined: OpStats,
}

/// The number of operations, and their total time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    pub count: u64,
    pub total: Duration,
}

impl OpStats {
    pub fn add(&mut self, took: Duration) {
        self.count += 1;
        self.total += took;
    }
}

impl MigGpuState {
    /// Whether an observation shows the GPU's present state: no command ended since, and none is under way.
    pub fn can_be_compared(&self, mig_state: &GpuMigState) -> bool {
        let is_current = mig_state.epoch.is_some_and(|epoch| epoch >= self.epoch);
        is_current && self.outstanding == 0
    }
}

impl MigManager {
    pub fn new(instances: BTreeMap<MigSlot, ManagedInstance>) -> Self {
        let generations = instances.values().map(|instance| instance.generation);
        Self {
            generation: generations.max().unwrap_or_default() + 1,
            boot: instances::boot(),
            instances,
            busy_slots: BTreeSet::new(),
            gpus: BTreeMap::new(),
            destroy_reasons: BTreeMap::new(),
            reported_processes: BTreeSet::new(),
            counts: MigCounts::default(),
        }
    }

    /// The UUID by which a program sees a grant: its instance's, or the GPU's own. `None` while the instance does not
    /// exist.
    pub fn visible_uuid(&self, grant: &Grant) -> Option<String> {
        match slot(grant) {
            None => Some(grant.gpu.to_string()),
            Some(slot) => {
                let made = self.instances.get(&slot)?.info.as_ref()?;
                Some(made.uuid.to_string())
            }
        }
    }

    /// The device that a container needs for a grant.
    pub fn part(&self, grant: &Grant) -> GpuDevice {
        let made = slot(grant).and_then(|slot| self.instances.get(&slot)?.info.as_ref());
        GpuDevice {
            gpu: grant.gpu.clone(),
            instance: made.map(|made| (made.id, made.compute_id)),
        }
    }

    /// Whether no job holds an instance, and no command is under way for it.
    pub fn is_idle(&self, instance: &ManagedInstance) -> bool {
        instance.job.is_none() && self.standing(instance) == UnallocatedState::Idle
    }

    /// The state of an instance without a job, for the planner.
    pub fn standing(&self, instance: &ManagedInstance) -> UnallocatedState {
        match instance.state {
            InstanceState::Creating => UnallocatedState::Coming,
            InstanceState::Ready if self.busy_slots.contains(&instance.slot) => {
                UnallocatedState::Coming
            }
            InstanceState::Ready => UnallocatedState::Idle,
            InstanceState::Destroying => UnallocatedState::Leaving,
            InstanceState::Quarantined => UnallocatedState::Quarantined,
        }
    }

    pub fn gpu(&mut self, gpu: &GpuUuid) -> &mut MigGpuState {
        self.gpus.entry(gpu.clone()).or_default()
    }

    pub fn instances(&self) -> &BTreeMap<MigSlot, ManagedInstance> {
        &self.instances
    }
}

/// Whether a job's grants are MIG instances. Such a job has no slice in the ledger and no limiter. No job has both
/// kinds.
pub fn is_divided(grants: &[Grant]) -> bool {
    grants.iter().any(|grant| grant.mig.is_some())
}

/// The slot of a grant that is a MIG instance.
pub fn slot(grant: &Grant) -> Option<MigSlot> {
    Some(MigSlot {
        gpu: grant.gpu.clone(),
        placement: grant.mig?.placement,
    })
}

/// A mode change under way.
pub struct ModeChange {
    /// The caller's request; `None` if a restarted daemon finishes an earlier change.
    pub request: Option<(Reply<GpuChanged>, GpuChanged)>,
    pub before: Option<RequestedMode>,
}
