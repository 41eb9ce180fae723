//! fork(2) for a fork server: sound because the process has one thread.
//!
//! Starting a program of Divvy's size costs more than a short job does: the loader, the page faults, the parsing of a
//! command line. A fork of an initialised process costs a tenth of it. The child has only the thread that forked. A
//! lock that another thread held would stay locked in it for ever, the allocator's own locks among them, so a process
//! with several threads is refused.
//!
//! What a copy may call is narrowed here as well ([`refuse_user_namespaces`]), which descriptors, signals and limits the
//! programs of a process get ([`mark_close_on_exec`], [`Inherited`]), and which device nodes the processes of a control
//! group may open ([`attach_device_filter`]). A socket's other end is a process too ([`peer_pidfd`]).
//!
//! This crate is a fence: the calls are unsafe, and nothing else is here.

mod attributes;
mod descriptors;
mod device_filter;
mod namespaces;
mod peer;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use attributes::{
    Inherited, drop_inherited, inherited, survive_file_limit, take_over, unblock,
};
pub use descriptors::mark_close_on_exec;
pub use device_filter::{
    DeviceRule, attach_device_filter, detach_device_filter, has_device_filter,
};
pub use namespaces::refuse_user_namespaces;
pub use peer::peer_pidfd;

/// What a child says that panicked: the code that Rust's own programs end with.
const PANICKED: i32 = 101;

/// linux/sched.h; libc's constant is an `int`, which it does not fit into.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Runs `child` in a copy of this process, which ends with the code that it answers; answers the copy's pid here.
///
/// The child has all open descriptors. It ends without running the parent's exit handlers. The caller waits for it.
///
/// # Errors
/// When this process has more than one thread; `EAGAIN` when there may be no more processes, `ENOMEM`.
pub fn fork(child: impl FnOnce() -> u8) -> io::Result<u32> {
    only_thread()?;
    // SAFETY: fork(2) copies the calling thread. It is the only one, so no lock is held in the copy by a thread that is not
    // there, and all of the C library may be used in it. None can have come since they were counted: only this thread could
    // have made it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => run_child(child),
        pid => Ok(pid.unsigned_abs()),
    }
}

/// The same, with the child created in a control group (`CLONE_INTO_CGROUP`, Linux 5.7): `group` is its folder. Moving
/// a process into one waits for every processor of the machine, which takes longer than the rest of a short job.
///
/// The C library is not told of this copy, so it keeps its parent's number as its thread's: the copy shall not start threads or
/// raise signals, but start another program or end.
///
/// # Errors
/// As [`fork`]; `ENOSYS` and `EINVAL` of kernels that cannot, `EACCES` where the group is not this process's to use.
pub fn fork_into(group: BorrowedFd<'_>, child: impl FnOnce() -> u8) -> io::Result<u32> {
    only_thread()?;
    // SAFETY: all of it is numbers, of which zero means "nothing of the kind".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = u64::from(group.as_raw_fd().unsigned_abs());
    // SAFETY: without flags that share memory clone3(2) copies the process as fork(2) does, of which what is said there is true;
    // `args` is as large as said and lives until the call returns.
    match unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) } {
        -1 => Err(io::Error::last_os_error()),
        0 => run_child(child),
        pid => u32::try_from(pid).map_err(io::Error::other),
    }
}

/// # Errors
/// When this process has another thread.
fn only_thread() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task")?.count() {
        1 => Ok(()),
        threads => Err(io::Error::other(format!(
            "cannot fork a process with {threads} threads"
        ))),
    }
}

/// Is the copy, to its end.
fn run_child(child: impl FnOnce() -> u8) -> ! {
    let code = catch_unwind(AssertUnwindSafe(child)).map_or(PANICKED, i32::from);
    // SAFETY: _exit(2) ends the process, and asks nothing of it.
    unsafe { libc::_exit(code) }
}
