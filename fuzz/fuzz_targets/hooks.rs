//! `cargo +nightly fuzz run hooks`: the limiter's hooks over the simulated driver, with arguments that make no sense. Needs what a
//! job has in its environment: the simulator's folder in LD_LIBRARY_PATH, DIVVY_SIM, DIVVY_SIM_STATE and DIVVY_SLICE.
#![no_main]

#[path = "../bodies/hooks.rs"]
mod hooks;
#[path = "../bodies/input.rs"]
mod input;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::OnceLock;

/// The hooks, linked with coverage.
fn hooked() -> &'static HashMap<&'static str, usize> {
    static HOOKED: OnceLock<HashMap<&'static str, usize>> = OnceLock::new();
    macro_rules! table {
        ($($name:ident),*) => {
            HashMap::from([$((stringify!($name), divvy_shim::table::$name as *const c_void as usize)),*])
        };
    }
    HOOKED.get_or_init(|| hooks::for_each_call!(table))
}

/// A hook, or the simulated driver's own function.
fn find(name: &str) -> Option<*const c_void> {
    if let Some(hook) = hooked().get(name) {
        return Some(*hook as *const c_void);
    }
    let name = CString::new(name).ok()?;
    // SAFETY: NUL-terminated names; the library stays open.
    let found = unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        libc::dlsym(driver, name.as_ptr())
    };
    (!found.is_null()).then_some(found.cast_const())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| hooks::start(&find));
    hooks::run(&find, data);
});
