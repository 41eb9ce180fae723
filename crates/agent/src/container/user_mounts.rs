//! Bind mounts of a submitter's container: opens each source with the submitter's rights, and stages what was opened.
//!
//! ```text
//! source ──► walk from the administrator's folder, as the submitter ──► descriptor ──► judged ──► bind mount
//!                       │ one name at a time, O_PATH | O_NOFOLLOW                                  in a folder of root's
//!                       └ a symlink: its target must be below such a folder too
//! ```
//! The engine mounts by path and as root. So it never gets the submitter's path, which the submitter could exchange
//! after a check, but that of the staged mount: only root can change it. The supervisor removes the staged mounts once
//! the container has started, as the container then has mounts of its own. The daemon has the fork server remove those
//! of a dead supervisor.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use divvy_core::docker::paths;
use divvy_core::docker::submitter::folder_of;
use rustix::fs::{
    CWD, FileType, Mode, OFlags, StatVfsMountFlags, fstat, fstatvfs, openat, readlinkat,
};
use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind, mount_change, mount_remount};
use rustix::net::sockopt::socket_peercred;

use crate::host::process::mounts::{
    MountSource, is_mount_point, mount_points_below, remove_mounts_in,
};
use crate::host::run_as::Identity;

/// As many symlinks as the kernel follows (`MAXSYMLINKS`).
const LINKS: u32 = 40;

/// Why a folder of the host is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("{} may not be mounted: it leads to {}, which is below no folder for mounts", path.display(), leads.display())]
    Outside { path: PathBuf, leads: PathBuf },
    #[error("{} may not be mounted: {why}", path.display())]
    Kept { path: PathBuf, why: &'static str },
    #[error("{} may not be mounted: {} is mounted below it; mount each of the two by itself", path.display(), inner.display())]
    MountBelow { path: PathBuf, inner: PathBuf },
    #[error("{} may not be mounted: it is neither a folder nor a file", path.display())]
    Kind { path: PathBuf },
    #[error("{} may not be mounted: it leads through more than {LINKS} symlinks", path.display())]
    Links { path: PathBuf },
    #[error("cannot open {} as its submitter", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot prepare the mount of {}", path.display())]
    Stage { path: PathBuf, source: io::Error },
    #[error(
        "the container engine does not see the mounts that Divvy prepares in {}: it runs in another mount namespace",
        folder.display()
    )]
    Unseen { folder: PathBuf },
}

/// A folder below which a submitter may mount, opened by the supervisor.
#[derive(Debug)]
pub struct MountRoot {
    path: PathBuf,
    folder: OwnedFd,
}

