//! Where GPUs come from: NVML of the real driver, or of the simulated one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use divvy_core::{Bytes, GpuUuid};
use divvy_driver::nvml::{Device, Nvml};

use super::{GpuProcess, Observation, Observed};
use crate::mig::sight::{self, Offer, SightError};
use crate::mig::{Epochs, Sight};
use crate::supervise::chain;

/// The driver, loaded.
pub struct Source {
    nvml: Nvml,
    /// When each GPU's instances were changed last, by us.
    pub epochs: Epochs,
    /// What GPUs in MIG mode offer.
    offers: Mutex<BTreeMap<GpuUuid, Arc<Offer>>>,
}

/// The driver could not be asked, or what it said makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Driver(#[from] divvy_driver::Error),
    #[error("the driver names a GPU in a way that no GPU is named")]
    Uuid(#[from] divvy_core::ids::IdError),
    #[error(transparent)]
    Mig(#[from] SightError),
}

impl SourceError {
    /// One GPU is lost; others may be well.
    fn is_lost(&self) -> bool {
        match self {
            Self::Driver(error) | Self::Mig(SightError::Driver(error)) => error.is_lost(),
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
            nvml: Nvml::load(nvml.as_deref())?,
            epochs: Epochs::default(),
            offers: Mutex::default(),
        })
    }

    pub fn driver_version(&self) -> Result<String, SourceError> {
        Ok(self.nvml.driver_version()?)
    }

    /// The GPU itself, for whoever changes it.
    pub fn device(&self, gpu: &GpuUuid) -> Result<Device<'_>, SourceError> {
        let uuid = divvy_driver::Uuid(gpu.to_bytes());
        Ok(self.nvml.device_by_uuid(uuid)?)
    }

    /// Everything about every GPU that answers; one that is lost is left out, and its absence is the news.
    pub fn observe(&self) -> Result<Observation, SourceError> {
        let mut observation = Observation::default();
        for device in self.nvml.devices()? {
            match device
                .map_err(SourceError::from)
                .and_then(|device| self.observe_one(&device))
            {
                Ok(observed) => observation.gpus.push(observed),
                Err(error) if error.is_lost() => {
                    tracing::debug!(%error, "a GPU does not answer")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(observation)
    }

    fn observe_one(&self, device: &Device<'_>) -> Result<Observed, SourceError> {
        let identity = device.identity()?;
        let memory = device.memory()?;
        let process = |process: divvy_driver::nvml::Process| GpuProcess {
            pid: process.pid,
            used: process.used.map(Bytes::new),
        };
        let uuid = identity.uuid.parse()?;
        Ok(Observed {
            mig: self.sight(device, &uuid)?,
            uuid,
            index: identity.index,
            model: identity.name,
            total: Bytes::new(memory.total),
            reserved: Bytes::new(memory.reserved),
            used: Bytes::new(memory.used),
            utilization_percent: device.utilization()?.map(|utilization| utilization.gpu),
            processes: device.processes()?.into_iter().map(process).collect(),
        })
    }

    /// The GPU's instances; nothing of them while they are being changed.
    fn sight(&self, device: &Device<'_>, uuid: &GpuUuid) -> Result<Option<Sight>, SourceError> {
        let Some(mode) = device.mig_mode()? else {
            return Ok(None);
        };
        let mut sight = Sight {
            mode,
            offer: None,
            epoch: self.epochs.settled(uuid),
            instances: Vec::new(),
            trouble: None,
        };
        if !mode.current || sight.epoch.is_none() {
            sight.offer = self.known_offer(uuid).filter(|_| mode.current);
            return Ok(Some(sight));
        }
        let offer = match self.known_offer(uuid) {
            Some(offer) => offer,
            None => {
                let offer = Arc::new(sight::offer(device).map_err(SightError::Driver)?);
                lock(&self.offers).insert(uuid.clone(), Arc::clone(&offer));
                offer
            }
        };
        let looked = sight::look(device, &offer);
        sight.offer = Some(offer);
        if self.epochs.settled(uuid) != sight.epoch {
            // What it met half-way is no error either.
            sight.epoch = None;
            return Ok(Some(sight));
        }
        match looked {
            Ok(instances) => sight.instances = instances,
            Err(SightError::Driver(error)) if error.is_lost() => return Err(error.into()),
            Err(error) => {
                sight.epoch = None;
                sight.trouble = Some(chain(&error));
            }
        }
        Ok(Some(sight))
    }

    fn known_offer(&self, uuid: &GpuUuid) -> Option<Arc<Offer>> {
        lock(&self.offers).get(uuid).cloned()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
