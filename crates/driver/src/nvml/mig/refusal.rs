//! The driver's refusals of MIG operations: their meaning, and the hint for each.

use crate::Error;
use crate::sys::nvml::nvmlReturn_t;

/// Why the driver refused a MIG operation, for the refusals that have a remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigRefusal {
    /// A process, an instance inside, or a leaked handle is in the way.
    InUse,
    /// Something lies there, or there are as many of it as there may be.
    NoRoom,
    /// The caller has not the right to change MIG.
    NoPermission,
    /// MIG is off, or not to be had here.
    NotSupported,
    /// The GPU has to be reset first.
    ResetRequired,
    /// There is no such instance any more.
    Gone,
}

impl MigRefusal {
    /// The remedy, in one line.
    pub fn hint(self) -> &'static str {
        match self {
            Self::InUse => {
                "end the processes that use it; if none is listed, restart the programs that monitor GPUs (DCGM, \
                 nvidia-persistenced), because they may hold it open"
            }
            Self::NoRoom => {
                "list the instances with `nvidia-smi mig -lgi`: another program's instance may occupy the place"
            }
            Self::NoPermission => {
                "run as root, or get access to the device file of `mig/config` in /dev/nvidia-caps"
            }
            Self::NotSupported => {
                "check `nvidia-smi -q -d MIG`: MIG mode must be on, and a vGPU guest cannot change instances"
            }
            Self::ResetRequired => {
                "drain the GPU and reset it with `nvidia-smi --gpu-reset -i N`, or restart the machine"
            }
            Self::Gone => "another program destroyed it; list the instances again",
        }
    }
}

impl Error {
    /// The refusal behind this error, if it is one. NVML answers an unlisted placement in either of two ways (nvml.h
    /// allows both), which mean the same here.
    pub fn refusal(&self) -> Option<MigRefusal> {
        let Error::Nvml { function, code, .. } = self else {
            return match self {
                _ if self.is_unsupported() => Some(MigRefusal::NotSupported),
                _ => None,
            };
        };
        let makes = [
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            "nvmlGpuInstanceCreateComputeInstance",
        ];
        Some(match *code {
            nvmlReturn_t::IN_USE => MigRefusal::InUse,
            nvmlReturn_t::INSUFFICIENT_RESOURCES => MigRefusal::NoRoom,
            nvmlReturn_t::INVALID_ARGUMENT if makes.contains(function) => MigRefusal::NoRoom,
            nvmlReturn_t::NO_PERMISSION => MigRefusal::NoPermission,
            nvmlReturn_t::NOT_SUPPORTED | nvmlReturn_t::FUNCTION_NOT_FOUND => {
                MigRefusal::NotSupported
            }
            nvmlReturn_t::RESET_REQUIRED => MigRefusal::ResetRequired,
            nvmlReturn_t::NOT_FOUND | nvmlReturn_t::INVALID_ARGUMENT => MigRefusal::Gone,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(function: &'static str, code: nvmlReturn_t) -> Error {
        Error::Nvml {
            function,
            device: None,
            code,
            text: String::new(),
        }
    }

    #[test]
    fn an_unlisted_place_is_no_room_in_both_readings_of_the_header() {
        let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
        for code in [
            nvmlReturn_t::INVALID_ARGUMENT,
            nvmlReturn_t::INSUFFICIENT_RESOURCES,
        ] {
            assert_eq!(error(create, code).refusal(), Some(MigRefusal::NoRoom));
        }
    }

    #[test]
    fn a_stale_handle_and_a_missing_id_are_both_gone() {
        for code in [nvmlReturn_t::INVALID_ARGUMENT, nvmlReturn_t::NOT_FOUND] {
            let error = error("nvmlGpuInstanceGetInfo", code);
            assert_eq!(error.refusal(), Some(MigRefusal::Gone));
        }
    }

    #[test]
    fn an_error_without_a_remedy_is_no_refusal() {
        let lost = error("nvmlGpuInstanceGetInfo", nvmlReturn_t::GPU_IS_LOST);
        assert_eq!(lost.refusal(), None);
        assert!(lost.is_lost());
    }
}
