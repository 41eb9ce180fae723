//! The obstacle to a MIG instance: the memory slices that it needs, and the instances in the way.

use crate::mig::{MigProfile, UnallocatedState};
use crate::units::JobId;

/// Why a profile has no free placement on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub profile: MigProfile,
    /// Memory slices that it covers, and its possible starts.
    pub slices: u8,
    pub starts: Vec<u8>,
    /// The instances in its placements, in order of start; empty where only the profiles present forbid it.
    pub blockers: Vec<Blocker>,
    /// The present instances and this one would fit in another layout.
    pub is_fragmentation: bool,
}

/// An instance in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    pub who: BlockerOwner,
    /// `1g.5gb`.
    pub profile: String,
    pub start: u8,
    pub slices: u8,
}

/// The owner of an instance in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockerOwner {
    Job(JobId),
    /// No job's, and unavailable.
    Unallocated(UnallocatedState),
}
