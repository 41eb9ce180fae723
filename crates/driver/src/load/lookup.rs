//! Lookup methods by which programs find the driver's functions. A limiter has to cover each of them.

use std::ffi::{CStr, c_void};

use super::Library;
use crate::sys::cuda::{
    CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, CUresult, cuuint64_t, pfn,
};
use crate::sys::symbols::proc_addresses;

/// How a function is found by its exported name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// `dlsym` on the library's own handle.
    Handle,
    /// In the program's global scope, where the loader looks up what a linked program refers to. The library has to be
    /// opened with [`Library::open_global`].
    Global,
    /// `cuGetProcAddress`, as the CUDA runtime does it. Knows functions of the CUDA driver only.
    ProcAddress,
}

impl Library {
    /// Opens the library as [`Library::open`] does, and adds it to the program's global scope as linking with it would.
    ///
    /// # Errors
    /// As [`Library::open`].
    pub fn open_global(
        path: Option<&std::path::Path>,
        name: &str,
    ) -> Result<Self, super::LoadError> {
        Self::open_for(path, name, libc::RTLD_GLOBAL)
    }

    /// The address of the function that is exported as `name`, found by `lookup`.
    pub fn address_by(&self, lookup: Lookup, name: &CStr) -> Option<*mut c_void> {
        match lookup {
            Lookup::Handle => self.address(name),
            Lookup::Global => {
                // SAFETY: `name` is NUL-terminated.
                let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
                (!address.is_null()).then_some(address)
            }
            Lookup::ProcAddress => self.proc_address(name),
        }
    }

    /// Asks with the version from which the base name means this very symbol, and its stream flag.
    fn proc_address(&self, name: &CStr) -> Option<*mut c_void> {
        let symbol = name.to_str().ok()?;
        let (base, version, per_thread, _) = proc_addresses().find(|row| row.3 == symbol)?;
        let base = std::ffi::CString::new(base).ok()?;
        let flags = if per_thread {
            CUdriverProcAddress_flags::PER_THREAD_DEFAULT_STREAM
        } else {
            CUdriverProcAddress_flags::DEFAULT
        };
        let ask = self.address(c"cuGetProcAddress_v2")?;
        // SAFETY: the exported function of that name has that signature (tests/headers.rs), and its library stays open.
        let ask: pfn::cuGetProcAddress_v2 = unsafe { std::mem::transmute(ask) };
        let mut address = std::ptr::null_mut();
        let mut status = CUdriverProcAddressQueryResult::SUCCESS;
        // SAFETY: a NUL-terminated name, and places for both answers.
        let result = unsafe {
            ask(
                base.as_ptr(),
                &raw mut address,
                version.cast_signed(),
                cuuint64_t::from(flags.0),
                &raw mut status,
            )
        };
        (result == CUresult::SUCCESS && !address.is_null()).then_some(address)
    }
}
