//! Inherited file descriptors: closes those that a process was started with and would hand on by mistake
//! (close_range(2)).
//!
//! A shell, a script or `flock` may leave descriptors open in a daemon, and an exec(2) passes on each one without
//! close-on-exec. They are marked and not closed: a library that the loader has started may use one of them.

use std::io;
use std::os::fd::RawFd;

/// The first descriptor after standard input, output and errors.
pub const FIRST: RawFd = 3;

/// Marks each open descriptor from [`FIRST`] on as close-on-exec, so that no program that this process starts gets it.
///
/// # Errors
/// Where the kernel has no `CLOSE_RANGE_CLOEXEC` (before Linux 5.11) and `/proc/self/fd` cannot be read.
pub fn mark_close_on_exec() -> io::Result<()> {
    // By number: a C library before glibc 2.34 has no close_range.
    // SAFETY: the call takes three numbers, and the flag makes it close nothing.
    let marked = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match marked {
        0 => Ok(()),
        // ENOSYS before Linux 5.9, EINVAL before 5.11, EPERM of seccomp filters that do not know it.
        _ => mark_each(),
    }
}

/// The same, one by one.
fn mark_each() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<RawFd>().ok());
        if let Some(descriptor) = number.filter(|descriptor| *descriptor >= FIRST) {
            // One that another thread has closed meanwhile needs no mark.
            // SAFETY: fcntl(2) takes numbers, and F_SETFD closes nothing.
            let _ = unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;
    use std::process::Command;

    use divvy_testkit::Bounded as _;

    use super::*;

    /// The descriptors of a program that this process starts, after the standard ones.
    fn passed_on() -> Vec<RawFd> {
        // The shell has closed the folder by the time of `test`.
        let list = "for fd in /proc/$$/fd/*; do if test -e $fd; then echo ${fd##*/}; fi; done";
        let listed = Command::new("sh").args(["-c", list]).output_bounded();
        let listed = listed.expect("sh starts").stdout;
        let listed = String::from_utf8(listed).expect("numbers are text");
        let numbers = listed.lines().filter_map(|number| number.parse().ok());
        numbers.filter(|number| *number >= FIRST).collect()
    }

    #[test]
    fn a_program_gets_no_descriptor_that_was_open_in_this_process() {
        for mark in [mark_close_on_exec, mark_each] {
            let file = File::open("/dev/null").expect("it is there");
            let descriptor = file.as_raw_fd();
            // SAFETY: fcntl(2) with numbers; the descriptor is open as long as `file` lives.
            let bare = unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) };
            assert_eq!(bare, 0);
            assert!(passed_on().contains(&descriptor));
            mark().expect("the kernel can");
            assert!(!passed_on().contains(&descriptor));
            assert!(file.metadata().is_ok(), "it is still open here");
        }
    }
}
