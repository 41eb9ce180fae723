//! Errors of the driver's libraries: loading, lookup, and result codes.

use crate::load::LoadError;
use crate::sys::cuda::CUresult;
use crate::sys::nvml::nvmlReturn_t;

/// A driver call that did not succeed: which, about which device, and what the driver says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{}{function}: {text}", prefix(.device))]
    Nvml {
        function: &'static str,
        /// `GPU 2`; `None` where the call was about no device.
        device: Option<String>,
        code: nvmlReturn_t,
        /// In the words of `nvmlErrorString`.
        text: String,
    },
    #[error("{}{function}: {text}", prefix(.device))]
    Cuda {
        function: &'static str,
        device: Option<String>,
        code: CUresult,
        /// In the words of `cuGetErrorString`.
        text: String,
    },
    #[error("no GPU of this driver has the UUID {0}")]
    NoSuchDevice(crate::Uuid),
}

fn prefix(device: &Option<String>) -> String {
    device
        .as_ref()
        .map_or_else(String::new, |device| format!("{device}: "))
}

impl Error {
    /// The GPU has fallen off the bus or needs a reset; other GPUs may be well.
    pub fn is_lost(&self) -> bool {
        let lost = [
            nvmlReturn_t::GPU_IS_LOST,
            nvmlReturn_t::RESET_REQUIRED,
            nvmlReturn_t::GPU_NOT_FOUND,
        ];
        matches!(self, Error::Nvml { code, .. } if lost.contains(code))
    }

    /// The kernel module was unloaded, or is of another version than the library that this process has loaded.
    pub fn is_of_another_driver(&self) -> bool {
        let codes = [
            nvmlReturn_t::DRIVER_NOT_LOADED,
            nvmlReturn_t::LIB_RM_VERSION_MISMATCH,
        ];
        matches!(self, Error::Nvml { code, .. } if codes.contains(code))
    }

    /// CUDA refused memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::Cuda { code, .. } if *code == CUresult::OUT_OF_MEMORY)
    }

    /// This driver or this GPU does not offer what was asked for.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Error::Load(LoadError::Missing { .. }) => true,
            Error::Nvml { code, .. } => [
                nvmlReturn_t::NOT_SUPPORTED,
                nvmlReturn_t::FUNCTION_NOT_FOUND,
            ]
            .contains(code),
            Error::Cuda { code, .. } => *code == CUresult::NOT_SUPPORTED,
            _ => false,
        }
    }
}
