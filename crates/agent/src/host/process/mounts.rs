//! Mounts of a process, which identify its container: `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
//!
//! A bind mount shows its file system and its path there, which are the same in every mount namespace. A process
//! without the right to mount cannot forge them. A process that changed its root directory hides its mounts, but not
//! those of its ancestors.
//!
//! The crate procfs 0.18 does not fit: one path that is not UTF-8 makes it refuse the whole file, it keeps `\040`, and
//! its reader of `maps` panics on a file named `/SYSV`. Users choose these names.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use super::{Process, ancestry, of_any_thread, proc_path};

/// A folder: its file system, and its path there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSource {
    /// `major:minor` as in `mountinfo`; stat(2) reports another device for some file systems.
    device: Vec<u8>,
    path: PathBuf,
}

/// Unmounts what is mounted right below a folder, and removes the folder with its entries. It never enters a mount, and a
/// folder goes only when it is empty.
pub fn remove_mounts_in(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        while unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_ok() {}
        // `remove_dir` and `remove_file` take a mount point for busy.
        let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
    }
    let _ = fs::remove_dir(folder);
}

/// Suffix of the kernel for the path of a removed file that is still mounted (`d_path` in fs/d_path.c).
const REMOVED: &[u8] = b"//deleted";

impl MountSource {
    /// Returns the source of a folder or file of this process.
    pub fn of(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        let info = fs::read(proc_path(std::process::id(), "mountinfo")).ok()?;
        Self::from_mountinfo(&info, &path)
    }

    /// Returns the source of what a descriptor of this process has open, wherever its path leads by now.
    ///
    /// # Errors
    /// When the kernel does not show it, or it is not below a mount of this process.
    pub fn of_open(open: BorrowedFd<'_>) -> io::Result<Self> {
        let number = open.as_raw_fd();
        let said = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
        let id = said.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let id = id.map(str::trim).ok_or(io::ErrorKind::Unsupported)?;
        let path = fs::read_link(format!("/proc/self/fd/{number}"))?;
        let info = fs::read("/proc/self/mountinfo")?;
        let mut all = mounts(&info);
        let mount = all.find(|mount| mount.id == id.as_bytes());
        let mount = mount.ok_or(io::ErrorKind::NotFound)?;
        let below = path.strip_prefix(&mount.point);
        let below = below.map_err(|_| io::ErrorKind::NotFound)?;
        Ok(Self {
            device: mount.source.device,
            path: mount.source.path.join(below),
        })
    }

    /// Whether one of them is, or holds, the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.device == other.device
            && (self.path.starts_with(&other.path) || other.path.starts_with(&self.path))
    }

    /// Finds the source of `path` in the mounts of its process: below the longest mount point, and of several there
    /// below the last, which hides the others.
    fn from_mountinfo(info: &[u8], path: &Path) -> Option<Self> {
        let above = mounts(info).filter(|mount| path.starts_with(&mount.point));
        let mount = above.max_by_key(|mount| mount.point.as_os_str().len())?;
        let below = path.strip_prefix(&mount.point).ok()?;
        Some(Self {
            device: mount.source.device,
            path: mount.source.path.join(below),
        })
    }
}

/// Returns the mounts of a process and of its ancestors, up to the first process of its container. Empty if the process
/// is in this process's mount namespace, or hides its mounts.
pub fn mount_sources(process: Process) -> Vec<MountSource> {
    let namespace = |pid| of_any_thread(pid, |folder| fs::read_link(folder.join("ns/mnt")).ok());
    let Some(here) = namespace(std::process::id()) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for member in ancestry(process) {
        let pid = member.process.pid;
        if namespace(pid).is_none_or(|there| there == here) {
            break;
        }
        let info = mountinfo(pid);
        all.extend(mounts(&info).map(|mount| mount.source));
    }
    all
}

/// Returns the mount points strictly below a path, in this process's mount namespace.
///
/// # Errors
/// When the kernel does not show its mounts.
pub fn mount_points_below(path: &Path) -> io::Result<Vec<PathBuf>> {
    let info = fs::read("/proc/self/mountinfo")?;
    let points = mounts(&info).map(|mount| mount.point);
    Ok(points
        .filter(|point| point != path && point.starts_with(path))
        .collect())
}

/// Whether a process has a mount at this path, in its own mount namespace.
pub fn is_mount_point(pid: u32, path: &Path) -> bool {
    let info = mountinfo(pid);
    mounts(&info).any(|mount| mount.point == path)
}

