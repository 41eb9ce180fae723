//! The process that connected to a unix socket, as a descriptor: its pid may pass to another process, a pidfd does not.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

/// `asm-generic/socket.h`, Linux 6.5; the `libc` crate does not have it for every target.
const SO_PEERPIDFD: libc::c_int = 77;

/// A pidfd of the process that connected.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5, `ESRCH` or `EINVAL` where the process has been reaped.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most `length` bytes, the size of the integer that it gets.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut descriptor).cast(),
            &raw mut length,
        )
    };
    match answer {
        // SAFETY: the kernel has just made this descriptor for this process.
        0 if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        0 => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        _ => Err(io::Error::last_os_error()),
    }
}
