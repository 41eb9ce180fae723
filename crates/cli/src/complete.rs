//! Shell completion: verbs and flags from the parser; jobs, queues, projects and GPUs from the running daemon.
//!
//! The script of `divvy completion` makes the shell call this program with the words so far. The program answers at
//! once: without a daemon, or with a slow one, it completes no names and prints no error.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::StyledStr;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use divvy_api::client::Client;
use divvy_api::home::Home;
use divvy_api::v1::{Brief, JobState};

use crate::{args, text};

/// Set by the shell's script: which shell asks.
const VARIABLE: &str = "DIVVY_COMPLETE";

/// The user waits for the completion, so the time is short.
const PATIENCE: Duration = Duration::from_millis(500);

/// Ended jobs that are offered, the newest.
const ENDED: usize = 50;

/// Answers a shell that asks for completions; `None` where none does.
pub fn answer_shell(words: &[OsString]) -> Option<ExitCode> {
    let folder = std::env::current_dir().ok();
    let answered = CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .try_complete(words.iter().cloned(), folder.as_deref());
    match answered {
        Ok(false) => None,
        Ok(true) => Some(ExitCode::SUCCESS),
        // A shell that is not known, or that has gone.
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// The script for a shell.
///
/// # Errors
/// None that a buffer in memory has.
pub fn script(shell: &str) -> std::io::Result<Vec<u8>> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    if let Some(shell) = shells.completer(shell) {
        shell.write_registration(VARIABLE, "divvy", "divvy", "divvy", &mut script)?;
    }
    Ok(script)
}

/// The shells that there are scripts for.
pub fn shells() -> Vec<&'static str> {
    Shells::builtins().names().collect()
}

/// The parser, with what stands for what.
fn command() -> clap::Command {
    taught(args::command(), "")
}

fn taught(command: clap::Command, above: &str) -> clap::Command {
    let verb = format!("{above} {}", command.get_name());
    let verb = verb.trim().trim_start_matches("divvy").trim().to_owned();
    let command = command.mut_subcommands(|below| taught(below, &verb));
    command.mut_args(|arg| {
        let candidates: fn() -> Vec<CompletionCandidate> = match (&*verb, arg.get_id().as_str()) {
            ("describe" | "logs" | "why" | "oom" | "advise" | "requeue", "job" | "jobs") => {
                all_jobs
            }
            (_, "job" | "jobs" | "in_job" | "after" | "after_ok") => jobs,
            ("run" | "submit" | "shell" | "move", "queue") => queues,
            (_, "project") | ("admin project set" | "admin project rm", "name") => projects,
            ("admin gpu", "gpu") | ("selftest", "gpu") | (_, "gpus_on") => gpus,
            _ => return arg,
        };
        arg.add(ArgValueCandidates::new(candidates))
    })
}

/// Asks the daemon, if one answers soon.
fn ask<T>(question: impl AsyncFnOnce(&Client) -> Result<T, divvy_api::v1::Error>) -> Option<T> {
    let client = Client::new(Home::to_call().ok()?.socket());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    let asked = async { tokio::time::timeout(PATIENCE, question(&client)).await };
    runtime.block_on(asked).ok()?.ok()
}

fn candidate(value: impl Into<OsString>, about: String) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(StyledStr::from(text::clean(&about))))
}

/// Completions for a job.
struct Known {
    /// Reference of the job alone: `12_3` for a job of an array.
    id: String,
    /// Reference of its whole array.
    array: Option<String>,
    name: String,
    state: Cow<'static, str>,
    has_ended: bool,
}

impl From<Brief<'_>> for Known {
    fn from(job: Brief<'_>) -> Self {
        Self {
            state: text::state_of(&job),
            has_ended: job.state == JobState::Ended,
            id: job.reference().to_owned(),
            array: job
                .task
                .as_deref()
                .and_then(|task| Some(task.split_once('_')?.0.to_owned())),
            name: job.name.into_owned(),
        }
    }
}

