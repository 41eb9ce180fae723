//! NVML as the source of GPUs: the real driver's, or the simulated driver's in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use divvy_core::{Bytes, GpuUuid};
use divvy_driver::nvml::{Device, Nvml};

use super::health::{GpuXid, HealthReader};
use super::mig::driver::Gpu;
use super::source::{GpuDriver, MigReader, SourceError};
use super::utilisation::UtilizationSampler;
use super::xids::XidWatch;
use super::{FaultyGpu, GpuOccupancy, GpuProcess, Observation, ObservedGpu, Power};
use crate::host::clock::Instant;
use crate::host::error::error_chain;

/// NVML, loaded.
pub struct NvmlDriver {
    nvml: Arc<Nvml>,
    /// Which GPU had which index when it answered last.
    known: Mutex<BTreeMap<u32, GpuUuid>>,
    samples: UtilizationSampler,
    health: HealthReader,
    xids: Mutex<XidWatch>,
}

impl NvmlDriver {
    /// Loads this file, or the one that the loader finds.
    ///
    /// # Errors
    /// When there is none.
    pub fn load(nvml: Option<&Path>) -> Result<Self, SourceError> {
        Ok(Self {
            nvml: Arc::new(Nvml::load(nvml)?),
            known: Mutex::default(),
            samples: UtilizationSampler::default(),
            health: HealthReader::default(),
            xids: Mutex::default(),
        })
    }

    fn observe_one(
        &self,
        device: &Device<'_>,
        mig: MigReader<'_>,
    ) -> Result<ObservedGpu, SourceError> {
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
            mig: mig(device, &uuid, total)?,
            health: self.health.read(device, &uuid, Instant::now()),
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
            asleep: false,
        })
    }
}

impl GpuDriver for NvmlDriver {
    fn version(&self) -> Result<String, SourceError> {
        Ok(self.nvml.driver_version()?)
    }

    fn gpu(&self, gpu: &GpuUuid) -> Result<Box<dyn Gpu + '_>, SourceError> {
        let uuid = divvy_driver::Uuid(gpu.to_bytes());
        Ok(Box::new(self.nvml.device_by_uuid(uuid)?))
    }

    fn observe(
        &self,
        mig: MigReader<'_>,
        asleep: &BTreeSet<u32>,
    ) -> Result<Observation, SourceError> {
        let mut observation = Observation::default();
        for index in (0..self.nvml.device_count()?).filter(|index| !asleep.contains(index)) {
            let device = self.nvml.device(index).map_err(SourceError::from);
            let observed = device.and_then(|device| {
                let observed = self.observe_one(&device, mig)?;
                let mut xids = lock(&self.xids);
                xids.watch(&self.nvml, &device, &observed.uuid, Instant::now());
                Ok(observed)
            });
            match observed {
                Ok(observed) => {
                    lock(&self.known).insert(index, observed.uuid.clone());
                    observation.gpus.push(observed);
                }
                Err(error) => {
                    tracing::debug!(index, error = error_chain(&error), "a GPU does not respond");
                    let uuid = lock(&self.known).get(&index).cloned();
                    let is_lost = error.is_lost();
                    if let Some(lost) = uuid.as_ref().filter(|_| is_lost) {
                        lock(&self.xids).lose(lost);
                    }
                    observation.troubles.push(FaultyGpu {
                        index,
                        uuid,
                        is_lost,
                        message: error_chain(&error),
                    });
                }
            }
        }
        Ok(observation)
    }

    fn xids(&self) -> Vec<GpuXid> {
        lock(&self.xids).take()
    }

    fn occupancy(&self) -> Result<Vec<GpuOccupancy>, SourceError> {
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
        let devices = self.nvml.devices()?.into_iter();
        Ok(devices
            .filter_map(|device| one(device.ok()?).ok())
            .collect())
    }

    fn power(&self, asleep: &BTreeSet<u32>) -> BTreeMap<u32, Power> {
        let indices = 0..self.nvml.device_count().unwrap_or_default();
        let awake = indices.filter(|index| !asleep.contains(index));
        let devices = awake.map(|index| self.nvml.device(index));
        let power = |device: Device<'_>| {
            let energy = device.energy();
            let power = Power {
                milliwatts: device.power().ok().flatten(),
                has_no_counter: matches!(energy, Ok(None)),
                millijoules: energy.ok().flatten(),
            };
            (device.index(), power)
        };
        devices.flatten().map(power).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
