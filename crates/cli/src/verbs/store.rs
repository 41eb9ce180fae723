//! Files of `admin init` and `config init`: written whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use divvy_api::v1::{Error, ErrorCode};

use crate::error_output::Result;

/// Of a folder that this command makes.
const FOLDER_MODE: u32 = 0o755;

/// Bytes of a token before they are written as hexadecimal digits. 256 bits, as the token of `divvy web`: more would
/// protect nothing.
const TOKEN_BYTES: usize = 32;

/// Copies of the former file for which a free name is sought. So many names can only be taken by a script in a loop;
/// the search then takes too long to go on.
const MOST_COPIES: u32 = 1000;

/// Writes the file; answers the copy of the former one.
///
/// # Errors
/// [`ErrorCode::Conflict`] if it exists and `force` is not set; nothing is changed then.
pub fn replace(path: &Path, text: &str, mode: u32, force: bool) -> Result<Option<PathBuf>> {
    let folder = folder_of(path)?;
    let next = written(path, text, mode)?;
    let done = put(&next, path, force);
    let _ = fs::remove_file(&next);
    let copy = done?;
    // The name is on disk, too.
    let sync = File::open(folder).and_then(|folder| folder.sync_all());
    sync.map_err(|error| failed(folder, &error))?;
    Ok(copy)
}

/// The folder of a file, made if there is none. The mode of a folder that exists stays.
fn folder_of(path: &Path) -> Result<&Path> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    };
    make(folder).map_err(|error| failed(folder, &error))?;
    Ok(folder)
}

/// Makes a folder and those above it. All users read the files in root's, whatever root's umask is; a user's own keep the
/// umask.
fn make(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent().filter(|above| *above != Path::new("")) {
        make(above)?;
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        Ok(()) if rustix::process::geteuid().is_root() => {
            fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))
        }
        made => made,
    }
}

fn put(next: &Path, path: &Path, force: bool) -> Result<Option<PathBuf>> {
    // A link is made only if the name is free.
    match fs::hard_link(next, path) {
        Ok(()) => return Ok(None),
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed(path, &error));
        }
        Err(_) if !force => {
            let why = format!("{} exists", path.display());
            return Err(Error::new(ErrorCode::Conflict, why)
                .hint("change it in an editor, or replace it with --force, which keeps a copy"));
        }
        Err(_) => {}
    }
    let copy = kept(path)?;
    fs::rename(next, path).map_err(|error| failed(path, &error))?;
    Ok(Some(copy))
}

/// Gives the present file a second name.
fn kept(path: &Path) -> Result<PathBuf> {
    let name = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    for copy in (1..=MOST_COPIES).map(name) {
        match fs::hard_link(path, &copy) {
            Ok(()) => return Ok(copy),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&copy, &error)),
        }
    }
    let why = format!("{} has {MOST_COPIES} copies", path.display());
    Err(Error::new(ErrorCode::Conflict, why).hint("remove old copies"))
}

/// A new file with this text beside the path.
fn written(path: &Path, text: &str, mode: u32) -> Result<PathBuf> {
    let mut next = path.as_os_str().to_owned();
    next.push(format!(".new-{}", std::process::id()));
    let next = PathBuf::from(next);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&next)?;
        // Whatever the umask is.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    match write() {
        Ok(()) => Ok(next),
        Err(error) => {
            let _ = fs::remove_file(&next);
            Err(failed(path, &error))
        }
    }
}

/// Writes a file in place of one of its name.
///
/// # Errors
/// [`ErrorCode::Internal`] if the folder does not allow it.
pub fn overwrite(path: &Path, text: &str, mode: u32) -> Result<()> {
    folder_of(path)?;
    let next = written(path, text, mode)?;
    fs::rename(&next, path).map_err(|error| {
        let _ = fs::remove_file(&next);
        failed(path, &error)
    })
}

/// Creates the token of TCP clients; false if the file exists, which stays.
///
/// # Errors
/// As [`overwrite`].
pub fn write_token(path: &Path, mode: u32) -> Result<bool> {
    if path.exists() {
        return Ok(false);
    }
    let mut bytes = [0; TOKEN_BYTES];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|error| failed(Path::new("/dev/urandom"), &error))?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    replace(path, &text, mode, false).map(|_| true)
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorCode::NotAllowed,
        _ => ErrorCode::Internal,
    };
    let failed = Error::new(code, format!("cannot write {}: {error}", path.display()));
    match code {
        ErrorCode::NotAllowed => failed.hint("run it as root, or name another file"),
        _ => failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_by_force_alone_and_its_former_text_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("divvy/config.toml");
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(replace(&path, "one", 0o644, false).unwrap(), None);
        let error = replace(&path, "two", 0o644, false).unwrap_err();
        assert_eq!(
            (error.code, read(&path)),
            (ErrorCode::Conflict, "one".into())
        );
        for (text, former) in [("two", "one"), ("three", "two")] {
            let copy = replace(&path, text, 0o644, true).unwrap().unwrap();
            assert_eq!((read(&path).as_str(), read(&copy).as_str()), (text, former));
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        // Nothing else is left: the file and two copies.
        let folder = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(folder.count(), 3);
    }

    #[test]
    fn a_token_is_long_private_and_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(write_token(&path, 0o600).unwrap());
        let token = fs::read_to_string(&path).unwrap();
        assert_eq!(token.len(), 2 * TOKEN_BYTES);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(!write_token(&path, 0o600).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), token);
    }
}
