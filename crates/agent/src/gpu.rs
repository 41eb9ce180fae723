//! GPU observation: the driver's figures, and the job to which each process belongs; MIG instances; slices.
//!
//! May use: `host`, `model`.
//! Used by: `checkpoint`, `controller`, `http`, `daemon`, `diagnostics`, `standalone`.

pub mod absent;
pub mod attribution;
pub mod driver_limit;
pub mod energy;
pub mod health;
pub mod mig;
mod nvml;
mod observation;
mod observer;
pub mod outside;
pub mod overhead;
mod pid_namespaces;
pub mod probe;
pub mod sample;
pub mod sleep;
pub mod slice;
pub mod source;
pub mod unlisted;
mod utilisation;
pub mod watched_jobs;
mod xids;

use std::sync::Arc;

use divvy_core::mig::{MigInventory, ProfileTable};
use divvy_core::reconcile::Comparison;
use divvy_core::{Bytes, Enforcement, Gpu, Mode};
use divvy_driver::nvml::mig::MigMode;

pub use observation::{FaultyGpu, GpuOccupancy, GpuProcess, Observation, ObservedGpu, Power};
pub use observer::{IDLE_INTERVAL, INTERVAL, Observer};
pub use source::{Source, SourceError};

use crate::gpu::mig::discover::MigCapabilities;
use crate::model::gpu_mode::RequestedMode;
use crate::model::out_of_service::OutOfService;

use driver_limit::NoDriverLimit;
use outside::OutsideProcess;
use sample::GpuSample;
use unlisted::UnlistedHolder;

/// A GPU in the controller's state.
#[derive(Clone, Debug)]
pub struct Device {
    pub gpu: Gpu,
    /// As `Observed::bus`.
    pub bus: String,
    pub used: Bytes,
    pub utilization_percent: Option<u32>,
    pub temperature_celsius: Option<u32>,
    /// What a context costs each process before its first allocation.
    pub overhead: Bytes,
    /// Processes that use the GPU and belong to no slice.
    pub unmanaged: Vec<u32>,
    /// The largest of them, by user and program.
    pub outside: Vec<OutsideProcess>,
    /// The job that may hold the memory that the driver lists for no process.
    pub unlisted_holder: Option<UnlistedHolder>,
    pub ledger_error: LedgerError,
    /// It is powered down, and its figures are the last known.
    pub asleep: bool,
    /// The driver says how much each process holds.
    pub reports_process_memory: bool,
    /// It does not answer ([`Gpu::away`]) and will not: at the last look it had fallen off the bus, or needed a reset.
    pub is_lost: bool,
    /// The daemon serves it; it only shows other GPUs.
    pub is_managed: bool,
    /// Why no job starts there, while it is out of service. [`Device::apply_mode`] follows a change.
    pub out: Option<OutOfService>,
    /// The lasting fault with which an administrator has returned it to service.
    pub accepted_fault: Option<String>,
    pub mode: DeviceMode,
    /// Why the driver does not limit jobs on it. [`Device::set_driver_limit`] changes it.
    pub driver_limit: Result<(), NoDriverLimit>,
}

/// The use of a GPU, and the MIG mode that it needs.
#[derive(Clone, Debug)]
pub struct DeviceMode {
    /// The mode of the GPU while it answers.
    pub assigned: Mode,
    /// The mode that an administrator chose.
    pub requested: Option<RequestedMode>,
    /// The driver's MIG mode; `None` for a GPU without MIG.
    pub mig: Option<MigMode>,
    /// The MIG profiles of the GPU, once the driver has reported them.
    pub mig_capabilities: Option<Arc<MigCapabilities>>,
    /// The driver is changing the MIG mode.
    pub is_switching: bool,
}

/// Differences between the driver's figures of a GPU's memory and the ledgers of its slices.
#[derive(Clone, Copy, Debug, Default)]
pub struct LedgerError {
    /// Sum of the absolute differences of all slices; `None` while none can be compared.
    pub sum: Option<Bytes>,
    /// The largest difference of one slice so far.
    pub max: Bytes,
}

