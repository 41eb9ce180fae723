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

mod bar;
mod claim;
mod found;
mod mode;
mod order;
mod report;
mod room;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use divvy_core::mig::recover::Stage;
use divvy_core::mig::{Placement, Standing};
use divvy_core::{GpuUuid, Grant};

use super::Cycle;
use crate::clock::Instant;
use crate::container::driver::Part;
use crate::mig::sight::Found;
use crate::mig::{self as instances, Instance, Sight, Slot, Workers};
pub use mode::Switch;
use room::{overlap, size_in};
pub(super) use shown::ENFORCEMENT;

/// What the cycle knows of MIG.
pub struct Migs {
    workers: Workers,
    /// The kernel's id of this boot.
    pub(super) boot: String,
    /// As the journal has them.
    instances: BTreeMap<Slot, Instance>,
    /// Slots with an order under way: whoever holds one may let go of it meanwhile, and nobody else gets it before the report.
    busy: BTreeSet<Slot>,
    gpus: BTreeMap<GpuUuid, OfGpu>,
    /// For the next instance.
    generation: u64,
    /// Why instances are being destroyed, by generation.
    leaving: BTreeMap<u64, Why>,
    /// Processes where they do not belong, that were told of.
    told: BTreeSet<(Slot, u32)>,
    pub counts: Counts,
}

/// One GPU in MIG mode.
#[derive(Default)]
struct OfGpu {
    /// What lies on it and is not ours, with its size.
    foreign: Vec<(Placement, u8)>,
    /// As the last look had it that nothing was changed during.
    found: Vec<Found>,
    /// Orders without a report.
    outstanding: usize,
    /// Looks from before it are out of date.
    epoch: u64,
    /// Nothing is made here until then; in all of it, or in one place.
    barred: BTreeMap<Option<Placement>, Instant>,
    /// How many instances could not be had one after the other because somebody has the GPU open, or because nobody could say
    /// whether they are clean.
    in_use: u32,
    /// When a quarantined instance was tried to be destroyed last.
    tried: BTreeMap<Placement, Instant>,
    trouble: Option<String>,
    switch: Option<Switch>,
}

/// Why an instance of ours is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Another needs its place.
    Room,
    /// Somebody else's program was in it last.
    Tenant,
    /// It is not as it was made.
    Unclean,
    /// Idle instances are to go.
    Collected,
    /// The GPU is to be in another mode.
    Mode,
    /// It was begun, or set aside.
    Remains,
}

impl Why {
    /// For people, behind "destroyed".
    fn words(self) -> &'static str {
        match self {
            Self::Room => "to make room",
            Self::Tenant => "because another user's program ran in it",
            Self::Unclean => "because it was not in its initial state",
            Self::Collected => "because it was idle",
            Self::Mode => "to change the mode of the GPU",
            Self::Remains => "because no job can use it",
        }
    }
}

/// What was done, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub created: Done,
    pub reused: Done,
    pub destroyed: Done,
    /// Destroyed because another needed the place.
    pub reclaimed: Done,
    pub quarantined: Done,
}

/// How often, and how long it took altogether.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub times: u64,
    pub took: Duration,
}

impl Done {
    fn add(&mut self, took: Duration) {
        self.times += 1;
        self.took += took;
    }
}

impl OfGpu {
    /// Whether a look shows the GPU as it is now: no order was carried out since, nor is on its way.
    fn can_be_compared(&self, sight: &Sight) -> bool {
        let is_current = sight.epoch.is_some_and(|epoch| epoch >= self.epoch);
        is_current && self.outstanding == 0
    }
}

impl Migs {
    pub fn new(workers: Workers, instances: BTreeMap<Slot, Instance>) -> Self {
        let generations = instances.values().map(|instance| instance.generation);
        Self {
            generation: generations.max().unwrap_or_default() + 1,
            workers,
            boot: instances::boot(),
            instances,
            busy: BTreeSet::new(),
            gpus: BTreeMap::new(),
            leaving: BTreeMap::new(),
            told: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// The UUID by which a program sees a grant: its instance's, or the GPU's own. `None` while the instance is not made.
    pub(super) fn visible_as(&self, grant: &Grant) -> Option<String> {
        match slot(grant) {
            None => Some(grant.gpu.to_string()),
            Some(slot) => {
                let made = self.instances.get(&slot)?.made.as_ref()?;
                Some(made.uuid.to_string())
            }
        }
    }

    /// What a container has to be given of a grant.
    pub(super) fn part(&self, grant: &Grant) -> Part {
        let made = slot(grant).and_then(|slot| self.instances.get(&slot)?.made.as_ref());
        Part {
            gpu: grant.gpu.clone(),
            instance: made.map(|made| (made.id, made.compute)),
        }
    }

    /// Whether an instance is nobody's, and nothing is being done to it.
    fn is_idle(&self, instance: &Instance) -> bool {
        instance.job.is_none() && self.standing(instance) == Standing::Idle
    }

    /// What an instance of ours that no job holds is to a plan.
    fn standing(&self, instance: &Instance) -> Standing {
        match instance.stage {
            Stage::Creating => Standing::Coming,
            Stage::Ready if self.busy.contains(&instance.slot) => Standing::Coming,
            Stage::Ready => Standing::Idle,
            Stage::Destroying => Standing::Leaving,
            Stage::Quarantined => Standing::Quarantined,
        }
    }

    fn gpu(&mut self, gpu: &GpuUuid) -> &mut OfGpu {
        self.gpus.entry(gpu.clone()).or_default()
    }

    pub(super) fn instances(&self) -> &BTreeMap<Slot, Instance> {
        &self.instances
    }
}

/// Whether a job's GPUs are MIG instances: it has no slice in the ledger then, and no limiter. Nobody is given both.
pub(super) fn is_divided(grants: &[Grant]) -> bool {
    grants.iter().any(|grant| grant.mig.is_some())
}

/// The slot of a grant that is a MIG instance.
pub(super) fn slot(grant: &Grant) -> Option<Slot> {
    Some(Slot {
        gpu: grant.gpu.clone(),
        placement: grant.mig?.placement,
    })
}

impl Cycle {
    fn size(&self, slot: &Slot) -> u8 {
        let device = self
            .devices
            .iter()
            .find(|device| device.gpu.uuid == slot.gpu);
        let table = device.and_then(crate::gpu::Device::table);
        table.map_or(0, |table| size_in(&table, slot.placement))
    }

    /// For people.
    fn index(&self, gpu: &GpuUuid) -> u32 {
        let device = self.devices.iter().find(|device| device.gpu.uuid == *gpu);
        device.map_or(u32::MAX, |device| device.gpu.index)
    }
}
