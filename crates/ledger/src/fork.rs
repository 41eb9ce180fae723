//! Fork detection: a child of fork(2) notices that the inherited slot belongs to its parent.
//!
//! A fork child inherits the mappings and descriptors of a slot that is not its own. A page that the kernel wipes in
//! every child (MADV_WIPEONFORK, also for a bare `clone`) holds the number of this process's epoch: one load tells. A
//! `pthread_atfork` handler also closes the inherited lock descriptors at once, so that a child does
//! not keep its dead parent's slot locked; and it wipes the page where the kernel is too old to. A descriptor just being
//! opened by another thread could not be found by the child, so forks and openings keep out of each other's way
//! ([`Opening`]), for a bounded time: neither is worth a hang.

use std::io;
use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU64};

use crate::lock;
use crate::syscall::clock;

static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// Epochs given out; copied by fork, so a child's next one differs from its parent's.
static EPOCHS: AtomicU64 = AtomicU64::new(0);

/// One life of a process between forks.
#[derive(Clone, Copy)]
pub(crate) struct Epoch {
    page: &'static AtomicU64,
    number: u64,
}

impl Epoch {
    /// The epoch this process is in.
    pub fn now() -> io::Result<Self> {
        let page = page()?;
        let fresh = EPOCHS.fetch_add(1, SeqCst) + 1;
        let number = match page.compare_exchange(0, fresh, SeqCst, SeqCst) {
            Ok(_) => fresh,
            Err(number) => number,
        };
        Ok(Self { page, number })
    }

    /// Whether no fork lies between then and now.
    #[inline]
    pub fn is_now(&self) -> bool {
        self.page.load(Relaxed) == self.number
    }

    pub fn number(&self) -> u64 {
        self.number
    }
}

/// Threads that are opening a lock descriptor, and threads that are forking.
static OPENING: AtomicU64 = AtomicU64::new(0);
static FORKING: AtomicU64 = AtomicU64::new(0);

/// While this lives, no thread of the process forks through the C library.
pub(crate) struct Opening {
    counted: bool,
}

impl Opening {
    pub fn begin() -> Self {
        let counted = wait_until(|| {
            OPENING.fetch_add(1, SeqCst);
            let alone = FORKING.load(SeqCst) == 0;
            if !alone {
                OPENING.fetch_sub(1, SeqCst);
            }
            alone
        });
        Self { counted }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if self.counted {
            OPENING.fetch_sub(1, SeqCst);
        }
    }
}

/// Longest wait for another thread, in nanoseconds: on a busy machine one that was interrupted comes back within some
/// tens of milliseconds. So ten times that. The fork waits meanwhile, so seconds would be seen by a user.
const PATIENCE: u64 = 300_000_000;

/// Tries again and again, for a bounded time, and once after it. Fit for a fork handler.
fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let start = clock(libc::CLOCK_MONOTONIC);
    loop {
        let late = clock(libc::CLOCK_MONOTONIC).saturating_sub(start) >= PATIENCE;
        if done() {
            return true;
        }
        if late {
            return false;
        }
        // SAFETY: no preconditions.
        unsafe { libc::sched_yield() };
    }
}

fn page() -> io::Result<&'static AtomicU64> {
    let present = PAGE.load(SeqCst);
    if !present.is_null() {
        // SAFETY: published below, never unmapped.
        return Ok(unsafe { &*present });
    }
    /// One page of x86-64, which mmap(2) gives at least.
    const SIZE: usize = 4096;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let fresh = unsafe {
        libc::mmap(
            ptr::null_mut(),
            SIZE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if fresh == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping made above. Refused before Linux 4.14; the handler below then wipes.
    unsafe { libc::madvise(fresh, SIZE, libc::MADV_WIPEONFORK) };
    // Before the page is there for all to see: a child that is forked in between would take the handlers for registered. Registered
    // twice, by two threads or by such a child, they do the same.
    // SAFETY: the handlers only do what is allowed around a fork: fstat, close, stores, and a bounded wait.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    match PAGE.compare_exchange(ptr::null_mut(), fresh.cast(), SeqCst, SeqCst) {
        // SAFETY: published, never unmapped.
        Ok(_) => Ok(unsafe { &*fresh.cast::<AtomicU64>() }),
        Err(winner) => {
            // SAFETY: the mapping made above, which no other thread has seen; the winner's is never unmapped.
            unsafe {
                libc::munmap(fresh, SIZE);
                Ok(&*winner)
            }
        }
    }
}

extern "C" fn before() {
    FORKING.fetch_add(1, SeqCst);
    wait_until(|| OPENING.load(SeqCst) == 0);
}

extern "C" fn in_parent() {
    FORKING.fetch_sub(1, SeqCst);
}

extern "C" fn in_child() {
    FORKING.store(0, SeqCst);
    OPENING.store(0, SeqCst);
    let page = PAGE.load(SeqCst);
    if !page.is_null() {
        // SAFETY: never unmapped.
        unsafe { &*page }.store(0, SeqCst);
    }
    lock::close_inherited(0);
}
