//! MIG instances in the cycle: claimed when a job starts, made by a worker, handed over, let go at the job's end.
//!
//! ```text
//! plan ─► claim ─► journal ─► order ─► worker ─► report ─► journal ─► the job's program
//!                     ▲                            │
//!                     ├── not clean: made anew ────┤
//! end  ─► let go ─► journal: idle                  └─ refused: back into the queue
//! ```
//! A job that waits for its instances is `starting`. What lies on the GPUs besides is compared with the journal by
//! `core::mig::recover` whenever no order is on its way: after a crash that finishes what was begun, and on any other day it sees
//! what others have made and destroyed.
//!
//! ```text
//! claim   who holds which      order  what is journaled and given to the workers
//! report  what became of it    bar    where nothing is made for a time
//! found   what lies there      room   the GPUs as a plan sees them
//! mode    shared, MIG or whole shown  what others are told
//! ```

pub(in crate::controller) mod backoff;
pub(in crate::controller) mod capacity;
pub(in crate::controller) mod claim;
pub(in crate::controller) mod commands;
pub(in crate::controller) mod mode;
pub(in crate::controller) mod reconcile;
pub(in crate::controller) mod report;
pub(in crate::controller) mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use capacity::{overlap, size_in};
use divvy_core::mig::recover::InstanceState;
use divvy_core::mig::{Placement, UnallocatedState};
use divvy_core::{GpuUuid, Grant};

use crate::container::driver::GpuDevice;
use crate::controller::state::GpuState;
use crate::gpu::mig as instances;
use crate::gpu::mig::discover::DiscoveredInstance;
use crate::gpu::mig::{GpuMigState, Workers};
use crate::host::clock::Instant;
use crate::model::mig_instance::{ManagedInstance, MigSlot};
pub use mode::ModeChange;
pub(super) use view::ENFORCEMENT;

/// What the cycle knows of MIG.
pub struct MigManager {
    workers: Workers,
    /// The kernel's id of this boot.
    pub(super) boot: String,
    /// As the journal has them.
    instances: BTreeMap<MigSlot, ManagedInstance>,
    /// Slots with an order under way: whoever holds one may let go of it meanwhile, and nobody else gets it before the report.
    busy_slots: BTreeSet<MigSlot>,
    gpus: BTreeMap<GpuUuid, MigGpuState>,
    /// For the next instance.
    generation: u64,
    /// Why instances are being destroyed, by generation.
    destroy_reasons: BTreeMap<u64, DestroyReason>,
    /// Processes where they do not belong, that were told of.
    reported_processes: BTreeSet<(MigSlot, u32)>,
    pub counts: MigCounts,
}

/// One GPU in MIG mode.
#[derive(Default)]
struct MigGpuState {
    /// What lies on it and is not ours, with its size.
    unmanaged: Vec<(Placement, u8)>,
    /// As the last look had it that nothing was changed during.
    observed: Vec<DiscoveredInstance>,
    /// Orders without a report.
    outstanding: usize,
    /// Looks from before it are out of date.
    epoch: u64,
    /// Nothing is made here until then; in all of it, or in one place.
    backoff_until: BTreeMap<Option<Placement>, Instant>,
    /// How many instances could not be had one after the other because somebody has the GPU open, or because nobody could say
    /// whether they are clean.
    busy_refusals: u32,
    /// When a quarantined instance was tried to be destroyed last.
    last_destroy_attempt: BTreeMap<Placement, Instant>,
    trouble: Option<String>,
    switch: Option<ModeChange>,
}

/// Why an instance of ours is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DestroyReason {
    /// Another needs its place.
    MakeRoom,
    /// Somebody else's program was in it last.
    PreviousTenant,
    /// It is not as it was made.
    Unclean,
    /// Idle instances are to go.
    Collected,
    /// The GPU is to be in another mode.
    Mode,
    /// It was begun, or set aside.
    Leftover,
}

