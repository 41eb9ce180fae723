//! The MIG side of a GPU as the driver offers it: NVML's calls, and in tests those of a simulated machine, so that what is done to a
//! GPU is the same code there.

use divvy_driver::Error;
use divvy_driver::nvml::mig::{
    Activation, ComputeInstance, ComputeInstanceInfo, GpuInstance, GpuInstanceInfo,
    GpuInstanceProfile, MigMode, Placement,
};
use divvy_driver::nvml::{Device, Memory, Process};

#[cfg(test)]
use crate::simulation::driver as simulated;

/// A GPU.
pub enum Gpu<'a> {
    Driver(Device<'a>),
    /// By its index.
    #[cfg(test)]
    Simulated(usize),
}

/// A GPU instance.
pub enum Instance<'a> {
    Driver(GpuInstance<'a>),
    #[cfg(test)]
    Simulated(simulated::Instance),
}

/// A compute instance, which is a MIG device.
pub enum Compute<'a> {
    Driver(ComputeInstance<'a>),
    #[cfg(test)]
    Simulated(simulated::Compute),
}

impl<'a> Gpu<'a> {
    /// As [`Device::mig_mode`].
    pub fn mig_mode(&self) -> Result<Option<MigMode>, Error> {
        match self {
            Self::Driver(gpu) => gpu.mig_mode(),
            #[cfg(test)]
            Self::Simulated(gpu) => simulated::mode(*gpu).map(Some),
        }
    }

    /// As [`Device::set_mig_mode`].
    pub fn set_mig_mode(&self, on: bool) -> Result<Activation, Error> {
        match self {
            Self::Driver(gpu) => gpu.set_mig_mode(on),
            #[cfg(test)]
            Self::Simulated(gpu) => simulated::set_mode(*gpu, on),
        }
    }

    /// As [`Device::gpu_instance_profiles`].
    pub fn profiles(&self) -> Result<Vec<(GpuInstanceProfile, Vec<Placement>)>, Error> {
        match self {
            Self::Driver(gpu) => gpu.gpu_instance_profiles(),
            #[cfg(test)]
            Self::Simulated(gpu) => simulated::profiles(*gpu),
        }
    }

    /// As [`Device::gpu_instances_of`].
    pub fn instances(
        &self,
        profiles: &[u32],
    ) -> Result<Vec<(Instance<'a>, GpuInstanceInfo)>, Error> {
        match self {
            Self::Driver(gpu) => {
                let all = gpu.gpu_instances_of(profiles)?.into_iter();
                Ok(all
                    .map(|(instance, info)| (Instance::Driver(instance), info))
                    .collect())
            }
            #[cfg(test)]
            Self::Simulated(gpu) => {
                let all = simulated::instances(*gpu)?.into_iter();
                Ok(all
                    .map(|(instance, info)| (Instance::Simulated(instance), info))
                    .collect())
            }
        }
    }

    /// As [`Device::create_gpu_instance`].
    pub fn create(&self, profile: u32, at: Placement) -> Result<Instance<'a>, Error> {
        match self {
            Self::Driver(gpu) => gpu.create_gpu_instance(profile, at).map(Instance::Driver),
            #[cfg(test)]
            Self::Simulated(gpu) => simulated::create(*gpu, profile, at).map(Instance::Simulated),
        }
    }
}

impl<'a> Instance<'a> {
    /// As [`GpuInstance::info`].
    pub fn info(&self) -> Result<GpuInstanceInfo, Error> {
        match self {
            Self::Driver(instance) => instance.info(),
            #[cfg(test)]
            Self::Simulated(instance) => simulated::info(*instance),
        }
    }

    /// As [`GpuInstance::compute_instances`].
    pub fn compute_instances(&self) -> Result<Vec<(Compute<'a>, ComputeInstanceInfo)>, Error> {
        match self {
            Self::Driver(instance) => {
                let all = instance.compute_instances()?.into_iter();
                Ok(all
                    .map(|(compute, info)| (Compute::Driver(compute), info))
                    .collect())
            }
            #[cfg(test)]
            Self::Simulated(instance) => {
                let all = simulated::computes(*instance)?.into_iter();
                Ok(all
                    .map(|(compute, info)| (Compute::Simulated(compute), info))
                    .collect())
            }
        }
    }

    /// As [`GpuInstance::create_full_compute_instance`].
    pub fn create_compute_instance(&self) -> Result<Compute<'a>, Error> {
        match self {
            Self::Driver(instance) => instance.create_full_compute_instance().map(Compute::Driver),
            #[cfg(test)]
            Self::Simulated(instance) => simulated::fill(*instance).map(Compute::Simulated),
        }
    }

    /// As [`GpuInstance::destroy`].
    pub fn destroy(&self) -> Result<(), Error> {
        match self {
            Self::Driver(instance) => instance.destroy(),
            #[cfg(test)]
            Self::Simulated(instance) => simulated::destroy(*instance),
        }
    }
}

impl Compute<'_> {
    /// As [`ComputeInstance::info`].
    pub fn info(&self) -> Result<ComputeInstanceInfo, Error> {
        match self {
            Self::Driver(compute) => compute.info(),
            #[cfg(test)]
            Self::Simulated(compute) => simulated::compute_info(*compute),
        }
    }

    /// The memory of its GPU instance.
    pub fn memory(&self) -> Result<Memory, Error> {
        match self {
            Self::Driver(compute) => compute.device()?.memory(),
            #[cfg(test)]
            Self::Simulated(compute) => simulated::memory(*compute),
        }
    }

    /// Every process with a context on it.
    pub fn processes(&self) -> Result<Vec<Process>, Error> {
        match self {
            Self::Driver(compute) => compute.device()?.processes(),
            #[cfg(test)]
            Self::Simulated(compute) => simulated::processes(*compute),
        }
    }

    /// As [`ComputeInstance::destroy`].
    pub fn destroy(&self) -> Result<(), Error> {
        match self {
            Self::Driver(compute) => compute.destroy(),
            #[cfg(test)]
            Self::Simulated(compute) => simulated::empty(*compute),
        }
    }
}
