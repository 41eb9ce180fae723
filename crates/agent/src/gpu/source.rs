//! The source of GPUs: a driver, and what is remembered of its GPUs' MIG sides.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use divvy_api::sync::lock;
use divvy_core::{Bytes, GpuUuid};

use super::health::GpuXid;
use super::nvml::NvmlDriver;
use super::{GpuOccupancy, Observation, Power};
use crate::gpu::mig::discover::{self, MigCapabilities, MigStateError};
use crate::gpu::mig::driver::Gpu;
use crate::gpu::mig::{Epochs, GpuMigState};
use crate::host::error::error_chain;

/// Reads the MIG side of a GPU with so much memory.
pub type MigReader<'a> =
    &'a dyn Fn(&dyn Gpu, &GpuUuid, Bytes) -> Result<Option<GpuMigState>, SourceError>;

/// A driver of GPUs: [`NvmlDriver`], or what a test has in its place.
pub trait GpuDriver: Send + Sync {
    /// # Errors
    /// When it cannot be asked.
    fn version(&self) -> Result<String, SourceError>;

    /// The handle of a GPU, for changes to it.
    ///
    /// # Errors
    /// When there is none.
    fn gpu(&self, gpu: &GpuUuid) -> Result<Box<dyn Gpu + '_>, SourceError>;

    /// As [`Source::observe`].
    ///
    /// # Errors
    /// When the driver does not report even the number of GPUs.
    fn observe(
        &self,
        mig: MigReader<'_>,
        asleep: &BTreeSet<u32>,
    ) -> Result<Observation, SourceError>;

    /// The Xid events of GPUs that were observed before, since the last call: at most
    /// [`MAX_XIDS`](super::health::MAX_XIDS), the rest comes with the next.
    fn xids(&self) -> Vec<GpuXid> {
        Vec::new()
    }

    /// As [`Source::occupancy`].
    ///
    /// # Errors
    /// When the driver does not report even the number of GPUs.
    fn occupancy(&self) -> Result<Vec<GpuOccupancy>, SourceError>;

    /// As [`Source::power`].
    fn power(&self, asleep: &BTreeSet<u32>) -> BTreeMap<u32, Power>;
}

/// A driver, loaded.
pub struct Source {
    driver: Box<dyn GpuDriver>,
    /// When each GPU's instances were changed last, by us.
    pub epochs: Epochs,
    /// What GPUs in MIG mode offer.
    mig_capabilities: Mutex<BTreeMap<GpuUuid, Arc<MigCapabilities>>>,
}

/// The driver could not be asked, or what it said makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Driver(#[from] divvy_driver::Error),
    #[error("the driver reports an invalid GPU UUID")]
    Uuid(#[from] divvy_core::units::IdError),
    #[error(transparent)]
    Mig(#[from] MigStateError),
    /// The driver did not answer when the daemon started, and does not now.
    #[error("{0}")]
    Absent(String),
    #[error("the driver answers")]
    Returned,
}

impl SourceError {
    /// One GPU is lost; others may be well.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Driver(error) | Self::Mig(MigStateError::Driver(error)) => error.is_lost(),
            _ => false,
        }
    }

    /// The kernel module is another one than this process's library is of: it answers a new process only.
    pub fn needs_new_process(&self) -> bool {
        matches!(self, Self::Driver(error) if error.is_of_another_driver())
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
    pub fn new(driver: impl GpuDriver + 'static) -> Self {
        Self {
            driver: Box::new(driver),
            epochs: Epochs::default(),
            mig_capabilities: Mutex::default(),
        }
    }

    /// Loads NVML: the simulated one when its folder is given, else the one the loader finds.
    pub fn load(simulated: Option<&Path>) -> Result<Self, SourceError> {
        let nvml = simulated.map(|lib| simulated_libraries(lib).1);
        Ok(Self::new(NvmlDriver::load(nvml.as_deref())?))
    }

    pub fn driver_version(&self) -> Result<String, SourceError> {
        self.driver.version()
    }

    /// The handle of a GPU, for changes to it.
    pub fn device(&self, gpu: &GpuUuid) -> Result<Box<dyn Gpu + '_>, SourceError> {
        self.driver.gpu(gpu)
    }

    /// Everything about every GPU that answers, and what those say that do not: one that is in trouble hides no other.
    /// Xid events stay with the driver for [`Self::observe_awake`].
    ///
    /// # Errors
    /// When the driver does not report even the number of GPUs.
    pub fn observe(&self) -> Result<Observation, SourceError> {
        self.observe_gpus(&BTreeSet::new())
    }

    /// The same for the GPUs that are not powered down, with the Xid events since the last call; the others, by index,
    /// are not asked for.
    ///
    /// # Errors
    /// When the driver does not report even the number of GPUs.
    pub fn observe_awake(&self, asleep: &BTreeSet<u32>) -> Result<Observation, SourceError> {
        let mut observation = self.observe_gpus(asleep)?;
        // Nothing fails after this: no event is lost.
        observation.xids = self.driver.xids();
        Ok(observation)
    }

    fn observe_gpus(&self, asleep: &BTreeSet<u32>) -> Result<Observation, SourceError> {
        let mig = |gpu: &dyn Gpu, uuid: &GpuUuid, total| self.mig_state(gpu, uuid, total);
        self.driver.observe(&mig, asleep)
    }

    /// The processes and memory of the GPUs that answer; leaves the figures of observations as they are.
    ///
    /// # Errors
    /// When the driver does not report even the number of GPUs.
    pub fn occupancy(&self) -> Result<Vec<GpuOccupancy>, SourceError> {
        self.driver.occupancy()
    }

    /// The power draw of GPUs by index, of those that report it. It is apart from observations, so that none takes
    /// longer for it. Powered-down GPUs, by index, are not asked.
    pub fn power(&self, asleep: &BTreeSet<u32>) -> BTreeMap<u32, Power> {
        self.driver.power(asleep)
    }

    /// The GPU's instances; nothing of them while they are being changed.
    fn mig_state(
        &self,
        gpu: &dyn Gpu,
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
