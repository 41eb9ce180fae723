//! Probes of a memory limit: a CUDA program that tries to exceed it in every way that the driver offers.
//!
//! ```text
//! Session   one GPU with its primary context, functions found by one of the usual lookups
//! WAYS      the functions that take device memory, a row each; Taken is what they gave, given back when dropped
//! exceed    tries one way against a limit: Verdict        views    what the driver tells about memory, held to the limit
//! Segment   addresses with physical memory mapped piece by piece; Pool   stream-ordered memory that is kept when freed
//! ```
//! It runs in a short-lived process of its own: a driver that fails may take its process along. It knows nothing of
//! limiters and compares the driver with the given limit. The caller interprets a verdict.

mod arrays;
mod capture;
mod contexts;
mod exceed;
mod graphs;
mod limits;
mod linear;
mod pools;
mod segment;
mod shared;
mod stream_ordered;
mod views;
mod virtual_memory;
mod ways;

use std::ffi::c_int;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::cuda::checked;
use crate::load::{CUDA, Function, Library, Lookup, library};
use crate::sys::cuda::*;
use crate::{Error, Uuid};

pub use capture::{Captured, during_capture};
pub use exceed::{Outcome, Verdict, exceed};
pub use linear::alloc_pinned;
pub use pools::Pool;
pub use segment::{Physical, Place, Segment, granularity};
pub use shared::{IpcHandle, alloc_for_ipc, open_ipc};
pub use views::{View, views};
pub use ways::{Asks, WAYS, Way, way};

library! {
    /// The driver functions that the probes call.
    struct Functions {
        cuInit,
        cuGetErrorString,
        cuDeviceGetCount,
        cuDeviceGet,
        cuDeviceGetUuid,
        cuDeviceGetUuid_v2,
        cuDeviceTotalMem_v2,
        cuDeviceGetAttribute,
        cuDevicePrimaryCtxRetain,
        cuDevicePrimaryCtxRelease_v2,
        cuCtxCreate,
        cuCtxCreate_v2,
        cuCtxCreate_v3,
        cuCtxCreate_v4,
        cuCtxDestroy_v2,
        cuCtxPopCurrent_v2,
        cuCtxSetCurrent,
        cuCtxSynchronize,
        cuCtxGetLimit,
        cuCtxSetLimit,
        cuMemGetInfo_v2,
        cuMemAlloc,
        cuMemAlloc_v2,
        cuMemAllocPitch,
        cuMemAllocPitch_v2,
        cuMemAllocManaged,
        cuMemHostAlloc,
        cuMemFreeHost,
        cuMemsetD8Async,
        cuMemFree,
        cuMemFree_v2,
        cuMemAllocAsync,
        cuMemAllocAsync_ptsz,
        cuMemAllocFromPoolAsync,
        cuMemAllocFromPoolAsync_ptsz,
        cuMemFreeAsync,
        cuMemPoolCreate,
        cuMemPoolDestroy,
        cuMemPoolSetAttribute,
        cuMemPoolGetAttribute,
        cuMemPoolTrimTo,
        cuDeviceGetDefaultMemPool,
        cuMemCreate,
        cuMemRelease,
        cuMemAddressReserve,
        cuMemAddressFree,
        cuMemMap,
        cuMemUnmap,
        cuMemSetAccess,
        cuMemGetAllocationGranularity,
        cuMemExportToShareableHandle,
        cuMemImportFromShareableHandle,
        cuIpcGetMemHandle,
        cuIpcOpenMemHandle_v2,
        cuIpcCloseMemHandle,
        cuArrayCreate,
        cuArrayCreate_v2,
        cuArray3DCreate,
        cuArray3DCreate_v2,
        cuArrayDestroy,
        cuMipmappedArrayCreate,
        cuMipmappedArrayDestroy,
        cuGraphCreate,
        cuGraphDestroy,
        cuGraphAddMemAllocNode,
        cuGraphInstantiateWithFlags,
        cuGraphExecDestroy,
        cuGraphLaunch,
        cuGraphUpload,
        cuDeviceGraphMemTrim,
        cuStreamCreate,
        cuStreamDestroy_v2,
        cuStreamBeginCapture_v2,
        cuStreamEndCapture,
        cuThreadExchangeStreamCaptureMode,
    }
}

