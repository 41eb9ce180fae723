//! GPU instances, compute instances, and their MIG devices.

use std::ffi::{CString, c_uint};

use super::{MigRefusal, Placement};
use crate::Error;
use crate::load::Function;
use crate::nvml::pfn;
use crate::nvml::{Device, Memory, Nvml, Process};
use crate::sys::nvml::*;

/// Compute instances of one GPU instance have ids below this (`NVCAPS_MIG_MAX_COMPUTE_INSTANCES` in nv-caps.c is 8).
const COMPUTE_IDS: c_uint = 8;

/// A part of a GPU with memory of its own. The handle is none any more once the instance is destroyed or the GPU is reset: calls
/// then answer [`MigRefusal::Gone`].
#[derive(Clone, Copy)]
pub struct GpuInstance<'a> {
    nvml: &'a Nvml,
    handle: nvmlGpuInstance_t,
    /// Of the GPU, for errors.
    index: u32,
}

/// The attributes of a GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuInstanceInfo {
    pub id: u32,
    /// The id of its profile.
    pub profile: u32,
    /// In memory slices of the GPU.
    pub placement: Placement,
}

/// A part of a GPU instance's compute slices, or all of them.
#[derive(Clone, Copy)]
pub struct ComputeInstance<'a> {
    nvml: &'a Nvml,
    handle: nvmlComputeInstance_t,
    index: u32,
}

/// The attributes of a compute instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeInstanceInfo {
    pub id: u32,
    pub profile: u32,
    /// In compute slices of its GPU instance.
    pub placement: Placement,
    /// `MIG-…`, of the device that it is.
    pub uuid: String,
}

/// The MIG device of a compute instance, as programs see it.
pub struct MigDevice<'a>(Device<'a>);

impl<'a> GpuInstance<'a> {
    pub(super) fn new(device: &Device<'a>, handle: nvmlGpuInstance_t) -> Self {
        Self {
            nvml: device.nvml,
            handle,
            index: device.index,
        }
    }

    /// Its attributes and its placement.
    ///
    /// # Errors
    /// [`MigRefusal::Gone`] once it is destroyed.
    pub fn info(&self) -> Result<GpuInstanceInfo, Error> {
        let mut info = nvmlGpuInstanceInfo_t::default();
        // SAFETY: a handle that NVML gave out, which it knows again or refuses; fills the structure.
        let get = |get: pfn::nvmlGpuInstanceGetInfo| unsafe { get(self.handle, &raw mut info) };
        self.call(&self.nvml.functions.nvmlGpuInstanceGetInfo, get)?;
        Ok(GpuInstanceInfo {
            id: info.id,
            profile: info.profileId,
            placement: info.placement.into(),
        })
    }

