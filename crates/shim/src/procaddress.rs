//! `cuGetProcAddress`: the driver decides which function a name, version and flag mean, and what it answers when there is
//! none. Where the address it gives is a hooked function's, the program gets the hook instead; nothing else is touched.
//! `cuGetProcAddress` asked for itself is such a case like any other.

use std::ffi::{c_char, c_int, c_void};

use divvy_driver::sys::cuda::{CUdriverProcAddressQueryResult, CUresult, cuuint64_t};

use crate::hook::{self, Real};

pub fn ask<F>(
    real: Real<'_, F>,
    _symbol: *const c_char,
    pfn: *mut *mut c_void,
    _version: c_int,
    _flags: cuuint64_t,
) -> CUresult {
    answer(&real, pfn)
}

pub fn ask_v2<F>(
    real: Real<'_, F>,
    _symbol: *const c_char,
    pfn: *mut *mut c_void,
    _version: c_int,
    _flags: cuuint64_t,
    _status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    answer(&real, pfn)
}

fn answer<F>(real: &Real<'_, F>, pfn: *mut *mut c_void) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS && !pfn.is_null() {
        // SAFETY: not null, and the driver has just written an address, or null, there.
        unsafe {
            let found = pfn.read();
            if !found.is_null()
                && let Some(hook) = hook::at(found)
            {
                pfn.write(hook.function());
            }
        }
    }
    result
}
