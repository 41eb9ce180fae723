//! Pointers to the driver's own functions, resolved on first use and cached.
//!
//! They are taken from the library that the program has loaded, or, in a wrapper, from the one that it needs. It is pinned
//! first (`RTLD_NODELETE`): programs close the driver and open it again, and an address kept from before would then lead
//! nowhere.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

use crate::route::form::{self, Form};
use crate::route::{elf, lookup};

/// Which of NVIDIA's libraries has a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum Library {
    cuda,
    nvml,
}

static CUDA: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static NVML: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

impl Library {
    /// The loader's handle, pinned; null when the library can be neither found nor loaded.
    pub fn handle(self) -> *mut c_void {
        let (kept, names) = match self {
            Library::cuda => (&CUDA, [elf::CUDA, elf::CUDA]),
            // The simulated driver is both libraries in one file, which calls itself libcuda.
            Library::nvml => (&NVML, [elf::NVML, elf::CUDA]),
        };
        let mut handle = kept.load(Acquire);
        if handle.is_null() && form::own() == Form::Wrapper(self) {
            handle = self.needed();
            kept.store(handle, Release);
        } else if handle.is_null() {
            handle = names
                .into_iter()
                .map(|name| self.loaded(name))
                .find(|handle| !handle.is_null())
                .unwrap_or_else(|| {
                    // SAFETY: a NUL-terminated name; loading the driver is what the program asked for by calling it.
                    unsafe {
                        libc::dlopen(names[0].as_ptr(), libc::RTLD_LAZY | libc::RTLD_NODELETE)
                    }
                });
            kept.store(handle, Release);
        }
        handle
    }

    /// Pins the library that this wrapper needs, which the loader has loaded with it, in the same namespace.
    fn needed(self) -> *mut c_void {
        let name = match self {
            Library::cuda => form::CUDA_BEHIND,
            Library::nvml => form::NVML_BEHIND,
        };
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: a NUL-terminated name; nothing is loaded.
        unsafe { libc::dlopen(name.as_ptr(), flags) }
    }

    /// Pins the loaded object that calls itself `name`, if there is one and it is this library.
    fn loaded(self, name: &CStr) -> *mut c_void {
        let mut path = [0u8; libc::PATH_MAX as usize];
        let found = elf::find(|object| {
            let from = object.path().to_bytes_with_nul();
            (object.soname() == Some(name) && from.len() > 1).then(|| {
                path.get_mut(..from.len())
                    .map(|to| to.copy_from_slice(from))
            })
        });
        if found.flatten().is_none() {
            return null_mut();
        }
        // SAFETY: `path` holds a NUL-terminated path, by which the loader knows an object it has loaded.
        let handle = unsafe {
            libc::dlopen(
                path.as_ptr().cast(),
                libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
            )
        };
        let first = match self {
            Library::cuda => c"cuInit",
            Library::nvml => c"nvmlInit_v2",
        };
        if handle.is_null() || lookup::real(handle, first.as_ptr()).is_null() {
            null_mut()
        } else {
            handle
        }
    }
}

/// The address of a function that the library was found not to have.
const ABSENT: *mut c_void = std::ptr::without_provenance_mut(1);

/// The place of one function's address: null until it was looked for.
pub struct LazySymbol {
    pub(crate) name: &'static CStr,
    library: Library,
    address: AtomicPtr<c_void>,
}

impl LazySymbol {
    /// `name` is the exported symbol, with a terminating NUL.
    pub const fn new(library: Library, name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("a name ends with NUL and has no other")
        };
        Self {
            name,
            library,
            address: AtomicPtr::new(null_mut()),
        }
    }

    /// The driver's function; `None` when this driver has none of that name.
    pub fn address(&self) -> Option<*mut c_void> {
        let mut known = self.address.load(Acquire);
        if known.is_null() {
            known = self.look_up();
        }
        (known != ABSENT).then_some(known)
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let handle = self.library.handle();
        if handle.is_null() {
            return ABSENT;
        }
        let found = match lookup::real(handle, self.name.as_ptr()) {
            found if found.is_null() => ABSENT,
            found => found,
        };
        self.address.store(found, Release);
        found
    }

    /// Whether `found` is this function of the driver. Asked inside `dlsym`, so it must not load or pin anything: before
    /// the first call of the driver, any driver library's function counts.
    pub fn is(&self, found: *mut c_void) -> bool {
        let known = self.address.load(Acquire);
        if known.is_null() {
            elf::in_driver(found)
        } else {
            known == found
        }
    }
}

