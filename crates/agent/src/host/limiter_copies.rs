//! Copies of the limiter's libraries in a folder of the daemon. Jobs load the copies: an upgrade or a removal of the
//! installation changes nothing for a running job (decision 056).
//!
//! ```text
//! limiters/3/libdivvy_preload.so …   a folder for each content; a folder is made whole or not at all
//! limiters/2/jobs                    the jobs that lived when another folder took the place of this one
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use divvy_core::{Bytes, JobId};

/// The jobs for which an old copy stays, one number a line.
const JOBS: &str = "jobs";

/// The copy that is being made.
const DRAFT: &str = ".new";

/// Bytes of a file that are compared at once.
const PIECE: usize = 1 << 16;

/// Bytes that stay free on the disk: a start of a job needs 4 MiB, and logs and the journal grow.
const ROOM: u64 = 64 << 20;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("cannot copy {} to {}", from.display(), to.display())]
    Copy {
        from: PathBuf,
        to: PathBuf,
        source: io::Error,
    },
    #[error("cannot write in {}", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    #[error("the file system of {} is mounted with noexec", .0.display())]
    NoExec(PathBuf),
    #[error("{} has {} free, and a copy of the limiter needs {} with the room for jobs", folder.display(), free.human(), needed.human())]
    NoRoom {
        folder: PathBuf,
        free: Bytes,
        needed: Bytes,
    },
    #[error("{} is not complete; another program may be replacing it", .0.display())]
    Incomplete(PathBuf),
}

/// Returns the folder below `root` with a copy of these files; makes it if there is none with this content. The caller
/// has the lock of the daemon or of runs without one, so no other process of this home makes a copy.
///
/// # Errors
/// When a file cannot be read, copied, or loaded from there.
pub fn keep(root: &Path, files: &[&Path]) -> Result<PathBuf, CopyError> {
    let cannot = |error| CopyError::Folder(root.to_owned(), error);
    fs::create_dir_all(root).map_err(cannot)?;
    open_to_all(root).map_err(cannot)?;
    let disk = rustix::fs::statvfs(root).map_err(|error| cannot(error.into()))?;
    if disk.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        return Err(CopyError::NoExec(root.to_owned()));
    }
    let numbers = numbers(root);
    for number in numbers.iter().rev() {
        let folder = root.join(number.to_string());
        let is_same = |file: &&Path| is_equal(file, &copy_of(&folder, file));
        if files.iter().all(is_same) {
            // An earlier version is back.
            match fs::remove_file(folder.join(JOBS)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
                _ => return Ok(folder),
            }
        }
    }
    let sizes = files.iter().filter_map(|file| file.metadata().ok());
    let needed = sizes.fold(ROOM, |sum, file| sum.saturating_add(file.len()));
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < needed {
        return Err(CopyError::NoRoom {
            folder: root.to_owned(),
            free: Bytes::new(free),
            needed: Bytes::new(needed),
        });
    }
    let draft = root.join(DRAFT);
    let number = numbers.last().map_or(1, |last| last + 1);
    let folder = root.join(number.to_string());
    let made = make(&draft, files).and_then(|()| fs::rename(&draft, &folder).map_err(cannot));
    if made.is_err() {
        // On a full disk its files would stay.
        let _ = fs::remove_dir_all(&draft);
    }
    made.map(|()| folder)
}

fn make(draft: &Path, files: &[&Path]) -> Result<(), CopyError> {
    let cannot = |error| CopyError::Folder(draft.to_owned(), error);
    // A process may have died here.
    match fs::remove_dir_all(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot(error)),
        _ => {}
    }
    fs::create_dir(draft).map_err(cannot)?;
    open_to_all(draft).map_err(cannot)?;
    for file in files {
        let to = copy_of(draft, file);
        let copied = fs::copy(file, &to).and_then(|_| open_to_all(&to));
        copied.map_err(|source| CopyError::Copy {
            from: (*file).to_owned(),
            to: to.clone(),
            source,
        })?;
        if !is_complete(&to) || !is_equal(file, &to) {
            return Err(CopyError::Incomplete((*file).to_owned()));
        }
    }
    Ok(())
}