impl MountRoot {
    /// Opens a folder that the administrator has named; its own symlinks are the administrator's.
    ///
    /// # Errors
    /// When it is no folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, &path, flags, Mode::empty())?;
        Ok(Self { path, folder })
    }

    /// Opens the home of a user, which must belong to the user: `/` as the home of a service opens nothing.
    ///
    /// # Errors
    /// When it is no folder, or belongs to another user.
    pub fn open_home(path: &Path, uid: u32) -> io::Result<Self> {
        let home = Self::open(path)?;
        match fstat(&home.folder)?.st_uid == uid {
            true => Ok(home),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// What is to be mounted, as the submitter named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRequest {
    /// Absolute and plain.
    pub path: PathBuf,
    pub read_only: bool,
}

/// A file or folder of the submitter's, open as a path alone.
#[derive(Debug)]
struct OpenedSource {
    open: OwnedFd,
    read_only: bool,
}

/// Opens a source with the rights of the calling thread, and follows symlinks only to places below `roots`.
fn open_below(roots: &[MountRoot], source: &Path) -> Result<OwnedFd, MountError> {
    let failed = |path: &Path, error: rustix::io::Errno| MountError::Open {
        path: path.to_owned(),
        source: error.into(),
    };
    let folders: Vec<PathBuf> = roots.iter().map(|root| root.path.clone()).collect();
    let mut leads = source.to_owned();
    for _ in 0..=LINKS {
        let root = folder_of(&folders, &leads)
            .and_then(|folder| roots.iter().find(|root| root.path == *folder));
        let Some(root) = root else {
            return Err(MountError::Outside {
                path: source.to_owned(),
                leads,
            });
        };
        let below = leads.strip_prefix(&root.path).unwrap_or(Path::new(""));
        match walk(root.folder.as_fd(), below).map_err(|error| failed(&leads, error))? {
            Walked::End(open) => return Ok(open),
            Walked::Symlink { at, target, rest } => {
                let base = root.path.join(at);
                leads = paths::plain(&base.join(target)).join(rest);
            }
        }
    }
    Err(MountError::Links {
        path: source.to_owned(),
    })
}

/// How far a walk came.
enum Walked {
    End(OwnedFd),
    /// In the folder `at`, with `rest` still to walk.
    Symlink {
        at: PathBuf,
        target: PathBuf,
        rest: PathBuf,
    },
}

/// Walks down from a folder, one name at a time, and follows no symlink. `below` has no `..`.
fn walk(root: BorrowedFd<'_>, below: &Path) -> rustix::io::Result<Walked> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The name `.` takes the right to search the folder.
    let search = |folder: &dyn AsFd| openat(folder.as_fd(), c".", flags, Mode::empty());
    let mut at = PathBuf::new();
    let mut reached = search(&root)?;
    let mut names = below.iter();
    while let Some(name) = names.next() {
        let next = openat(&reached, name, flags, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&next)?.st_mode) {
            FileType::Symlink => {
                let target = readlinkat(&next, c"", Vec::new())?;
                let target: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(target.as_bytes());
                return Ok(Walked::Symlink {
                    at,
                    target: target.into(),
                    rest: names.as_path().to_owned(),
                });
            }
            FileType::Directory => reached = search(&next)?,
            _ => reached = next,
        }
        at.push(name);
    }
    Ok(Walked::End(reached))
}

/// Where an open descriptor leads by now.
fn path_of(open: BorrowedFd<'_>) -> io::Result<PathBuf> {
    fs::read_link(procfs(open))
}

/// A path by which the kernel takes the open file itself, whatever became of its name.
fn procfs(open: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", open.as_raw_fd())
}

/// Refuses what holds, or is inside, the engine's, Divvy's and the kernel's folders, by any name that a bind mount of
/// the host gives them.
fn judge(open: BorrowedFd<'_>, roots: &[MountRoot], kept: &[PathBuf]) -> Result<(), MountError> {
    let unread = |source: io::Error| MountError::Stage {
        path: PathBuf::from(procfs(open)),
        source,
    };
    let path = path_of(open).map_err(unread)?;
    if !roots.iter().any(|root| path.starts_with(&root.path)) {
        return Err(MountError::Outside {
            path: path.clone(),
            leads: path,
        });
    }
    let refused = |why: &'static str| MountError::Kept {
        path: path.clone(),
        why,
    };
    let mode = fstat(open).map_err(|error| unread(error.into()))?.st_mode;
    if !matches!(
        FileType::from_raw_mode(mode),
        FileType::Directory | FileType::RegularFile
    ) {
        return Err(MountError::Kind { path });
    }
    paths::source(&path, kept).map_err(|kept| refused(kept.why))?;
    let source = MountSource::of_open(open).map_err(unread)?;
    let overlaps = |kept: &Path| MountSource::of(kept).is_some_and(|kept| kept.overlaps(&source));
    let mut fixed = paths::kept_sources();
    if fixed.any(|kept| overlaps(Path::new(kept))) || kept.iter().any(|kept| overlaps(kept)) {
        return Err(refused(
            "it is a folder of the container engine, of the kernel or of Divvy by another name",
        ));
    }
    let below = mount_points_below(&path).map_err(unread)?;
    match below.into_iter().next() {
        Some(inner) => Err(MountError::MountBelow { path, inner }),
        None => Ok(()),
    }
}

/// The staged mounts of one container, in a folder that only root can open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedMounts {
    folder: PathBuf,
}

