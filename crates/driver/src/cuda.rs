//! The measured context overhead: the memory that a CUDA context takes before its first allocation.
//!
//! The figure depends on GPU, driver and loading mode (some 300 to 500 MB), so it is measured, never assumed: in a process of
//! its own, since a context once made may leave memory behind, and a driver that fails may take its process along.

use std::ffi::{CStr, c_int};
use std::path::Path;

use crate::load::{CUDA, Function, Library, Lookup, library};
use crate::nvml::Nvml;
use crate::sys::cuda::*;
use crate::{Error, Uuid};

library! {
    /// The driver functions that this module calls.
    struct Functions {
        cuInit,
        cuGetErrorString,
        cuDeviceGetCount,
        cuDeviceGet,
        cuDeviceGetUuid,
        cuDevicePrimaryCtxRetain,
        cuDevicePrimaryCtxRelease_v2,
    }
}

/// Bytes of a GPU's memory that one process's primary context takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextOverhead {
    pub bytes: u64,
    pub source: Source,
}

/// Where a measured figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// NVML's figure for this process.
    Process,
    /// The growth of the GPU's used memory, where NVML does not list this process (as from within a PID namespace). It
    /// includes changes by other processes.
    Device,
}

/// Makes a context on the GPU with this UUID, asks NVML what it cost, and lets go of it.
///
/// To be run in a process that has not used CUDA and ends soon after. `cuda` and `nvml` are the libraries' files, or `None` for
/// those that the loader finds. `CUDA_VISIBLE_DEVICES` must not hide the GPU.
///
/// # Errors
/// [`Error::NoSuchDevice`] when NVML or CUDA does not know the GPU; otherwise the call that failed.
pub fn context_overhead(
    cuda: Option<&Path>,
    nvml: Option<&Path>,
    uuid: Uuid,
) -> Result<ContextOverhead, Error> {
    let nvml = Nvml::load(nvml)?;
    let device = nvml.device_by_uuid(uuid)?;
    let own = || -> Result<Option<u64>, Error> {
        let own = device
            .processes()?
            .into_iter()
            .find(|process| process.pid == std::process::id());
        Ok(own.and_then(|process| process.used))
    };
    let process_before = own()?.unwrap_or(0);
    let device_before = device.memory()?.used;

    let context = PrimaryContext::retain(cuda, uuid)?;
    let overhead = match own()? {
        Some(after) => ContextOverhead {
            bytes: after.saturating_sub(process_before),
            source: Source::Process,
        },
        None => ContextOverhead {
            bytes: device.memory()?.used.saturating_sub(device_before),
            source: Source::Device,
        },
    };
    drop(context);
    Ok(overhead)
}

/// A GPU's primary context, held.
struct PrimaryContext {
    functions: Functions,
    device: CUdevice,
}

impl PrimaryContext {
    fn retain(path: Option<&Path>, uuid: Uuid) -> Result<Self, Error> {
        let functions = Functions::find(&Library::open(path, CUDA)?, Lookup::Handle);
        // SAFETY: takes no pointer.
        functions.call(&functions.cuInit, |init| unsafe { init(0) })?;
        let device = functions.device(uuid)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: a device this library named; writes one handle.
        let retain =
            |retain: pfn::cuDevicePrimaryCtxRetain| unsafe { retain(&raw mut context, device) };
        functions.call(&functions.cuDevicePrimaryCtxRetain, retain)?;
        Ok(Self { functions, device })
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: takes no pointer; pairs with the retain in `retain`.
        let release = |release: pfn::cuDevicePrimaryCtxRelease_v2| unsafe { release(self.device) };
        let released = self
            .functions
            .call(&self.functions.cuDevicePrimaryCtxRelease_v2, release);
        // The process ends soon and the driver takes the context with it.
        drop(released);
    }
}

impl Functions {
    fn device(&self, uuid: Uuid) -> Result<CUdevice, Error> {
        let mut count: c_int = 0;
        // SAFETY: writes one number.
        self.call(&self.cuDeviceGetCount, |get| unsafe { get(&raw mut count) })?;
        for ordinal in 0..count {
            let (mut device, mut found) = (CU_DEVICE_INVALID, CUuuid::default());
            // SAFETY: writes one ordinal.
            self.call(&self.cuDeviceGet, |get| unsafe {
                get(&raw mut device, ordinal)
            })?;
            // SAFETY: a device this library named; writes sixteen bytes.
            self.call(&self.cuDeviceGetUuid, |get| unsafe {
                get(&raw mut found, device)
            })?;
            if found.bytes == uuid.0 {
                return Ok(device);
            }
        }
        Err(Error::NoSuchDevice(uuid))
    }

    fn call<F: Copy>(
        &self,
        function: &Function<F>,
        call: impl FnOnce(F) -> CUresult,
    ) -> Result<(), Error> {
        checked(function, call, &self.cuGetErrorString)
    }
}

/// Calls `function`; anything but success becomes an error that names it, in the words of `error_string`.
pub(crate) fn checked<F: Copy>(
    function: &Function<F>,
    call: impl FnOnce(F) -> CUresult,
    error_string: &Function<pfn::cuGetErrorString>,
) -> Result<(), Error> {
    match call(function.get()?) {
        CUresult::SUCCESS => Ok(()),
        code => Err(Error::Cuda {
            function: function.name,
            device: None,
            code,
            text: text(error_string, code),
        }),
    }
}

fn text(error_string: &Function<pfn::cuGetErrorString>, code: CUresult) -> String {
    let mut text = std::ptr::null();
    if let Some(error_string) = error_string.address {
        // SAFETY: takes any code; writes one pointer.
        unsafe { error_string(code, &raw mut text) };
    }
    if text.is_null() {
        return format!("{code:?}");
    }
    // SAFETY: not NULL, so one of the driver's own strings, which are never freed.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
