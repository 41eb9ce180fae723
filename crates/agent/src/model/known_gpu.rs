//! A known GPU: its UUID, its index for people since the last start, and what it was when it was last listed.

use divvy_core::{Gpu, GpuUuid};
use jiff::Timestamp;

use crate::model::out_of_service::OutOfService;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownGpu {
    pub uuid: GpuUuid,
    /// Of no other known GPU.
    pub number: u32,
    /// What it was when it was last listed, with nothing on it. `None` for one that only the journal of an earlier
    /// version names.
    pub record: Option<Gpu>,
    /// Where it is on the PCI bus.
    pub bus: String,
    /// The daemon's `--gpus` gave it to the daemon.
    pub is_served: bool,
    /// The driver listed it at the last start.
    pub is_listed: bool,
    pub seen: Timestamp,
    /// Why it gets no jobs, while it is out of service.
    pub out: Option<OutOfService>,
    /// The lasting fault with which an administrator has returned it to service.
    pub accepted_fault: Option<String>,
}

impl KnownGpu {
    /// `GPU 2 (NVIDIA L4, GPU-…)`.
    pub fn describe(&self) -> String {
        let model = self
            .record
            .as_ref()
            .map_or("unknown model", |gpu| &gpu.model);
        format!("GPU {} ({model}, {})", self.number, self.uuid)
    }
}
