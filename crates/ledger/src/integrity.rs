//! The integrity check of a slot: detects that the mapped ledger files were truncated, replaced or removed.
//!
//! A file belongs to its user, who may truncate or remove it at any time. The kernel kills a process that touches the
//! truncated part (SIGBUS), without a message. So a process checks before it uses its slot, every 4 ms at most. When
//! something is wrong it maps empty memory over both files, from which nothing is granted. A truncation between the
//! check and the use still kills: the library installs no signal handler in its host.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::kept;
use crate::layout::{CONTROL_SIZE, SLOTS_SIZE};
use crate::slot::ProcessSlot;

/// Between two looks, in ticks: what a look costs (two system calls) is then lost among the allocations. 4 ms at most, for no
/// counter has less than 1 GHz; 1 ms at 4 GHz.
const INTERVAL: u64 = 4_000_000;

/// Damage to a slice's files while a process was using them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// The file is shorter than its layout.
    Truncated { path: PathBuf },
    /// The file has no name any more, and the slice has been released or another file has the name.
    Removed { path: PathBuf },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { path } => write!(f, "{} was truncated while in use", path.display()),
            Self::Removed { path } => write!(f, "{} was removed while in use", path.display()),
        }
    }
}

impl std::error::Error for Damage {}

/// The state of a slot's integrity check.
pub(crate) struct FileWatch {
    /// Device and inode of `control`, of which no descriptor is kept.
    control: (u64, u64),
    looked_at: AtomicU64,
    /// Whether this process has asked for the life locks of the others since then.
    pub locks_seen: AtomicBool,
    found: OnceLock<Damage>,
}

impl FileWatch {
    pub fn new(control: &Metadata) -> Self {
        FileWatch {
            control: (control.dev(), control.ino()),
            looked_at: AtomicU64::new(ticks()),
            locks_seen: AtomicBool::new(false),
            found: OnceLock::new(),
        }
    }
}

/// The processor's own counter, which runs at 1 GHz or faster: it costs a third of what the clock does, and calls nothing.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every such processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The same, in nanoseconds: the counter runs at 1 GHz from Armv8.6 on, and at 1 to 50 MHz before (Arm ARM, D12.1).
#[cfg(target_arch = "aarch64")]
fn ticks() -> u64 {
    let (count, frequency): (u64, u64);
    // SAFETY: two registers that Linux lets every program read.
    unsafe {
        std::arch::asm!(
            "mrs {count}, cntvct_el0",
            "mrs {frequency}, cntfrq_el0",
            count = out(reg) count,
            frequency = out(reg) frequency,
            options(nomem, nostack, preserves_flags),
        );
    }
    count.wrapping_mul(1_000_000_000 / frequency.clamp(1, 1_000_000_000))
}

impl ProcessSlot {
    /// To be called before the slot is used. From the first damage on, everything it would grant is refused.
    ///
    /// # Errors
    /// The slice's files were cut short or removed.
    #[inline]
    pub fn check(&self) -> Result<(), &Damage> {
        let watch = &self.watch;
        let now = ticks();
        // Processors may differ a little: a look that seems to be to come is due as well.
        let due = now.wrapping_sub(watch.looked_at.load(Relaxed)) >= INTERVAL;
        if due && !self.is_inherited() {
            watch.looked_at.store(now, Relaxed);
            watch.locks_seen.store(false, Relaxed);
            if let Some(damage) = self.find_damage() {
                self.abandon(damage);
            }
        }
        match watch.found.get() {
            None => Ok(()),
            Some(damage) => Err(damage),
        }
    }

    #[cold]
    fn find_damage(&self) -> Option<Damage> {
        let slots = &self.slice.slots;
        if let Some(descriptor) = self.lock.descriptor() {
            // SAFETY: an open descriptor of our own, which is neither closed nor kept by this.
            let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
            let status = file.metadata().ok()?;
            // A logout takes the names of a user's slices, and their jobs run on. The path of a descriptor is no name:
            // it exists for as long as the supervisor keeps the file open.
            let is_released = || self.control.ended.load(Relaxed) != 0;
            let is_replaced = || !kept::is_descriptor(slots) && fs::symlink_metadata(slots).is_ok();
            if status.nlink() == 0 && (is_released() || is_replaced()) {
                return Some(Damage::Removed {
                    path: slots.clone(),
                });
            }
            if let Some(damage) = cut(slots, &status, SLOTS_SIZE) {
                return Some(damage);
            }
        }
        // By name; under another root or in another mount namespace the name may mean nothing, or another file.
        let control = &self.slice.control;
        let status = fs::metadata(control).ok()?;
        let same = (status.dev(), status.ino()) == self.watch.control;
        same.then(|| cut(control, &status, CONTROL_SIZE)).flatten()
    }

    fn abandon(&self, damage: Damage) {
        self.control.let_go();
        self.slots.let_go();
        self.end_list_here();
        // The first to find it says it.
        let _ = self.watch.found.set(damage);
    }
}

fn cut(path: &Path, status: &Metadata, size: usize) -> Option<Damage> {
    (status.size() < size as u64).then(|| Damage::Truncated { path: path.into() })
}
