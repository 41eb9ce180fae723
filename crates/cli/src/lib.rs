//! The command line: a client of the agent's HTTP API, without a dependency on the agent.
//!
//! ```text
//! words ──args──► verbs ──ask──► v1::Submit ──client──► agent
//!                   │                                     │
//!   exit code ◄── error_output ◄─ v1::Error     render ◄── v1::Job, Gpu, Queue…
//! ```
//! [`Backend`] calls the parts of the agent that run in the same program, such as the daemon and a job's supervisor. So
//! this crate links neither driver nor ledger nor journal.
#![forbid(unsafe_code)]

pub mod args;
mod ask;
pub mod colour;
mod complete;
mod container;
pub mod error_output;
mod manual;
pub mod output;
pub mod render;
mod script;
mod serve;
mod start;
pub mod table;
pub mod text;
mod top;
mod verbs;
pub mod watch;
mod web;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use divvy_api::daemon::Configured;
use divvy_api::home::Home;
use divvy_api::standalone::{ProgramResult, SliceAccess, StandaloneOptions};
use divvy_api::v1::{Error, Finding, Gpu, JournalFile};

pub use serve::PASSWORD_FLAG;
pub use verbs::signals::Signals;
pub use verbs::{Outcome, block_on, client};

use output::Stop;

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
    /// Calls one checkpoint function of the driver for the process with this pid and start time, and prints the answer;
    /// the daemon starts it.
    pub checkpoint: fn(&str, (u32, u64), u64, Option<&Path>) -> ExitCode,
    /// Tries to exceed a limit in bytes, in the ways that the words name, and prints the results; `selftest` starts it.
    pub probe_limits: fn(u64, &[String]) -> ExitCode,
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

/// The whole command: parses the words (the first is the program's name), acts, and gives the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>, backend: Backend) -> ExitCode {
    let words: Vec<OsString> = words.into_iter().collect();
    if let Some(code) = complete::answer_shell(&words) {
        return code;
    }
    if asks_for_versions(&words) {
        return versions(&(backend.protocols)());
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
        // The reader of stdout has closed it, as in `divvy ps | head -1`.
        Err(Stop::Hangup) => ExitCode::SUCCESS,
        Err(Stop::Failed(error)) => error_output::report(&error, json),
    }
}

/// Whether the words are `--version -v`, in any order: the version with those of the protocols.
fn asks_for_versions(words: &[OsString]) -> bool {
    let words: Vec<&str> = words
        .iter()
        .skip(1)
        .filter_map(|word| word.to_str())
        .collect();
    matches!(
        words[..],
        ["--version" | "-V", "-v" | "--verbose"] | ["-v" | "--verbose", "--version" | "-V"]
    )
}

fn versions(protocols: &BTreeMap<String, u32>) -> ExitCode {
    let mut text = format!("divvy {}\n", divvy_api::version::program());
    for (name, version) in protocols {
        text += &format!("{name} {version}\n");
    }
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
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
