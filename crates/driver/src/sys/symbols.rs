//! Exported symbols of NVIDIA's libraries, and the symbol that `cuGetProcAddress` returns for a name, version and
//! flags.
//!
//! The tables are generated (`cargo xtask symbols`) and say what a driver of CUDA 13.5 knows; an older driver knows fewer names.
//! The shim asks the real driver, and them only about an answer that has no name. The simulator answers by them.

#[rustfmt::skip]
mod tables;

pub use tables::{CUDA, NVML};

/// Versions from which a symbol is the answer, ascending, each with that symbol. 11030 is CUDA 11.3.
type Revisions = &'static [(u32, &'static str)];

/// The answer of `cuGetProcAddress_v2` to a request; the variants are its three symbol statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcAddress {
    /// The address of this exported symbol is the answer.
    Symbol(&'static str),
    /// There is no function of this name.
    NotFound,
    /// The function, or its per-thread default stream form, is newer than the version asked for.
    VersionTooLow,
}

/// Whether a name begins with one of these; also at compile time, for each function of a table.
pub const fn begins_with_any(name: &str, beginnings: &[&str]) -> bool {
    let mut at = 0;
    while at < beginnings.len() {
        if begins(name.as_bytes(), beginnings[at].as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn begins(name: &[u8], beginning: &[u8]) -> bool {
    let mut at = 0;
    while at < beginning.len() {
        if at >= name.len() || name[at] != beginning[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The symbol that answers `cuGetProcAddress(name, version)`.
///
/// `name` is a base name: `cuMemAlloc` is known, `cuMemAlloc_v2` and `""` are not. `version` is the lower of what was asked
/// and what the driver is. With `per_thread` (flag `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`) a function that has a
/// `_ptds` or `_ptsz` form is that form or nothing: an older request does not fall back to the ordinary one. All of this was
/// observed on driver 535.
pub fn proc_address(name: &str, version: u32, per_thread: bool) -> ProcAddress {
    let Ok(row) = tables::ADDRESSES.binary_search_by_key(&name, |(name, ..)| name) else {
        return ProcAddress::NotFound;
    };
    let (_, ordinary, streamed) = tables::ADDRESSES[row];
    let revisions = if per_thread && !streamed.is_empty() {
        streamed
    } else {
        ordinary
    };
    match revisions.iter().rev().find(|(since, _)| *since <= version) {
        Some((_, symbol)) => ProcAddress::Symbol(symbol),
        None => ProcAddress::VersionTooLow,
    }
}

/// Every answer there is: name, version, whether per-thread, symbol.
pub fn proc_addresses() -> impl Iterator<Item = (&'static str, u32, bool, &'static str)> {
    tables::ADDRESSES
        .iter()
        .flat_map(|(name, ordinary, streamed)| {
            let rows = |list: Revisions, per_thread| {
                list.iter()
                    .map(move |(version, symbol)| (*name, *version, per_thread, *symbol))
            };
            rows(ordinary, false).chain(rows(streamed, true))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_revision_not_above_the_version_is_the_answer() {
        assert_eq!(
            proc_address("cuMemAlloc", 12_000, false),
            ProcAddress::Symbol("cuMemAlloc_v2")
        );
        assert_eq!(
            proc_address("cuMemAlloc", 3_020, false),
            ProcAddress::Symbol("cuMemAlloc_v2")
        );
        assert_eq!(
            proc_address("cuMemAlloc", 3_010, false),
            ProcAddress::Symbol("cuMemAlloc")
        );
        assert_eq!(
            proc_address("cuCtxCreate", 13_050, false),
            ProcAddress::Symbol("cuCtxCreate_v4")
        );
        assert_eq!(
            proc_address("cuCtxCreate", 11_040, false),
            ProcAddress::Symbol("cuCtxCreate_v3")
        );
    }

    #[test]
    fn the_lookup_finds_itself() {
        let lookup = |version| proc_address("cuGetProcAddress", version, false);
        assert_eq!(lookup(11_030), ProcAddress::Symbol("cuGetProcAddress"));
        assert_eq!(lookup(12_000), ProcAddress::Symbol("cuGetProcAddress_v2"));
        assert_eq!(lookup(11_020), ProcAddress::VersionTooLow);
    }

    #[test]
    fn names_with_suffixes_unknown_names_and_the_empty_name_are_not_found() {
        for name in [
            "cuMemAlloc_v2",
            "cuMemAllocAsync_ptsz",
            "cuNoSuchFunction",
            "",
            "cudaMalloc",
        ] {
            assert_eq!(
                proc_address(name, 13_050, false),
                ProcAddress::NotFound,
                "{name}"
            );
        }
    }

    #[test]
    fn a_per_thread_request_is_never_answered_with_the_ordinary_form() {
        let copy = |version, per_thread| proc_address("cuMemcpyHtoD", version, per_thread);
        assert_eq!(
            copy(12_000, true),
            ProcAddress::Symbol("cuMemcpyHtoD_v2_ptds")
        );
        assert_eq!(copy(6_000, true), ProcAddress::VersionTooLow);
        assert_eq!(copy(6_000, false), ProcAddress::Symbol("cuMemcpyHtoD_v2"));
    }

    #[test]
    fn a_function_without_a_per_thread_form_answers_its_ordinary_one() {
        assert_eq!(
            proc_address("cuMemAlloc", 12_000, true),
            ProcAddress::Symbol("cuMemAlloc_v2")
        );
    }

    #[test]
    fn every_exported_function_and_no_other_is_an_answer_of_a_lookup() {
        let mut answers: Vec<&str> = proc_addresses().map(|(.., symbol)| symbol).collect();
        answers.sort_unstable();
        assert_eq!(answers, CUDA);
        for (name, version, per_thread, symbol) in proc_addresses() {
            assert_eq!(
                proc_address(name, version, per_thread),
                ProcAddress::Symbol(symbol)
            );
        }
    }

    #[test]
    fn every_declared_signature_is_of_an_exported_function() {
        let (cuda, nvml) = (
            crate::sys::cuda::pfn::SIGNATURES,
            crate::sys::nvml::pfn::SIGNATURES,
        );
        let missing = |list: &[&str], name| list.binary_search(&name).is_err();
        assert_eq!(
            cuda.iter().map(|f| f.name).find(|name| missing(CUDA, name)),
            None
        );
        assert_eq!(
            nvml.iter().map(|f| f.name).find(|name| missing(NVML, name)),
            None
        );
    }
}
