//! The mounts of a slice, made in the task itself: the limiter lies in the driver's place in the mount namespace of the
//! task and of all that it starts.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount,
};
use rustix::thread::UnshareFlags;

use crate::record::Mount;

/// Why a task cannot enter its slice.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot {what} {}: {source}", path.display())]
    Step {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is not what was mounted there", .0.display())]
    NotThere(PathBuf),
}

fn failed<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> MountError {
    move |source| MountError::Step {
        what,
        path: path.to_owned(),
        source: source.into(),
    }
}

/// Gives this process a mount namespace of its own and makes the mounts in it, in their order.
///
/// # Errors
/// At the first step that fails. The process may then start no program: some mounts are there.
pub fn make(mounts: &[Mount]) -> Result<(), MountError> {
    // Created outside, where it stays for the next task: below /run, or in the folder of a daemon.
    for mount in mounts.iter().filter(|mount| mount.source.is_none()) {
        fs::create_dir_all(&mount.target).map_err(failed("create", &mount.target))?;
    }
    unshare()?;
    let root = Path::new("/");
    let follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change(root, follow).map_err(failed("change the propagation of mounts below", root))?;
    let mut fresh: Vec<&Path> = Vec::new();
    for step in mounts {
        let target = step.target.as_path();
        let Some(source) = &step.source else {
            let flags = MountFlags::NOSUID | MountFlags::NODEV;
            mount("divvy", target, "tmpfs", flags, Some(c"mode=755,size=1m"))
                .map_err(failed("mount over", target))?;
            fresh.push(target);
            continue;
        };
        let before = fs::metadata(source).map_err(failed("open", source))?;
        if fresh.iter().any(|folder| target.starts_with(folder)) {
            create(target, before.is_dir()).map_err(failed("create", target))?;
        }
        mount_bind(source, target).map_err(failed("bind-mount over", target))?;
        let after = fs::metadata(target).map_err(failed("inspect", target))?;
        if !same(&before, &after) {
            return Err(MountError::NotThere(target.to_owned()));
        }
        if step.read_only {
            write_protect(target)?;
        }
    }
    for folder in fresh {
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(folder, flags, c"").map_err(failed("write-protect", folder))?;
    }
    Ok(())
}

fn unshare() -> Result<(), MountError> {
    #[expect(
        deprecated,
        reason = "what is unsafe about it is sharing descriptors, which stay shared here"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNS)
        .map_err(failed("create a mount namespace for", Path::new("/")))
}

fn create(target: &Path, is_folder: bool) -> io::Result<()> {
    if is_folder {
        fs::create_dir_all(target)
    } else {
        fs::create_dir_all(target.parent().unwrap_or(target))?;
        File::create_new(target).map(|_| ())
    }
}

fn same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Makes a bind mount read-only; flags that the file's own mount sets stay set.
fn write_protect(path: &Path) -> Result<(), MountError> {
    let there = statvfs(path).map_err(failed("inspect", path))?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    for (is, stays) in [
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        flags.set(stays, there.contains(is));
    }
    mount_remount(path, flags, c"").map_err(failed("write-protect", path))
}
