//! What the driver tells of a GPU's errors: counts of bad memory, remapped rows, and Xid events.

use std::ffi::c_uint;
use std::sync::Arc;

use super::{Device, Nvml, offered, pfn};
use crate::sys::nvml::*;
use crate::{Error, Uuid};

/// Rows of memory that the GPU replaced, or is to replace, with spare ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemappedRows {
    /// Those that had uncorrectable errors.
    pub uncorrectable: u32,
    /// The next reset of the GPU remaps a row.
    pub is_pending: bool,
    /// A row could not be remapped, at any time since the GPU was made.
    pub has_failed: bool,
}

impl Device<'_> {
    /// Uncorrected errors in memory since the driver was loaded or the GPU was reset; `None` where the GPU counts none.
    pub fn uncorrected_ecc_errors(&self) -> Result<Option<u64>, Error> {
        let mut count = 0;
        let get = |get: pfn::nvmlDeviceGetTotalEccErrors| {
            let (kind, counter) = (
                nvmlMemoryErrorType_t::UNCORRECTED,
                nvmlEccCounterType_t::VOLATILE_ECC,
            );
            // SAFETY: our own handle; writes one number.
            unsafe { get(self.handle, kind, counter, &raw mut count) }
        };
        let asked = self.call(&self.nvml.functions.nvmlDeviceGetTotalEccErrors, get);
        offered(asked.map(|()| count))
    }

    /// `None` where the GPU remaps none, or does not tell, as in MIG mode (nvml.h, `nvmlDeviceGetRemappedRows`).
    pub fn remapped_rows(&self) -> Result<Option<RemappedRows>, Error> {
        let [mut correctable, mut uncorrectable, mut pending, mut failed] = [0; 4];
        // SAFETY: our own handle; writes four numbers.
        let get = |get: pfn::nvmlDeviceGetRemappedRows| unsafe {
            get(
                self.handle,
                &raw mut correctable,
                &raw mut uncorrectable,
                &raw mut pending,
                &raw mut failed,
            )
        };
        let asked = self.call(&self.nvml.functions.nvmlDeviceGetRemappedRows, get);
        offered(asked.map(|()| RemappedRows {
            uncorrectable,
            is_pending: pending != 0,
            has_failed: failed != 0,
        }))
    }
}

/// An error report of the driver about one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XidEvent {
    pub gpu: Uuid,
    /// NVIDIA's number of it; 999 for one that this NVML does not know (nvml.h, `nvmlEventData_t`).
    pub xid: u64,
}

/// The Xid events of the GPUs that it watches; freed when dropped.
pub struct XidEvents {
    nvml: Arc<Nvml>,
    set: nvmlEventSet_t,
    /// Each with its handle: a GPU that is lost does not tell its UUID any more. NULL for a GPU that reports no Xid.
    watched: Vec<(nvmlDevice_t, Uuid)>,
}

// SAFETY: NVML may be called from any thread (nvml.h, introduction), and its handles belong to the process.
unsafe impl Send for XidEvents {}

impl XidEvents {
    /// An empty set.
    ///
    /// # Errors
    /// When the driver has no events.
    pub fn new(nvml: &Arc<Nvml>) -> Result<Self, Error> {
        let mut set = std::ptr::null_mut();
        let f = &nvml.functions;
        // SAFETY: writes one handle.
        f.call(None, &f.nvmlEventSetCreate, |create| unsafe {
            create(&raw mut set)
        })?;
        Ok(Self {
            nvml: Arc::clone(nvml),
            set,
            watched: Vec::new(),
        })
    }

    /// Whether a GPU is watched.
    pub fn watches(&self, gpu: Uuid) -> bool {
        self.watched.iter().any(|(_, watched)| *watched == gpu)
    }

    /// Watches a GPU from now on: the driver tells no earlier event. A GPU that reports no Xid is watched in vain.
    ///
    /// # Errors
    /// When the GPU does not answer. After "Unknown Error" the set is to be dropped (nvml.h, `nvmlDeviceRegisterEvents`).
    pub fn watch(&mut self, device: &Device<'_>, gpu: Uuid) -> Result<(), Error> {
        let f = &self.nvml.functions;
        let types = device.read(&f.nvmlDeviceGetSupportedEventTypes, 0)?;
        let mut handle = std::ptr::null_mut();
        if types & nvmlEventTypeXidCriticalError != 0 {
            // SAFETY: a handle of this NVML and our own set.
            let register = |register: pfn::nvmlDeviceRegisterEvents| unsafe {
                register(device.handle, nvmlEventTypeXidCriticalError, self.set)
            };
            device.call(&f.nvmlDeviceRegisterEvents, register)?;
            handle = device.handle;
        }
        self.watched.push((handle, gpu));
        Ok(())
    }

    /// The next event, without waiting for one; `None` when there is none.
    ///
    /// # Errors
    /// When the driver cannot tell, as while a watched GPU is lost.
    pub fn poll(&self) -> Result<Option<XidEvent>, Error> {
        const NO_WAIT: c_uint = 0;
        let f = &self.nvml.functions;
        // nvml.h does not say what a wait on an empty set answers.
        if self.watched.iter().all(|(handle, _)| handle.is_null()) {
            return Ok(None);
        }
        loop {
            let mut data = nvmlEventData_t::default();
            // SAFETY: our own set; writes one event.
            let wait =
                |wait: pfn::nvmlEventSetWait_v2| unsafe { wait(self.set, &raw mut data, NO_WAIT) };
            match f.call(None, &f.nvmlEventSetWait_v2, wait) {
                Ok(()) => {}
                Err(Error::Nvml {
                    code: nvmlReturn_t::TIMEOUT,
                    ..
                }) => return Ok(None),
                Err(error) => return Err(error),
            }
            if let Some(gpu) = self.gpu_of(data.device) {
                let xid = data.eventData;
                return Ok(Some(XidEvent { gpu, xid }));
            }
        }
    }

    /// The GPU with this handle. A change of the MIG mode may have given it another handle since.
    fn gpu_of(&self, handle: nvmlDevice_t) -> Option<Uuid> {
        let known = self.watched.iter().find(|(known, _)| *known == handle);
        if let Some((_, gpu)) = known {
            return Some(*gpu);
        }
        let device = Device {
            nvml: &self.nvml,
            handle,
            index: u32::MAX,
        };
        device.uuid().ok()?.parse().ok()
    }
}

impl Drop for XidEvents {
    fn drop(&mut self) {
        let f = &self.nvml.functions;
        // SAFETY: our own set, which nothing uses after this.
        let freed = f.call(None, &f.nvmlEventSetFree, |free| unsafe { free(self.set) });
        // A driver that is gone has freed it.
        drop(freed);
    }
}
