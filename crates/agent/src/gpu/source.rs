//! Where GPUs come from: NVML of the real driver, or of the simulated one.

use std::path::{Path, PathBuf};

use divvy_core::Bytes;
use divvy_driver::nvml::Nvml;

use super::{GpuProcess, Observation, Observed};

/// The driver, loaded.
pub struct Source {
    nvml: Nvml,
}

/// The driver could not be asked, or what it said makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Driver(#[from] divvy_driver::Error),
    #[error("the driver names a GPU in a way that no GPU is named")]
    Uuid(#[from] divvy_core::ids::IdError),
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
        })
    }

    pub fn driver_version(&self) -> Result<String, SourceError> {
        Ok(self.nvml.driver_version()?)
    }

    /// Everything about every GPU that answers; one that is lost is left out, and its absence is the news.
    pub fn observe(&self) -> Result<Observation, SourceError> {
        let mut observation = Observation::default();
        for device in self.nvml.devices()? {
            match device
                .map_err(SourceError::from)
                .and_then(|device| observe(&device))
            {
                Ok(observed) => observation.gpus.push(observed),
                Err(SourceError::Driver(error)) if error.is_lost() => {
                    tracing::debug!(%error, "a GPU does not answer")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(observation)
    }
}

fn observe(device: &divvy_driver::nvml::Device<'_>) -> Result<Observed, SourceError> {
    let identity = device.identity()?;
    let memory = device.memory()?;
    let process = |process: divvy_driver::nvml::Process| GpuProcess {
        pid: process.pid,
        used: process.used.map(Bytes::new),
    };
    Ok(Observed {
        uuid: identity.uuid.parse()?,
        index: identity.index,
        model: identity.name,
        total: Bytes::new(memory.total),
        reserved: Bytes::new(memory.reserved),
        used: Bytes::new(memory.used),
        utilization_percent: device.utilization()?.map(|utilization| utilization.gpu),
        processes: device.processes()?.into_iter().map(process).collect(),
    })
}
