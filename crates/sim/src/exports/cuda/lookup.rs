//! `cuGetProcAddress` and the export tables.

use super::{VERSION, name, out, set_if_wanted};
use crate::engine::machine::opened::machine;
use crate::engine::objects::result::Done;
use crate::exports::address;
use divvy_driver::sys::cuda::{
    CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, CUresult, CUuuid,
};
use divvy_driver::sys::symbols::{self, ProcAddress};
use std::ffi::{c_char, c_void};
use std::io::Write as _;
use std::ptr::null_mut;
use std::sync::Once;

exports! { cuda {
    cuGetProcAddress: (symbol, pfn, version, flags) => get_v1;
    cuGetProcAddress_v2: (symbol, pfn, version, flags, status) => get;
    cuGetExportTable: (table, id) => export_table;
} }

/// The status says what became of the request; the result stays success, as observed on driver 535.
fn get(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> Done {
    let (symbol, pfn) = (name(symbol)?, out(pfn)?);
    if flags > u64::from(CUdriverProcAddress_flags::PER_THREAD_DEFAULT_STREAM.0) {
        return Err(CUresult::INVALID_VALUE);
    }
    let per_thread = flags == u64::from(CUdriverProcAddress_flags::PER_THREAD_DEFAULT_STREAM.0);
    let version = u32::try_from(version).unwrap_or(0).min(VERSION);
    let found = if is_unknown(symbol) {
        ProcAddress::NotFound
    } else {
        symbols::proc_address(symbol, version, per_thread)
    };
    let (found, outcome) = match found {
        ProcAddress::Symbol(symbol) => (address(symbol), CUdriverProcAddressQueryResult::SUCCESS),
        ProcAddress::NotFound => (None, CUdriverProcAddressQueryResult::SYMBOL_NOT_FOUND),
        ProcAddress::VersionTooLow => {
            (None, CUdriverProcAddressQueryResult::VERSION_NOT_SUFFICIENT)
        }
    };
    set_if_wanted(status, outcome);
    pfn.set(found.map_or(null_mut(), |address| address.cast_mut().cast()))
}

/// Whether the driver that is simulated is too old for a function, as far as the configuration says so.
fn is_unknown(symbol: &str) -> bool {
    let without = || machine().is_some_and(|machine| machine.config.checkpoint.unknown);
    symbol.starts_with("cuCheckpoint") && without()
}

/// The form of CUDA 11.3 has no status: what is not found is an error.
fn get_v1(symbol: *const c_char, pfn: *mut *mut c_void, version: i32, flags: u64) -> Done {
    let mut status = CUdriverProcAddressQueryResult::SUCCESS;
    get(symbol, pfn, version, flags, &raw mut status)?;
    if status == CUdriverProcAddressQueryResult::SUCCESS {
        Ok(())
    } else {
        Err(CUresult::NOT_FOUND)
    }
}

/// There are none: what NVIDIA's own libraries exchange through them, the CUDA runtime's integrity check above all, is
/// not simulated. The runtime's own error (`cudaErrorInvalidValue`) names no cause, so one line on stderr does.
fn export_table(table: *mut *const c_void, id: *const CUuuid) -> Done {
    static SAID: Once = Once::new();
    let _ = (out(table)?, out(id.cast_mut())?);
    SAID.call_once(|| {
        // A closed stderr must not end the program.
        let _ = writeln!(std::io::stderr(), "{NO_PROOF}");
    });
    Err(CUresult::INVALID_VALUE)
}

const NO_PROOF: &str = "divvy-sim: the CUDA runtime in this program requires a proof that only NVIDIA's driver gives, so \
                        it fails on simulated GPUs (docs/simulator.md)";
