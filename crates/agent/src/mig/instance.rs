//! One of our instances, as the journal has it.

use std::fmt;

use divvy_core::mig::recover::{self, Stage};
use divvy_core::mig::{MigProfile, MigUuid, Placement};
use divvy_core::{Bytes, GpuUuid, JobId};
use jiff::Timestamp;

/// A place on a GPU where an instance of a profile may lie.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub gpu: GpuUuid,
    pub placement: Placement,
}

impl fmt::Display for Slot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.gpu, self.placement)
    }
}

/// An instance that we made, are making, or are destroying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    pub slot: Slot,
    pub name: MigProfile,
    pub stage: Stage,
    /// Tells it from every other that was in this slot.
    pub generation: u64,
    /// The kernel's id of the boot in which it was made.
    pub boot: String,
    /// Who holds it.
    pub job: Option<JobId>,
    /// Whose program was in it last: a user's, or `team/` for those of a namespace's claims.
    pub user: Option<String>,
    /// Once it is made.
    pub made: Option<Made>,
    /// When it came to its stage, or was let go by its last job.
    pub since: Timestamp,
    /// Why it is in quarantine.
    pub reason: Option<String>,
}

/// What the driver said of an instance once it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The GPU instance's id.
    pub id: u32,
    /// The compute instance's.
    pub compute: u32,
    pub uuid: MigUuid,
    /// In use of it while nobody uses it.
    pub baseline: Bytes,
}

impl Instance {
    /// As recovery knows it.
    pub fn record(&self) -> recover::Record {
        recover::Record {
            placement: self.slot.placement,
            stage: self.stage,
            boot: self.boot.clone(),
            made: self.made.as_ref().map(|made| recover::Made {
                id: made.id,
                uuid: made.uuid.clone(),
            }),
        }
    }

    /// `1g.5gb@3`
    pub fn label(&self) -> String {
        format!("{}@{}", self.name, self.slot.placement.start)
    }
}
