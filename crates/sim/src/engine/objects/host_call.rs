//! Host calls: functions of the program, which the driver calls in a stream or at an object's end.

use std::ffi::c_void;

/// A function of the program's and what it is called with, on whatever thread its turn comes.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub data: *mut c_void,
}

// SAFETY: the API hands the data to the function on another thread by contract.
unsafe impl Send for HostCall {}

// SAFETY: as above.
unsafe impl Sync for HostCall {}

impl HostCall {
    pub fn call(self) {
        // SAFETY: the program's own function and argument, called as the API promises.
        unsafe { (self.function)(self.data) }
    }
}
