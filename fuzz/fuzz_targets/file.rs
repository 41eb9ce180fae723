//! A file that one run after the other writes anew.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The same in every run of a program.
pub fn named(name: &str) -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let folder = tempfile::Builder::new().disable_cleanup(true).tempdir();
        folder.expect("a folder can be made").path().join(name)
    })
}
