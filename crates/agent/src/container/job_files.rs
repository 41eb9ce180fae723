//! Files in a job's folder for its container: the folder mounted at `/run/divvy-job`, and the loader's list.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use divvy_driver::load::BEHIND;

use super::edits::{Edits, JobFiles};

/// A file for a container could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot create {path}")]
pub struct CoverError {
    path: PathBuf,
    source: io::Error,
}

/// Creates them, or creates them anew: an empty file for each mount below `/run/divvy-job`, as nothing can be made
/// there in the container. Every user in it can read them.
pub fn write(edits: &Edits, files: &JobFiles) -> Result<(), CoverError> {
    let made = |path: &Path, result: io::Result<()>| {
        result.map_err(|source| CoverError {
            path: path.to_owned(),
            source,
        })
    };
    made(&files.folder, folder(&files.folder))?;
    for bind in &edits.mounts {
        let Ok(name) = bind.container.strip_prefix(BEHIND) else {
            continue;
        };
        if name.as_os_str().is_empty() {
            continue;
        }
        let path = files.folder.join(name);
        let parent = path.parent().unwrap_or(&files.folder);
        made(parent, folder(parent))?;
        made(&path, file(&path, b""))?;
    }
    let list = JobFiles::preloads();
    made(
        &files.preload_list,
        file(&files.preload_list, list.as_bytes()),
    )
}

/// Writes a file that every user of a container can read.
///
/// # Errors
/// [`CoverError`].
pub fn write_file(path: &Path, text: &[u8]) -> Result<(), CoverError> {
    file(path, text).map_err(|source| CoverError {
        path: path.to_owned(),
        source,
    })
}

/// With this mode, independent of the process's umask.
fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// One that is right is left alone: programs may be reading it at this moment.
fn file(path: &Path, text: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::edits::{edits, tests::simulated};

    #[test]
    fn each_file_that_is_mounted_has_a_place_and_all_may_look() {
        let job = tempfile::tempdir().unwrap();
        let files = JobFiles::of(job.path());
        let edits = edits(&simulated(), &files);
        write(&edits, &files).unwrap();
        write(&edits, &files).expect("a second time changes nothing");
        let below = |path: &Path| {
            path.strip_prefix(BEHIND)
                .map(|name| files.folder.join(name))
        };
        for bind in &edits.mounts {
            if let Ok(place) = below(&bind.container) {
                assert!(place.exists(), "{}", place.display());
            }
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&files.folder.join("slice")), 0o755);
        assert_eq!(mode(&files.folder.join("slice/control")), 0o644);
        assert_eq!(
            fs::read_to_string(&files.preload_list).unwrap(),
            "/run/divvy-job/libdivvy_preload.so\n"
        );
    }
}
