//! GPUs as the agent sees them: what the driver tells, and what of it belongs to whom.

mod abroad;
pub mod kin;
pub mod look;
mod observer;
pub mod overhead;
pub mod roster;
pub mod slice;
mod source;
mod work;

use std::sync::Arc;

use divvy_core::mig::{Carving, Table};
use divvy_core::{Bytes, Gpu, GpuUuid, Mode};
use divvy_driver::nvml::mig::MigMode;

pub use observer::{IDLE, INTERVAL, Observer};
pub use source::{Source, SourceError};

use crate::mig::sight::Offer;
use crate::mig::{Sight, Wanted};
use crate::usage::meter::Worked;

use look::Seen;

/// What the driver told about all GPUs of the node, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    pub gpus: Vec<Observed>,
    pub troubles: Vec<Trouble>,
}

/// A GPU that does not answer, or not sensibly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub index: u32,
    /// Which it was when it answered last.
    pub uuid: Option<GpuUuid>,
    /// It has fallen off the bus or needs a reset: what was on it is lost.
    pub lost: bool,
    pub what: String,
}

/// One GPU, in the driver's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
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
    /// What was done on it, where it was asked this time and is told.
    pub worked: Option<Worked>,
    pub processes: Vec<GpuProcess>,
    /// `None` for a GPU that knows no MIG.
    pub mig: Option<Sight>,
}

impl Observed {
    /// Its MIG side, while MIG is on.
    pub fn divided(&self) -> Option<&Sight> {
        self.mig.as_ref().filter(|mig| mig.mode.current)
    }

    /// Whether it is in MIG mode and its instances were not read: who is in them is listed with them.
    pub fn hides_who_is_there(&self) -> bool {
        self.divided().is_some_and(|mig| mig.epoch.is_none())
    }
}

/// A process that has a context on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    pub pid: u32,
    /// `None` where the driver does not say (NVML's "not available").
    pub used: Option<Bytes>,
}

/// What is on a GPU, and nothing else of it: for whoever asks between two looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupied {
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
}

/// A GPU as the cycle keeps it.
#[derive(Clone, Debug)]
pub struct Device {
    pub gpu: Gpu,
    /// As [`Observed::bus`].
    pub bus: String,
    pub used: Bytes,
    pub utilization_percent: Option<u32>,
    pub temperature_celsius: Option<u32>,
    /// What a context costs each process before its first allocation.
    pub overhead: Bytes,
    /// Processes that use the GPU and belong to no slice.
    pub unmanaged: Vec<u32>,
    /// Errors of the slices' accounts, added up without their signs; `None` while none can be compared.
    pub mismatch: Option<Bytes>,
    /// The largest error of one account so far.
    pub mismatch_max: Bytes,
    /// The driver says how much each process holds.
    pub says_who: bool,
    /// The mode it has while it answers.
    pub assigned: Mode,
    /// It does not answer ([`Gpu::away`]) and will not: at the last look it had fallen off the bus, or needed a reset.
    pub gone: bool,
    /// It is one of those that the daemon serves; others are only seen.
    pub managed: bool,
    /// What an administrator made of it.
    pub wanted: Option<Wanted>,
    /// Its MIG mode; `None` where it knows none.
    pub mig: Option<MigMode>,
    /// What it offers in MIG mode, once that was seen.
    pub offer: Option<Arc<Offer>>,
    /// The driver is being told to change its MIG mode.
    pub switching: bool,
}

impl Device {
    pub fn new(observed: &Observed, mode: Mode, overhead: Bytes) -> Self {
        let gpu = Gpu {
            uuid: observed.uuid.clone(),
            index: observed.index,
            model: observed.model.clone(),
            mode,
            away: false,
            total: observed.total,
            reserved: observed.reserved,
            foreign: Bytes::ZERO,
            context: Bytes::ZERO,
            mig: None,
        };
        Self {
            gpu,
            bus: observed.bus.clone(),
            used: observed.used,
            utilization_percent: observed.utilization_percent,
            temperature_celsius: observed.temperature_celsius,
            overhead,
            unmanaged: Vec::new(),
            mismatch: None,
            mismatch_max: Bytes::ZERO,
            says_who: true,
            assigned: mode,
            gone: false,
            managed: mode != Mode::Unmanaged,
            wanted: None,
            mig: observed.mig.as_ref().map(|mig| mig.mode),
            offer: observed.mig.as_ref().and_then(|mig| mig.offer.clone()),
            switching: false,
        }
    }

    /// What it can be cut into, while it is in MIG mode.
    pub fn table(&self) -> Option<Arc<Table>> {
        self.offer.as_ref()?.table.clone().ok()
    }

    /// The GPU with nothing on it: what it can ever be asked for.
    pub fn empty(&self) -> Gpu {
        let carving = |table| Carving {
            table,
            instances: Vec::new(),
        };
        Gpu {
            mig: self.table().map(carving),
            ..self.gpu.clone()
        }
    }

    /// Takes over what was seen, `foreign` being what is not to be given out. True when a plan depends on the change.
    pub fn update(&mut self, seen: &Seen, foreign: Bytes) -> bool {
        let Observed {
            used,
            utilization_percent,
            temperature_celsius,
            processes,
            mig,
            ..
        } = &seen.observed;
        self.used = *used;
        self.mig = mig.as_ref().map(|mig| mig.mode);
        let offer = mig.as_ref().and_then(|mig| mig.offer.clone());
        let offers_another = self.offer != offer;
        self.offer = offer;
        self.utilization_percent = *utilization_percent;
        self.temperature_celsius = *temperature_celsius;
        self.unmanaged.clone_from(&seen.strangers);
        self.says_who = processes.iter().all(|process| process.used.is_some());
        std::mem::replace(&mut self.gpu.foreign, foreign) != foreign || offers_another
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::reconcile;

    /// A look at a GPU in MIG mode that offers this.
    fn seen(offer: Option<Arc<Offer>>) -> Seen {
        let on = MigMode {
            current: true,
            pending: true,
        };
        let observed = Observed {
            uuid: GpuUuid::from_bytes([1; 16]),
            index: 0,
            model: "A100".into(),
            bus: "00000000:07:00.0".into(),
            total: Bytes::gib(40),
            reserved: Bytes::ZERO,
            used: Bytes::ZERO,
            utilization_percent: None,
            temperature_celsius: None,
            worked: None,
            processes: Vec::new(),
            mig: Some(Sight {
                mode: on,
                offer,
                epoch: Some(0),
                instances: Vec::new(),
                trouble: None,
            }),
        };
        Seen {
            observed,
            sight: reconcile::Sight::default(),
            strangers: Vec::new(),
            tenants: Vec::new(),
        }
    }

    #[test]
    fn what_a_gpu_can_be_cut_into_matters_to_a_plan_once_it_is_known() {
        let before = seen(None);
        let mut device = Device::new(&before.observed, Mode::Mig, Bytes::ZERO);
        let offer = || {
            Some(Arc::new(Offer {
                table: Ok(Table::of_model("a100-40gb").unwrap()),
                ids: Vec::new(),
            }))
        };
        assert!(!device.update(&before, Bytes::ZERO));
        assert!(device.update(&seen(offer()), Bytes::ZERO));
        assert!(!device.update(&seen(offer()), Bytes::ZERO));
        assert!(device.table().is_some());
    }
}
