//! What keeps an instance off a GPU in MIG mode: which memory slices it needs, and what lies there.

use crate::mig::{MigProfile, UnallocatedState};
use crate::units::JobId;

/// Why an instance of a profile finds no place on a GPU now. `Display` goes on after the GPU: `3g.20gb needs memory slices
/// 0-3 or 4-7; #11 1g.5gb lies at 1, #12 1g.5gb at 5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub profile: MigProfile,
    /// Memory slices that it covers, and where it may begin.
    pub slices: u8,
    pub starts: Vec<u8>,
    /// What lies where it could, by place; empty where only the kinds of what is there forbid it.
    pub blockers: Vec<Blocker>,
    /// The same instances and this one would fit together, if they lay otherwise.
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

/// Whose an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockerOwner {
    Job(JobId),
    /// Nobody's, and not to be taken.
    Unallocated(UnallocatedState),
}
