//! The CUDA driver API. Each submodule has the table of its functions and their handlers.

mod array;
mod array_copy;
mod capture;
mod checkpoint;
mod context;
mod copy;
mod device;
mod external;
mod function;
mod graph;
mod green;
mod host;
mod init;
mod ipc;
mod launch;
mod launch_state;
mod link;
mod lookup;
mod memory;
mod module;
mod multicast;
mod pool;
mod pool_sharing;
mod stream;
mod texture;
mod vmm;

use crate::engine::objects::result::Done;
use crate::exports::out_ptr::OutPtr;
use divvy_driver::sys::cuda::CUresult;
use std::ffi::{CStr, c_char};

type Out<T> = OutPtr<T, CUresult>;

fn out<T>(place: *mut T) -> Done<Out<T>> {
    OutPtr::new(place)
}

/// Writes where the caller gave a place and does nothing where it did not.
fn set_if_wanted<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: as for `Out::set`.
        unsafe { place.write(value) };
    }
}

/// A name the caller passed.
fn name<'a>(text: *const c_char) -> Done<&'a str> {
    if text.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and zero-terminated by the API's contract.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .map_err(|_| CUresult::INVALID_VALUE)
}

/// Writes a text into a buffer of `length` characters, cut to fit, with its end.
fn set_text(buffer: *mut c_char, length: i32, text: &str) -> Done {
    let room = usize::try_from(length)
        .ok()
        .filter(|room| *room > 0)
        .ok_or(CUresult::INVALID_VALUE)?;
    out(buffer)?;
    let count = text.len().min(room - 1);
    // SAFETY: `count` and the terminator fit the room the caller says there is.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), count);
        buffer.add(count).write(0);
    }
    Ok(())
}

/// What CUDA 13.5 answers as its version.
const VERSION: u32 = 13_050;
