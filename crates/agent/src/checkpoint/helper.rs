//! The checkpoint helper: a child process that makes one checkpoint call of the driver for one process, and is killed
//! when it is late.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use divvy_core::Bytes;
use divvy_core::resize::memory::ProcessState;
use divvy_driver::checkpoint::{Checkpoints, State};
use divvy_driver::load::CUDA;
use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::Checkpointer;
use crate::host::child_timeout;
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

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointAction {
    /// Only tell how it is.
    State,
    Lock,
    Save,
    Restore,
    Unlock,
}

impl CheckpointAction {
    const ALL: [Self; 5] = [
        Self::State,
        Self::Lock,
        Self::Save,
        Self::Restore,
        Self::Unlock,
    ];

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

/// How to start it.
#[derive(Clone, Debug)]
pub struct CheckpointHelper {
    /// This program.
    pub divvy: PathBuf,
    /// The library to load, unless it is the one that the loader finds.
    pub cuda: Option<PathBuf>,
}

impl Checkpointer for CheckpointHelper {
    fn call(
        &self,
        act: CheckpointAction,
        process: Process,
        memory: Bytes,
    ) -> Result<ProcessState, CheckpointError> {
        let patience = act.timeout(memory);
        let mut command = Command::new(&self.divvy);
        command
            .args(["checkpoint", act.name()])
            .arg(process.pid.to_string())
            .arg(process.start_time.to_string())
            .args(["--within-ms", &patience.as_millis().to_string()]);
        if let Some(cuda) = &self.cuda {
            command.arg("--library").arg(cuda);
        }
        // The daemon may have been started inside a job or with GPUs hidden.
        for name in ["LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "DIVVY_SLICE"] {
            command.env_remove(name);
        }
        let late = |error: io::Error| CheckpointError {
            what: format!("pid {}, {}: {error}", process.pid, act.name()),
            unsupported: false,
        };
        // It ends itself a moment earlier, and is killed where it does not.
        let output = child_timeout::run_with_timeout(&mut command, patience + DRIVER_TIMEOUT)
            .map_err(late)?;
        let said = String::from_utf8_lossy(&output.stdout);
        match serde_json::from_str(said.trim()) {
            Ok(HelperReply::State(state)) => Ok(state),
            Ok(HelperReply::Refused { what, unsupported }) => Err(CheckpointError {
                what: match unsupported {
                    true => what,
                    false => format!("pid {}: {what}", process.pid),
                },
                unsupported,
            }),
            Err(_) => Err(late(io::Error::other(format!(
                "the helper process gave no result ({})",
                child_timeout::failure_message(&output)
            )))),
        }
    }
}

/// `divvy checkpoint ACT PID START`: makes the call, prints a line and ends, in any case within its time limit.
pub fn checkpoint(
    act: &str,
    (pid, start_time): (u32, u64),
    within: Duration,
    library: Option<&Path>,
) -> ExitCode {
    // The thread that started it reads the result.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let end = move || {
        std::thread::sleep(within);
        let _ = kill_process(getpid(), Signal::KILL);
    };
    let _ = std::thread::Builder::new().spawn(end);
    let Some(act) = CheckpointAction::ALL
        .into_iter()
        .find(|known| known.name() == act)
    else {
        return ExitCode::FAILURE;
    };
    let process = Process { pid, start_time };
    let said = match call_driver(act, process, Instant::now() + within, library) {
        Ok(state) => HelperReply::State(state),
        Err(refusal) => HelperReply::Refused {
            what: refusal.what,
            unsupported: refusal.unsupported,
        },
    };
    let line = serde_json::to_string(&said).unwrap_or_default();
    let written = io::stdout().write_all(line.as_bytes());
    let flushed = written.and_then(|()| io::stdout().flush());
    match (flushed, said) {
        (Ok(()), HelperReply::State(_)) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn call_driver(
    act: CheckpointAction,
    process: Process,
    deadline: Instant,
    library: Option<&Path>,
) -> Result<ProcessState, CheckpointError> {
    let refused = |error: divvy_driver::Error| CheckpointError {
        unsupported: error.is_unsupported() && act == CheckpointAction::State,
        what: error_chain(&error),
    };
    let gone = || CheckpointError {
        what: "the process has ended".to_owned(),
        unsupported: false,
    };
    let checkpoints = Checkpoints::load(library).map_err(|error| CheckpointError {
        what: format!("{CUDA} cannot be used: {}", error_chain(&error)),
        unsupported: true,
    })?;
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

    /// A helper that is this script.
    fn scripted(folder: &Path, script: &str) -> CheckpointHelper {
        let divvy = folder.join("helper");
        std::fs::write(&divvy, format!("#!/bin/sh\n{script}\n")).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&divvy, executable).unwrap();
        CheckpointHelper {
            divvy,
            cuda: Some("/lib/cuda".into()),
        }
    }

    const WHO: Process = Process {
        pid: 7,
        start_time: 42,
    };

    #[test]
    fn what_the_helper_says_is_a_state_or_a_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let said = |script: &str| {
            scripted(folder.path(), script).call(CheckpointAction::Lock, WHO, Bytes::ZERO)
        };
        assert_eq!(
            said(
                r#"test "$*" = "checkpoint lock 7 42 --within-ms 30000 --library /lib/cuda" && echo '{"state":"locked"}'"#
            ),
            Ok(ProcessState::Locked)
        );
        let refusal = said(r#"echo '{"refused":{"what":"no","unsupported":false}}'; exit 1"#);
        assert_eq!(refusal.unwrap_err().to_string(), "pid 7: no");
        let never = said(r#"echo '{"refused":{"what":"too old","unsupported":true}}'; exit 1"#);
        assert!(never.unwrap_err().unsupported);
        let silent = said("echo sorry >&2; exit 3").unwrap_err();
        assert!(
            silent.what.contains("sorry") && !silent.unsupported,
            "{silent}"
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
