//! MIG through NVML: profiles and placements of a GPU, and creation, lookup and destruction of instances.
//!
//! ```text
//! GPU ── memory slices and compute slices ──► GPU instance ──► compute instance = MIG device (UUID, memory, processes)
//!        profile id, start, size                              the one that has all of its GPU instance
//! ```
//! Callers always name the placement: the driver's own choice is undocumented. NVML has no transactions, so a caller
//! that lists and then creates needs its own lock. Instances are found by profile and by id, never over MIG devices: an
//! instance without a compute instance has none (nvml.h, `nvmlDeviceGetMigDeviceHandleByIndex`).
//!
//! Nothing here is remembered, and which instances there ought to be is for others to know.

mod instance;
mod refusal;

use std::ffi::c_uint;

pub use instance::{ComputeInstance, ComputeInstanceInfo, GpuInstance, GpuInstanceInfo, MigDevice};
pub use refusal::MigRefusal;

use super::{Device, pfn, text_of};
use crate::Error;
use crate::sys::nvml::*;

/// Profile numbers are asked up to this one where the driver does not say before that it knows no more. nvml.h of CUDA 13.5 has
/// 18; the rest is for drivers that come after it.
const NUMBERS: c_uint = 64;

/// GPU instances of one GPU have ids below this (`NVCAPS_MIG_MAX_GPU_INSTANCES` in nv-caps.c is 15).
const INSTANCE_IDS: c_uint = 15;

/// Whether MIG is on, and whether it will be after the next reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigMode {
    pub current: bool,
    pub pending: bool,
}

/// The result of setting the MIG mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// It is on, or off. Handles of this GPU that were had before may be none any more.
    Done,
    /// A process uses the GPU; the mode change is pending.
    InUse,
    /// The mode is pending until the GPU is reset (Ampere), or the virtual machine that has it is restarted.
    ResetRequired,
    /// Not on this platform.
    NotSupported,
    /// The driver's words for anything else.
    Other(nvmlReturn_t),
}

/// A profile of GPU instances, in the driver's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstanceProfile {
    /// Its place in nvml.h's list, by which it is found.
    pub number: u32,
    /// The id that every other call takes: 19, 14, 9, 5, 0 on an A100.
    pub id: u32,
    /// `1g.5gb`; `None` from drivers that do not say.
    pub name: Option<String>,
    /// Bytes of a device of this profile; up to 256 MiB less than what such a device then says (seen on A100).
    pub memory: u64,
    /// Compute slices.
    pub slices: u32,
    pub multiprocessors: u32,
    /// So many of it fit on an empty GPU.
    pub most: u32,
    pub copy_engines: u32,
    pub decoders: u32,
    pub encoders: u32,
    pub jpegs: u32,
    pub ofas: u32,
}

/// Where an instance lies: memory slices for a GPU instance, compute slices of its parent for a compute instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    pub start: u32,
    pub size: u32,
}

impl From<nvmlGpuInstancePlacement_t> for Placement {
    fn from(at: nvmlGpuInstancePlacement_t) -> Self {
        Self {
            start: at.start,
            size: at.size,
        }
    }
}

impl<'a> Device<'a> {
    /// `None` where the GPU knows no MIG.
    pub fn mig_mode(&self) -> Result<Option<MigMode>, Error> {
        let (mut current, mut pending) = (0, 0);
        // SAFETY: our own handle; writes two numbers.
        let get = |get: pfn::nvmlDeviceGetMigMode| unsafe {
            get(self.handle, &raw mut current, &raw mut pending)
        };
        let got = self.call(&self.nvml.functions.nvmlDeviceGetMigMode, get);
        let mode = got.map(|()| MigMode {
            current: current == NVML_DEVICE_MIG_ENABLE,
            pending: pending == NVML_DEVICE_MIG_ENABLE,
        });
        super::offered(mode)
    }

    /// Turns MIG mode on or off. Needs root and an unused GPU.
    ///
    /// # Errors
    /// [`MigRefusal::NoPermission`], [`MigRefusal::NotSupported`]. A GPU in use is no error but [`Activation::InUse`].
    pub fn set_mig_mode(&self, on: bool) -> Result<Activation, Error> {
        let mode = if on {
            NVML_DEVICE_MIG_ENABLE
        } else {
            NVML_DEVICE_MIG_DISABLE
        };
        let mut status = nvmlReturn_t::SUCCESS;
        // SAFETY: our own handle; writes one result.
        let set =
            |set: pfn::nvmlDeviceSetMigMode| unsafe { set(self.handle, mode, &raw mut status) };
        self.call(&self.nvml.functions.nvmlDeviceSetMigMode, set)?;
        Ok(match status {
            nvmlReturn_t::SUCCESS => Activation::Done,
            nvmlReturn_t::IN_USE => Activation::InUse,
            nvmlReturn_t::RESET_REQUIRED => Activation::ResetRequired,
            nvmlReturn_t::NOT_SUPPORTED => Activation::NotSupported,
            other => Activation::Other(other),
        })
    }

