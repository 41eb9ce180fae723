//! Copies of this process. libtest runs a test in a thread of its own, so each test forks a process with one thread first.

#![warn(clippy::disallowed_methods)]

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use divvy_testkit::bounded;

/// Runs `check` in a process with one thread.
fn alone(check: impl FnOnce()) {
    // SAFETY: glibc keeps its allocator usable in the child of a program with threads; the child touches nothing else that another thread may
    // have been using, and leaves through _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_well = catch_unwind(AssertUnwindSafe(check)).is_ok();
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    let code = bounded("the process with one thread ends", || {
        code_of(pid.unsigned_abs())
    });
    assert_eq!(code, 0, "the process with one thread failed");
}

fn code_of(pid: u32) -> i32 {
    let mut status = 0;
    let pid = libc::pid_t::try_from(pid).expect("a pid");
    // SAFETY: waitpid(2) writes into an integer of ours.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    assert!(libc::WIFEXITED(status), "{status}");
    libc::WEXITSTATUS(status)
}

#[test]
fn the_code_of_a_copy_is_what_its_closure_returns() {
    alone(|| {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        let pid = divvy_fork::fork(|| {
            let said = (&theirs).write_all(&std::process::id().to_ne_bytes());
            if said.is_ok() { 7 } else { 1 }
        });
        let pid = pid.expect("one thread");
        assert_eq!(code_of(pid), 7);
        let mut said = [0; 4];
        ours.read_exact(&mut said).expect("the child has said it");
        assert_eq!(u32::from_ne_bytes(said), pid);
    });
}

#[test]
fn a_panic_in_a_copy_ends_it_with_the_code_of_panics() {
    alone(|| {
        std::panic::set_hook(Box::new(|_| {}));
        let panics = divvy_fork::fork(|| panic!("in the child")).expect("one thread");
        assert_eq!(code_of(panics), 101);
    });
}

#[test]
fn a_folder_that_is_no_control_group_is_refused() {
    alone(|| {
        let folder = std::fs::File::open("/tmp").expect("a folder");
        let born = divvy_fork::fork_into(folder.as_fd(), || 0);
        assert!(born.is_err(), "{born:?}");
    });
}

#[test]
fn a_copy_is_in_the_control_group_that_it_was_born_in() {
    alone(|| {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("proc(5)");
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let place = mount.and_then(|line| line.split(' ').nth(4));
        let name = format!("divvy-fork-{}", std::process::id());
        let folder = place.map(|place| std::path::Path::new(place).join(&name));
        let Some(folder) = folder.filter(|folder| std::fs::create_dir(folder).is_ok()) else {
            eprintln!("skipped: this machine lets no process make a control group");
            return;
        };
        let groups = || std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = std::fs::File::open(&folder).expect("a folder");
        let born = divvy_fork::fork_into(group.as_fd(), || {
            u8::from(groups().lines().any(|line| line.ends_with(&name)))
        });
        match born {
            Ok(pid) => assert_eq!(code_of(pid), 1),
            Err(error) => eprintln!("skipped: {error}"),
        }
        assert!(!groups().contains(&name));
        std::fs::remove_dir(&folder).expect("no process is in it");
    });
}

#[test]
fn a_process_with_two_threads_is_refused() {
    // This one has two: libtest's and the test's.
    let refused = divvy_fork::fork(|| 0).expect_err("two threads");
    assert!(refused.to_string().contains(" threads"), "{refused}");
}
