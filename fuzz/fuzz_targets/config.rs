//! `cargo +nightly fuzz run config`: a configuration file.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

#[path = "../bodies/config.rs"]
mod config;
#[allow(dead_code, reason = "shared with the other bodies")]
#[path = "../bodies/input.rs"]
mod input;
#[path = "../bodies/text.rs"]
mod text;

static FILE: OnceLock<PathBuf> = OnceLock::new();

fn file() -> PathBuf {
    let folder = tempfile::Builder::new().disable_cleanup(true).tempdir();
    folder
        .expect("a folder can be made")
        .path()
        .join("clearml.conf")
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| config::run(data, FILE.get_or_init(file)));
