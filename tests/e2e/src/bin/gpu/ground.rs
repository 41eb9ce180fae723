//! A private instance on the GPU under test, and programs that are run to their end or killed.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use divvy_e2e::{Daemon, Home, MIB, Programs};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How `gpu_facts` says that a fact cannot be had here (EX_UNAVAILABLE of sysexits.h).
const NOT_AVAILABLE: i32 = 69;

/// Why an item has no value.
#[derive(Debug)]
pub enum Trouble {
    /// Something that it needs is not on this machine.
    NotAvailable(String),
    Failed(String),
}

impl Trouble {
    pub fn failed(why: impl std::fmt::Display) -> Self {
        Self::Failed(why.to_string())
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::failed(error)
    }
}

/// The instance, and the time that is left.
pub struct Ground {
    pub home: Home,
    pub simulated: bool,
    pub python: PathBuf,
    pub quick: bool,
    started: Instant,
    budget: Duration,
}

impl Ground {
    pub fn new(
        programs: Programs,
        sim: Option<&str>,
        python: &Path,
        budget: Duration,
        quick: bool,
    ) -> Self {
        Self {
            home: Home::with(programs, sim),
            simulated: sim.is_some(),
            // Programs are started in a folder of the instance's own.
            python: match python.components().count() {
                1 => python.to_owned(),
                _ => std::path::absolute(python).unwrap_or_else(|_| python.to_owned()),
            },
            quick,
            started: Instant::now(),
            budget,
        }
    }

    /// Time before which everything has to have ended.
    pub fn left(&self) -> Duration {
        self.budget.saturating_sub(self.started.elapsed())
    }

    /// A daemon, if one can be had: an item that needs one fails by itself without.
    pub fn daemon(&self) -> Option<Daemon> {
        let start = || self.home.daemon(&[]);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(start)).ok()
    }

    /// `divvy run --gpu-memory BYTES -- WORDS…`
    pub fn in_slice<S: AsRef<OsStr>>(&self, bytes: u64, words: &[S]) -> Command {
        let memory = format!("{}M", bytes / MIB);
        let mut command =
            self.home
                .divvy_command(&["run", "--no-wait", "--gpu-memory", &memory, "--"]);
        command.args(words);
        command
    }

    /// A program that sees the GPUs from outside of every slice.
    pub fn outside<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let program = words.first().map(AsRef::as_ref).unwrap_or_default();
        let mut command = self.home.outside(&program.to_string_lossy());
        command.args(&words[1..]);
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, command: &mut Command, patience: Duration) -> Result<Output, Trouble> {
        let patience = patience.min(self.left());
        let words = shown(command);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Trouble::NotAvailable(format!("{words}: {error}")))?;
        let pid = Pid::from_child(&child);
        let (done, finished) = mpsc::channel();
        thread::spawn(move || done.send(child.wait_with_output()));
        match finished.recv_timeout(patience) {
            Ok(output) => Ok(output?),
            Err(_) => {
                let _ = kill_process(pid, Signal::KILL);
                Err(Trouble::failed(format!(
                    "{words} did not end within {} s",
                    patience.as_secs()
                )))
            }
        }
    }

    /// Runs a command and answers the last line of JSON, or the whole document, that it printed.
    pub fn json(&self, command: &mut Command, patience: Duration) -> Result<Value, Trouble> {
        let output = self.run(command, patience)?;
        said(&output).ok_or_else(|| match output.status.code() {
            Some(NOT_AVAILABLE) => Trouble::NotAvailable(complaint(&output)),
            _ => Trouble::failed(complaint(&output)),
        })
    }
}

/// A command as one would type it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let words = command.get_args().map(OsStr::to_string_lossy);
    std::iter::once(program.to_string_lossy())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The JSON on a program's stdout.
pub fn said(output: &Output) -> Option<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    let whole = serde_json::from_str(&text).ok();
    whole.or_else(|| {
        let lines = text.lines().rev();
        lines
            .into_iter()
            .find_map(|line| serde_json::from_str(line).ok())
    })
}

/// How a program ended, with the end of what it said on stderr.
pub fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().rev().take(6).collect();
    let lines: Vec<&str> = lines.into_iter().rev().collect();
    format!("{}: {}", output.status, lines.join(" | "))
}