fn known(all: bool) -> Vec<Known> {
    let mut jobs = Vec::new();
    let asked = ask(async |client| client.jobs_briefly(all, |job| jobs.push(job.into())).await);
    // Some of them would look like all.
    asked.map_or_else(Vec::new, |()| jobs)
}

fn jobs() -> Vec<CompletionCandidate> {
    offered(&known(false))
}

fn all_jobs() -> Vec<CompletionCandidate> {
    let mut jobs = known(true);
    let ended = jobs.iter().filter(|job| job.has_ended).count();
    let mut old = ended.saturating_sub(ENDED);
    jobs.retain(|job| {
        let is_old = job.has_ended && old > 0;
        old -= usize::from(is_old);
        !is_old
    });
    offered(&jobs)
}

/// By number, the newest first; by name where only one has it; and `last`.
fn offered(jobs: &[Known]) -> Vec<CompletionCandidate> {
    let about = |job: &Known| format!("{}, {}", job.name, job.state);
    let is_plain = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        name.bytes().all(plain) && !name.starts_with('-') && name.parse::<u64>().is_err()
    };
    let mut often: HashMap<&str, usize> = HashMap::new();
    for job in jobs {
        *often.entry(&job.name).or_default() += 1;
    }
    let is_unique = |name: &str| often.get(name) == Some(&1);
    let by_number = jobs.iter().rev().map(|job| candidate(&job.id, about(job)));
    let named = jobs
        .iter()
        .rev()
        .filter(|job| is_plain(&job.name) && is_unique(&job.name));
    let by_name = named.map(|job| candidate(&job.name, format!("#{}, {}", job.id, job.state)));
    let last = jobs.last().map(|job| candidate("last", about(job)));
    let arrays: BTreeMap<&str, &Known> = (jobs.iter().rev())
        .filter_map(|job| Some((job.array.as_deref()?, job)))
        .collect();
    let arrays = arrays.into_iter();
    let arrays = arrays.map(|(array, job)| candidate(array, format!("array of {}", job.name)));
    let all = arrays
        .chain(by_number)
        .chain(by_name)
        .chain(last)
        .enumerate();
    all.map(|(order, one)| one.display_order(Some(order)))
        .collect()
}

fn queues() -> Vec<CompletionCandidate> {
    let queues = ask(async |client| client.queues().await).unwrap_or_default();
    let all = queues.into_iter().map(|queue| {
        let about = format!("{} pending, {} running", queue.waiting, queue.running);
        candidate(queue.name, about)
    });
    all.collect()
}

fn projects() -> Vec<CompletionCandidate> {
    let projects = ask(async |client| client.projects().await).unwrap_or_default();
    let all = projects.into_iter();
    all.map(|project| CompletionCandidate::new(project.name))
        .collect()
}

fn gpus() -> Vec<CompletionCandidate> {
    let gpus = ask(async |client| client.gpus().await).unwrap_or_default();
    let all = gpus.into_iter();
    all.map(|gpu| candidate(gpu.index.to_string(), gpu.model))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_asks_this_program() {
        for shell in shells() {
            let script = String::from_utf8(script(shell).unwrap()).unwrap();
            assert!(script.contains(VARIABLE), "{shell}: {script}");
            assert!(script.contains("divvy"), "{shell}");
        }
        assert_eq!(shells(), ["bash", "elvish", "fish", "powershell", "zsh"]);
        assert!(script("tcsh").unwrap().is_empty());
    }

    #[test]
    fn what_stands_for_a_job_is_asked_of_the_daemon() {
        fn check_args(command: &clap::Command, path: &str, known: &mut usize) {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let is_job = arg.get_help().is_some_and(|help| {
                    let help = help.to_string();
                    help.contains("unique name") && !help.contains("to test")
                });
                let asks = arg.get::<ArgValueCandidates>().is_some();
                assert!(asks || !is_job, "{path}: {arg}");
                *known += usize::from(asks);
            }
            for verb in command.get_subcommands() {
                check_args(verb, &format!("{path} {}", verb.get_name()), known);
            }
        }
        let mut known = 0;
        check_args(&command(), "divvy", &mut known);
        assert!(known > 20, "{known}");
    }
}
