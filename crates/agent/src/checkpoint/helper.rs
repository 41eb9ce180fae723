//! The checkpoint helper: a child process that makes the checkpoint calls of the driver, one line in and one line out
//! for each. It is killed when a call is late, and the next call starts another. It makes no context, so it holds no GPU
//! memory; but it keeps the driver open, so it ends when it is not asked for a while.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use divvy_api::sync::lock;
use divvy_core::Bytes;
use divvy_core::resize::memory::ProcessState;
use divvy_driver::checkpoint::{Checkpoints, State};
use divvy_driver::load::CUDA;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};
use serde::{Deserialize, Serialize};

use super::Checkpointer;
use crate::host::child_timeout::is_readable;
use crate::host::error::error_chain;
use crate::host::process::Process;

/// How long a process may take until what it has submitted is done: as long as CRIU's plugin for CUDA gives it unless
/// told otherwise.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the driver may take to start and to answer: seconds on a machine with many GPUs (inferred).
const DRIVER_TIMEOUT: Duration = Duration::from_secs(20);

/// Memory is copied faster than this over any bus that a GPU is on (inferred). A lower figure would wait longer for a
/// copy that hangs; PCIe 3 has fifty times this rate.
const MIN_COPY_RATE: Bytes = Bytes::mib(256);

/// Interval of checking whether a process has reached a state. A copy takes seconds, so it ends a hundredth later at
/// most; a shorter pause would be busy waiting.
const LOOK: Duration = Duration::from_millis(20);

/// How much longer than the helper's own limit the daemon waits, for a reply that is on its way.
const REPLY_MARGIN: Duration = Duration::from_secs(1);

/// A helper that is not asked for so long ends: an open driver keeps GPUs awake (decision 041), and a restore often
/// follows another within a minute. A start costs seconds on a machine with many GPUs (NVIDIA/nvcf, issue 263).
const IDLE: Duration = Duration::from_secs(60);

/// A helper that is idle for longer is not asked any more, since it may be about to end.
const REUSE: Duration = Duration::from_secs(50);

/// A longer reply is no reply: one has an error of the driver and the names of its causes. Half might cut off the path
/// of a library, which may have 4 KiB; double would only hold more of what is no reply.
const MAX_REPLY: usize = 16 << 10;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointAction {
    /// Only tell how it is.
    State,
    Lock,
    Save,
    Restore,
    Unlock,
}

impl CheckpointAction {
    fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Lock => "lock",
            Self::Save => "save",
            Self::Restore => "restore",
            Self::Unlock => "unlock",
        }
    }

    /// How long it may take, for a process with so much memory.
    fn timeout(self, memory: Bytes) -> Duration {
        let copying = || Duration::from_secs(memory.get() / MIN_COPY_RATE.get());
        match self {
            Self::State | Self::Unlock => DRIVER_TIMEOUT,
            Self::Lock => DRIVER_TIMEOUT + LOCK_TIMEOUT,
            Self::Save | Self::Restore => DRIVER_TIMEOUT + copying(),
        }
    }
}

/// The process did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct CheckpointError {
    pub what: String,
    /// This driver never does.
    pub unsupported: bool,
}

/// What the helper prints: one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HelperReply {
    /// How the process is now.
    State(ProcessState),
    Refused {
        what: String,
        unsupported: bool,
    },
}

/// A call that is asked of the helper: one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
struct HelperRequest {
    act: CheckpointAction,
    pid: u32,
    start_time: u64,
    within_ms: u64,
}

/// Starts helper processes and asks them. One is enough as long as one operation runs at a time.
#[derive(Debug)]
pub struct CheckpointHelper {
    /// This program.
    divvy: PathBuf,
    /// The library to load, unless it is the one that the loader finds.
    cuda: Option<PathBuf>,
    /// Helpers that no operation asks anything at present.
    idle: Mutex<Vec<ServingHelper>>,
}

/// A helper process that waits for requests.
#[derive(Debug)]
struct ServingHelper {
    /// Refers to the process, which a thread waits for.
    process: OwnedFd,
    requests: ChildStdin,
    replies: ChildStdout,
    idle_since: Instant,
}

impl Checkpointer for CheckpointHelper {
    fn call(
        &self,
        act: CheckpointAction,
        process: Process,
        memory: Bytes,
    ) -> Result<ProcessState, CheckpointError> {
        let patience = act.timeout(memory);
        let request = HelperRequest {
            act,
            pid: process.pid,
            start_time: process.start_time,
            within_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
        };
        let asked = self.serving().and_then(|mut helper| {
            let reply = helper
                .ask(&request, patience + REPLY_MARGIN)
                // A call that hangs ends with its process only.
                .inspect_err(|_| {
                    let _ = pidfd_send_signal(&helper.process, Signal::KILL);
                })?;
            helper.idle_since = Instant::now();
            lock(&self.idle).push(helper);
            Ok(reply)
        });
        match asked {
            Ok(HelperReply::State(state)) => Ok(state),
            Ok(HelperReply::Refused { what, unsupported }) => Err(CheckpointError {
                what: match unsupported {
                    true => what,
                    false => format!("pid {}: {what}", process.pid),
                },
                unsupported,
            }),
            Err(error) => Err(CheckpointError {
                what: format!("pid {}, {}: {error}", process.pid, act.name()),
                unsupported: false,
            }),
        }
    }
}

