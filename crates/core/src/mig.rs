//! MIG geometry: profiles and layouts of multi-instance GPUs, placement of instances, occupancy and recovery.
//!
//! A GPU in MIG mode has memory slices in a row. An instance of a profile covers a run of them, at a start that the
//! profile lists. Instances never overlap, and an instance cannot be moved. So their order of creation leaves gaps, and
//! a profile can be refused although enough slices are free on the same GPU.
//!
//! ```text
//!  name · table            what a GPU offers, from the driver or from data/mig.toml
//!       │
//!    layout                one GPU's slices: what is legal, how much is still possible
//!       │
//!  choose · place · batch · repack
//!  (which   (which GPU   (several    (would it fit in
//!   profile) and start)   at once)    another layout?)
//!
//!    occupancy · obstacle  which job holds which instance, and which instances are in the way
//!    recover               records and instances after a crash
//! ```
//!
//! Every decision follows from the table. The code knows no particular model, and reads only the attribute and the
//! nominal size from a profile's name. The agent creates and destroys instances.
//!
//! May use: `units`.
//! Used by: `model`, `placement`, `plan`, `explain`.

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
mod shortage;
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

/// A profile at a start: with the GPU's UUID, the key of a slot. An instance that is destroyed and made again in the
/// same slot has the same UUID, so a UUID names a slot, and not its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The profile's id: what the driver returns as `info.id`, and takes when it creates.
    pub profile: u32,
    /// The first memory slice.
    pub start: u8,
}

impl fmt::Display for Placement {
    /// `19@3`, for logs; users see the profile's name.
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

/// The state of an instance that no job holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnallocatedState {
    /// Ours and empty: the next job of its profile takes it over, or it is destroyed when its slices are needed.
    Idle,
    /// Created outside Divvy; never touched.
    Foreign,
    /// Ours and inconsistent: no job gets it, and it is destroyed once it is empty.
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

/// The MIG inventory of a GPU: its profile table, and the instances that no job holds. Grants list the instances of
/// jobs.
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

    /// Placements of the unavailable instances, in order: no job gets them, and they cannot be destroyed now.
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
