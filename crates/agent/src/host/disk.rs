//! Free disk space of the journal's file system.

use std::io;
use std::path::{Path, PathBuf};

use divvy_core::Bytes;

use super::machine::machine;

/// With less room, or fewer files, nothing new is taken on.
const LOW: FreeSpace = FreeSpace {
    bytes: Bytes::mib(4),
    files: 64,
};

/// With so much room it is again.
const HIGH: FreeSpace = FreeSpace {
    bytes: Bytes::mib(8),
    files: 128,
};

/// What this process may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    pub bytes: Bytes,
    /// Files that may be made; [`u64::MAX`] where the file system does not count them.
    pub files: u64,
}

impl FreeSpace {
    /// What is short, in words; nothing while there is room for a change that writes so much.
    pub fn shortage(self, wanted: Bytes) -> Option<String> {
        self.shortage_below(FreeSpace {
            bytes: LOW.bytes.saturating_add(wanted),
            ..LOW
        })
    }

    /// The same of a disk that was full: it has to have more room before it counts as one that is not.
    pub fn remaining_shortage(self) -> Option<String> {
        self.shortage_below(HIGH)
    }

    fn shortage_below(self, least: FreeSpace) -> Option<String> {
        let FreeSpace { bytes, files } = self;
        if bytes < least.bytes {
            let [free, needed] = bytes.human_beside(least.bytes);
            return Some(format!("{free} is free, but {needed} is needed"));
        }
        (files < least.files)
            .then(|| format!("{files} inodes are free, but {} are needed", least.files))
    }
}

/// What to do about a shortage below a folder.
pub fn hint(shortage: &str, folder: &Path) -> String {
    let folder = folder.display();
    match shortage.contains("inodes") {
        true => format!("delete files; check with: df -i {folder}"),
        false => format!("free disk space; check with: df -h {folder}"),
    }
}

/// The file system below a folder.
#[derive(Clone, Debug)]
pub struct Disk {
    folder: PathBuf,
    /// Root writes also to the blocks that a file system keeps for it.
    is_root: bool,
}

impl Disk {
    pub fn of(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// # Errors
    /// Those of statvfs(3).
    pub fn free_space(&self) -> io::Result<FreeSpace> {
        machine().free_space(&self.folder, self.is_root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_was_full_needs_more_room_than_one_that_is_not() {
        let room = |mib| FreeSpace {
            bytes: Bytes::mib(mib),
            files: u64::MAX,
        };
        assert_eq!(room(4).shortage(Bytes::ZERO), None);
        assert!(room(4).remaining_shortage().is_some());
        assert_eq!(room(8).remaining_shortage(), None);
        assert!(room(3).shortage(Bytes::ZERO).is_some());
        assert!(room(8).shortage(Bytes::mib(5)).is_some());
        let inodes = FreeSpace {
            files: 63,
            ..room(100)
        };
        let why = inodes.shortage(Bytes::ZERO).unwrap();
        assert_eq!(why, "63 inodes are free, but 64 are needed");
        assert!(hint(&why, Path::new("/d")).ends_with("df -i /d"));
        let why = room(3).shortage(Bytes::ZERO).unwrap();
        assert!(hint(&why, Path::new("/d")).ends_with("df -h /d"));
    }

    #[test]
    fn the_room_is_the_file_systems() {
        let dir = tempfile::tempdir().unwrap();
        let room = Disk::of(dir.path()).free_space().unwrap();
        assert!(room.bytes > Bytes::ZERO && room.files > 0, "{room:?}");
        assert!(Disk::of(Path::new("/nowhere")).free_space().is_err());
    }
}
