//! The MIG calls of a driver: traits for a GPU, a GPU instance and a compute instance, and NVML behind them.

use std::path::Path;

use divvy_driver::Error;
use divvy_driver::nvml::memory_limits::MemoryLimits;
use divvy_driver::nvml::mig::{
    Activation, ComputeInstance, ComputeInstanceInfo, GpuInstance, GpuInstanceInfo,
    GpuInstanceProfile, MigMode, Placement,
};
use divvy_driver::nvml::{Device, Memory, Process};

/// The instances on a GPU, with what the driver says of each.
pub type Instances<'a> = Vec<(Box<dyn Instance + 'a>, GpuInstanceInfo)>;

/// The compute instances in a GPU instance.
pub type Computes<'a> = Vec<(Box<dyn Compute + 'a>, ComputeInstanceInfo)>;

/// A GPU.
pub trait Gpu {
    /// As [`Device::mig_mode`].
    fn mig_mode(&self) -> Result<Option<MigMode>, Error>;

    /// As [`Device::set_mig_mode`].
    fn set_mig_mode(&self, on: bool) -> Result<Activation, Error>;

    /// As [`Device::gpu_instance_profiles`].
    fn profiles(&self) -> Result<Vec<(GpuInstanceProfile, Vec<Placement>)>, Error>;

    /// As [`Device::gpu_instances_of`].
    fn instances(&self, profiles: &[u32]) -> Result<Instances<'_>, Error>;

    /// As [`Device::create_gpu_instance`].
    fn create(&self, profile: u32, at: Placement) -> Result<Box<dyn Instance + '_>, Error>;

    /// As [`Device::set_memory_limits`].
    fn set_memory_limits(&self, group: &Path, limits: MemoryLimits) -> Result<(), Error>;

    /// As [`Device::memory_limits`], without what is used.
    fn memory_limits(&self, group: &Path) -> Result<MemoryLimits, Error>;
}

/// A GPU instance.
pub trait Instance {
    /// As [`GpuInstance::info`].
    fn info(&self) -> Result<GpuInstanceInfo, Error>;

    /// As [`GpuInstance::compute_instances`].
    fn compute_instances(&self) -> Result<Computes<'_>, Error>;

    /// As [`GpuInstance::create_full_compute_instance`].
    fn create_compute_instance(&self) -> Result<Box<dyn Compute + '_>, Error>;

    /// As [`GpuInstance::destroy`].
    fn destroy(&self) -> Result<(), Error>;
}

/// A compute instance, which is a MIG device.
pub trait Compute {
    /// As [`ComputeInstance::info`].
    fn info(&self) -> Result<ComputeInstanceInfo, Error>;

    /// The memory of its GPU instance.
    fn memory(&self) -> Result<Memory, Error>;

    /// Every process with a context on it.
    fn processes(&self) -> Result<Vec<Process>, Error>;

    /// As [`ComputeInstance::destroy`].
    fn destroy(&self) -> Result<(), Error>;
}

impl Gpu for Device<'_> {
    fn mig_mode(&self) -> Result<Option<MigMode>, Error> {
        Device::mig_mode(self)
    }

    fn set_mig_mode(&self, on: bool) -> Result<Activation, Error> {
        Device::set_mig_mode(self, on)
    }

    fn profiles(&self) -> Result<Vec<(GpuInstanceProfile, Vec<Placement>)>, Error> {
        self.gpu_instance_profiles()
    }

    fn instances(&self, profiles: &[u32]) -> Result<Instances<'_>, Error> {
        let all = self.gpu_instances_of(profiles)?.into_iter();
        Ok(all
            .map(|(instance, info)| (Box::new(instance) as Box<dyn Instance>, info))
            .collect())
    }

    fn create(&self, profile: u32, at: Placement) -> Result<Box<dyn Instance + '_>, Error> {
        Ok(Box::new(self.create_gpu_instance(profile, at)?))
    }

    fn set_memory_limits(&self, group: &Path, limits: MemoryLimits) -> Result<(), Error> {
        Device::set_memory_limits(self, group, limits)
    }

    fn memory_limits(&self, group: &Path) -> Result<MemoryLimits, Error> {
        Ok(Device::memory_limits(self, group)?.0)
    }
}

impl Instance for GpuInstance<'_> {
    fn info(&self) -> Result<GpuInstanceInfo, Error> {
        GpuInstance::info(self)
    }

    fn compute_instances(&self) -> Result<Computes<'_>, Error> {
        let all = GpuInstance::compute_instances(self)?.into_iter();
        Ok(all
            .map(|(compute, info)| (Box::new(compute) as Box<dyn Compute>, info))
            .collect())
    }

    fn create_compute_instance(&self) -> Result<Box<dyn Compute + '_>, Error> {
        Ok(Box::new(self.create_full_compute_instance()?))
    }

    fn destroy(&self) -> Result<(), Error> {
        GpuInstance::destroy(self)
    }
}

impl Compute for ComputeInstance<'_> {
    fn info(&self) -> Result<ComputeInstanceInfo, Error> {
        ComputeInstance::info(self)
    }

    fn memory(&self) -> Result<Memory, Error> {
        self.device()?.memory()
    }

    fn processes(&self) -> Result<Vec<Process>, Error> {
        self.device()?.processes()
    }

    fn destroy(&self) -> Result<(), Error> {
        ComputeInstance::destroy(self)
    }
}
