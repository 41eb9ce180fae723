//! NVML's memory limits of a control group (cgroup) on a GPU, since r615 (CUDA 13.4).
//!
//! Source: NVIDIA, "MPS v3 Memory Partitioning", and `nvmlDeviceSetMemoryLimits_v1` in nvml.h. Not verified on
//! hardware.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Device;
use crate::Error;
use crate::sys::nvml::*;

/// What a control group may take of one GPU's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Beyond it, an MPS server may end the group's clients for the sake of others; 0 protects nothing.
    pub soft: u64,
    /// Beyond it, each allocation is answered with `CUDA_ERROR_OUT_OF_MEMORY`; `None` is no limit.
    pub hard: Option<u64>,
}

impl MemoryLimits {
    /// What a group without a limit has.
    pub const NONE: Self = Self {
        soft: 0,
        hard: None,
    };

    /// No group borrows from another where both are equal, so no client is ended for another's sake.
    pub fn exactly(bytes: u64) -> Self {
        Self {
            soft: bytes,
            hard: Some(bytes),
        }
    }
}

impl Device<'_> {
    /// Sets the limits of the group with this folder. Only root may.
    ///
    /// # Errors
    /// Those of the driver: see [`Error::is_unsupported`]; and a folder whose path has a zero byte.
    pub fn set_memory_limits(&self, group: &Path, limits: MemoryLimits) -> Result<(), Error> {
        let group = name(group)?;
        let mut set = nvmlSetMemoryLimits_v1_t {
            nameSpace: group.as_ptr(),
            softLimit: limits.soft,
            hardLimit: limits.hard.unwrap_or(NVML_DEVICE_MEMORY_LIMIT_MAX),
        };
        let function = &self.nvml.functions.nvmlDeviceSetMemoryLimits_v1;
        // SAFETY: our own handle, a structure and in it a text that outlive the call.
        self.call(function, |call| unsafe { call(self.handle, &raw mut set) })
    }

    /// The limits of the group with this folder, and the bytes that it uses.
    ///
    /// # Errors
    /// As [`Device::set_memory_limits`].
    pub fn memory_limits(&self, group: &Path) -> Result<(MemoryLimits, u64), Error> {
        let group = name(group)?;
        let mut get = nvmlGetMemoryLimits_v1_t {
            nameSpace: group.as_ptr(),
            softLimit: 0,
            hardLimit: 0,
            currentUsed: 0,
        };
        let function = &self.nvml.functions.nvmlDeviceGetMemoryLimits_v1;
        // SAFETY: our own handle, a structure and in it a text that outlive the call.
        self.call(function, |call| unsafe { call(self.handle, &raw mut get) })?;
        let limits = MemoryLimits {
            soft: get.softLimit,
            hard: (get.hardLimit != NVML_DEVICE_MEMORY_LIMIT_MAX).then_some(get.hardLimit),
        };
        Ok((limits, get.currentUsed))
    }
}

/// The driver takes the full path of the group's folder.
fn name(group: &Path) -> Result<CString, Error> {
    CString::new(group.as_os_str().as_bytes()).map_err(|_| Error::Nvml {
        function: "nvmlDeviceSetMemoryLimits_v1",
        device: None,
        code: nvmlReturn_t::INVALID_ARGUMENT,
        text: "the path of the control group has a zero byte".to_owned(),
    })
}
