//! The C surface. One row per exported function: its names, its parameters, its handler. Types come from
//! `divvy_driver`'s tables, so a handler unlike the header does not compile; names without a row are exported too and
//! answer "not supported".

#[macro_use]
mod table;

mod cuda;
mod nvml;
mod out_ptr;

use divvy_driver::sys::cuda::CUresult;
use divvy_driver::sys::nvml::nvmlReturn_t;
use table::{Address, stub};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// The address of one of our own exported CUDA functions.
fn address(symbol: &str) -> Option<*const ()> {
    let row = ADDRESSES
        .binary_search_by_key(&symbol, |(name, _)| name)
        .ok()?;
    Some(ADDRESSES[row].1.0)
}
