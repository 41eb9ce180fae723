//! `daemon --detached`: starts the same daemon in a process group of its own and waits until it answers.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode};

use crate::host::error::internal;

/// How long a start may take: measuring contexts on a cold machine takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval of checking it. The start takes tenths of a second, so this adds little; a shorter pause would take its
/// processor.
const LOOK: Duration = Duration::from_millis(5);

pub fn start(home: &Home) -> Result<(), Error> {
    let cannot = |error: io::Error| internal("cannot start the daemon", &error);
    let path = home.daemon_log();
    let log = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path);
    let mut log =
        log.map_err(|error| internal(&format!("cannot open {}", path.display()), &error))?;
    let before = log.seek(SeekFrom::End(0)).map_err(cannot)?;
    let mut child = Command::new(std::env::current_exe().map_err(cannot)?)
        .args(arguments(std::env::args_os().skip(1)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.try_clone().map_err(cannot)?)
        // Keys on this terminal are not for it.
        .process_group(0)
        .spawn()
        .map_err(cannot)?;
    let deadline = Instant::now() + PATIENCE;
    while !answers(home, child.id()) {
        if let Some(status) = child.try_wait().map_err(cannot)? {
            return Err(ended(&mut log, before, status));
        }
        if Instant::now() > deadline {
            let why = format!(
                "the daemon (pid {}) does not respond after {} s",
                child.id(),
                PATIENCE.as_secs()
            );
            return Err(Error::new(ErrorCode::TimedOut, why)
                .hint(format!("see its log: {}", path.display())));
        }
        std::thread::sleep(LOOK);
    }
    for warning in said_since(&mut log, before).lines().filter_map(warning) {
        // A closed stderr does not stop the verb.
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
    Ok(())
}

/// What a line of the log warns of.
fn warning(line: &str) -> Option<&str> {
    let (time, rest) = line.split_once(' ')?;
    let is_time = time.parse::<jiff::Timestamp>().is_ok();
    rest.trim_start().strip_prefix("WARN ").filter(|_| is_time)
}

fn said_since(log: &mut File, before: u64) -> String {
    let mut said = Vec::new();
    let _ = log
        .seek(SeekFrom::Start(before))
        .and_then(|_| log.read_to_end(&mut said));
    String::from_utf8_lossy(&said).into_owned()
}

/// The daemon's own command line, less what made it come here.
fn arguments(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    words
        .filter(|word| word != "--detached" && word != "-d")
        .collect()
}

/// Whether the socket is this process's and takes connections: then it also answers.
fn answers(home: &Home, pid: u32) -> bool {
    let Ok(stream) = UnixStream::connect(home.socket()) else {
        return false;
    };
    let peer = rustix::net::sockopt::socket_peercred(&stream);
    peer.is_ok_and(|peer| {
        u32::try_from(peer.pid.as_raw_nonzero().get()).is_ok_and(|peer| peer == pid)
    })
}

/// What it said before it ended goes to our stderr, which is where it would have said it; its exit code tells the rest.
fn ended(log: &mut File, before: u64, status: ExitStatus) -> Error {
    let said = said_since(log, before);
    let code = match status.code() {
        Some(2) => ErrorCode::Usage,
        Some(5) => ErrorCode::NeverFits,
        Some(8) => ErrorCode::Conflict,
        _ => ErrorCode::Internal,
    };
    let line = |prefix: &str| {
        said.lines()
            .filter_map(|line| line.strip_prefix(prefix))
            .next_back()
            .map(str::to_owned)
    };
    let (mut what, hint) = (line("error: "), line("hint: "));
    if let (Some(what), Some(cause)) = (&mut what, line("divvy-sim: ")) {
        what.push_str(": ");
        what.push_str(&cause);
    }
    if what.is_none() {
        let _ = io::stderr().write_all(said.as_bytes());
    }
    let error = Error::new(
        code,
        what.unwrap_or_else(|| format!("the daemon ended during its start, with {status}")),
    );
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_gets_the_same_words_less_the_detaching() {
        let words = [
            "daemon",
            "--detached",
            "--gpus",
            "0-2",
            "--queue",
            "a=1",
            "b=0.5",
        ]
        .map(OsString::from);
        assert_eq!(
            arguments(words.into_iter()),
            ["daemon", "--gpus", "0-2", "--queue", "a=1", "b=0.5"]
        );
    }
}