/// One function of the driver; `F` is its `pfn` alias.
pub struct Function<F> {
    slot: LazySymbol,
    signature: PhantomData<F>,
}

impl<F: Copy> Function<F> {
    /// `name` is the exported symbol, the same as the alias's, with a terminating NUL.
    pub const fn new(library: Library, name: &'static str) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Function {
            slot: LazySymbol::new(library, name),
            signature: PhantomData,
        }
    }

    pub const fn slot(&self) -> &LazySymbol {
        &self.slot
    }

    /// The function; `None` when this driver has none of that name.
    pub fn get(&self) -> Option<F> {
        // SAFETY: `F` is the alias of this symbol's C signature and as large as an address (asserted in `new`).
        self.slot
            .address()
            .map(|address| unsafe { std::mem::transmute_copy(&address) })
    }
}

/// Whether an object exports a function at exactly that address.
pub fn is_exported(address: *mut c_void) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: a place for the answer, for which all zeros are valid too.
    unsafe {
        libc::dladdr(address, info.as_mut_ptr()) != 0 && info.assume_init().dli_saddr == address
    }
}

/// `library name;` declares a function of the driver that is called but not hooked.
macro_rules! functions {
    ($($library:ident $name:ident;)*) => {
        $(#[allow(non_upper_case_globals)]
        pub static $name: $crate::route::function::Function<divvy_driver::sys::$library::pfn::$name> =
            $crate::route::function::Function::new($crate::route::function::Library::$library, concat!(stringify!($name), "\0"));)*
    };
}

/// Driver functions that the handlers call, beyond the hooked ones.
pub mod driver {
    functions! {
        cuda cuArrayGetMemoryRequirements;
        cuda cuCtxGetCurrent;
        cuda cuCtxGetDevice;
        cuda cuCtxGetLimit;
        cuda cuCtxPopCurrent_v2;
        cuda cuCtxPushCurrent_v2;
        cuda cuDeviceGetAttribute;
        cuda cuDeviceGetCount;
        cuda cuDeviceGetDefaultMemPool;
        cuda cuDeviceGetGraphMemAttribute;
        cuda cuDeviceGetMemPool;
        cuda cuDeviceGetUuid;
        cuda cuDeviceGetUuid_v2;
        cuda cuDevicePrimaryCtxGetState;
        cuda cuDriverGetVersion;
        cuda cuEventCreate;
        cuda cuEventDestroy_v2;
        cuda cuEventElapsedTime;
        cuda cuEventQuery;
        cuda cuEventRecord;
        cuda cuEventRecord_ptsz;
        cuda cuGraphChildGraphNodeGetGraph;
        cuda cuGraphGetNodes;
        cuda cuGraphMemAllocNodeGetParams;
        cuda cuGraphMemFreeNodeGetParams;
        cuda cuGraphNodeGetType;
        cuda cuMemGetAddressRange_v2;
        cuda cuMemGetAllocationPropertiesFromHandle;
        cuda cuMemPoolGetAttribute;
        cuda cuMipmappedArrayGetMemoryRequirements;
        cuda cuPointerGetAttribute;
        cuda cuStreamGetCtx;
        cuda cuStreamIsCapturing;
        cuda cuStreamIsCapturing_ptsz;
        cuda cuStreamQuery;
        cuda cuStreamQuery_ptsz;
        cuda cuThreadExchangeStreamCaptureMode;
        nvml nvmlDeviceGetUUID;
    }
}
