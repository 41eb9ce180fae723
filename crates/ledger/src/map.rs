//! Opening and mapping the ledger files: checks owner, mode, size and version, then lays the layout over the mapping.
//!
//! Members of a slice map the files. The agent reads `slots` with `pread` only (see [`crate::Reader::read`]): a job may
//! truncate that file at any moment, which turns a mapping into SIGBUS and a `pread` into a short read.

use std::ffi::CString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::iter;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use crate::kept;
use crate::layout::{self, SharedMemory};

/// Why a slice cannot be used. Each prints as one line that names the file.
#[derive(Debug)]
pub enum OpenError {
    /// There is no such file.
    Missing { path: PathBuf },
    /// The file may not be opened by this user.
    NotPermitted { path: PathBuf, user: u32 },
    /// A symbolic link, folder, pipe or device stands where the file should be.
    NotRegular { path: PathBuf },
    /// The owner of the file is not a permitted user.
    WrongOwner {
        path: PathBuf,
        owner: u32,
        user: u32,
    },
    /// Users other than the owner may write the file.
    WritableByOthers { path: PathBuf, mode: u32 },
    /// The file is shorter or longer than its layout.
    WrongSize {
        path: PathBuf,
        found: u64,
        expected: u64,
    },
    /// The file does not begin as a ledger does.
    NotALedger { path: PathBuf },
    /// The file has another version of the layout.
    OtherVersion { path: PathBuf, found: u32 },
    /// The two files are not of one slice.
    Unmatched {
        path: PathBuf,
        found: u64,
        expected: u64,
    },
    /// A field of `control` holds a value that no agent writes.
    Garbled { path: PathBuf, field: &'static str },
    /// The system refused an operation.
    Io {
        path: PathBuf,
        operation: &'static str,
        source: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path } => {
                write!(
                    f,
                    "{} is missing: the slice has ended or was never set up",
                    path.display()
                )
            }
            Self::NotPermitted { path, user } => {
                write!(f, "user {user} may not open {}", path.display())
            }
            Self::NotRegular { path } => write!(f, "{} is not a regular file", path.display()),
            Self::WrongOwner { path, owner, user } => {
                write!(
                    f,
                    "{} belongs to user {owner}, not to user {user} or root",
                    path.display()
                )
            }
            Self::WritableByOthers { path, mode } => {
                write!(
                    f,
                    "{} can be written by other users (mode {mode:04o})",
                    path.display()
                )
            }
            Self::WrongSize {
                path,
                found,
                expected,
            } if found < expected => {
                write!(
                    f,
                    "{} is truncated: {found} of {expected} bytes",
                    path.display()
                )
            }
            Self::WrongSize {
                path,
                found,
                expected,
            } => {
                write!(
                    f,
                    "{} is too long: {found} bytes instead of {expected}",
                    path.display()
                )
            }
            Self::NotALedger { path } => write!(f, "{} is not a Divvy ledger", path.display()),
            Self::OtherVersion { path, found } => write!(
                f,
                "{} has layout version {found}, but divvy {} needs version {}",
                path.display(),
                env!("CARGO_PKG_VERSION"),
                layout::VERSION
            ),
            Self::Unmatched {
                path,
                found,
                expected,
            } => {
                write!(
                    f,
                    "{} has slice generation {found}, but its control file has {expected}",
                    path.display()
                )
            }
            Self::Garbled { path, field } => {
                write!(f, "{} is damaged: invalid {field}", path.display())
            }
            Self::Io {
                path,
                operation,
                source,
            } => {
                write!(f, "{operation} of {} failed: {source}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// The required magic and size of a file.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub magic: u64,
    pub size: usize,
}

pub(crate) const CONTROL: Kind = Kind {
    magic: layout::CONTROL_MAGIC,
    size: layout::CONTROL_SIZE,
};
pub(crate) const SLOTS: Kind = Kind {
    magic: layout::SLOTS_MAGIC,
    size: layout::SLOTS_SIZE,
};

/// The identity of a file by its metadata: a replaced file, or one whose owner, mode or size changed, has another
/// identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    mode: u32,
    owner: u32,
    size: u64,
}

impl FileIdentity {
    /// The identity of the file at a path, symlinks not followed.
    pub fn at(path: &Path) -> io::Result<Self> {
        let status = if kept::is_descriptor(path) {
            fs::metadata(path)
        } else {
            fs::symlink_metadata(path)
        };
        status.map(|status| Self::of(&status))
    }

    /// Whether this is the same file, regardless of changed metadata.
    pub fn is_same_file(self, status: &fs::Metadata) -> bool {
        (self.device, self.inode) == (status.dev(), status.ino())
    }

    /// The identity of an open file.
    pub fn of(status: &fs::Metadata) -> Self {
        Self {
            device: status.dev(),
            inode: status.ino(),
            mode: status.mode(),
            owner: status.uid(),
            size: status.size(),
        }
    }
}

/// Opens a ledger file and checks type, owner, mode, magic, version and size, in the order that gives the truest
/// message. Returns the file and the generation of the slice it names.
pub(crate) fn open(path: &Path, kind: Kind, write: bool) -> Result<(File, u64), OpenError> {
    open_as(path, kind, write).map(|(file, generation, _)| (file, generation))
}

/// The same, and what the file was when it was looked at.
pub(crate) fn open_as(
    path: &Path,
    kind: Kind,
    write: bool,
) -> Result<(File, u64, FileIdentity), OpenError> {
    let user = user();
    // The kernel shows a descriptor as a link.
    let links = if kept::is_descriptor(path) {
        0
    } else {
        libc::O_NOFOLLOW
    };
    // O_NONBLOCK: a pipe put in the file's place must not hang its opener.
    let file = OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(links | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => OpenError::Missing { path: path.into() },
            Some(libc::EACCES | libc::EPERM) => OpenError::NotPermitted {
                path: path.into(),
                user,
            },
            Some(libc::ELOOP | libc::EISDIR | libc::ENXIO | libc::ENODEV) => {
                OpenError::NotRegular { path: path.into() }
            }
            _ => failed(path, "open", error),
        })?;
    let status = file
        .metadata()
        .map_err(|error| failed(path, "stat", error))?;
    if !status.file_type().is_file() {
        return Err(OpenError::NotRegular { path: path.into() });
    }
    if !may_own(status.uid(), user) {
        return Err(OpenError::WrongOwner {
            path: path.into(),
            owner: status.uid(),
            user,
        });
    }
    // Root may let all users write a slice's ledger: its mount decides which processes see the file.
    let is_common = kind.magic == SLOTS.magic && is_root(status.uid());
    if status.mode() & 0o022 != 0 && !is_common {
        return Err(OpenError::WritableByOthers {
            path: path.into(),
            mode: status.mode() & 0o7777,
        });
    }
    let mut header = [0; size_of::<layout::Header>()];
    match file.read_exact_at(&mut header, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(wrong_size(path, kind, status.size()));
        }
        Err(error) => return Err(failed(path, "read", error)),
    }
    let generation = generation(path, kind, &header, status.size())?;
    Ok((file, generation, FileIdentity::of(&status)))
}

