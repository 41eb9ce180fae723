//! The residency of a suspended or parked job's GPU memory, as the journal has it.

use divvy_core::Bytes;
use divvy_core::resize::memory::MemoryResidency;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::host::process::Process;

/// Why a job's memory is offloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OffloadKind {
    /// The job is suspended: its processes stand still.
    #[default]
    Suspended,
    /// The job is parked: its processes run on, and their calls of the driver wait.
    Parked,
}

/// What is journaled of a job's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuMemoryState {
    pub memory: MemoryResidency,
    /// Of memory that is on its GPUs: of the last attempt to offload it.
    pub kind: OffloadKind,
    /// What a parked job takes of the budget of host memory.
    pub bytes: Bytes,
    /// Since when it is there.
    pub since: Option<Timestamp>,
    /// Why it could not be offloaded.
    pub because: Option<String>,
    /// Its processes that a checkpoint operation may have locked.
    pub parts: Vec<Process>,
}

/// What earlier parks of a job have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ParkHistory {
    /// Parks in a row that failed.
    pub failures: u8,
    /// Wakes after which it launched nothing.
    pub vain_wakes: u8,
}

impl ParkHistory {
    /// The time after which the job counts as idle, in seconds: wakes without a launch double it.
    pub fn idle_time(self, after_s: u64) -> u64 {
        after_s.saturating_mul(1 << self.vain_wakes.min(63))
    }

    /// It was never parked in vain.
    pub fn is_untouched(&self) -> bool {
        *self == Self::default()
    }
}

impl GpuMemoryState {
    /// Whether the job is parked, or is being parked or woken.
    pub fn is_parked(&self) -> bool {
        self.kind == OffloadKind::Parked && self.memory != MemoryResidency::Kept
    }

    /// Whether the memory of a parked job leaves its GPUs, and no call has asked for it yet.
    pub fn is_being_parked(&self) -> bool {
        self.is_parked() && self.memory == MemoryResidency::Leaving
    }

    /// Nothing was ever done with it.
    pub fn is_untouched(&self) -> bool {
        *self == Self::default()
    }
}
