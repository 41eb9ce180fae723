//! Program lookup in PATH, as execvp(3) does with the caller's credentials.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// execvp(3)'s path where the environment has none.
pub const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why a name leads to no program.
#[derive(Debug)]
pub enum LookupError {
    /// No folder of this path has a file of the name.
    NotInPath(String),
    /// The file cannot be executed, or is not there.
    File(PathBuf, io::Error),
}

impl LookupError {
    /// The code a shell reports: 127 not found, 126 found and not executable.
    pub fn code(&self) -> u8 {
        match self {
            Self::File(_, error) if error.kind() != io::ErrorKind::NotFound => 126,
            Self::NotInPath(_) | Self::File(..) => 127,
        }
    }
}

/// The file that `name` means: itself when it has a slash, else the first executable of that name on `path`.
///
/// # Errors
/// [`LookupError`]; with a path that of the first file of that name that cannot be executed.
pub fn find(name: &str, path: Option<&str>, cwd: &Path) -> Result<PathBuf, LookupError> {
    if name.contains('/') {
        let file = cwd.join(name);
        return match usable(&file) {
            Ok(()) => Ok(file),
            Err(error) => Err(LookupError::File(file, error)),
        };
    }
    let path = path.unwrap_or(DEFAULT_PATH);
    let mut refused = None;
    // An empty element means the working directory.
    for file in path.split(':').map(|dir| cwd.join(dir).join(name)) {
        match usable(&file) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => refused = refused.or(Some((file, error))),
        }
    }
    Err(match refused {
        Some((file, error)) => LookupError::File(file, error),
        None => LookupError::NotInPath(path.to_owned()),
    })
}

fn usable(file: &Path) -> io::Result<()> {
    match std::fs::metadata(file) {
        Ok(meta) if meta.is_file() => Ok(access(file, Access::EXEC_OK)?),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "not a file",
        )),
        // A part of the path that is a file, not a folder, is "not found" to a shell as well.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(io::ErrorKind::NotFound.into())
        }
        Err(error) => Err(error),
    }
}
