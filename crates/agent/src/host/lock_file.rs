//! Lock files: opened, or created with mode 0600, for a flock(2) of the opener's choice.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use divvy_api::v1::Error;
use rustix::io::Errno;

use super::error::internal;

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

/// Why a file of the home could not be locked, and what to do where its file system has no locks.
pub fn cannot_lock(path: &Path, error: &io::Error) -> Error {
    let refused = internal(&format!("cannot lock {}", path.display()), error);
    match Errno::from_io_error(error) {
        Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => refused.hint(
            "its file system has no locks, so two daemons could serve it; set XDG_STATE_HOME or DIVVY_HOME to a folder \
             on a local disk",
        ),
        _ => refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_on_a_file_system_without_locks_is_refused_with_the_way() {
        for (errno, has_way) in [
            (Errno::NOLCK, true),
            (Errno::OPNOTSUPP, true),
            (Errno::NOSYS, true),
            (Errno::IO, false),
            (Errno::INTR, false),
        ] {
            let error = cannot_lock(Path::new("/home/ana/daemon.lock"), &errno.into());
            assert!(error.message.contains("cannot lock /home/ana/daemon.lock"));
            let hint = error.hint.unwrap_or_default();
            assert_eq!(hint.contains("XDG_STATE_HOME"), has_way, "{errno}: {hint}");
        }
    }
}