/// The generation that a file of this size names which begins so.
pub(crate) fn generation(
    path: &Path,
    kind: Kind,
    header: &[u8],
    size: u64,
) -> Result<u64, OpenError> {
    let expected = kind.size as u64;
    if word(header, 0) != kind.magic {
        return Err(OpenError::NotALedger { path: path.into() });
    }
    let version = word(header, 8) as u32;
    if version != layout::VERSION {
        return Err(OpenError::OtherVersion {
            path: path.into(),
            found: version,
        });
    }
    if size != expected || word(header, 16) != expected {
        return Err(wrong_size(path, kind, size));
    }
    Ok(word(header, 24))
}

fn wrong_size(path: &Path, kind: Kind, found: u64) -> OpenError {
    OpenError::WrongSize {
        path: path.into(),
        found,
        expected: kind.size as u64,
    }
}

/// The user that this process acts as.
pub fn user() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether a user's limits may come from a file of this owner: root's, or the user's own. Root accepts any owner, so
/// that a job's `sudo` stays in its slice.
fn may_own(owner: u32, user: u32) -> bool {
    user == 0 || owner == user || is_root(owner)
}

/// Whether a file of this owner is root's. In a user namespace that has no number for the machine's root, as in pods
/// with `hostUsers: false`, the kernel shows the overflow number instead (user_namespaces(7), "Unmapped user and group
/// IDs").
fn is_root(owner: u32) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    owner == 0
        || is_unmapped_root(
            owner,
            &read("/proc/sys/kernel/overflowuid"),
            &read("/proc/self/uid_map"),
        )
}

