//! Raw system calls, by the processor's own instruction: past every preload.
//!
//! A library that is loaded before this one may replace any function of the C library: libfaketime freezes
//! `clock_gettime`, stretches `nanosleep` and can replace `syscall` as well. A wait that counts such a time never ends,
//! and a time that other processes of the slice read would be wrong for them.

use std::time::Duration;

/// The result of a system call: at least 0, or an error number below it.
///
/// # Safety
/// As for the system call: pointers among the arguments are valid for what the kernel does with them.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: by the caller; the kernel changes no other registers (syscall(2), "Architecture calling conventions").
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The same.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> isize {
    let result;
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    result
}

/// Nanoseconds of a clock.
pub(crate) fn clock(id: libc::clockid_t) -> u64 {
    let mut time = timespec(Duration::ZERO);
    let place = (&raw mut time).expose_provenance();
    // SAFETY: a valid place for the answer; the clocks that are asked for exist since Linux 2.6.39.
    unsafe { syscall(libc::SYS_clock_gettime, [id as usize, place, 0, 0, 0, 0]) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps; a signal handler ends it early.
pub fn nap(time: Duration) {
    let time = timespec(time);
    let place = (&raw const time).expose_provenance();
    // SAFETY: a valid duration; what is left of it after a signal is of no interest.
    unsafe { syscall(libc::SYS_nanosleep, [place, 0, 0, 0, 0, 0]) };
}

pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos() as libc::c_long,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_the_c_librarys_and_goes_on_while_a_thread_naps() {
        let mut theirs = timespec(Duration::ZERO);
        // SAFETY: a valid place for the answer.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut theirs) };
        let theirs = theirs.tv_sec as u64 * 1_000_000_000 + theirs.tv_nsec as u64;
        let before = clock(libc::CLOCK_BOOTTIME);
        assert!(
            before >= theirs && before - theirs < 60_000_000_000,
            "{before} {theirs}"
        );
        nap(Duration::from_millis(2));
        assert!(clock(libc::CLOCK_BOOTTIME) - before >= 2_000_000);
    }
}
