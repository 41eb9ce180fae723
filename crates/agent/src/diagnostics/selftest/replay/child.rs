//! Further processes of the slice: they hold memory, import it, or only look.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};

use divvy_driver::load::Lookup;
use divvy_driver::probe::{IpcHandle, Segment, Session, open_ipc as open_handle};
use serde::{Deserialize, Serialize};

use super::stage::Stage;
use super::step::Trouble;
use crate::diagnostics::selftest::{
    ATTEMPT_TIMEOUT, Failure, exit_after_timeout, known_way, print_json,
};
use crate::host::child_timeout::{failure_message, wait_with_timeout};

/// Memory as a further process has seen it, in bytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Glance {
    pub total: u64,
    /// Before it imported memory.
    pub free_before: u64,
    pub free: u64,
}

fn command(stage: &Stage, words: &[&str]) -> Command {
    let mut command = Command::new(&stage.this);
    command
        .args(["probe-limits", "--limit", &stage.limit.to_string(), "role"])
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a process to its end.
fn ask(mut command: Command) -> Result<Glance, Trouble> {
    let output = wait_with_timeout(command.spawn()?, ATTEMPT_TIMEOUT)?;
    serde_json::from_slice(&output.stdout).map_err(|_| Trouble::Failed(failure_message(&output)))
}

/// A process that makes a context, looks, and exits.
pub fn glance(stage: &Stage) -> Result<Glance, Trouble> {
    let mut command = command(stage, &["glance"]);
    command.stdin(Stdio::null());
    ask(command)
}

/// A process that imports memory by its descriptor.
pub fn import(stage: &Stage, descriptor: OwnedFd, bytes: u64) -> Result<Glance, Trouble> {
    let mut command = command(stage, &["import", &bytes.to_string()]);
    command.stdin(Stdio::from(descriptor));
    ask(command)
}

/// A process that opens memory by its handle.
pub fn open_ipc(stage: &Stage, handle: &IpcHandle, bytes: u64) -> Result<Glance, Trouble> {
    let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = command(stage, &["open-ipc", &bytes.to_string(), &hex]);
    command.stdin(Stdio::null());
    ask(command)
}

/// A process that holds memory until it is dropped.
pub struct Holder {
    child: Child,
    /// It ends with its input.
    input: Option<ChildStdin>,
}

impl Holder {
    /// Starts it, and waits until it has the memory.
    pub fn start(stage: &Stage, bytes: u64) -> Result<Self, Trouble> {
        let mut command = command(stage, &["hold", &bytes.to_string()]);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let holder = Self { child, input };
        match line.trim().parse::<u64>() {
            Ok(held) if held == bytes => Ok(holder),
            _ => Err(Trouble::Failed(format!(
                "a further process could not take {bytes} bytes"
            ))),
        }
    }

    /// Ends it by SIGKILL.
    pub fn kill(mut self) -> Result<(), Trouble> {
        Ok(self.child.kill()?)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// One of these processes.
pub fn role(words: &[&str]) -> Result<(), Failure> {
    exit_after_timeout();
    let session = Session::open(None, Lookup::Handle, 0)?;
    let info = session.info()?;
    let look = |free_before| {
        let info = session.info()?;
        print_json(&Glance {
            total: info.total,
            free_before,
            free: info.free,
        })
    };
    match words[..] {
        ["glance"] => look(info.free),
        ["hold", bytes] => {
            let bytes: u64 = bytes.parse()?;
            let way = known_way("cuMemAlloc_v2")?;
            let held = way.take(&session, bytes)?;
            writeln!(io::stdout(), "{}", held.bytes())?;
            for line in io::stdin().lock().lines() {
                line?;
            }
            Ok(())
        }
        ["import", bytes] => {
            let bytes: u64 = bytes.parse()?;
            let mut segment = Segment::reserve(&session, bytes)?;
            let descriptor = rustix::stdio::stdin();
            segment.import(descriptor, bytes)?;
            look(info.free)
        }
        ["open-ipc", bytes, hex] => {
            let handle = handle_from(hex).ok_or("not a handle of 64 bytes")?;
            let _opened = open_handle(&session, &handle, bytes.parse()?)?;
            look(info.free)
        }
        _ => Err(format!("unknown role {words:?}").into()),
    }
}

fn handle_from(hex: &str) -> Option<IpcHandle> {
    let bytes = (0..hex.len()).step_by(2);
    let bytes = bytes.map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_found_in_its_digits_and_in_nothing_else() {
        let handle: IpcHandle = std::array::from_fn(|at| (at * 5) as u8);
        let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(handle_from(&hex), Some(handle));
        for wrong in ["", "0", &hex[1..], &"zz".repeat(64), "ä"] {
            assert_eq!(handle_from(wrong), None, "{wrong}");
        }
    }
}
