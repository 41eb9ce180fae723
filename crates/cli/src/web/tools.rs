//! `divvy doctor` and `divvy selftest` for the page: the same program, as the same user, bounded in time and output.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use divvy_api::v1::{Error, ErrorBody, ErrorCode};
use hyper::body::Bytes;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Bytes of the output that are read: a machine with 16 GPUs has 20 KB of findings.
const MOST: u64 = 1 << 20;

/// A verb that prints one JSON document.
#[derive(Debug)]
pub struct Tool {
    verb: &'static str,
    within: Duration,
    /// One at a time: each starts programs on the GPUs.
    turn: Semaphore,
}

impl Tool {
    pub fn doctor() -> Self {
        Self::new("doctor", 60)
    }

    pub fn selftest() -> Self {
        Self::new("selftest", 180)
    }

    fn new(verb: &'static str, seconds: u64) -> Self {
        Self {
            verb,
            within: Duration::from_secs(seconds),
            turn: Semaphore::new(1),
        }
    }

    /// Runs the verb to its end; its document, also where it reports a failure.
    ///
    /// # Errors
    /// [`ErrorCode::TooMany`] while it runs already, [`ErrorCode::TimedOut`], and the verb's own error.
    pub async fn run(&self) -> Result<Bytes, Error> {
        let verb = self.verb;
        let Ok(_turn) = self.turn.try_acquire() else {
            return Err(
                Error::new(ErrorCode::TooMany, format!("`divvy {verb}` runs already"))
                    .hint("wait for its end, and ask again"),
            );
        };
        let failed = |why: String| {
            Error::new(
                ErrorCode::Internal,
                format!("cannot run `divvy {verb}`: {why}"),
            )
            .hint(format!("type `divvy {verb}` on this machine"))
        };
        let this = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(this);
        command
            .args([verb, "-o", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let mut group = Group(child);
        let Ok(ended) = timeout(self.within, group.output()).await else {
            let why = format!(
                "`divvy {verb}` has not ended within {} s",
                self.within.as_secs()
            );
            return Err(Error::new(ErrorCode::TimedOut, why)
                .hint(format!("type `divvy {verb}` on this machine")));
        };
        let Output {
            stdout,
            stderr,
            status,
        } = ended.map_err(|error| failed(error.to_string()))?;
        match serde_json::from_slice::<serde_json::Value>(&stdout) {
            Ok(_) => Ok(stdout.into()),
            Err(_) => Err(refusal(&stderr).unwrap_or_else(|| failed(status))),
        }
    }
}

struct Output {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: String,
}

/// A process and those that it starts. All of them end when this is dropped: the browser has gone, or time is up.
struct Group(Child);

impl Group {
    async fn output(&mut self) -> std::io::Result<Output> {
        let Self(child) = self;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = tokio::join!(read(stdout), read(stderr));
        let status = child.wait().await?;
        let status = match (status.code(), status.signal()) {
            (Some(code), _) => format!("it ended with exit code {code}"),
            (None, signal) => format!("signal {} ended it", signal.unwrap_or_default()),
        };
        Ok(Output {
            stdout: stdout?,
            stderr: stderr?,
            status,
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Without an id the process has ended and was waited for.
        let pid = self.0.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(group) = pid.and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The beginning of what a process writes. A process that writes more meets a closed pipe.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MOST).read_to_end(&mut text).await?;
    }
    Ok(text)
}

/// The error that a verb writes with `-o json`: the last line of stderr.
fn refusal(stderr: &[u8]) -> Option<Error> {
    let text = std::str::from_utf8(stderr).ok()?;
    let mut lines = text.lines().rev();
    lines.find_map(|line| Some(serde_json::from_str::<ErrorBody>(line).ok()?.error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_verb_is_found_among_its_messages() {
        let error = r#"{"error":{"code":"never_fits","message":"no GPU","hint":"divvy gpus"}}"#;
        let text = format!("divvy: testing\n{error}\n");
        let found = refusal(text.as_bytes()).unwrap();
        assert_eq!(
            (found.code, &*found.message),
            (ErrorCode::NeverFits, "no GPU")
        );
        for other in ["", "error: no GPU", "\u{fffd}{"] {
            assert!(refusal(other.as_bytes()).is_none());
        }
    }

    #[tokio::test]
    async fn a_second_call_is_refused_while_the_first_runs() {
        let tool = Tool::new("doctor", 1);
        let _turn = tool.turn.acquire().await.unwrap();
        assert_eq!(tool.run().await.unwrap_err().code, ErrorCode::TooMany);
    }

    #[tokio::test]
    async fn a_process_and_its_children_end_with_the_call() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 1000 & echo $!; exec sleep 1000"])
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().unwrap();
        let mut pid = [0; 16];
        let length = child.stdout.as_mut().unwrap().read(&mut pid).await.unwrap();
        let pid = std::str::from_utf8(&pid[..length])
            .unwrap()
            .trim()
            .to_owned();
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(!stat().is_empty());
        drop(Group(child));
        let begun = std::time::Instant::now();
        // A zombie until its new parent looks.
        while !matches!(
            stat()
                .split(") ")
                .nth(1)
                .and_then(|rest| rest.chars().next()),
            None | Some('Z')
        ) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", stat());
            tokio::task::yield_now().await;
        }
    }
}
