//! The injection form of this library, preload or wrapper, and the place of the driver in each.
//!
//! ```text
//! preload   program ─► this library ─► libcuda.so.1, wherever the program got it from
//! wrapper   program ─► this library, found as libcuda.so.1 ─► libcuda_real.so.1, which it needs
//! ```
//! Where both are in one process the preload stands aside, so that nothing is charged twice: a wrapper cannot be gone past by
//! the ways that go past a preload.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Release},
};

use crate::route::elf;
use crate::route::function::Library;

/// The names under which wrappers need the driver's own libraries ([`divvy_driver::load`] has them as text).
pub const CUDA_BEHIND: &CStr = c"libcuda_real.so.1";
pub const NVML_BEHIND: &CStr = c"libnvidia-ml_real.so.1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Preload,
    /// Of that library.
    Wrapper(Library),
}

/// This copy's form: it bears the name of the library that it wraps.
pub fn own() -> Form {
    const UNKNOWN: u8 = 0;
    const PRELOAD: u8 = 1;
    const CUDA: u8 = 2;
    const NVML: u8 = 3;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    let mut known = KNOWN.load(Acquire);
    if known == UNKNOWN {
        let here = own as *const c_void;
        let named = |object: &elf::Object<'_>| {
            object.contains(here).then(|| match object.soname() {
                Some(name) if name == elf::CUDA => CUDA,
                Some(name) if name == elf::NVML => NVML,
                _ => PRELOAD,
            })
        };
        known = elf::find(named).unwrap_or(PRELOAD);
        KNOWN.store(known, Release);
    }
    match known {
        CUDA => Form::Wrapper(Library::cuda),
        NVML => Form::Wrapper(Library::nvml),
        _ => Form::Preload,
    }
}

/// Whether another form of the limiter is in this process that should do the work instead of this one.
pub fn stands_aside() -> bool {
    let is_wrapper = |object: &elf::Object<'_>| {
        (object.needs(CUDA_BEHIND) || object.needs(NVML_BEHIND)).then_some(())
    };
    own() == Form::Preload && elf::find(is_wrapper).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_that_wrappers_are_linked_with() {
        assert_eq!(CUDA_BEHIND.to_str(), Ok(divvy_driver::load::CUDA_BEHIND));
        assert_eq!(NVML_BEHIND.to_str(), Ok(divvy_driver::load::NVML_BEHIND));
    }

    #[test]
    fn a_program_with_the_hooks_in_it_is_no_wrapper_and_has_none() {
        assert_eq!(own(), Form::Preload);
        assert!(!stands_aside());
    }
}
