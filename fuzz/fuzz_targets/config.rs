//! `cargo +nightly fuzz run config`: a configuration file.
#![no_main]

#[path = "../bodies/config.rs"]
mod config;
mod file;
#[allow(dead_code, reason = "shared with the other bodies")]
#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/text.rs"]
mod text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| config::run(data, file::named("clearml.conf")));