/// The file in a folder of copies.
pub fn copy_of(folder: &Path, file: &Path) -> PathBuf {
    folder.join(file.file_name().unwrap_or_default())
}

/// All copies of these files, of this version and of others.
pub fn all(root: &Path, files: &[&Path]) -> Vec<PathBuf> {
    let folders = numbers(root).into_iter();
    let folders = folders.map(|number| root.join(number.to_string()));
    let copies = folders.flat_map(|folder| {
        let copies = files.iter().map(move |file| copy_of(&folder, file));
        copies.collect::<Vec<_>>()
    });
    copies.filter(|copy| copy.is_file()).collect()
}

/// Jobs run as users who must read the files, whatever the daemon's umask.
fn open_to_all(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

fn numbers(root: &Path) -> BTreeSet<u64> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.collect()
}

/// Whether both can be read and have the same bytes.
fn is_equal(one: &Path, other: &Path) -> bool {
    let compare = || -> io::Result<bool> {
        let (one, other) = (File::open(one)?, File::open(other)?);
        if one.metadata()?.len() != other.metadata()?.len() {
            return Ok(false);
        }
        let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
        let mut at = 0;
        loop {
            let read = one.read_at(&mut left, at)?;
            if read == 0 {
                return Ok(true);
            }
            other.read_exact_at(&mut right[..read], at)?;
            if left[..read] != right[..read] {
                return Ok(false);
            }
            at += read as u64;
        }
    };
    compare().unwrap_or(false)
}

/// Whether a library has all bytes that its header counts. An installer such as pip writes into the final name, so a
/// start beside it may meet half a file. The section headers are last in what a linker writes (ELF-64, `e_shoff`,
/// `e_shentsize`, `e_shnum`).
fn is_complete(path: &Path) -> bool {
    let check = || -> io::Result<bool> {
        let mut file = File::open(path)?;
        let mut header = [0; 64];
        file.read_exact(&mut header)?;
        let number = |at: usize, bytes: usize| {
            let field = header[at..at + bytes].iter().rev();
            field.fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let end = number(0x28, 8).checked_add(number(0x3a, 2) * number(0x3c, 2));
        let is_elf = header.starts_with(b"\x7fELF");
        Ok(is_elf && end.is_some_and(|end| end <= file.metadata().map_or(0, |file| file.len())))
    };
    check().unwrap_or(false)
}

/// Removes the copies beside `current` that no living job can load. To be called before a job starts; `living` are the
/// jobs that an earlier daemon started.
///
/// # Errors
/// When the jobs of a copy cannot be read or written. It then stays, and so do those that were not looked at.
pub fn remove_unused(current: &Path, living: &BTreeSet<JobId>) -> io::Result<()> {
    let Some(root) = current.parent() else {
        return Ok(());
    };
    let folders = numbers(root)
        .into_iter()
        .map(|number| root.join(number.to_string()));
    for folder in folders.filter(|folder| folder != current) {
        let list = folder.join(JOBS);
        let jobs: String = match fs::read_to_string(&list) {
            Ok(text) => {
                let listed: BTreeSet<&str> = text.lines().collect();
                let living = living.iter().map(|job| format!("{job}\n"));
                living
                    .filter(|job| listed.contains(job.trim_end()))
                    .collect()
            }
            // It was the current one until now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                living.iter().map(|job| format!("{job}\n")).collect()
            }
            Err(error) => return Err(error),
        };
        if jobs.is_empty() {
            fs::remove_dir_all(&folder)?;
            continue;
        }
        let draft = list.with_extension("new");
        fs::write(&draft, jobs)?;
        fs::rename(&draft, &list)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
