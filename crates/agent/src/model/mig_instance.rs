//! The record of one of our MIG instances, as the journal has it.

use std::fmt;

use divvy_core::mig::recover::{self, InstanceState};
use divvy_core::mig::{MigProfile, MigUuid, Placement};
use divvy_core::{Bytes, GpuUuid, JobId};
use jiff::Timestamp;

/// A place on a GPU where an instance of a profile may lie.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigSlot {
    pub gpu: GpuUuid,
    pub placement: Placement,
}

impl fmt::Display for MigSlot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.gpu, self.placement)
    }
}

/// An instance that we made, are making, or are destroying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedInstance {
    pub slot: MigSlot,
    pub profile: MigProfile,
    pub state: InstanceState,
    /// Tells it from every other that was in this slot.
    pub generation: u64,
    /// The kernel's id of the boot in which it was made.
    pub boot: String,
    /// The job that holds it.
    pub job: Option<JobId>,
    /// The owner of the last program in it: a user, or `team/` for a namespace's claims.
    pub last_user: Option<String>,
    /// Once it is made.
    pub info: Option<InstanceInfo>,
    /// When it came to its stage, or was let go by its last job.
    pub since: Timestamp,
    /// Why it is in quarantine.
    pub reason: Option<String>,
}

/// What the driver said of an instance once it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceInfo {
    /// The GPU instance's id.
    pub id: u32,
    /// The compute instance's.
    pub compute_id: u32,
    pub uuid: MigUuid,
    /// Its memory in use while no process uses it.
    pub baseline: Bytes,
}

impl ManagedInstance {
    /// As recovery knows it.
    pub fn record(&self) -> recover::InstanceRecord {
        recover::InstanceRecord {
            placement: self.slot.placement,
            state: self.state,
            boot: self.boot.clone(),
            created: self.info.as_ref().map(|made| recover::CreatedInstance {
                id: made.id,
                uuid: made.uuid.clone(),
            }),
        }
    }

    /// `1g.5gb@3`
    pub fn label(&self) -> String {
        format!("{}@{}", self.profile, self.slot.placement.start)
    }
}
