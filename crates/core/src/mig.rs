//! Multi-instance GPUs: which instances may lie where, and where the next one goes.
//!
//! A GPU in MIG mode has memory slices in a row. An instance of a profile covers a run of them, at a start that the profile
//! lists; instances never overlap, and none of them is ever moved. So the order in which they come and go leaves holes, and a
//! wanted profile can be refused though its slices are free elsewhere on the same GPU.
//!
//! ```text
//!  name · table            what a GPU offers, from the driver or from data/mig.toml
//!       │
//!    layout                one GPU's slices: what is legal, how much is still possible
//!       │
//!  choose · place · batch · repack
//!  (which   (which GPU   (several    (would it fit if the
//!   profile) and start)   at once)    instances lay otherwise?)
//! ```
//!
//! Everything is decided from the table; nothing is known here of any one model, and nothing is read out of a profile's name
//! but its attribute and its nominal size. What is done with an answer, creating and destroying, is the agent's.

mod batch;
mod choose;
mod known;
mod layout;
mod name;
mod obstacle;
pub(crate) mod occupancy;
mod place;
pub mod recover;
mod repack;
mod table;
mod uuid;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use batch::{PackedInstance, Packing, pack};
pub use choose::{InstanceRequirement, InstanceSize, smallest, sufficient};
pub use known::{Model, models};
pub use layout::{Layout, sets};
pub use name::{Attribute, MigProfile, MigProfileError};
pub use obstacle::{Blocker, BlockerOwner, Obstacle};
pub use place::{Candidate, MigGpu, PlacementPolicy, Rank, all_placements, place};
pub use repack::{Repack, fits, pool_fits};
pub use table::{Profile, ProfileTable, ProfileTableError};
pub use uuid::{MigUuid, MigUuidError};

/// A profile at a start: with the GPU's UUID, the key of a slot. An instance that is destroyed and made again in the same slot
/// has the same UUID, so a UUID names a slot too, and not who holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The profile's id: what the driver returns as `info.id`, and takes when it creates.
    pub profile: u32,
    /// The first memory slice.
    pub start: u8,
}

impl fmt::Display for Placement {
    /// `19@3`: for logs; people are shown the profile's name.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}@{}", self.profile, self.start)
    }
}

/// An instance that no job holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnallocatedInstance {
    pub placement: Placement,
    pub standing: UnallocatedState,
}

/// How an instance stands that no job holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnallocatedState {
    /// Ours, empty, and kept: handed to the next job that wants its profile, destroyed when its slices are needed.
    Idle,
    /// Somebody else made it; never touched.
    Foreign,
    /// Ours, but something is not as it should be: given to nobody, and destroyed once nobody is in the way.
    Quarantined,
    /// Being destroyed.
    Leaving,
    /// Being created.
    Coming,
}

impl UnallocatedState {
    /// The word for it in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Foreign => "foreign",
            Self::Quarantined => "quarantined",
            Self::Leaving => "leaving",
            Self::Coming => "coming",
        }
    }
}

impl fmt::Display for UnallocatedState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A GPU in MIG mode: what it offers, and the instances on it that no job holds. Those that jobs hold are known from the
/// grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInventory {
    pub table: Arc<ProfileTable>,
    pub instances: Vec<UnallocatedInstance>,
}

impl MigInventory {
    /// Placements of the idle instances, in order.
    pub fn idle(&self) -> Vec<Placement> {
        self.placements(|standing| standing == UnallocatedState::Idle)
    }

    /// Placements of the instances that are neither a job's nor idle, in order: they cannot be given away or destroyed.
    pub fn fixed(&self) -> Vec<Placement> {
        self.placements(|standing| standing != UnallocatedState::Idle)
    }

    fn placements(&self, wanted: impl Fn(UnallocatedState) -> bool) -> Vec<Placement> {
        let mut placements: Vec<Placement> = self
            .instances
            .iter()
            .filter(|instance| wanted(instance.standing))
            .map(|instance| instance.placement)
            .collect();
        placements.sort_unstable();
        placements
    }
}