/// The same by the overflow number, and by the map of this process's user namespace: lines of `inside outside count`.
fn is_unmapped_root(owner: u32, overflow: &str, map: &str) -> bool {
    let is_initial = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    overflow.trim().parse() == Ok(owner) && !map.trim().is_empty() && !is_initial
}

/// The eight bytes at `offset`; zero where the bytes end.
pub(crate) fn word(bytes: &[u8], offset: usize) -> u64 {
    let end = offset.saturating_add(8);
    bytes
        .get(offset..end)
        .and_then(|eight| eight.try_into().ok())
        .map_or(0, u64::from_ne_bytes)
}

/// The numbers of the bits that are set in these words, the lowest bit of the first being 0.
pub(crate) fn bits(words: impl Iterator<Item = u64>) -> impl Iterator<Item = usize> {
    words.enumerate().flat_map(|(at, word)| {
        let mut left = word;
        iter::from_fn(move || {
            let bit = (left != 0).then(|| at * 64 + left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(bit)
        })
    })
}

/// Whether a folder lies on a file system that is mounted read-only.
pub fn is_read_only(folder: &Path) -> bool {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else {
        return false;
    };
    let mut status = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a valid path and a place for the answer, read only when the call succeeded.
    unsafe {
        libc::statvfs(path.as_ptr(), status.as_mut_ptr()) == 0
            && status.assume_init().f_flag & libc::ST_RDONLY != 0
    }
}

pub(crate) fn failed(path: &Path, operation: &'static str, source: io::Error) -> OpenError {
    OpenError::Io {
        path: path.into(),
        operation,
        source,
    }
}

/// A file laid out as `T` and mapped, shared with every other process that maps it.
pub(crate) struct Map<T: SharedMemory>(NonNull<T>);

// SAFETY: `T: Shared` is atomics only; the mapping itself never changes until drop.
unsafe impl<T: SharedMemory> Send for Map<T> {}
// SAFETY: as above.
unsafe impl<T: SharedMemory> Sync for Map<T> {}

impl<T: SharedMemory> Map<T> {
    /// Maps a file that `open` has found to be as long as `T`. Storing through a mapping made without `write` faults:
    /// only code that asked for `write` may store.
    pub fn new(file: &File, write: bool) -> io::Result<Self> {
        let protection = if write {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice; no existing memory is touched.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast())
            .map(Self)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }
}

impl<T: SharedMemory> Map<T> {
    /// Puts empty memory in the place of a file that must not be touched any more.
    pub fn let_go(&self) {
        // SAFETY: replaces exactly the range that `new` mapped. Concurrent users go on with zeros, which are a valid
        // `T`.
        unsafe {
            libc::mmap(
                self.0.as_ptr().cast(),
                size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
    }
}

impl<T: SharedMemory> Deref for Map<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped for size_of::<T>() until drop, page aligned, any bytes are a `T` (`Shared`).
        unsafe { self.0.as_ref() }
    }
}

impl<T: SharedMemory> Drop for Map<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned; borrows of it end with self.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_come_from_root_or_from_oneself() {
        assert!(may_own(0, 1000) && may_own(1000, 1000) && may_own(1000, 0));
        assert!(!may_own(1001, 1000));
    }

    #[test]
    fn root_has_the_overflow_number_in_a_user_namespace_alone() {
        let pod = "         0 2147483648      65536\n";
        assert!(is_unmapped_root(65534, "65534\n", pod));
        assert!(!is_unmapped_root(1000, "65534\n", pod));
        let initial = "         0          0 4294967295\n";
        assert!(!is_unmapped_root(65534, "65534\n", initial));
        assert!(!is_unmapped_root(65534, "65534\n", ""), "no /proc");
        assert!(!is_unmapped_root(65534, "", pod), "no number");
    }

    #[test]
    fn bits_are_numbered_through_all_words() {
        let words = [1 << 63 | 1, 0, 0b110];
        assert_eq!(
            bits(words.into_iter()).collect::<Vec<_>>(),
            [0, 63, 129, 130]
        );
        assert_eq!(bits([u64::MAX].into_iter()).count(), 64);
    }

    #[test]
    fn words_beyond_the_end_are_zero() {
        assert_eq!(word(&[0xff; 8], 0), u64::MAX);
        for offset in [1, 8, usize::MAX] {
            assert_eq!(word(&[0xff; 8], offset), 0);
        }
    }
}
