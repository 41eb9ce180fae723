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
mod call;
pub mod colour;
mod complete;
mod container;
pub mod error_output;
mod manual;
pub mod output;
pub mod rejection;
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
use std::process::ExitCode;

pub use call::backend::Backend;
pub use call::signals::Signals;
pub use call::{Outcome, block_on, client};
pub use serve::PASSWORD_FLAG;

use output::Stop;

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
        Err(error) if rejection::is_help(&error) => return help(&error),
        Err(error) => return error_output::report(&rejection::from_clap(&error, &words), json),
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