    /// Every profile that this driver lists, by its number in nvml.h, each with all of its placements: what is on the GPU now
    /// changes nothing in it. One that the driver cannot describe is left out, and one whose placements it cannot list has
    /// none, so that the others can be had.
    ///
    /// # Errors
    /// When not one can be described, why the first cannot: [`MigRefusal::NotSupported`] with MIG off on some drivers.
    pub fn gpu_instance_profiles(
        &self,
    ) -> Result<Vec<(GpuInstanceProfile, Vec<Placement>)>, Error> {
        let mut profiles = Vec::new();
        let mut first = None;
        for number in 0..NUMBERS {
            match self.gpu_instance_profile(number) {
                Ok(profile) => {
                    let placements = self.possible_placements(profile.id).unwrap_or_default();
                    profiles.push((profile, placements));
                }
                // Past the last profile that the driver knows. A hole before that is NOT_SUPPORTED, or another code of
                // some driver.
                Err(Error::Nvml {
                    code: nvmlReturn_t::INVALID_ARGUMENT,
                    ..
                }) if number >= NVML_GPU_INSTANCE_PROFILE_COUNT => break,
                Err(error) => first = first.or(Some(error)),
            }
        }
        match first {
            Some(error) if profiles.is_empty() => Err(error),
            _ => Ok(profiles),
        }
    }