/// Whether a process has a mount at a path or below it, in its own mount namespace.
pub fn has_mount_below(pid: u32, path: &Path) -> bool {
    let info = mountinfo(pid);
    mounts(&info).any(|mount| mount.point.starts_with(path))
}

/// The mounts of a process; empty where they are not to be seen.
fn mountinfo(pid: u32) -> Vec<u8> {
    let info = of_any_thread(pid, |folder| fs::read(folder.join("mountinfo")).ok());
    info.unwrap_or_default()
}

struct Mount {
    id: Vec<u8>,
    source: MountSource,
    point: PathBuf,
}

/// Parses the lines `id parent major:minor root point …`.
fn mounts(info: &[u8]) -> impl Iterator<Item = Mount> {
    info.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let (id, _) = (fields.next()?, fields.next()?);
        let (device, root, point) = (fields.next()?, fields.next()?, fields.next()?);
        let root = unescaped(root);
        let root = root.strip_suffix(REMOVED).unwrap_or(&root);
        Some(Mount {
            id: id.to_owned(),
            source: MountSource {
                device: device.to_owned(),
                path: PathBuf::from(OsString::from_vec(root.to_owned())),
            },
            point: PathBuf::from(OsString::from_vec(unescaped(point))),
        })
    })
}

/// Decodes blanks, newlines and backslashes, which the kernel writes as `\040` and so on.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                plain.push(code);
                rest = &after[3..];
            }
            None => {
                plain.push(*byte);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &[u8] = b"21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        30 21 0:25 / /run rw,nosuid shared:5 - tmpfs tmpfs rw\n\
        40 21 8:1 /srv/a\\040b /mnt/a\\040b rw shared:1 - ext4 /dev/sda1 rw\n\
        41 30 0:31 / /run/divvy rw - tmpfs tmpfs rw\ncut";
    const INSIDE: &[u8] = b"900 800 0:77 / / rw - overlay overlay rw\n\
        901 900 8:1 /var/lib/divvy/jobs/7/container/mounts /run/divvy-job ro,nosuid master:1 - ext4 /dev/sda1 rw\n\
        902 901 0:31 /slices/7/slots//deleted /run/divvy-job/slice/slots rw - tmpfs tmpfs rw\n";

    fn place(device: &str, path: &str) -> MountSource {
        MountSource {
            device: device.as_bytes().to_vec(),
            path: path.into(),
        }
    }

    #[test]
    fn a_path_is_found_in_its_file_system_whatever_is_mounted_where() {
        let of = |path: &str| MountSource::from_mountinfo(HOST, Path::new(path)).unwrap();
        assert_eq!(
            of("/var/lib/divvy/jobs/7"),
            place("8:1", "/var/lib/divvy/jobs/7")
        );
        assert_eq!(of("/run/x"), place("0:25", "/x"));
        assert_eq!(of("/run/divvy/slices"), place("0:31", "/slices"));
        assert_eq!(of("/mnt/a b/c"), place("8:1", "/srv/a b/c"));
        assert_eq!(of("/runx"), place("8:1", "/runx"));
    }

    #[test]
    fn what_is_mounted_in_a_container_is_told_as_the_host_has_it_also_when_it_was_removed() {
        let seen: Vec<MountSource> = mounts(INSIDE).map(|mount| mount.source).collect();
        let host =
            MountSource::from_mountinfo(HOST, Path::new("/var/lib/divvy/jobs/7/container/mounts"));
        assert!(seen.contains(&host.unwrap()));
        let host = MountSource::from_mountinfo(HOST, Path::new("/run/divvy/slices/7/slots"));
        assert!(seen.contains(&host.unwrap()));
    }

    #[test]
    fn this_process_is_in_no_container() {
        let dir = tempfile::tempdir().unwrap();
        assert!(MountSource::of(dir.path()).is_some());
        assert_eq!(mount_sources(Process::this().unwrap()), []);
        assert_eq!(MountSource::of(&dir.path().join("gone")), None);
    }

    #[test]
    fn a_backslash_stands_for_what_follows_only_as_three_digits() {
        assert_eq!(unescaped(b"a\\040b\\134c\\"), b"a b\\c\\");
        assert_eq!(unescaped(b"\\zz9"), b"\\zz9");
    }
}
