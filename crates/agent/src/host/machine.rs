//! The seam to the machine: its clocks, its processes, its disk, and the points at which a test has the daemon die.
//!
//! The rest of the crate asks [`machine`]. It is [`Linux`] unless a test has installed another in [`INSTALLED`] before.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use divvy_core::Bytes;
use jiff::Timestamp;
use rustix::fs::statvfs;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::cgroup;
use super::disk::FreeSpace;
use super::process::{Process, to_rustix_pid};

/// What the daemon asks of its machine.
pub trait Machine: Sync {
    /// CLOCK_MONOTONIC, which no process can set.
    fn monotonic(&self) -> Instant;

    /// The time of day.
    fn wall(&self) -> Timestamp;

    /// CLOCK_BOOTTIME, in nanoseconds.
    fn boot_ns(&self) -> u64;

    fn sleep(&self, time: Duration);

    /// The folder in the form of proc(5).
    fn proc(&self) -> PathBuf;

    /// Sends a signal to a process and to no other.
    ///
    /// # Errors
    /// `ESRCH` when it is gone, `EPERM` when it is not ours.
    fn signal(&self, to: Process, signal: Signal) -> io::Result<()>;

    /// The room of the file system below a folder. Root writes also to the blocks that a file system keeps for it.
    ///
    /// # Errors
    /// Those of statvfs(3).
    fn free_space(&self, folder: &Path, is_root: bool) -> io::Result<FreeSpace>;

    /// The number (inode) of the control group with this folder; `None` where there is none at present.
    ///
    /// # Errors
    /// Those of the kernel, and `EINVAL` for a folder that is no control group, or the root of all.
    fn cgroup_id(&self, folder: &Path) -> io::Result<Option<u64>>;

    /// The daemon comes to a failpoint.
    fn reach(&self, point: &str);

    /// The daemon is about to write at a failpoint.
    ///
    /// # Errors
    /// Where a test has the disk full.
    fn write(&self) -> io::Result<()>;
}

/// The machine that tests have installed.
pub static INSTALLED: OnceLock<&'static dyn Machine> = OnceLock::new();

/// The machine.
pub fn machine() -> &'static dyn Machine {
    INSTALLED.get().copied().unwrap_or(&Linux)
}

/// The machine that this process runs on.
#[derive(Debug)]
pub struct Linux;

impl Machine for Linux {
    fn monotonic(&self) -> Instant {
        Instant::now()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    fn boot_ns(&self) -> u64 {
        divvy_ledger::boot_time_ns()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn proc(&self) -> PathBuf {
        PathBuf::from("/proc")
    }

    fn signal(&self, to: Process, signal: Signal) -> io::Result<()> {
        let gone = || io::Error::from(rustix::io::Errno::SRCH);
        let pid = to_rustix_pid(to.pid).ok_or_else(gone)?;
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        // The handle belongs to the process that has the pid now; if the start time still agrees, that is `to`.
        if !to.is_alive() {
            return Err(gone());
        }
        Ok(pidfd_send_signal(handle, signal)?)
    }

    fn free_space(&self, folder: &Path, is_root: bool) -> io::Result<FreeSpace> {
        let told = statvfs(folder)?;
        let blocks = match is_root {
            true => told.f_bfree,
            false => told.f_bavail,
        };
        Ok(FreeSpace {
            bytes: Bytes::new(blocks.saturating_mul(told.f_frsize)),
            files: match told.f_files {
                0 => u64::MAX,
                _ => told.f_favail,
            },
        })
    }

    fn cgroup_id(&self, folder: &Path) -> io::Result<Option<u64>> {
        cgroup::id(folder)
    }

    fn reach(&self, _: &str) {}

    fn write(&self) -> io::Result<()> {
        Ok(())
    }
}