impl Device {
    pub fn new(observed: &ObservedGpu, mode: Mode, overhead: Bytes) -> Self {
        let gpu = Gpu {
            uuid: observed.uuid.clone(),
            index: observed.index,
            model: observed.model.clone(),
            mode,
            away: false,
            out_of_service: None,
            total: observed.total,
            reserved: observed.reserved,
            unmanaged: Bytes::ZERO,
            unlisted: Bytes::ZERO,
            unlisted_holder: None,
            enforcement: Enforcement::Limiter,
            elsewhere: Vec::new(),
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
            outside: Vec::new(),
            unlisted_holder: None,
            ledger_error: LedgerError::default(),
            asleep: observed.asleep,
            reports_process_memory: true,
            is_lost: false,
            is_managed: mode != Mode::Unmanaged,
            out: None,
            accepted_fault: None,
            mode: DeviceMode {
                assigned: mode,
                requested: None,
                mig: observed.mig.as_ref().map(|mig| mig.mode),
                mig_capabilities: observed
                    .mig
                    .as_ref()
                    .and_then(|mig| mig.capabilities.clone()),
                is_switching: false,
            },
            driver_limit: Err(NoDriverLimit::Failed(
                "it did not respond when the daemon started".to_owned(),
            )),
        }
    }

    /// A GPU that the driver does not list, as it was when it was last listed.
    pub fn missing(last: &Gpu, bus: &str) -> Self {
        let gpu = Gpu {
            mode: Mode::Unmanaged,
            away: true,
            ..last.clone()
        };
        let overhead = match last.context {
            Bytes::ZERO => overhead::ASSUMED,
            measured => measured,
        };
        Self {
            gpu,
            bus: bus.to_owned(),
            used: Bytes::ZERO,
            utilization_percent: None,
            temperature_celsius: None,
            overhead,
            unmanaged: Vec::new(),
            outside: Vec::new(),
            unlisted_holder: None,
            ledger_error: LedgerError::default(),
            asleep: false,
            reports_process_memory: true,
            is_lost: true,
            is_managed: true,
            out: None,
            accepted_fault: None,
            mode: DeviceMode {
                assigned: last.mode,
                requested: None,
                mig: None,
                mig_capabilities: None,
                is_switching: false,
            },
            driver_limit: Err(NoDriverLimit::Failed(
                "it did not respond when the daemon started".to_owned(),
            )),
        }
    }

    /// Whether the driver limits jobs on it from now on.
    pub fn set_driver_limit(&mut self, limit: Result<(), NoDriverLimit>) {
        self.gpu.enforcement = match limit {
            Ok(()) => Enforcement::Driver,
            Err(_) => Enforcement::Limiter,
        };
        self.driver_limit = limit;
    }

    /// The daemon took it out of service for a fault.
    pub fn has_fault(&self) -> bool {
        self.out.as_ref().is_some_and(OutOfService::is_fault)
    }

    /// Gives it the mode in which the planner sees it: no job starts on a GPU that does not respond or is out of service.
    pub fn apply_mode(&mut self) {
        self.gpu.out_of_service = self.out.as_ref().map(OutOfService::describe);
        self.gpu.mode = match self.gpu.away || self.out.is_some() {
            true => Mode::Unmanaged,
            false => self.mode.assigned,
        };
    }

    /// What the journal keeps of it: what it is, with nothing on it.
    pub fn record(&self) -> Gpu {
        Gpu {
            mode: self.mode.assigned,
            away: false,
            out_of_service: None,
            unmanaged: Bytes::ZERO,
            unlisted: Bytes::ZERO,
            unlisted_holder: None,
            // The next start asks the driver anew.
            enforcement: Enforcement::Limiter,
            elsewhere: Vec::new(),
            ..self.unoccupied()
        }
    }

    /// What it can be cut into, while it is in MIG mode.
    pub fn profile_table(&self) -> Option<Arc<ProfileTable>> {
        self.mode.mig_capabilities.as_ref()?.table.clone().ok()
    }

