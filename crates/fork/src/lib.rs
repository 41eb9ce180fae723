//! fork(2) where it is sound: in a process with one thread.
//!
//! Starting a program of Divvy's size costs more than a short job does: the loader, the page faults, the parsing of a
//! command line. A copy of a process that has done all that costs a tenth of it. The copy has only the thread that asked for it,
//! so whatever another thread had locked would stay locked in it for ever, the allocator's own locks among it: a process
//! that has others is refused.
//!
//! This crate is a fence: the one call is unsafe, and nothing else is here.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a child says that panicked: the code that Rust's own programs end with.
const PANICKED: i32 = 101;

/// Runs `child` in a copy of this process, which ends with the code that it answers; answers the copy's pid here.
///
/// The copy has all open descriptors. It ends without running what was registered to run at the end of this process. Whoever
/// asks waits for it.
///
/// # Errors
/// When this process has more than one thread; `EAGAIN` when there may be no more processes, `ENOMEM`.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<u32> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!(
            "a process with {threads} threads is not copied"
        )));
    }
    // SAFETY: fork(2) copies the calling thread. It is the only one, so no lock is held in the copy by a thread that is not
    // there, and all of the C library may be used in it. None can have come since they were counted: only this thread could
    // have made it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = catch_unwind(AssertUnwindSafe(child)).map_or(PANICKED, i32::from);
            // SAFETY: _exit(2) ends the process, and asks nothing of it.
            unsafe { libc::_exit(code) }
        }
        pid => Ok(pid.unsigned_abs()),
    }
}
