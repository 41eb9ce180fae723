//! An observation: the driver's words about all GPUs of the node at one moment.

use divvy_core::{Bytes, GpuUuid};

use super::health::{DriverHealth, GpuXid};
use super::mig::GpuMigState;
use crate::model::usage::meter::UtilisationSample;

/// What the driver told about all GPUs of the node, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    pub gpus: Vec<ObservedGpu>,
    pub troubles: Vec<FaultyGpu>,
    /// The driver's error reports since the observation before: at most [`MAX_XIDS`](super::health::MAX_XIDS), the rest comes with the next.
    pub xids: Vec<GpuXid>,
}

/// A GPU that does not answer, or not sensibly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultyGpu {
    pub index: u32,
    /// Which it was when it answered last.
    pub uuid: Option<GpuUuid>,
    /// It has fallen off the bus or needs a reset: what was on it is lost.
    pub is_lost: bool,
    pub message: String,
}

/// One GPU, in the driver's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedGpu {
    pub uuid: GpuUuid,
    pub index: u32,
    pub model: String,
    /// Where it is on the PCI bus: `00000000:07:00.0`.
    pub bus: String,
    pub total: Bytes,
    pub reserved: Bytes,
    pub used: Bytes,
    pub utilization_percent: Option<u32>,
    pub temperature_celsius: Option<u32>,
    /// The driver's samples of its use, where the daemon asked this time and the driver answered.
    pub utilization: Option<UtilisationSample>,
    pub processes: Vec<GpuProcess>,
    /// `None` for a GPU that knows no MIG.
    pub mig: Option<GpuMigState>,
    /// Its errors, as they were at most [`INTERVAL`](super::health::INTERVAL) ago.
    pub health: DriverHealth,
    /// It is powered down: everything else is what it was when it was asked last.
    pub asleep: bool,
}

impl ObservedGpu {
    /// The same GPU, powered down since.
    pub fn fallen_asleep(&self) -> Self {
        Self {
            asleep: true,
            // Nothing was measured since, and nothing runs.
            utilization: None,
            utilization_percent: self.utilization_percent.map(|_| 0),
            ..self.clone()
        }
    }

    /// Its MIG side, while MIG is on.
    pub fn active_mig(&self) -> Option<&GpuMigState> {
        self.mig.as_ref().filter(|mig| mig.mode.current)
    }

    /// Whether it is in MIG mode and its instances were not read: the driver lists their processes with them.
    pub fn hides_processes(&self) -> bool {
        self.active_mig().is_some_and(|mig| mig.epoch.is_none())
    }
}

#[cfg(test)]
impl ObservedGpu {
    /// A GPU of 40 GiB that nothing uses, without MIG.
    pub fn idle(uuid: GpuUuid, index: u32) -> Self {
        Self {
            uuid,
            index,
            model: "A100".to_owned(),
            bus: "00000000:07:00.0".to_owned(),
            total: Bytes::gib(40),
            reserved: Bytes::ZERO,
            used: Bytes::ZERO,
            utilization_percent: None,
            temperature_celsius: None,
            utilization: None,
            processes: Vec::new(),
            mig: None,
            health: DriverHealth::default(),
            asleep: false,
        }
    }
}

/// A process that has a context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    pub pid: u32,
    /// `None` where the driver does not say (NVML's "not available").
    pub used: Option<Bytes>,
}

/// The processes and memory of a GPU alone, for callers between two observations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuOccupancy {
    pub uuid: GpuUuid,
    pub index: u32,
    pub free: Bytes,
    pub processes: Vec<GpuProcess>,
}

/// What a GPU draws, where it says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Power {
    pub milliwatts: Option<u32>,
    /// Since the driver was loaded.
    pub millijoules: Option<u64>,
    /// The driver has answered that the GPU has no counter of its energy.
    pub has_no_counter: bool,
}
