//! `cargo +nightly fuzz run region`: a slice's files hold anything at all.
#![no_main]

#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/region.rs"]
mod region;

libfuzzer_sys::fuzz_target!(|data: &[u8]| region::run(data));
