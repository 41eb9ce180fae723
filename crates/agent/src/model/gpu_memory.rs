//! The residency of a suspended job's GPU memory, as the journal has it.

use divvy_core::resize::memory::MemoryResidency;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::host::process::Process;

/// What is journaled of a job's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuMemoryState {
    pub memory: MemoryResidency,
    /// Since when it is there.
    pub since: Option<Timestamp>,
    /// Why it could not be offloaded.
    pub because: Option<String>,
    /// Its processes that a checkpoint operation may have locked.
    pub parts: Vec<Process>,
}

impl GpuMemoryState {
    /// Nothing was ever done with it.
    pub fn is_untouched(&self) -> bool {
        *self == Self::default()
    }
}
