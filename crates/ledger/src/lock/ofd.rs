//! Write locks of one byte that mark a file as in use, for files that other users may read.
//!
//! Every user who can read a file can take a read lock on it; a write lock needs a descriptor that may write. So a
//! write lock proves that the file's owner, or root, holds it. The kernel drops it with the last descriptor of its open
//! file, which copies of the process share.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::lock;

/// The byte that is locked.
const BYTE: i64 = 0;

/// Locks the file; `false` when another open file holds a lock.
///
/// # Errors
/// When the file system has no such locks.
pub fn try_mark_in_use(file: &File) -> io::Result<bool> {
    lock::try_lock(file.as_raw_fd(), BYTE)
}

/// Whether another open file holds the write lock. Takes nothing, and read locks do not count.
///
/// # Errors
/// When the file system has no such locks.
pub fn is_in_use(file: &File) -> io::Result<bool> {
    lock::is_write_locked(file.as_raw_fd(), BYTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_of_the_file_neither_forges_the_mark_nor_takes_it_away() {
        let path = std::env::temp_dir().join(format!("divvy-ofd-{}", std::process::id()));
        let owner = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let reader = File::open(&path).unwrap();
        assert!(!is_in_use(&reader).unwrap());
        assert!(try_mark_in_use(&owner).unwrap());
        assert!(is_in_use(&reader).unwrap());
        let copy = owner.try_clone().unwrap();
        drop(owner);
        assert!(
            is_in_use(&reader).unwrap(),
            "a copy of the descriptor holds it"
        );
        drop(copy);
        assert!(!is_in_use(&reader).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
