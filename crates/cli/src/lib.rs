//! The commands: a client of the agent's HTTP contract and nothing else.
//!
//! ```text
//! words ──args──► verbs ──ask──► v1::Submit ──client──► agent
//!                   │                                     │
//!   exit code ◄── failure ◄── v1::Error      render ◄── v1::Job, Gpu, Queue…
//! ```
//! What runs in the same program but belongs to the agent (the daemon, a job's supervisor) is called through
//! [`Backend`], so that this crate never links a driver, the ledger or the journal.
#![forbid(unsafe_code)]

pub mod args;
mod ask;
mod complete;
mod container;
pub mod error_output;
mod manual;
mod output;
pub mod render;
mod script;
mod serve;
mod start;
pub mod table;
pub mod text;
mod verbs;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use divvy_api::daemon::DaemonOptions;
use divvy_api::standalone::{ProgramResult, StandaloneOptions};
use divvy_api::v1::{Error, Finding, JournalFile};

pub use serve::PASSWORD_FLAG;

use output::Stop;

/// The agent's side of the program.
#[derive(Clone, Copy)]
pub struct Backend {
    /// Serves until told to stop; detached, returns once the daemon answers.
    pub daemon: fn(DaemonOptions) -> Result<(), Error>,
    /// Owns the process of one job, whose folder it is given: started by the daemon.
    pub supervise: fn(&Path) -> ExitCode,
    /// Takes the terminal on standard input and becomes a program: started by a job's supervisor.
    pub on_terminal: fn(&[OsString]) -> ExitCode,
    /// Runs a job that waits for this client, on this terminal.
    pub run_here: fn(&Path) -> Result<ProgramResult, Error>,
    /// Runs a program in a slice without a daemon; gives its exit code.
    pub solo: fn(StandaloneOptions) -> Result<u8, Error>,
    /// Measures what a context costs on the GPU of this UUID and prints it: started by the daemon.
    pub probe_context: fn(&str) -> ExitCode,
    /// Makes one call of the driver about the process of this pid and start time, and prints what it says: started by the daemon.
    pub checkpoint: fn(&str, (u32, u64), u64, Option<&Path>) -> ExitCode,
    /// Tries to take more than so many bytes of GPU memory, as the words say, and prints what came of it: started by `selftest`.
    pub probe_limits: fn(u64, &[String]) -> ExitCode,
    /// Writes a copy of the journal, of the system's daemon or of the user's own.
    pub copy_journal: fn(bool) -> Result<JournalFile, Error>,
    /// Puts a copy in the place of that journal.
    pub restore_journal: fn(bool, &Path) -> Result<JournalFile, Error>,
    /// Looks at the machine and the installation, or at simulated GPUs (`a100-80gb:3`).
    pub doctor: fn(Option<&str>) -> Vec<Finding>,
    /// Prints what a program that starts here meets of the driver: started by `doctor`.
    pub probe_driver: fn() -> ExitCode,
    /// Indices of this machine's GPUs, or of the simulated ones (`a100-80gb:3`).
    pub gpu_indices: fn(Option<&str>) -> Result<Vec<u32>, Error>,
}

/// The whole command: parses the words (the first is the program's name), acts, and gives the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>, backend: Backend) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    if let Some(code) = complete::asked(&words) {
        return code;
    }
    let json = error_output::asks_for_json(&words);
    let cli = match args::parse(&words) {
        Ok(cli) => cli,
        Err(error) if error_output::is_help(&error) => return help(&error),
        Err(error) => return error_output::report(&error_output::from_clap(&error, &words), json),
    };
    let cli = match cli.placed() {
        Ok(cli) => cli,
        Err(error) => return error_output::report(&error, json),
    };
    let verb = match cli.verb {
        args::Verb::Submit(submit) => {
            script::expand(*submit, &words).map(|submit| args::Verb::Submit(Box::new(submit)))
        }
        verb => Ok(verb),
    };
    match verb
        .map_err(Stop::Failed)
        .and_then(|verb| verbs::act(verb, backend))
    {
        Ok(code) => code,
        // Whoever read our output has gone and wants no more, `divvy ps | head -1` for one.
        Err(Stop::Hangup) => ExitCode::SUCCESS,
        Err(Stop::Failed(error)) => error_output::report(&error, json),
    }
}

/// Help that was asked for goes to stdout; help in place of a missing verb goes to stderr and is a failure of usage.
fn help(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if error.use_stderr() {
        let _ = write!(std::io::stderr(), "{text}");
        return ExitCode::from(divvy_api::v1::ErrorCode::Usage.exit_code());
    }
    let _ = write!(std::io::stdout(), "{text}");
    ExitCode::SUCCESS
}