impl StagedMounts {
    pub fn at(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Opens all sources as the submitter and stages them in this order, the earlier ones of this container removed.
    ///
    /// # Errors
    /// [`MountError`] for the first that is refused; nothing stays staged then.
    pub fn stage(
        &self,
        sources: &[SourceRequest],
        submitter: &Identity,
        roots: &[MountRoot],
        kept: &[PathBuf],
    ) -> Result<Vec<PathBuf>, MountError> {
        self.clear();
        let here = |source| MountError::Stage {
            path: self.folder.clone(),
            source,
        };
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let opened = submitter.run(|| {
            let open = |request: &SourceRequest| {
                Ok(OpenedSource {
                    open: open_below(roots, &request.path)?,
                    read_only: request.read_only,
                })
            };
            sources.iter().map(open).collect::<Result<Vec<_>, _>>()
        });
        let opened = opened.map_err(here)??;
        for source in &opened {
            judge(source.open.as_fd(), roots, kept)?;
        }
        let mut folder = DirBuilder::new();
        let made = folder.recursive(true).mode(0o700).create(&self.folder);
        made.map_err(here)?;
        let staged = (0_usize..).zip(&opened).map(|(number, source)| {
            let target = self.folder.join(number.to_string());
            bind(source, &target).map_err(|source| MountError::Stage {
                path: target.clone(),
                source,
            })?;
            Ok(target)
        });
        let staged: Result<Vec<_>, _> = staged.collect();
        if staged.is_err() {
            self.clear();
        }
        staged
    }

    /// Whether the engine that listens at a socket has the staged mounts in its mount namespace; otherwise it would
    /// mount the empty folders below them.
    ///
    /// # Errors
    /// [`MountError::Unseen`].
    pub fn check_seen(&self, staged: &[PathBuf], engine: &Path) -> Result<(), MountError> {
        let process = UnixStream::connect(engine)
            .and_then(|socket| Ok(socket_peercred(&socket)?.pid.as_raw_pid()));
        let process = process.ok().and_then(|pid| u32::try_from(pid).ok());
        let sees = |mount: &PathBuf| process.is_some_and(|pid| is_mount_point(pid, mount));
        match staged.iter().all(sees) {
            true => Ok(()),
            false => Err(MountError::Unseen {
                folder: self.folder.clone(),
            }),
        }
    }

    /// Whether so many mounts are still staged; a reboot removes them.
    pub fn has(&self, count: usize) -> bool {
        let me = std::process::id();
        (0..count).all(|number| is_mount_point(me, &self.folder.join(number.to_string())))
    }

    /// Removes the staged mounts.
    pub fn clear(&self) {
        remove_mounts_in(&self.folder);
    }
}

/// Bind-mounts what is open, without the mounts below it. No change of mounts passes between it and its source.
fn bind(source: &OpenedSource, target: &Path) -> io::Result<()> {
    let open = source.open.as_fd();
    match FileType::from_raw_mode(fstat(open)?.st_mode) {
        FileType::Directory => DirBuilder::new().mode(0o700).create(target)?,
        _ => drop(File::create_new(target)?),
    }
    mount_bind(procfs(open), target)?;
    mount_change(target, MountPropagationFlags::PRIVATE)?;
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    flags |= own_flags(fstatvfs(open)?.f_flag);
    if source.read_only {
        flags |= MountFlags::RDONLY;
    }
    mount_remount(target, flags, c"")?;
    Ok(())
}

/// The flags of a source's mount, which its bind mount keeps.
fn own_flags(flags: StatVfsMountFlags) -> MountFlags {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let kept = pairs.iter().filter(|(found, _)| flags.contains(*found));
    kept.fold(MountFlags::empty(), |all, (_, kept)| all | *kept)
}

/// The folders of staged mounts of containers that are not in `living`.
pub fn stale(folder: &Path, living: &BTreeSet<String>) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_stale = |name: &OsStr| !name.to_str().is_some_and(|name| living.contains(name));
    let stale = entries.filter(|entry| is_stale(&entry.file_name()));
    stale.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests;
