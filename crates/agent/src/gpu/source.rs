//! Where GPUs come from: NVML of the real driver, or of the simulated one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use divvy_core::{Bytes, GpuUuid};
use divvy_driver::nvml::{Device, Nvml};

use super::utilisation::UtilizationSampler;
use super::{FaultyGpu, GpuOccupancy, GpuProcess, Observation, ObservedGpu, Power};
use crate::gpu::mig::discover::{self, MigCapabilities, MigStateError};
use crate::gpu::mig::driver::Gpu;
use crate::gpu::mig::{Epochs, GpuMigState};
use crate::host::error::error_chain;

/// The driver, loaded.
pub struct Source {
    from: Origin,
    /// When each GPU's instances were changed last, by us.
    pub epochs: Epochs,
    /// What GPUs in MIG mode offer.
    mig_capabilities: Mutex<BTreeMap<GpuUuid, Arc<MigCapabilities>>>,
    /// Which GPU had which index when it answered last.
    known: Mutex<BTreeMap<u32, GpuUuid>>,
    samples: UtilizationSampler,
}

enum Origin {
    Driver(Box<Nvml>),
    /// What a simulation says there is.
    #[cfg(test)]
    Simulation,
}

/// The driver could not be asked, or what it said makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Driver(#[from] divvy_driver::Error),
    #[error("the driver reports an invalid GPU UUID")]
    Uuid(#[from] divvy_core::ids::IdError),
    #[error(transparent)]
    Mig(#[from] MigStateError),
    #[cfg(test)]
    #[error("a simulated driver does not respond")]
    Simulated,
}

impl SourceError {
    /// One GPU is lost; others may be well.
    fn is_lost(&self) -> bool {
        match self {
            Self::Driver(error) | Self::Mig(MigStateError::Driver(error)) => error.is_lost(),
            _ => false,
        }
    }
}

/// Files of the simulated driver in its folder of links.
pub fn simulated_libraries(lib: &Path) -> (PathBuf, PathBuf) {
    (
        lib.join(divvy_driver::load::CUDA),
        lib.join(divvy_driver::load::NVML),
    )
}

impl Source {
    /// Loads NVML: the simulated one when its folder is given, else the one the loader finds.
    pub fn load(simulated: Option<&Path>) -> Result<Self, SourceError> {
        let nvml = simulated.map(|lib| simulated_libraries(lib).1);
        Ok(Self {
            from: Origin::Driver(Box::new(Nvml::load(nvml.as_deref())?)),
            epochs: Epochs::default(),
            mig_capabilities: Mutex::default(),
            known: Mutex::default(),
            samples: UtilizationSampler::default(),
        })
    }

    #[cfg(test)]
    pub fn simulated() -> Self {
        Self {
            from: Origin::Simulation,
            epochs: Epochs::default(),
            mig_capabilities: Mutex::default(),
            known: Mutex::default(),
            samples: UtilizationSampler::default(),
        }
    }

    fn nvml(&self) -> &Nvml {
        match &self.from {
            Origin::Driver(nvml) => nvml,
            #[cfg(test)]
            Origin::Simulation => panic!("a simulation has no driver"),
        }
    }

    pub fn driver_version(&self) -> Result<String, SourceError> {
        Ok(self.nvml().driver_version()?)
    }

    /// The GPU itself, for whoever changes it.
    pub fn device(&self, gpu: &GpuUuid) -> Result<Gpu<'_>, SourceError> {
        #[cfg(test)]
        if let Origin::Simulation = self.from {
            return Ok(Gpu::Simulated(crate::simulation::gpus::index(gpu)));
        }
        let uuid = divvy_driver::Uuid(gpu.to_bytes());
        Ok(Gpu::Driver(self.nvml().device_by_uuid(uuid)?))
    }

    /// Everything about every GPU that answers, and what those say that do not: one that is in trouble hides no other.
    ///
    /// # Errors
    /// When not even the number of GPUs can be told.
    pub fn observe(&self) -> Result<Observation, SourceError> {
        #[cfg(test)]
        if let Origin::Simulation = self.from {
            return crate::simulation::gpus::observe(|gpu, uuid, total| {
                self.mig_state(&Gpu::Simulated(gpu), uuid, total)
            });
        }
        let mut observation = Observation::default();
        for (index, device) in (0..).zip(self.nvml().devices()?) {
            let observed = device.map_err(SourceError::from);
            match observed.and_then(|device| self.observe_one(&device)) {
                Ok(observed) => {
                    lock(&self.known).insert(index, observed.uuid.clone());
                    observation.gpus.push(observed);
                }
                Err(error) => {
                    tracing::debug!(index, error = error_chain(&error), "a GPU does not respond");
                    observation.troubles.push(FaultyGpu {
                        index,
                        uuid: lock(&self.known).get(&index).cloned(),
                        is_lost: error.is_lost(),
                        message: error_chain(&error),
                    });
                }
            }
        }
        Ok(observation)
    }

    fn observe_one(&self, device: &Device<'_>) -> Result<ObservedGpu, SourceError> {
        let identity = device.identity()?;
        let memory = device.memory()?;
        let process = |process: divvy_driver::nvml::Process| GpuProcess {
            pid: process.pid,
            used: process.used.map(Bytes::new),
        };
        let uuid = identity.uuid.parse()?;
        let total = Bytes::new(memory.total);
        // Nothing is decided by it, so that it is missing where the driver does not tell.
        let utilization = match device.utilization() {
            Err(error) if error.is_lost() => return Err(error.into()),
            utilization => utilization.ok().flatten(),
        };
        let utilization_percent = utilization.map(|utilization| utilization.gpu);
        let temperature_celsius = device.temperature().ok().flatten();
        Ok(ObservedGpu {
            mig: self.mig_state(&Gpu::Driver(*device), &uuid, total)?,
            utilization: self.samples.sample(device, &uuid, utilization_percent),
            uuid,
            index: identity.index,
            model: identity.name,
            bus: identity.pci_bus_id,
            total,
            reserved: Bytes::new(memory.reserved),
            used: Bytes::new(memory.used),
            utilization_percent,
            temperature_celsius,
            processes: device.processes()?.into_iter().map(process).collect(),
        })
    }

    /// What is on the GPUs that answer; takes nothing from the looks' own figures.
    ///
    /// # Errors
    /// When not even the number of GPUs can be told.
    pub fn occupancy(&self) -> Result<Vec<GpuOccupancy>, SourceError> {
        let one = |device: Device<'_>| -> Result<GpuOccupancy, SourceError> {
            let (identity, memory) = (device.identity()?, device.memory()?);
            let process = |process: divvy_driver::nvml::Process| GpuProcess {
                pid: process.pid,
                used: process.used.map(Bytes::new),
            };
            let free = memory.total.saturating_sub(memory.reserved);
            Ok(GpuOccupancy {
                uuid: identity.uuid.parse()?,
                index: identity.index,
                free: Bytes::new(free.saturating_sub(memory.used)),
                processes: device.processes()?.into_iter().map(process).collect(),
            })
        };
        let devices = self.nvml().devices()?.into_iter();
        Ok(devices
            .filter_map(|device| one(device.ok()?).ok())
            .collect())
    }

    /// What GPUs draw, by index: of those that answer and say so. For whoever wants to know, so that no look takes longer for it.
    pub fn power(&self) -> BTreeMap<u32, Power> {
        let devices = self.nvml().devices().unwrap_or_default();
        let power = |device: Device<'_>| {
            let power = Power {
                milliwatts: device.power().ok().flatten(),
                millijoules: device.energy().ok().flatten(),
            };
            (device.index(), power)
        };
        devices.into_iter().flatten().map(power).collect()
    }

    /// The GPU's instances; nothing of them while they are being changed.
    fn mig_state(
        &self,
        gpu: &Gpu<'_>,
        uuid: &GpuUuid,
        total: Bytes,
    ) -> Result<Option<GpuMigState>, SourceError> {
        // Before anything is asked: an answer is of this epoch, or of a later one.
        let epoch = self.epochs.stable(uuid);
        let Some(mode) = gpu.mig_mode()? else {
            return Ok(None);
        };
        let mut sight = GpuMigState {
            mode,
            capabilities: None,
            epoch,
            instances: Vec::new(),
            error: None,
        };
        if !mode.current || sight.epoch.is_none() {
            sight.capabilities = self.cached_capabilities(uuid).filter(|_| mode.current);
            return Ok(Some(sight));
        }
        let offer = match self.cached_capabilities(uuid) {
            Some(offer) => offer,
            None => {
                let offer = Arc::new(
                    discover::read_capabilities(gpu, total).map_err(MigStateError::Driver)?,
                );
                lock(&self.mig_capabilities).insert(uuid.clone(), Arc::clone(&offer));
                offer
            }
        };
        let looked = discover::list_instances(gpu, &offer);
        sight.capabilities = Some(offer);
        if self.epochs.stable(uuid) != sight.epoch {
            // What it met half-way is no error either.
            sight.epoch = None;
            return Ok(Some(sight));
        }
        match looked {
            Ok(instances) => sight.instances = instances,
            Err(MigStateError::Driver(error)) if error.is_lost() => return Err(error.into()),
            Err(error) => {
                sight.epoch = None;
                sight.error = Some(error_chain(&error));
            }
        }
        Ok(Some(sight))
    }

    fn cached_capabilities(&self, uuid: &GpuUuid) -> Option<Arc<MigCapabilities>> {
        lock(&self.mig_capabilities).get(uuid).cloned()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
