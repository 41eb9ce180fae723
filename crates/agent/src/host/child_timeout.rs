//! Child processes with a timeout: a child that hangs is killed.

use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How long a child is waited for that is killed: longer only where the kernel does not let it go.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs `command` to its end and answers everything it said, which must fit into pipes (64 KiB each).
///
/// # Errors
/// When it does not start; [`io::ErrorKind::TimedOut`] when it had to be killed.
pub fn run_with_timeout(command: &mut Command, patience: Duration) -> io::Result<Output> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    wait_with_timeout(child, patience)
}

/// Waits for a child with piped output.
///
/// # Errors
/// As `ask`.
pub fn wait_with_timeout(mut child: Child, patience: Duration) -> io::Result<Output> {
    if !exits_within(&child, patience)? {
        child.kill()?;
        if exits_within(&child, KILL_TIMEOUT)? {
            child.wait()?;
        } else {
            // It is in the kernel, in a driver perhaps, and ends whenever it comes out.
            std::thread::Builder::new()
                .name("reaper".to_owned())
                .spawn(move || child.wait())?;
        }
        let late = format!("it did not end within {} s", patience.as_secs());
        return Err(io::Error::new(io::ErrorKind::TimedOut, late));
    }
    child.wait_with_output()
}

fn exits_within(child: &Child, patience: Duration) -> io::Result<bool> {
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    is_readable(ended, patience)
}

/// Whether there is something to read within this time; of a pidfd, whether its process has ended.
///
/// # Errors
/// Those of poll(2).
pub fn is_readable(from: impl AsFd, patience: Duration) -> io::Result<bool> {
    let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&patience)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a child said on stderr that came to nothing: its words, or how it ended.
pub fn failure_message(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    match said.trim() {
        "" => output.status.to_string(),
        said => format!("{}: {said}", output.status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ends_is_heard_and_one_that_does_not_is_killed() {
        let heard = run_with_timeout(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            Duration::from_secs(60),
        )
        .unwrap();
        assert_eq!(heard.stdout, b"out\n");
        assert_eq!(failure_message(&heard), "exit status: 3: err");

        let late = run_with_timeout(Command::new("sleep").arg("600"), Duration::from_millis(1));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