    fn gpu_instance_profile(&self, number: c_uint) -> Result<GpuInstanceProfile, Error> {
        let f = &self.nvml.functions;
        let mut info = nvmlGpuInstanceProfileInfo_v2_t {
            version: struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2),
            ..Default::default()
        };
        // SAFETY: our own handle; fills the structure that its version names.
        let get = |get: pfn::nvmlDeviceGetGpuInstanceProfileInfoV| unsafe {
            get(self.handle, number, &raw mut info)
        };
        if self
            .call(&f.nvmlDeviceGetGpuInstanceProfileInfoV, get)
            .is_ok()
        {
            let name = text_of(&info.name);
            // nvidia-smi's tables have the prefix.
            let name = name.strip_prefix("MIG ").unwrap_or(&name).to_owned();
            return Ok(GpuInstanceProfile {
                number,
                id: info.id,
                name: (!name.is_empty()).then_some(name),
                memory: info.memorySizeMB << 20,
                slices: info.sliceCount,
                multiprocessors: info.multiprocessorCount,
                most: info.instanceCount,
                copy_engines: info.copyEngineCount,
                decoders: info.decoderCount,
                encoders: info.encoderCount,
                jpegs: info.jpegCount,
                ofas: info.ofaCount,
            });
        }
        // Not in older drivers, and documented not to answer while MIG is off.
        let mut info = nvmlGpuInstanceProfileInfo_t::default();
        // SAFETY: our own handle; fills the structure.
        let get = |get: pfn::nvmlDeviceGetGpuInstanceProfileInfo| unsafe {
            get(self.handle, number, &raw mut info)
        };
        self.call(&f.nvmlDeviceGetGpuInstanceProfileInfo, get)?;
        Ok(GpuInstanceProfile {
            number,
            id: info.id,
            name: None,
            memory: info.memorySizeMB << 20,
            slices: info.sliceCount,
            multiprocessors: info.multiprocessorCount,
            most: info.instanceCount,
            copy_engines: info.copyEngineCount,
            decoders: info.decoderCount,
            encoders: info.encoderCount,
            jpegs: info.jpegCount,
            ofas: info.ofaCount,
        })
    }

    /// Every placement of this profile, occupied or free.
    pub fn possible_placements(&self, profile: u32) -> Result<Vec<Placement>, Error> {
        let function = &self
            .nvml
            .functions
            .nvmlDeviceGetGpuInstancePossiblePlacements_v2;
        let mut count = 0;
        // SAFETY: our own handle; without an array it writes how many there are.
        let ask = |get: pfn::nvmlDeviceGetGpuInstancePossiblePlacements_v2| unsafe {
            get(self.handle, profile, std::ptr::null_mut(), &raw mut count)
        };
        self.call(function, ask)?;
        let mut places = vec![nvmlGpuInstancePlacement_t::default(); count as usize];
        let into = places.as_mut_ptr();
        // SAFETY: our own handle, and as many entries as `count` says.
        let get = |get: pfn::nvmlDeviceGetGpuInstancePossiblePlacements_v2| unsafe {
            get(self.handle, profile, into, &raw mut count)
        };
        self.call(function, get)?;
        places.truncate(count as usize);
        let mut places: Vec<Placement> = places.into_iter().map(Placement::from).collect();
        places.sort_unstable();
        Ok(places)
    }

    /// How many more of a profile could be made now. Reserves nothing.
    pub fn remaining_capacity(&self, profile: u32) -> Result<u32, Error> {
        let mut count = 0;
        let function = &self
            .nvml
            .functions
            .nvmlDeviceGetGpuInstanceRemainingCapacity;
        // SAFETY: our own handle; writes one number.
        let get = |get: pfn::nvmlDeviceGetGpuInstanceRemainingCapacity| unsafe {
            get(self.handle, profile, &raw mut count)
        };
        self.call(function, get)?;
        Ok(count)
    }

    /// Every GPU instance with its attributes, by ascending id: those of each profile, and every other id. So no
    /// instance is missed because the driver cannot describe its profile.
    ///
    /// # Errors
    /// When a list cannot be read to its end: an instance that is not seen must not be taken for one that is not there.
    /// [`MigRefusal::NotSupported`] with MIG off.
    pub fn gpu_instances(&self) -> Result<Vec<(GpuInstance<'a>, GpuInstanceInfo)>, Error> {
        let profiles: Vec<u32> = self
            .gpu_instance_profiles()?
            .into_iter()
            .map(|(profile, _)| profile.id)
            .collect();
        self.gpu_instances_of(&profiles)
    }

    /// The same, for a caller that has the profiles' ids already: they stay the same while the driver is loaded.
    ///
    /// # Errors
    /// As [`Device::gpu_instances`].
    pub fn gpu_instances_of(
        &self,
        profiles: &[u32],
    ) -> Result<Vec<(GpuInstance<'a>, GpuInstanceInfo)>, Error> {
        let mut found: Vec<(GpuInstance<'a>, GpuInstanceInfo)> = Vec::new();
        let mut add = |instance: GpuInstance<'a>| -> Result<(), Error> {
            match instance.info() {
                Ok(info) if found.iter().all(|(_, known)| known.id != info.id) => {
                    found.push((instance, info));
                    Ok(())
                }
                // Destroyed since it was listed.
                Err(error) if error.refusal() == Some(MigRefusal::Gone) => Ok(()),
                other => other.map(drop),
            }
        };
        for profile in profiles {
            for handle in self.handles(*profile)? {
                add(GpuInstance::new(self, handle))?;
            }
        }
        for id in 0..INSTANCE_IDS {
            if let Some(instance) = self.gpu_instance_by_id(id)? {
                add(instance)?;
            }
        }
        found.sort_by_key(|(_, info)| info.id);
        Ok(found)
    }

    fn handles(&self, profile: u32) -> Result<Vec<nvmlGpuInstance_t>, Error> {
        let function = &self.nvml.functions.nvmlDeviceGetGpuInstances;
        // The array must have room for all that there can be (nvml.h: `instanceCount` of the profile).
        let mut handles = vec![std::ptr::null_mut(); INSTANCE_IDS as usize + 1];
        let mut count = handles.len() as c_uint;
        let into = handles.as_mut_ptr();
        // SAFETY: our own handle, and an array with room for more instances than a GPU can have.
        let get = |get: pfn::nvmlDeviceGetGpuInstances| unsafe {
            get(self.handle, profile, into, &raw mut count)
        };
        match self.call(function, get) {
            Ok(()) => {
                handles.truncate(count as usize);
                Ok(handles)
            }
            // Described, and not to be made on this board.
            Err(Error::Nvml {
                code: nvmlReturn_t::INVALID_ARGUMENT,
                ..
            }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The GPU instance with this id.
    pub fn gpu_instance_by_id(&self, id: u32) -> Result<Option<GpuInstance<'a>>, Error> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: our own handle; writes one handle.
        let get = |get: pfn::nvmlDeviceGetGpuInstanceById| unsafe {
            get(self.handle, id, &raw mut handle)
        };
        match self.call(&self.nvml.functions.nvmlDeviceGetGpuInstanceById, get) {
            Ok(()) => Ok(Some(GpuInstance::new(self, handle))),
            Err(error) if error.refusal() == Some(MigRefusal::Gone) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a GPU instance at exactly this place. Nothing computes in it before it has a compute instance.
    ///
    /// # Errors
    /// [`MigRefusal::NoRoom`] if the placement is occupied or invalid, or the profile is used up; [`MigRefusal::InUse`]
    /// if it would be the first instance and a process uses the bare GPU; [`MigRefusal::NoPermission`].
    pub fn create_gpu_instance(
        &self,
        profile: u32,
        at: Placement,
    ) -> Result<GpuInstance<'a>, Error> {
        let place = nvmlGpuInstancePlacement_t {
            start: at.start,
            size: at.size,
        };
        let mut handle = std::ptr::null_mut();
        let function = &self.nvml.functions.nvmlDeviceCreateGpuInstanceWithPlacement;
        // SAFETY: our own handle; reads one placement and writes one handle.
        let create = |create: pfn::nvmlDeviceCreateGpuInstanceWithPlacement| unsafe {
            create(self.handle, profile, &raw const place, &raw mut handle)
        };
        self.call(function, create)?;
        Ok(GpuInstance::new(self, handle))
    }
}
