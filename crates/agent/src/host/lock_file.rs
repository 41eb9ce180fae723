//! Lock files: opened, or created with mode 0600, for a flock(2) of the opener's choice.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens the file and changes nothing in it.
///
/// # Errors
/// Those of open(2).
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}
