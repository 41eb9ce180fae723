//! Further processes of the slice: they hold memory, import it, or only look.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};

use divvy_driver::load::Lookup;
use divvy_driver::probe::{IpcHandle, Segment, Session, open_ipc as open_handle};
use divvy_testkit::Bounded as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::stage::known;
use super::step::Trouble;

/// The words with which this test program is a process of a slice, and the variable with what it does there.
pub const ENTRY: [&str; 4] = [
    "--exact",
    "--nocapture",
    "--ignored",
    "replay::a_process_in_a_slice",
];
pub const ROLE: &str = "DIVVY_TEST_REPLAY";

/// This test program.
pub fn this() -> PathBuf {
    std::env::current_exe().expect("a test has a path")
}

/// Prints a line of its own between those of the test harness.
pub fn print_json<T: Serialize>(what: &T) -> Result<(), Trouble> {
    let line = serde_json::to_string(what).map_err(io::Error::from)?;
    let mut stdout = io::stdout().lock();
    Ok(writeln!(stdout, "\n{line}").and_then(|()| stdout.flush())?)
}

/// The lines of this type in what such a process printed.
pub fn lines<T: DeserializeOwned>(stdout: &[u8]) -> impl Iterator<Item = T> {
    let lines = stdout.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok())
}

/// What a child said on stderr that came to nothing: its words, or how it ended.
pub fn failure_message(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    match said.trim() {
        "" => output.status.to_string(),
        said => format!("{}: {said}", output.status),
    }
}

/// Memory as a further process has seen it, in bytes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Glance {
    pub total: u64,
    /// Before it imported memory.
    pub free_before: u64,
    pub free: u64,
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(this());
    command
        .args(ENTRY)
        .env(
            ROLE,
            ["role"]
                .iter()
                .chain(words)
                .copied()
                .collect::<Vec<_>>()
                .join(" "),
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a process to its end.
fn ask(mut command: Command) -> Result<Glance, Trouble> {
    let output = command.spawn()?.output_bounded()?;
    let glance = lines(&output.stdout).next();
    glance.ok_or_else(|| Trouble::Failed(failure_message(&output)))
}

/// A process that makes a context, looks, and exits.
pub fn glance() -> Result<Glance, Trouble> {
    let mut command = command(&["glance"]);
    command.stdin(Stdio::null());
    ask(command)
}

/// A process that imports memory by its descriptor.
pub fn import(descriptor: OwnedFd, bytes: u64) -> Result<Glance, Trouble> {
    let mut command = command(&["import", &bytes.to_string()]);
    command.stdin(Stdio::from(descriptor));
    ask(command)
}

/// A process that opens memory by its handle.
pub fn open_ipc(handle: &IpcHandle, bytes: u64) -> Result<Glance, Trouble> {
    let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = command(&["open-ipc", &bytes.to_string(), &hex]);
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
    pub fn start(bytes: u64) -> Result<Self, Trouble> {
        let mut command = command(&["hold", &bytes.to_string()]);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take();
        let said = output
            .into_iter()
            .flat_map(|output| BufReader::new(output).lines());
        let held = said
            .map_while(Result::ok)
            .find_map(|line| line.parse::<u64>().ok());
        let holder = Self { child, input };
        match held {
            Some(held) if held == bytes => Ok(holder),
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
        let _ = self.child.wait_bounded();
    }
}

/// One of these processes.
pub fn role(words: &[&str]) -> Result<(), Trouble> {
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
            let bytes = number(bytes)?;
            let held = known("cuMemAlloc_v2")?.take(&session, bytes)?;
            print_json(&held.bytes())?;
            for line in io::stdin().lock().lines() {
                line?;
            }
            Ok(())
        }
        ["import", bytes] => {
            let bytes = number(bytes)?;
            let mut segment = Segment::reserve(&session, bytes)?;
            let descriptor = rustix::stdio::stdin();
            segment.import(descriptor, bytes)?;
            look(info.free)
        }
        ["open-ipc", bytes, hex] => {
            let handle = handle_from(hex)
                .ok_or_else(|| Trouble::Failed(format!("{hex}: not a handle of 64 bytes")))?;
            let _opened = open_handle(&session, &handle, number(bytes)?)?;
            look(info.free)
        }
        _ => Err(Trouble::Failed(format!("unknown role {words:?}"))),
    }
}

fn handle_from(hex: &str) -> Option<IpcHandle> {
    let bytes = (0..hex.len()).step_by(2);
    let bytes = bytes.map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// A number of the words that one process of these tests gives another.
pub fn number(text: &str) -> Result<u64, Trouble> {
    let parsed = text.parse();
    parsed.map_err(|error| Trouble::Failed(format!("{text}: {error}")))
}

#[test]
fn a_handle_is_found_in_its_digits_and_in_nothing_else() {
    let handle: IpcHandle = std::array::from_fn(|at| (at * 5) as u8);
    let hex: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(handle_from(&hex), Some(handle));
    for wrong in ["", "0", &hex[1..], &"zz".repeat(64), "ä"] {
        assert_eq!(handle_from(wrong), None, "{wrong}");
    }
}
