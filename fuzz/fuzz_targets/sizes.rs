//! `cargo +nightly fuzz run sizes`: words of the command line.
#![no_main]

#[allow(dead_code, reason = "shared with the other bodies")]
#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/sizes.rs"]
mod sizes;
#[path = "../bodies/text.rs"]
mod text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| sizes::run(data));
