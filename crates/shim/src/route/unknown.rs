//! Unknown functions, newer than this library: a further revision of a hooked function, such as a `cuMemAlloc_v3`. Its
//! signature may differ, so the call is passed on unhooked, and an alarm informs the daemon. The daemon sees its memory
//! only in NVML's figures of the process.

use std::ffi::{CStr, c_void};

use divvy_driver::sys::symbols::{self, proc_addresses};

use crate::process;
use crate::route::function::Library;
use crate::route::lookup;
use crate::table::HOOKS;

/// Counts an answer of `cuGetProcAddress(name)` that is no hook, if that is an unknown revision: the name has hooks, and the
/// address is none of the functions that we know by it.
pub fn answered(name: &str, found: *mut c_void) {
    if !is_hooked(name) {
        return;
    }
    let handle = Library::cuda.handle();
    let is_found = |symbol: &str| {
        let symbol = std::ffi::CString::new(symbol).unwrap_or_default();
        lookup::real(handle, symbol.as_ptr()) == found
    };
    let mut known = proc_addresses().filter(|(of, ..)| *of == name);
    if !known.any(|(.., symbol)| is_found(symbol)) {
        process::alarm();
    }
}

/// Whether no header that we know has the function, but hooked ones differ from it by a suffix alone. Safe inside `dlsym`:
/// nothing is allocated.
pub fn is_unknown(name: &CStr) -> bool {
    let name = text(name);
    is_hooked(base(name)) && !symbols::CUDA.contains(&name) && !symbols::NVML.contains(&name)
}

/// Whether a revision of that function is hooked.
fn is_hooked(base_name: &str) -> bool {
    let names = HOOKS.iter().map(|hook| text(hook.real.name));
    // Most names differ in their first letters, which is seen faster than what their base is.
    names
        .filter(|name| name.starts_with(base_name))
        .any(|name| base(name) == base_name)
}

/// `cuMemAllocAsync` of `cuMemAllocAsync_v2_ptsz`.
fn base(name: &str) -> &str {
    let name = ["_ptsz", "_ptds"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((base, number))
            if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            base
        }
        _ => name,
    }
}

fn text(name: &CStr) -> &str {
    name.to_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_have_one_base() {
        for name in [
            "cuMemAllocAsync",
            "cuMemAllocAsync_v2",
            "cuMemAllocAsync_ptsz",
            "cuMemAllocAsync_v17_ptsz",
        ] {
            assert_eq!(base(name), "cuMemAllocAsync");
        }
        assert_eq!(base("cu_value"), "cu_value");
        assert_eq!(base("cuX_v"), "cuX_v");
    }

    #[test]
    fn only_new_revisions_of_hooked_functions_are_unknown() {
        for name in [
            c"cuMemAlloc_v3",
            c"cuMemAllocAsync_v2_ptsz",
            c"nvmlDeviceGetMemoryInfo_v3",
        ] {
            assert!(is_unknown(name), "{name:?}");
        }
        for name in [
            c"cuMemAlloc_v2",
            c"cuDriverGetVersion_v2",
            c"cuSomethingNew",
            c"nvmlDeviceGetName",
            c"cuMemcpy_v2",
        ] {
            assert!(!is_unknown(name), "{name:?}");
        }
    }
}