impl DestroyReason {
    /// For people, behind "destroyed".
    fn describe(self) -> &'static str {
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

/// What was done, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigCounts {
    pub created: OpStats,
    pub reused: OpStats,
    pub destroyed: OpStats,
    /// Destroyed because another needed the place.
    pub reclaimed: OpStats,
    pub quarantined: OpStats,
}

/// How often, and how long it took altogether.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    pub count: u64,
    pub total: Duration,
}

impl OpStats {
    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.total += took;
    }
}

impl MigGpuState {
    /// Whether a look shows the GPU as it is now: no order was carried out since, nor is on its way.
    fn can_be_compared(&self, sight: &GpuMigState) -> bool {
        let is_current = sight.epoch.is_some_and(|epoch| epoch >= self.epoch);
        is_current && self.outstanding == 0
    }
}

impl MigManager {
    pub fn new(workers: Workers, instances: BTreeMap<MigSlot, ManagedInstance>) -> Self {
        let generations = instances.values().map(|instance| instance.generation);
        Self {
            generation: generations.max().unwrap_or_default() + 1,
            workers,
            boot: instances::boot(),
            instances,
            busy_slots: BTreeSet::new(),
            gpus: BTreeMap::new(),
            destroy_reasons: BTreeMap::new(),
            reported_processes: BTreeSet::new(),
            counts: MigCounts::default(),
        }
    }

    /// The UUID by which a program sees a grant: its instance's, or the GPU's own. `None` while the instance is not made.
    pub(super) fn visible_uuid(&self, grant: &Grant) -> Option<String> {
        match slot(grant) {
            None => Some(grant.gpu.to_string()),
            Some(slot) => {
                let made = self.instances.get(&slot)?.info.as_ref()?;
                Some(made.uuid.to_string())
            }
        }
    }

    /// What a container has to be given of a grant.
    pub(super) fn part(&self, grant: &Grant) -> GpuDevice {
        let made = slot(grant).and_then(|slot| self.instances.get(&slot)?.info.as_ref());
        GpuDevice {
            gpu: grant.gpu.clone(),
            instance: made.map(|made| (made.id, made.compute_id)),
        }
    }

    /// Whether an instance is nobody's, and nothing is being done to it.
    fn is_idle(&self, instance: &ManagedInstance) -> bool {
        instance.job.is_none() && self.standing(instance) == UnallocatedState::Idle
    }

    /// What an instance of ours that no job holds is to a plan.
    fn standing(&self, instance: &ManagedInstance) -> UnallocatedState {
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

    fn gpu(&mut self, gpu: &GpuUuid) -> &mut MigGpuState {
        self.gpus.entry(gpu.clone()).or_default()
    }

    pub(super) fn instances(&self) -> &BTreeMap<MigSlot, ManagedInstance> {
        &self.instances
    }
}

/// Whether a job's GPUs are MIG instances: it has no slice in the ledger then, and no limiter. Nobody is given both.
pub(super) fn is_divided(grants: &[Grant]) -> bool {
    grants.iter().any(|grant| grant.mig.is_some())
}

/// The slot of a grant that is a MIG instance.
pub(super) fn slot(grant: &Grant) -> Option<MigSlot> {
    Some(MigSlot {
        gpu: grant.gpu.clone(),
        placement: grant.mig?.placement,
    })
}

fn size(gpus: &GpuState, slot: &MigSlot) -> u8 {
    let device = gpus
        .devices
        .iter()
        .find(|device| device.gpu.uuid == slot.gpu);
    let table = device.and_then(crate::gpu::Device::profile_table);
    table.map_or(0, |table| size_in(&table, slot.placement))
}

/// For people.
fn index(gpus: &GpuState, gpu: &GpuUuid) -> u32 {
    let device = gpus.devices.iter().find(|device| device.gpu.uuid == *gpu);
    device.map_or(u32::MAX, |device| device.gpu.index)
}