/// One GPU with its primary context, current on this thread; or without a context.
pub struct Session {
    functions: Functions,
    library: Library,
    device: CUdevice,
    /// Null for a session without a context.
    context: CUcontext,
}

/// Device memory that was taken, given back when dropped.
#[must_use = "dropping it gives the memory back"]
pub struct Taken<'s> {
    bytes: u64,
    /// Of linear memory.
    address: Option<CUdeviceptr>,
    give_back: Option<Box<dyn FnOnce() + 's>>,
}

impl Taken<'_> {
    /// The requested size, or the measured cost where no size is requested.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn address(&self) -> Option<CUdeviceptr> {
        self.address
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            give_back();
        }
    }
}

impl fmt::Debug for Taken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Taken").field(&self.bytes).finish()
    }
}

/// Free and total memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    pub free: u64,
    pub total: u64,
}

impl Session {
    /// Opens the driver (the file `cuda`, or the one the loader finds), finds its functions by `lookup`, and retains the
    /// primary context of the GPU with that ordinal.
    ///
    /// # Errors
    /// The call that failed. With [`Lookup::ProcAddress`] initialisation itself is looked up that way too.
    pub fn open(cuda: Option<&Path>, lookup: Lookup, ordinal: u32) -> Result<Self, Error> {
        let mut session = Self::without_context(cuda, lookup, ordinal)?;
        let (mut context, device) = (std::ptr::null_mut(), session.device);
        // SAFETY: a device this library named; writes one handle.
        let retain =
            |retain: pfn::cuDevicePrimaryCtxRetain| unsafe { retain(&raw mut context, device) };
        session.call(&session.functions.cuDevicePrimaryCtxRetain, retain)?;
        session.context = context;
        session.make_current()?;
        Ok(session)
    }

