//! Copies of this process. Without the usual harness, which runs tests in threads.

use std::io::Write;
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

    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || stopped.recv());
    let refused = divvy_fork::fork(|| 0).expect_err("two threads");
    assert!(refused.to_string().contains("2 threads"), "{refused}");
    drop(stop);
    assert!(other.join().is_ok());
}