impl CheckpointHelper {
    pub fn new(divvy: PathBuf, cuda: Option<PathBuf>) -> Self {
        Self {
            divvy,
            cuda,
            idle: Mutex::default(),
        }
    }

    /// An idle helper, or a new one.
    fn serving(&self) -> io::Result<ServingHelper> {
        let mut idle = lock(&self.idle);
        idle.retain(|helper| helper.idle_since.elapsed() < REUSE && helper.is_alive());
        match idle.pop() {
            Some(helper) => Ok(helper),
            None => self.start(),
        }
    }

    fn start(&self) -> io::Result<ServingHelper> {
        let mut command = Command::new(&self.divvy);
        command.args(["checkpoint", "--serve"]);
        if let Some(cuda) = &self.cuda {
            command.arg("--library").arg(cuda);
        }
        // The daemon may have been started inside a job or with GPUs hidden.
        for name in ["LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "DIVVY_SLICE"] {
            command.env_remove(name);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let (requests, replies) = (child.stdin.take(), child.stdout.take());
        // Killed, it may still be in the kernel, in a driver perhaps, and ends whenever it comes out.
        let reaper = std::thread::Builder::new().name("reaper".to_owned());
        reaper.spawn(move || child.wait())?;
        let no_pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        Ok(ServingHelper {
            process,
            requests: requests.ok_or_else(no_pipe)?,
            replies: replies.ok_or_else(no_pipe)?,
            idle_since: Instant::now(),
        })
    }
}

impl ServingHelper {
    fn is_alive(&self) -> bool {
        matches!(is_readable(&self.process, Duration::ZERO), Ok(false))
    }

    /// Sends a request and waits for its reply for so long.
    fn ask(&mut self, request: &HelperRequest, patience: Duration) -> io::Result<HelperReply> {
        let deadline = Instant::now() + patience;
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.requests.write_all(&line)?;
        let mut said = Vec::new();
        while !said.ends_with(b"\n") {
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_readable(&self.replies, left)? {
                let late = format!("no reply within {} s", patience.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, late));
            }
            let mut part = [0; 4096];
            let count = self.replies.read(&mut part)?;
            if count == 0 || said.len() > MAX_REPLY {
                return Err(io::Error::other("the helper process gave no result"));
            }
            said.extend_from_slice(&part[..count]);
        }
        Ok(serde_json::from_slice(&said)?)
    }
}

