//! futex(2): waits for a word in shared memory to change, and wakes waiting processes. Other processes may wait for the
//! same word and wake each other.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Most words that [`wait_any`] can wait for at once: the kernel's FUTEX_WAITV_MAX.
pub(crate) const MOST: usize = 128;

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos() as libc::c_long,
    }
}

/// Waits until a process wakes the word or the time is over; returns at once if its value is not `seen`. May return
/// early. The word may lie in memory that this process can only read.
pub(crate) fn wait(word: &AtomicU32, seen: u32, time: Duration) {
    let time = timespec(time);
    // SAFETY: the word lives as long as the borrow; the kernel only compares it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            libc::FUTEX_WAIT,
            seen,
            &raw const time,
        )
    };
}

/// Wakes all waiters of the word.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: as above; nothing is written.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
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
    /// FUTEX2_SIZE_U32, without FUTEX2_PRIVATE: shared between processes.
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
    let mut now = timespec(Duration::ZERO);
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    let end = timespec(now + time);
    // SAFETY: the kernel reads `words.len()` entries of the array and the words they name, and writes nothing.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            all.as_ptr(),
            words.len().min(MOST) as libc::c_uint,
            0,
            &raw const end,
            libc::CLOCK_MONOTONIC,
        )
    };
    answer >= 0
        || matches!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::ETIMEDOUT | libc::EAGAIN | libc::EINTR)
        )
}
