//! futex(2): waits for a word in shared memory to change, and wakes waiting processes. Other processes may wait for the
//! same word and wake each other.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::syscall::{clock, syscall, timespec};

/// Most words that [`wait_any`] can wait for at once: the kernel's FUTEX_WAITV_MAX.
pub(crate) const MOST: usize = 128;

/// Waits until a process wakes the word or the time is over; returns at once if its value is not `seen`. May return
/// early. The word may lie in memory that this process can only read.
pub(crate) fn wait(word: &AtomicU32, seen: u32, time: Duration) {
    let time = timespec(time);
    let (word, time) = (address(word), (&raw const time).expose_provenance());
    let args = [word, libc::FUTEX_WAIT as usize, seen as usize, time, 0, 0];
    // SAFETY: the word lives as long as the borrow; the kernel only compares it.
    unsafe { syscall(libc::SYS_futex, args) };
}

/// Wakes all waiters of the word.
pub(crate) fn wake(word: &AtomicU32) {
    let args = [
        address(word),
        libc::FUTEX_WAKE as usize,
        i32::MAX as usize,
        0,
        0,
        0,
    ];
    // SAFETY: as above; nothing is written.
    unsafe { syscall(libc::SYS_futex, args) };
}

fn address(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).expose_provenance()
}

/// One word to wait for: where it is, and what it was when it was looked at. The address need not be readable; a word that
/// the kernel cannot read makes the waiting end early.
#[derive(Clone, Copy)]
pub(crate) struct WaitWord {
    pub address: usize,
    pub seen: u32,
}

/// Waits until one of the words (at most [`MOST`]) is woken or the time is over. False if the kernel cannot do this (before
/// Linux 5.16) or one of the words cannot be read: then no time has passed.
pub(crate) fn wait_any(words: &[WaitWord], time: Duration) -> bool {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct FutexWaitv {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }
    /// FUTEX2_SIZE_U32, without FUTEX2_PRIVATE: shared between processes. Of linux/futex.h.
    const SHARED_U32: u32 = 2;

    let mut all = [FutexWaitv {
        value: 0,
        address: 0,
        flags: SHARED_U32,
        reserved: 0,
    }; MOST];
    for (entry, word) in all.iter_mut().zip(words) {
        entry.value = u64::from(word.seen);
        entry.address = word.address as u64;
    }
    let end = timespec(Duration::from_nanos(clock(libc::CLOCK_MONOTONIC)).saturating_add(time));
    let args = [
        all.as_ptr().expose_provenance(),
        words.len().min(MOST),
        0,
        (&raw const end).expose_provenance(),
        libc::CLOCK_MONOTONIC as usize,
        0,
    ];
    // SAFETY: the kernel reads `words.len()` entries of the array and the words they name, and writes nothing.
    let answer = unsafe { syscall(libc::SYS_futex_waitv, args) };
    let is_over = [libc::ETIMEDOUT, libc::EAGAIN, libc::EINTR];
    answer >= 0 || is_over.iter().any(|error| answer == -(*error as isize))
}
