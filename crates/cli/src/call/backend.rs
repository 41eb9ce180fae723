//! The agent's side of the program: functions that the verbs call, so that this crate links no part of the agent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use divvy_api::daemon::Configured;
use divvy_api::home::Home;
use divvy_api::standalone::{ProgramResult, SliceAccess, StandaloneOptions};
use divvy_api::v1::{Error, Finding, Gpu, JournalFile, ParkTest};

use super::Outcome;
use crate::args;

/// Entry points of the agent's side of the program.
#[derive(Clone, Copy)]
pub struct Backend {
    /// Serves until a signal; detached, returns once the daemon answers.
    pub daemon: fn(Configured) -> Result<(), Error>,
    /// Supervises the process of the job in this folder; the daemon starts it.
    pub supervise: fn(&Path) -> ExitCode,
    /// Makes standard input the controlling terminal and executes a program; a job's supervisor starts it.
    pub on_terminal: fn(&[OsString]) -> ExitCode,
    /// Runs a job that waits for this client, on this terminal.
    pub run_here: fn(&Path) -> Result<ProgramResult, Error>,
    /// Runs a program in a slice without a daemon; gives its exit code.
    pub solo: fn(StandaloneOptions) -> Result<u8, Error>,
    /// Enters the slice with this name and becomes the program; gives the exit code of one that cannot start.
    pub enter_slice: fn(&Home, &str, &[OsString]) -> Result<u8, Error>,
    /// The way into a slice, with the mounts where this process may make them.
    pub slice_access: fn(&Home, &str, bool) -> Result<SliceAccess, Error>,
    /// Measures the memory of a CUDA context on the GPU with this UUID and prints it; the daemon starts it.
    pub probe_context: fn(&str, Option<&Path>) -> ExitCode,
    /// Calls checkpoint functions of the driver for other processes, as standard input asks; the daemon starts it.
    pub checkpoint: fn(Option<&Path>) -> ExitCode,
    /// Tries to exceed a limit in bytes, in the ways that the words name, and prints the results; `selftest` starts it.
    pub probe_limits: fn(u64, &[String]) -> ExitCode,
    /// Stores that these tests have passed, for the system's daemon or the user's own.
    pub record_park: fn(bool, &[ParkTest]) -> Result<(), Error>,
    /// Writes a copy of the journal, of the system's daemon or of the user's own.
    pub copy_journal: fn(bool) -> Result<JournalFile, Error>,
    /// Replaces that journal by a copy.
    pub restore_journal: fn(bool, &Path) -> Result<JournalFile, Error>,
    /// Warnings of users and groups that the options name and the user database does not have.
    pub absent_accounts: fn(&Configured) -> Vec<String>,
    /// Diagnoses the machine and the installation, or simulated GPUs (`a100-80gb:3`).
    pub doctor: fn(Option<&str>) -> Vec<Finding>,
    /// Prints the driver's answers to a program in a job; `doctor` starts it.
    pub probe_driver: fn() -> ExitCode,
    /// GPUs and their processes as the driver shows them, without a daemon.
    pub observe_gpus: fn() -> Result<Vec<Gpu>, Error>,
    /// Indices of this machine's GPUs, or of the simulated ones (`a100-80gb:3`).
    pub gpu_indices: fn(Option<&str>) -> Result<Vec<u32>, Error>,
    /// Runs the study that the words of `divvy simulate` name, and prints its result.
    pub simulate: fn(&args::Simulate) -> Outcome,
    /// Versions of the protocols between the parts of Divvy, by name.
    pub protocols: fn() -> BTreeMap<String, u32>,
}
