//! `daemon --stop`: ends the daemon of this instance. Jobs that run go on, and the next daemon finds them.

use std::process::ExitCode;
use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode, Node};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Outcome, client};
use crate::failure::Result;
use crate::output;

/// How long the daemon may take; it only has to finish what it writes.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn stop() -> Outcome {
    let client = client()?;
    let node = client.node().await?;
    let running = client
        .jobs(false)
        .await?
        .iter()
        .filter(|job| job.pid.is_some())
        .count();
    end(&node)?;
    let jobs = match running {
        0 => String::new(),
        1 => "; 1 job runs on, and the next daemon finds it".to_owned(),
        count => format!("; {count} jobs run on, and the next daemon finds them"),
    };
    output::say(&format!("the daemon (pid {}) has stopped{jobs}", node.pid));
    Ok(ExitCode::SUCCESS)
}

/// Asks the process to end and waits until it has, so that its lock is free.
fn end(node: &Node) -> Result<()> {
    let failed = |errno: Errno| {
        let code = if errno == Errno::PERM {
            ErrorCode::NotAllowed
        } else {
            ErrorCode::Internal
        };
        Error::new(
            code,
            format!("the daemon (pid {}) cannot be stopped: {errno}", node.pid),
        )
    };
    let pid = i32::try_from(node.pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| failed(Errno::SRCH))?;
    // A descriptor of the process, so that no other is meant should its number be given anew.
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let patience = Timespec::try_from(PATIENCE).map_err(|_| failed(Errno::INVAL))?;
    match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)).map_err(failed)? {
        0 => {
            let message = format!(
                "the daemon (pid {}) has not ended {} s after SIGTERM",
                node.pid,
                PATIENCE.as_secs()
            );
            Err(Error::new(ErrorCode::TimedOut, message).hint("its log says what it is doing"))
        }
        _ => Ok(()),
    }
}
