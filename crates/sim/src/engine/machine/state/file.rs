//! Opening and creating the state file: created without a name, linked into place when complete, recognised by device
//! and inode.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Which file this is, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    pub size: u64,
}

impl Identity {
    /// Of whatever has this number now.
    pub fn of_descriptor(descriptor: RawFd) -> io::Result<Identity> {
        // SAFETY: not dropped, so not closed; a number that is no descriptor is an error of the call below.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor.max(0)) });
        if descriptor < 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        Identity::of(&file)
    }

    pub fn of(file: &File) -> io::Result<Identity> {
        let data = file.metadata()?;
        Ok(Identity {
            device: data.dev(),
            inode: data.ino(),
            size: data.size(),
        })
    }
}

/// Programs close descriptors they believe to be theirs, counting up from 3; few count this far.
const LOWEST: RawFd = 200;

/// The same file under a high number, if the process may have one; where it is if not.
pub fn raised(file: File) -> File {
    // SAFETY: duplicates a descriptor of ours; nothing else is touched.
    let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LOWEST) };
    if high < 0 {
        return file;
    }
    // SAFETY: made above, with no other owner.
    unsafe { File::from_raw_fd(high) }
}

pub fn open_existing(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// A file that gets its name only when it is complete: O_TMPFILE, or a temporary name where the file system lacks it.
pub struct UnnamedFile {
    pub file: File,
    temporary: Option<PathBuf>,
}

impl UnnamedFile {
    pub fn beside(path: &Path) -> io::Result<UnnamedFile> {
        let parent = path.parent();
        let folder = parent.filter(|folder| !folder.as_os_str().is_empty());
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let unnamed = options
            .clone()
            .custom_flags(libc::O_TMPFILE)
            .open(folder.unwrap_or(Path::new(".")));
        match unnamed {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)
                ) =>
            {
                let mut name = path.as_os_str().to_owned();
                name.push(format!(".{}", std::process::id()));
                Ok(UnnamedFile {
                    file: options.create(true).truncate(true).open(&name)?,
                    temporary: Some(name.into()),
                })
            }
            file => Ok(UnnamedFile {
                file: file?,
                temporary: None,
            }),
        }
    }

    /// Gives the file its name, unless something else has it.
    pub fn publish(&self, path: &Path) -> io::Result<()> {
        let descriptor = || PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let from = c_path(&self.temporary.clone().unwrap_or_else(descriptor))?;
        let (to, here) = (c_path(path)?, libc::AT_FDCWD);
        // SAFETY: valid paths.
        let linked = unsafe {
            libc::linkat(
                here,
                from.as_ptr(),
                here,
                to.as_ptr(),
                libc::AT_SYMLINK_FOLLOW,
            )
        };
        if linked < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl Drop for UnnamedFile {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            // A name that cannot be removed is litter, nothing worse.
            let _ = std::fs::remove_file(name);
        }
    }
}

pub fn map_shared(file: &File, size: usize) -> io::Result<*const u8> {
    let (any, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping, chosen by the kernel.
    let map = unsafe { libc::mmap(any, size, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if map == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(map.cast())
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
