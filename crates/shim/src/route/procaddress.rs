//! The hook of `cuGetProcAddress`: the driver decides which function a name, version and flag mean, and what it answers
//! when there is none. If the driver returns the address of a hooked function, the program gets the hook instead; every
//! other answer stays unchanged. A lookup of `cuGetProcAddress` itself is treated the same way.
//!
//! A driver may give the address of an inner function, which is exported under no name. Only then, and only for versions
//! that our table of symbols knows, the hook is found by what was asked for. What is newer than the table is passed on and
//! counted (`unknown`).

use std::ffi::{CStr, c_char, c_int, c_void};

use divvy_driver::sys::cuda::{
    CUDA_VERSION, CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, CUresult, cuuint64_t,
};
use divvy_driver::sys::symbols::{ProcAddress, proc_address};

use crate::route::function::{driver, is_exported};
use crate::route::hook::{self, Hook, Real};
use crate::route::unknown;

/// The request of a program.
struct Request {
    symbol: *const c_char,
    version: c_int,
    flags: cuuint64_t,
}

pub fn ask<F>(
    real: Real<'_, F>,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
) -> CUresult {
    answer(
        &real,
        pfn,
        &Request {
            symbol,
            version,
            flags,
        },
    )
}

pub fn ask_v2<F>(
    real: Real<'_, F>,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    _status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    answer(
        &real,
        pfn,
        &Request {
            symbol,
            version,
            flags,
        },
    )
}

fn answer<F>(real: &Real<'_, F>, pfn: *mut *mut c_void, request: &Request) -> CUresult {
    let result = real.call();
    if result != CUresult::SUCCESS || pfn.is_null() {
        return result;
    }
    // SAFETY: not null, and the driver has just written an address, or null, there.
    let found = unsafe { pfn.read() };
    if found.is_null() {
        return result;
    }
    let touch = || hook::touch_at(request.name()?, found);
    let hook = hook::at(found).or_else(touch);
    match hook.or_else(|| request.inner(found)) {
        // SAFETY: as above.
        Some(hook) => unsafe { pfn.write(hook.function()) },
        None => unknown::answered(request.name().unwrap_or_default(), found),
    }
    result
}

impl Request {
    /// The name, where it is text.
    fn name(&self) -> Option<&str> {
        if self.symbol.is_null() {
            return None;
        }
        // SAFETY: not null; the driver has read the name too.
        unsafe { CStr::from_ptr(self.symbol) }.to_str().ok()
    }

    /// The hook of what was asked for, where `found` is a function without a name.
    fn inner(&self, found: *mut c_void) -> Option<&'static Hook> {
        if self.version > CUDA_VERSION {
            return None;
        }
        let mut newest = 0;
        // SAFETY: the driver's function, with a place for its answer.
        unsafe { driver::cuDriverGetVersion.get()?(&mut newest) };
        let name = self.name()?;
        let version = u32::try_from(self.version.min(newest)).ok()?;
        let per_thread = CUdriverProcAddress_flags::PER_THREAD_DEFAULT_STREAM.0;
        let per_thread = self.flags & u64::from(per_thread) != 0;
        let ProcAddress::Symbol(symbol) = proc_address(name, version, per_thread) else {
            return None;
        };
        // Asked last, for it takes a walk through all of the driver's names.
        hook::exported_as(symbol).filter(|_| !is_exported(found))
    }
}
