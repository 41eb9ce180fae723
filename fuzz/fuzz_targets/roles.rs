//! `cargo +nightly fuzz run roles`: the file that gives roles.
#![no_main]

mod file;
#[allow(dead_code, reason = "shared with the other bodies")]
#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/roles.rs"]
mod roles;
#[path = "../bodies/text.rs"]
mod text;

libfuzzer_sys::fuzz_target!(|data: &[u8]| roles::run(data, file::named("access.toml")));