/// `divvy checkpoint --serve`: makes the calls that the lines on standard input ask for, until there is none for a
/// while or the daemon is gone.
pub fn serve(library: Option<&Path>) -> ExitCode {
    let (requests, requested) = channel();
    let read = move || {
        let mut lines = io::stdin().lines();
        while let Some(Ok(line)) = lines.next() {
            if requests.send(line).is_err() {
                return;
            }
        }
        // The daemon has died, perhaps in the middle of a call, whose result only it would read.
        let _ = kill_process(getpid(), Signal::KILL);
    };
    if std::thread::Builder::new().spawn(read).is_err() {
        return ExitCode::FAILURE;
    }
    let mut driver = None;
    while let Ok(line) = requested.recv_timeout(IDLE) {
        let Ok(request) = serde_json::from_str::<HelperRequest>(&line) else {
            return ExitCode::FAILURE;
        };
        let said = match call_driver(&mut driver, &request, library) {
            Ok(state) => HelperReply::State(state),
            Err(refusal) => HelperReply::Refused {
                what: refusal.what,
                unsupported: refusal.unsupported,
            },
        };
        let line = serde_json::to_string(&said).unwrap_or_default() + "\n";
        let written = io::stdout().write_all(line.as_bytes());
        if written.and_then(|()| io::stdout().flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// `driver`: the driver, once it is loaded.
fn call_driver(
    driver: &mut Option<Checkpoints>,
    request: &HelperRequest,
    library: Option<&Path>,
) -> Result<ProcessState, CheckpointError> {
    let deadline = Instant::now() + Duration::from_millis(request.within_ms);
    let (act, process) = (
        request.act,
        Process {
            pid: request.pid,
            start_time: request.start_time,
        },
    );
    let refused = |error: divvy_driver::Error| CheckpointError {
        unsupported: error.is_unsupported() && act == CheckpointAction::State,
        what: error_chain(&error),
    };
    let gone = || CheckpointError {
        what: "the process has ended".to_owned(),
        unsupported: false,
    };
    let checkpoints = match driver {
        Some(loaded) => loaded,
        None => {
            let loaded = Checkpoints::load(library).map_err(|error| CheckpointError {
                what: format!("{CUDA} cannot be used: {}", error_chain(&error)),
                unsupported: true,
            })?;
            driver.insert(loaded)
        }
    };
    // The driver takes a pid, which no other process gets as long as this one exists.
    let pid = i32::try_from(process.pid).map_err(|_| gone())?;
    if !process.is_alive() {
        return Err(gone());
    }
    let lock_ms = u32::try_from(LOCK_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    match act {
        CheckpointAction::State => Ok(()),
        CheckpointAction::Lock => checkpoints.lock(pid, lock_ms),
        CheckpointAction::Save => checkpoints.save(pid),
        CheckpointAction::Restore => checkpoints.restore(pid),
        CheckpointAction::Unlock => checkpoints.unlock(pid),
    }
    .map_err(refused)?;
    loop {
        return Ok(match checkpoints.state(pid).map_err(refused)? {
            State::Running => ProcessState::Running,
            State::Locked => ProcessState::Locked,
            State::Checkpointed => ProcessState::Checkpointed,
            State::Moving if Instant::now() < deadline => {
                std::thread::sleep(LOOK);
                continue;
            }
            State::Moving | State::Failed => ProcessState::Failed,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A helper that is this script; each line that it is asked is in `$line`.
    fn scripted(folder: &Path, script: &str) -> CheckpointHelper {
        let divvy = folder.join("helper");
        let script = format!(
            "#!/bin/sh\necho >>{0}/starts\nwhile read -r line; do\n{script}\ndone\n",
            folder.display()
        );
        std::fs::write(&divvy, script).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&divvy, executable).unwrap();
        CheckpointHelper::new(divvy, Some("/lib/cuda".into()))
    }

    fn starts(folder: &Path) -> usize {
        let starts = std::fs::read_to_string(folder.join("starts"));
        starts.unwrap_or_default().lines().count()
    }

    const WHO: Process = Process {
        pid: 7,
        start_time: 42,
    };

    #[test]
    fn the_helper_is_asked_line_by_line_and_says_a_state_or_a_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let asked = r#"{"act":"lock","pid":7,"start_time":42,"within_ms":30000}"#;
        let script = format!(
            r#"case "$line" in
                '{asked}') echo '{{"state":"locked"}}' ;;
                *save*) echo '{{"refused":{{"what":"no","unsupported":false}}}}' ;;
                *) echo '{{"refused":{{"what":"too old","unsupported":true}}}}' ;;
            esac"#
        );
        let helper = scripted(folder.path(), &script);
        let said = |act| helper.call(act, WHO, Bytes::ZERO);
        assert_eq!(said(CheckpointAction::Lock), Ok(ProcessState::Locked));
        let refusal = said(CheckpointAction::Save).unwrap_err();
        assert_eq!(refusal.to_string(), "pid 7: no");
        let never = said(CheckpointAction::State).unwrap_err();
        assert!(never.unsupported, "{never}");
        assert_eq!(starts(folder.path()), 1);
    }

    #[test]
    fn a_helper_process_that_has_ended_or_hangs_is_replaced_for_the_next_call() {
        let folder = tempfile::tempdir().unwrap();
        let script = r#"case "$line" in
            *save*) exit 3 ;;
            *restore*) read -r line ;;
            *) echo '{"state":"running"}' ;;
        esac"#;
        let helper = scripted(folder.path(), script);
        let fine = || helper.call(CheckpointAction::State, WHO, Bytes::ZERO);
        assert_eq!(fine(), Ok(ProcessState::Running));
        let silent = helper.call(CheckpointAction::Save, WHO, Bytes::ZERO);
        let silent = silent.unwrap_err();
        assert!(silent.what.contains("gave no result") && !silent.unsupported);
        assert_eq!(
            (fine(), starts(folder.path())),
            (Ok(ProcessState::Running), 2)
        );

        let mut serving = helper.serving().unwrap();
        let request = HelperRequest {
            act: CheckpointAction::Restore,
            pid: 7,
            start_time: 42,
            within_ms: 1,
        };
        let late = serving.ask(&request, Duration::from_millis(1)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        pidfd_send_signal(&serving.process, Signal::KILL).unwrap();
        assert!(is_readable(&serving.process, Duration::from_secs(60)).unwrap());
        lock(&helper.idle).push(serving);
        assert_eq!(
            (fine(), starts(folder.path())),
            (Ok(ProcessState::Running), 3)
        );
    }

    #[test]
    fn a_copy_may_take_as_long_as_there_is_memory_and_everything_else_ends_soon() {
        assert_eq!(
            CheckpointAction::Save.timeout(Bytes::gib(80)),
            Duration::from_secs(340)
        );
        assert_eq!(
            CheckpointAction::State.timeout(Bytes::gib(80)),
            DRIVER_TIMEOUT
        );
        assert!(CheckpointAction::Lock.timeout(Bytes::ZERO) > LOCK_TIMEOUT);
    }
}
