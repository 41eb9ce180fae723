//! Copies of this process. Without the usual harness, which runs tests in threads.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

fn code_of(pid: u32) -> i32 {
    let mut status = 0;
    let pid = libc::pid_t::try_from(pid).expect("a pid");
    // SAFETY: waitpid(2) writes into an integer of ours.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    assert!(libc::WIFEXITED(status), "{status}");
    libc::WEXITSTATUS(status)
}

/// A copy is in the group that it was born in, and this process is not.
fn born_in_a_group() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("proc(5)");
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let place = mount.and_then(|line| line.split(' ').nth(4));
    let name = format!("divvy-fork-{}", std::process::id());
    let folder = place.map(|place| std::path::Path::new(place).join(&name));
    let Some(folder) = folder.filter(|folder| std::fs::create_dir(folder).is_ok()) else {
        eprintln!("skipped: nobody may make a control group here");
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
    std::fs::remove_dir(&folder).expect("nobody is in it");
}

fn main() {
    let (mut ours, theirs) = UnixStream::pair().expect("a pair");
    let pid = divvy_fork::fork(|| {
        let said = (&theirs).write_all(&std::process::id().to_ne_bytes());
        if said.is_ok() { 7 } else { 1 }
    });
    let pid = pid.expect("one thread");
    assert_eq!(code_of(pid), 7);
    let mut said = [0; 4];
    std::io::Read::read_exact(&mut ours, &mut said).expect("the child has said it");
    assert_eq!(u32::from_ne_bytes(said), pid);

    std::panic::set_hook(Box::new(|_| {}));
    let panics = divvy_fork::fork(|| panic!("in the child")).expect("one thread");
    assert_eq!(code_of(panics), 101);

    // A folder that is no group takes nobody in; one that is may not be there to be made.
    let folder = std::fs::File::open("/tmp").expect("a folder");
    let born = divvy_fork::fork_into(folder.as_fd(), || 0);
    assert!(born.is_err(), "{born:?}");
    born_in_a_group();

    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || stopped.recv());
    let refused = divvy_fork::fork(|| 0).expect_err("two threads");
    assert!(refused.to_string().contains("2 threads"), "{refused}");
    drop(stop);
    assert!(other.join().is_ok());
}
