//! Loading of a driver library by path or by its usual name, and lookup of its functions. The indirect ways by which
//! some programs find them are in `lookup`.
//!
//! A library once opened stays open: NVIDIA's start threads of their own and do not survive being unloaded. So a function
//! found here may be called for as long as the process lives, and nothing has to hold the library.

mod lookup;

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use lookup::Lookup;

/// The name under which the dynamic loader knows the CUDA driver.
pub const CUDA: &str = "libcuda.so.1";
/// The name under which the dynamic loader knows NVML.
pub const NVML: &str = "libnvidia-ml.so.1";

/// The names under which the driver's own libraries lie where wrappers have taken theirs.
pub const CUDA_BEHIND: &str = "libcuda_real.so.1";
pub const NVML_BEHIND: &str = "libnvidia-ml_real.so.1";
/// Where they are then, unless they lie beside the wrappers: a folder of the job's own mount namespace.
pub const BEHIND: &str = "/run/divvy-job";

/// A driver library that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// In the words of `dlerror`.
    #[error("cannot load {}: {reason}", .library.display())]
    Open { library: PathBuf, reason: String },
    #[error("this driver is too old: its library has no function {function}")]
    Missing { function: &'static str },
}

/// A library opened for good.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    handle: *mut c_void,
}

impl Library {
    /// Opens the file `path`, or without one the library that the dynamic loader finds as `name`.
    ///
    /// # Errors
    /// [`LoadError::Open`] when there is no such file, or it is no library for this machine.
    pub fn open(path: Option<&Path>, name: &str) -> Result<Self, LoadError> {
        Self::open_for(path, name, libc::RTLD_LOCAL)
    }

    /// The same, in the scope that `scope` says.
    fn open_for(path: Option<&Path>, name: &str, scope: c_int) -> Result<Self, LoadError> {
        let library = path.unwrap_or(Path::new(name));
        let error = |reason: &str| LoadError::Open {
            library: library.to_owned(),
            reason: reason.to_owned(),
        };
        let file = CString::new(library.as_os_str().as_bytes())
            .map_err(|_| error("its path contains NUL"))?;
        // SAFETY: a NUL-terminated string. The library's constructors run: it is the user's own driver, or our simulator.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | scope) };
        if handle.is_null() {
            // SAFETY: takes nothing.
            let said = unsafe { libc::dlerror() };
            // SAFETY: a call failed in this thread and none came after it, so dlerror answered a string, which lives until
            // this thread's next call.
            let said = unsafe { CStr::from_ptr(said) }.to_string_lossy();
            let prefix = format!("{}: ", library.display());
            return Err(error(said.strip_prefix(&prefix).unwrap_or(&said)));
        }
        Ok(Self { handle })
    }

    /// The address of an exported function; `None` where this library has none of that name.
    pub fn address(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: `handle` is of a library that is never closed, `name` is NUL-terminated.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// The file that an exported function comes from when it is found by `lookup`, as the loader names it: the library's
    /// own, or that of a limiter in between.
    pub fn file_of(&self, lookup: Lookup, name: &CStr) -> Option<PathBuf> {
        let address = self.address_by(lookup, name)?;
        let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: any address may be asked about, and there is room for the answer.
        if unsafe { libc::dladdr(address, found.as_mut_ptr()) } == 0 {
            return None;
        }
        // SAFETY: the call succeeded, so it has filled the structure in; its file name lives as long as the object is loaded.
        let file = unsafe { CStr::from_ptr(found.assume_init().dli_fname) };
        Some(PathBuf::from(OsStr::from_bytes(file.to_bytes())))
    }
}

/// One function of an open library, known by name, found or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function<F> {
    pub name: &'static str,
    pub address: Option<F>,
}

impl<F: Copy> Function<F> {
    /// The function itself.
    pub fn get(&self) -> Result<F, LoadError> {
        self.address.ok_or(LoadError::Missing {
            function: self.name,
        })
    }
}

/// `struct NAME from PFN { function, … }` declares a structure with a [`Function`] of type `PFN::function` for each, and
/// `NAME::find(library, lookup)`.
macro_rules! library {
    ($(#[$doc:meta])* struct $table:ident { $($function:ident,)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        struct $table { $($function: crate::load::Function<pfn::$function>,)* }

        impl $table {
            fn find(library: &crate::load::Library, lookup: crate::load::Lookup) -> Self {
                Self {$(
                    $function: crate::load::Function {
                        name: stringify!($function),
                        address: std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($function), "\0").as_bytes())
                            .ok()
                            .and_then(|name| library.address_by(lookup, name))
                            // SAFETY: an exported function of that name has that signature (tests/headers.rs holds ours
                            // against NVIDIA's headers), and its library stays open.
                            .map(|address| unsafe {
                                std::mem::transmute::<*mut std::ffi::c_void, pfn::$function>(address)
                            }),
                    },
                )*}
            }
        }
    };
}
pub(crate) use library;
