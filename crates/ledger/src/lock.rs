//! File locks of the ledger: byte-range locks on the `slots` file, and the descriptor that carries them.
//!
//! Each slot has two bytes to lock. The kernel drops a lock with the last descriptor of its open file, so a dead
//! process holds none. **life** is held by the owner as long as it lives; **change** is held for moments by the process
//! that moves the slot from one state to another. The locks belong to the open file (OFD), not to the process, so they
//! work across PID namespaces, and closing some other descriptor of the same file does not drop them.

pub mod ofd;

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU64};

use crate::fork::Epoch;

/// Programs close descriptors they believe to be theirs, counting up from 3; few count this far.
const LOWEST: RawFd = 200;

/// The byte that the owner of a slot locks for life.
pub(crate) fn life(slot: usize) -> i64 {
    slot as i64
}

/// The byte that is locked while a slot changes its state.
pub(crate) fn change(slot: usize) -> i64 {
    (1 << 20) + slot as i64
}

/// The byte that is locked while the table of shared allocations changes. Behind the bytes of the slots' changes above,
/// which leave room for 1 Mi slots; a lock of a byte needs no file of that size (fcntl(2)).
pub(crate) const SHARED: i64 = 2 << 20;

/// Locks a byte; `false` when another open file has it.
pub(crate) fn try_lock(file: RawFd, byte: i64) -> io::Result<bool> {
    match control(file, libc::F_OFD_SETLK, libc::F_WRLCK, byte) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Drops a lock; none there is no error.
pub(crate) fn unlock(file: RawFd, byte: i64) {
    // Unlocking one byte of a lock of one byte needs no memory; it fails on a bad descriptor only, and then the lock
    // is gone as well.
    let _ = control(file, libc::F_OFD_SETLK, libc::F_UNLCK, byte);
}

/// Whether another open file has the byte locked.
pub(crate) fn is_locked(file: RawFd, byte: i64) -> io::Result<bool> {
    control(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte).map(|found| found != libc::F_UNLCK)
}

/// Whether another open file holds a write lock on the byte.
pub(crate) fn is_write_locked(file: RawFd, byte: i64) -> io::Result<bool> {
    control(file, libc::F_OFD_GETLK, libc::F_RDLCK, byte).map(|found| found != libc::F_UNLCK)
}

fn control(
    file: RawFd,
    command: libc::c_int,
    kind: libc::c_int,
    byte: i64,
) -> io::Result<libc::c_int> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: these commands read and write one `flock`, which lives here.
    if unsafe { libc::fcntl(file, command, &mut lock) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(libc::c_int::from(lock.l_type))
}

/// The descriptor that holds a process's life lock: close-on-exec, of a high number, closed in fork children.
pub(crate) struct LockFile {
    descriptor: RawFd,
    identity: Identity,
    epoch: Epoch,
}

/// Device and inode: whether a number still means our file, for the program may have closed and reused it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(descriptor: RawFd) -> io::Result<Self> {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: a place for the answer, read only when the call succeeded.
        unsafe {
            if libc::fstat(descriptor, status.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let status = status.assume_init();
            Ok(Self {
                device: status.st_dev,
                inode: status.st_ino,
            })
        }
    }
}

impl LockFile {
    pub fn new(file: File, epoch: Epoch) -> io::Result<Self> {
        close_inherited(epoch.number());
        let identity = Identity::of(file.as_raw_fd())?;
        let descriptor = raise(file);
        register(descriptor, identity, epoch.number());
        Ok(Self {
            descriptor,
            identity,
            epoch,
        })
    }

    /// The descriptor, unless the program closed it.
    pub fn descriptor(&self) -> Option<RawFd> {
        let ours = self.epoch.is_now()
            && Identity::of(self.descriptor).is_ok_and(|found| found == self.identity);
        ours.then_some(self.descriptor)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // In a fork child it is closed already, and its number may be that of the child's own.
        if let Some(descriptor) = self.descriptor() {
            unregister(descriptor);
            // SAFETY: just found to be ours; no code uses it after drop.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Moves a descriptor to a high number if the process may have one; keeps it where it is if not.
fn raise(file: File) -> RawFd {
    let low = file.into_raw_fd();
    if low >= LOWEST {
        return low;
    }
    // SAFETY: duplicating and closing a descriptor that is ours.
    unsafe {
        let high = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, LOWEST);
        if high < 0 {
            return low;
        }
        libc::close(low);
        high
    }
}

/// Lock descriptors of this process, for children to close. A process rarely has a second slot; from the 65th on,
/// a child keeps the inherited descriptor until it execs or ends.
static REGISTRY: [Entry; 64] = [const { Entry::empty() }; 64];

struct Entry {
    /// Descriptor plus one; 0 for no entry, -1 while being filled in.
    descriptor: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    epoch: AtomicU64,
}

impl Entry {
    const fn empty() -> Self {
        Self {
            descriptor: AtomicI32::new(0),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
        }
    }
}

fn register(descriptor: RawFd, identity: Identity, epoch: u64) {
    let free = |entry: &&Entry| {
        entry
            .descriptor
            .compare_exchange(0, -1, SeqCst, SeqCst)
            .is_ok()
    };
    if let Some(entry) = REGISTRY.iter().find(free) {
        entry.device.store(identity.device, SeqCst);
        entry.inode.store(identity.inode, SeqCst);
        entry.epoch.store(epoch, SeqCst);
        entry.descriptor.store(descriptor + 1, SeqCst);
    }
}

fn unregister(descriptor: RawFd) {
    for entry in &REGISTRY {
        let _ = entry
            .descriptor
            .compare_exchange(descriptor + 1, 0, SeqCst, SeqCst);
    }
}

/// Closes the lock descriptors of every epoch but `epoch`. Fit for a fork child: no allocation, no lock.
pub(crate) fn close_inherited(epoch: u64) {
    for entry in &REGISTRY {
        let descriptor = entry.descriptor.load(SeqCst);
        if descriptor == 0 || entry.epoch.load(SeqCst) == epoch {
            continue;
        }
        let identity = Identity {
            device: entry.device.load(SeqCst),
            inode: entry.inode.load(SeqCst),
        };
        if descriptor > 0 && Identity::of(descriptor - 1).is_ok_and(|found| found == identity) {
            // SAFETY: this number still means the file that an ancestor locked; its `LockFile` will not use it here.
            unsafe { libc::close(descriptor - 1) };
        }
        entry.descriptor.store(0, SeqCst);
    }
}