    /// Every compute instance in it, by ascending id.
    ///
    /// # Errors
    /// When one that is there cannot be read.
    pub fn compute_instances(
        &self,
    ) -> Result<Vec<(ComputeInstance<'a>, ComputeInstanceInfo)>, Error> {
        let mut found = Vec::new();
        for id in 0..COMPUTE_IDS {
            let mut handle = std::ptr::null_mut();
            // SAFETY: a handle that NVML gave out; writes one handle.
            let get = |get: pfn::nvmlGpuInstanceGetComputeInstanceById| unsafe {
                get(self.handle, id, &raw mut handle)
            };
            let function = &self.nvml.functions.nvmlGpuInstanceGetComputeInstanceById;
            let instance = match self.call(function, get) {
                Ok(()) => ComputeInstance {
                    nvml: self.nvml,
                    handle,
                    index: self.index,
                },
                Err(error) if error.refusal() == Some(MigRefusal::Gone) => continue,
                Err(error) => return Err(error),
            };
            match instance.info() {
                Ok(info) => found.push((instance, info)),
                Err(error) if error.refusal() == Some(MigRefusal::Gone) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Makes the compute instance that has all of this GPU instance. Its profile is looked up by size: for Hopper's 1g with double
    /// memory that is 7, and not 0 (seen on GH200).
    ///
    /// # Errors
    /// [`MigRefusal::NoRoom`] when there is one already, [`MigRefusal::NotSupported`] when the driver offers none.
    pub fn create_full_compute_instance(&self) -> Result<ComputeInstance<'a>, Error> {
        let profile = self.full_compute_profile()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a handle that NVML gave out; writes one handle.
        let create = |create: pfn::nvmlGpuInstanceCreateComputeInstance| unsafe {
            create(self.handle, profile, &raw mut handle)
        };
        let function = &self.nvml.functions.nvmlGpuInstanceCreateComputeInstance;
        self.call(function, create)?;
        Ok(ComputeInstance {
            nvml: self.nvml,
            handle,
            index: self.index,
        })
    }

    /// The profile with the most compute slices, and of equals the one with the most multiprocessors.
    fn full_compute_profile(&self) -> Result<c_uint, Error> {
        let function = &self
            .nvml
            .functions
            .nvmlGpuInstanceGetComputeInstanceProfileInfo;
        let mut best: Option<nvmlComputeInstanceProfileInfo_t> = None;
        let mut first = None;
        for number in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
            let mut info = nvmlComputeInstanceProfileInfo_t::default();
            // SAFETY: a handle that NVML gave out; fills the structure.
            let get = |get: pfn::nvmlGpuInstanceGetComputeInstanceProfileInfo| unsafe {
                let shared = NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED;
                get(self.handle, number, shared, &raw mut info)
            };
            match self.call(function, get) {
                Ok(()) => {
                    let size = |info: &nvmlComputeInstanceProfileInfo_t| {
                        (info.sliceCount, info.multiprocessorCount)
                    };
                    if best.is_none_or(|best| size(&info) > size(&best)) {
                        best = Some(info);
                    }
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        match (best, first) {
            (Some(best), _) => Ok(best.id),
            (None, Some(error)) => Err(error),
            (None, None) => unreachable!("there are profile numbers to ask for"),
        }
    }

    /// Destroys it. Its compute instances have to be destroyed before.
    ///
    /// # Errors
    /// [`MigRefusal::InUse`] while a compute instance or a process is in it; then nothing has changed.
    pub fn destroy(&self) -> Result<(), Error> {
        // SAFETY: a handle that NVML gave out, which it knows again or refuses.
        let destroy = |destroy: pfn::nvmlGpuInstanceDestroy| unsafe { destroy(self.handle) };
        self.call(&self.nvml.functions.nvmlGpuInstanceDestroy, destroy)
    }

    fn call<F: Copy>(
        &self,
        function: &Function<F>,
        call: impl FnOnce(F) -> nvmlReturn_t,
    ) -> Result<(), Error> {
        self.nvml.functions.call(Some(self.index), function, call)
    }
}

impl<'a> ComputeInstance<'a> {
    /// Its attributes and its MIG device.
    ///
    /// # Errors
    /// [`MigRefusal::Gone`] once it is destroyed.
    pub fn info(&self) -> Result<ComputeInstanceInfo, Error> {
        let info = self.raw_info()?;
        Ok(ComputeInstanceInfo {
            id: info.id,
            profile: info.profileId,
            placement: Placement {
                start: info.placement.start,
                size: info.placement.size,
            },
            uuid: self.device_of(&info)?.uuid()?,
        })
    }

    /// The device that it is.
    ///
    /// # Errors
    /// [`MigRefusal::Gone`] once it is destroyed.
    pub fn device(&self) -> Result<MigDevice<'a>, Error> {
        self.device_of(&self.raw_info()?)
    }

    /// nvml.h says that the information names the GPU, and on some drivers it names the MIG device (NVIDIA's DRA driver relied on
    /// that, and does no more). Where it is the GPU, the device is looked for among the GPU's.
    fn device_of(&self, info: &nvmlComputeInstanceInfo_t) -> Result<MigDevice<'a>, Error> {
        let named = self.as_device(info.device);
        let f = &self.nvml.functions;
        if named.read(&f.nvmlDeviceIsMigDeviceHandle, 0)? != 0 {
            return Ok(MigDevice(named));
        }
        let instance = GpuInstance {
            nvml: self.nvml,
            handle: info.gpuInstance,
            index: self.index,
        };
        let ours = (instance.info()?.id, info.id);
        let count = named.read(&f.nvmlDeviceGetMaxMigDeviceCount, 0)?;
        for place in 0..count {
            let mut handle = std::ptr::null_mut();
            // SAFETY: a handle that NVML gave out; writes one handle.
            let get = |get: pfn::nvmlDeviceGetMigDeviceHandleByIndex| unsafe {
                get(info.device, place, &raw mut handle)
            };
            match named.call(&f.nvmlDeviceGetMigDeviceHandleByIndex, get) {
                Ok(()) => {}
                // A hole.
                Err(error) if error.refusal() == Some(MigRefusal::Gone) => continue,
                Err(error) => return Err(error),
            }
            let device = MigDevice(self.as_device(handle));
            if (device.gpu_instance_id()?, device.compute_instance_id()?) == ours {
                return Ok(device);
            }
        }
        Err(Error::Nvml {
            function: f.nvmlDeviceGetMigDeviceHandleByIndex.name,
            device: Some(format!("GPU {}", self.index)),
            code: nvmlReturn_t::NOT_FOUND,
            text: format!(
                "compute instance {} of GPU instance {} has no MIG device",
                ours.1, ours.0
            ),
        })
    }

    fn as_device(&self, handle: nvmlDevice_t) -> Device<'a> {
        Device {
            nvml: self.nvml,
            handle,
            index: self.index,
        }
    }

    fn raw_info(&self) -> Result<nvmlComputeInstanceInfo_t, Error> {
        let mut info = nvmlComputeInstanceInfo_t::default();
        // SAFETY: a handle that NVML gave out, which it knows again or refuses; fills the structure.
        let get =
            |get: pfn::nvmlComputeInstanceGetInfo_v2| unsafe { get(self.handle, &raw mut info) };
        let function = &self.nvml.functions.nvmlComputeInstanceGetInfo_v2;
        self.nvml.functions.call(Some(self.index), function, get)?;
        Ok(info)
    }

    /// Destroys it.
    ///
    /// # Errors
    /// [`MigRefusal::InUse`] while a process is in it, or a process that NVML may not list holds a leaked handle of it.
    pub fn destroy(&self) -> Result<(), Error> {
        // SAFETY: a handle that NVML gave out, which it knows again or refuses.
        let destroy = |destroy: pfn::nvmlComputeInstanceDestroy| unsafe { destroy(self.handle) };
        let function = &self.nvml.functions.nvmlComputeInstanceDestroy;
        self.nvml
            .functions
            .call(Some(self.index), function, destroy)
    }
}

impl Nvml {
    /// The MIG device of this UUID (`MIG-…`), and the GPU that it is on.
    ///
    /// # Errors
    /// [`MigRefusal::Gone`] when there is none.
    pub fn mig_device(&self, uuid: &str) -> Result<(MigDevice<'_>, Device<'_>), Error> {
        let f = &self.functions;
        let text = CString::new(uuid).unwrap_or_default();
        let mut handle = std::ptr::null_mut();
        // SAFETY: a text with its end; writes one handle.
        let get =
            |get: pfn::nvmlDeviceGetHandleByUUID| unsafe { get(text.as_ptr(), &raw mut handle) };
        f.call(None, &f.nvmlDeviceGetHandleByUUID, get)?;
        let mut parent = std::ptr::null_mut();
        // SAFETY: a handle that NVML gave out; writes one handle.
        let get = |get: pfn::nvmlDeviceGetDeviceHandleFromMigDeviceHandle| unsafe {
            get(handle, &raw mut parent)
        };
        f.call(None, &f.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, get)?;
        let at = |handle, index| Device {
            nvml: self,
            handle,
            index,
        };
        let index = at(parent, 0).read(&f.nvmlDeviceGetIndex, 0)?;
        Ok((MigDevice(at(handle, index)), at(parent, index)))
    }
}

impl<'a> From<MigDevice<'a>> for Device<'a> {
    fn from(device: MigDevice<'a>) -> Self {
        device.0
    }
}

impl MigDevice<'_> {
    /// `MIG-…`. It names the slot and not the instance: one that is made again in the same place has the same.
    pub fn uuid(&self) -> Result<String, Error> {
        self.0.uuid()
    }

    /// `NVIDIA A100-SXM4-40GB MIG 1g.5gb`
    pub fn name(&self) -> Result<String, Error> {
        self.0.text(&self.0.nvml.functions.nvmlDeviceGetName)
    }

    /// The memory of its GPU instance.
    pub fn memory(&self) -> Result<Memory, Error> {
        self.0.memory()
    }

    /// Every process with a context on it, once, by ascending pid.
    pub fn processes(&self) -> Result<Vec<Process>, Error> {
        self.0.processes()
    }

    /// The id of its GPU instance.
    pub fn gpu_instance_id(&self) -> Result<u32, Error> {
        let function = &self.0.nvml.functions.nvmlDeviceGetGpuInstanceId;
        self.0.read(function, 0)
    }

    /// Its id among the compute instances of its GPU instance.
    pub fn compute_instance_id(&self) -> Result<u32, Error> {
        let function = &self.0.nvml.functions.nvmlDeviceGetComputeInstanceId;
        self.0.read(function, 0)
    }
}
