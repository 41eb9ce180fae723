//! Initialisation, versions, names of errors.

use super::out;
use crate::config::Config;
use crate::engine::objects::result::Done;
use crate::engine::process::init;
use divvy_driver::sys::cuda::CUresult;
use std::ffi::c_char;

exports! { cuda {
    cuInit: (flags) => initialize;
    cuDriverGetVersion: (version) => driver_version;
    cuGetErrorName: (error, text) => error_name;
    cuGetErrorString: (error, text) => error_string;
} }

fn initialize(flags: u32) -> Done {
    if flags != 0 {
        Err(CUresult::INVALID_VALUE)
    } else {
        init()
    }
}

fn driver_version(version: *mut i32) -> Done {
    out(version)?.set(Config::versions().1)
}

fn error_name(error: CUresult, text: *mut *const c_char) -> Done {
    let text = out(text)?;
    match error.name() {
        Some(name) => text.set(name.as_ptr()),
        None => text.set(std::ptr::null()).and(Err(CUresult::INVALID_VALUE)),
    }
}

/// Texts as the driver words them, for the errors that clients show; the others are described by their names.
fn error_string(error: CUresult, text: *mut *const c_char) -> Done {
    let described = match error {
        CUresult::SUCCESS => c"no error",
        CUresult::INVALID_VALUE => c"invalid argument",
        CUresult::OUT_OF_MEMORY => c"out of memory",
        CUresult::NOT_INITIALIZED => c"initialization error",
        CUresult::NO_DEVICE => c"no CUDA-capable device is detected",
        CUresult::INVALID_DEVICE => c"invalid device ordinal",
        CUresult::INVALID_IMAGE => c"device kernel image is invalid",
        CUresult::INVALID_CONTEXT => c"invalid device context",
        CUresult::INVALID_PTX => c"a PTX JIT compilation failed",
        CUresult::INVALID_HANDLE => c"invalid resource handle",
        CUresult::NOT_FOUND => c"named symbol not found",
        CUresult::NOT_READY => c"device not ready",
        CUresult::ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        CUresult::CONTEXT_IS_DESTROYED => c"context is destroyed",
        CUresult::NOT_SUPPORTED => c"operation not supported",
        CUresult::UNKNOWN => c"unknown error",
        other => match other.name() {
            Some(name) => name,
            None => {
                return out(text)?
                    .set(std::ptr::null())
                    .and(Err(CUresult::INVALID_VALUE));
            }
        },
    };
    out(text)?.set(described.as_ptr())
}