    /// The same without a context: this thread's current one stays as it is, also if it has none.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn without_context(
        cuda: Option<&Path>,
        lookup: Lookup,
        ordinal: u32,
    ) -> Result<Self, Error> {
        let library = match lookup {
            Lookup::Global => Library::open_global(cuda, CUDA)?,
            Lookup::Handle | Lookup::ProcAddress => Library::open(cuda, CUDA)?,
        };
        let functions = Functions::find(&library, lookup);
        let call = &functions.cuGetErrorString;
        // SAFETY: takes no pointer.
        checked(&functions.cuInit, |init| unsafe { init(0) }, call)?;
        let mut device = CU_DEVICE_INVALID;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: writes one ordinal.
        let get = |get: pfn::cuDeviceGet| unsafe { get(&raw mut device, ordinal) };
        checked(&functions.cuDeviceGet, get, call)?;
        Ok(Self {
            functions,
            library,
            device,
            context: std::ptr::null_mut(),
        })
    }

    /// The file that the functions come from, by the loader's account.
    pub fn file(&self) -> Option<PathBuf> {
        self.library.file_of(Lookup::Handle, c"cuInit")
    }

    /// The GPU's UUID; of a MIG device, its own.
    ///
    /// # Errors
    /// The driver's.
    pub fn uuid(&self) -> Result<Uuid, Error> {
        let f = &self.functions;
        let get = match f.cuDeviceGetUuid_v2.address {
            Some(_) => &f.cuDeviceGetUuid_v2,
            None => &f.cuDeviceGetUuid,
        };
        let mut uuid = CUuuid::default();
        // SAFETY: our own device; writes sixteen bytes.
        self.call(get, |get| unsafe { get(&raw mut uuid, self.device) })?;
        Ok(Uuid(uuid.bytes))
    }

    /// The figures of `cuMemGetInfo`.
    ///
    /// # Errors
    /// The driver's.
    pub fn info(&self) -> Result<Info, Error> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        self.call(&self.functions.cuMemGetInfo_v2, |get| unsafe {
            get(&raw mut free, &raw mut total)
        })?;
        Ok(Info {
            free: free as u64,
            total: total as u64,
        })
    }

    /// The figure of `cuDeviceTotalMem`.
    ///
    /// # Errors
    /// The driver's.
    pub fn device_total(&self) -> Result<u64, Error> {
        let mut total = 0;
        // SAFETY: our own device; writes one number.
        self.call(&self.functions.cuDeviceTotalMem_v2, |get| unsafe {
            get(&raw mut total, self.device)
        })?;
        Ok(total as u64)
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> Result<u64, Error> {
        let mut value: c_int = 0;
        // SAFETY: our own device; writes one number.
        self.call(&self.functions.cuDeviceGetAttribute, |get| unsafe {
            get(&raw mut value, attribute, self.device)
        })?;
        Ok(value.try_into().unwrap_or(0))
    }

    fn make_current(&self) -> Result<(), Error> {
        // SAFETY: our own context.
        self.call(&self.functions.cuCtxSetCurrent, |set| unsafe {
            set(self.context)
        })
    }

    /// Waits for everything this process has given the GPU to do.
    fn synchronise(&self) {
        // SAFETY: takes nothing. What cannot be waited for is over.
        let _ = self.call(&self.functions.cuCtxSynchronize, |wait| unsafe { wait() });
    }

    fn call<F: Copy>(
        &self,
        function: &Function<F>,
        call: impl FnOnce(F) -> CUresult,
    ) -> Result<(), Error> {
        checked(function, call, &self.functions.cuGetErrorString)
    }

    /// An allocation; `give_back` runs when it is dropped. If the driver refuses to free it, it stays until this
    /// process ends, which is soon.
    fn taken<'s>(
        &'s self,
        bytes: u64,
        give_back: impl FnOnce(&'s Self) -> Result<(), Error> + 's,
    ) -> Taken<'s> {
        Taken {
            bytes,
            address: None,
            give_back: Some(Box::new(move || drop(give_back(self)))),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.context.is_null() {
            return;
        }
        // SAFETY: pairs with the retain in `open`. The process ends soon and the driver takes the context with it.
        let _ = self.call(
            &self.functions.cuDevicePrimaryCtxRelease_v2,
            |release| unsafe { release(self.device) },
        );
    }
}

/// The file of the driver that a program started here would load, and the file that its allocations would go to: the same,
/// or the limiter's.
///
/// # Errors
/// When there is no such library.
pub fn library_files(cuda: Option<&Path>) -> Result<(Option<PathBuf>, Option<PathBuf>), Error> {
    let library = Library::open_global(cuda, CUDA)?;
    Ok((
        library.file_of(Lookup::Handle, c"cuInit"),
        library.file_of(Lookup::Global, c"cuMemAlloc_v2"),
    ))
}

/// Initialises the driver and answers how many GPUs it shows. Makes no context.
///
/// # Errors
/// The call that failed: with no driver, no GPU, or one that is not ready.
pub fn device_count(cuda: Option<&Path>) -> Result<u32, Error> {
    let functions = Functions::find(&Library::open(cuda, CUDA)?, Lookup::Handle);
    let words = &functions.cuGetErrorString;
    // SAFETY: takes no pointer.
    checked(&functions.cuInit, |init| unsafe { init(0) }, words)?;
    let mut count: c_int = 0;
    // SAFETY: writes one number.
    let get = |get: pfn::cuDeviceGetCount| unsafe { get(&raw mut count) };
    checked(&functions.cuDeviceGetCount, get, words)?;
    Ok(count.try_into().unwrap_or(0))
}