    /// The GPU with nothing on it: what it can ever be asked for.
    pub fn unoccupied(&self) -> Gpu {
        let carving = |table| MigInventory {
            table,
            instances: Vec::new(),
        };
        Gpu {
            mig: self.profile_table().map(carving),
            ..self.gpu.clone()
        }
    }

    /// Takes over which job may hold memory that the driver lists for no process. Returns whether a plan depends on the change:
    /// the reasons of waiting jobs name the job.
    pub fn set_unlisted_holder(&mut self, holder: Option<UnlistedHolder>) -> bool {
        self.unlisted_holder = holder;
        let job = holder.map(|holder| holder.job);
        std::mem::replace(&mut self.gpu.unlisted_holder, job) != job
    }

    /// Takes over a sample, and the memory in it that no job gets. True when a plan depends on the change.
    pub fn update(&mut self, seen: &GpuSample, balance: &Comparison) -> bool {
        let ObservedGpu {
            used,
            utilization_percent,
            temperature_celsius,
            processes,
            mig,
            asleep,
            ..
        } = &seen.observed;
        self.used = *used;
        self.asleep = *asleep;
        self.mode.mig = mig.as_ref().map(|mig| mig.mode);
        let offer = mig.as_ref().and_then(|mig| mig.capabilities.clone());
        let offers_another = self.mode.mig_capabilities != offer;
        self.mode.mig_capabilities = offer;
        self.utilization_percent = *utilization_percent;
        self.temperature_celsius = *temperature_celsius;
        self.unmanaged.clone_from(&seen.unmanaged);
        self.outside.clone_from(&seen.outside);
        self.reports_process_memory = processes.iter().all(|process| process.used.is_some());
        // The reasons of waiting jobs name both.
        let outside = (balance.unmanaged, balance.unlisted);
        let before = (self.gpu.unmanaged, self.gpu.unlisted);
        (self.gpu.unmanaged, self.gpu.unlisted) = outside;
        before != outside || offers_another
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::{GpuUuid, reconcile};

    use crate::gpu::mig::GpuMigState;

    /// A sample of a GPU in MIG mode that offers this.
    fn seen(offer: Option<Arc<MigCapabilities>>) -> GpuSample {
        let on = MigMode {
            current: true,
            pending: true,
        };
        let observed = ObservedGpu {
            mig: Some(GpuMigState {
                mode: on,
                capabilities: offer,
                epoch: Some(0),
                instances: Vec::new(),
                error: None,
            }),
            ..ObservedGpu::idle(GpuUuid::from_bytes([1; 16]), 0)
        };
        GpuSample {
            observed,
            sample: reconcile::Sample::default(),
            unmanaged: Vec::new(),
            outside: Vec::new(),
            mig_processes: Vec::new(),
        }
    }

    #[test]
    fn what_a_gpu_can_be_cut_into_matters_to_a_plan_once_it_is_known() {
        let before = seen(None);
        let mut device = Device::new(&before.observed, Mode::Mig, Bytes::ZERO);
        let offer = || {
            Some(Arc::new(MigCapabilities {
                table: Ok(ProfileTable::of_model("a100-40gb").unwrap()),
                profile_ids: Vec::new(),
            }))
        };
        let none = Comparison::default();
        assert!(!device.update(&before, &none));
        assert!(device.update(&seen(offer()), &none));
        assert!(!device.update(&seen(offer()), &none));
        assert!(device.profile_table().is_some());
    }

    #[test]
    fn memory_whose_process_gets_listed_gives_waiting_jobs_another_reason() {
        let seen = seen(None);
        let mut device = Device::new(&seen.observed, Mode::Shared, Bytes::ZERO);
        let outside = |unlisted| Comparison {
            unmanaged: Bytes::gib(30),
            unlisted,
            ..Comparison::default()
        };
        assert!(device.update(&seen, &outside(Bytes::gib(30))));
        assert!(device.update(&seen, &outside(Bytes::ZERO)));
        assert!(!device.update(&seen, &outside(Bytes::ZERO)));
    }
}
