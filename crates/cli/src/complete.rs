//! Shell completion: verbs and flags from the parser; jobs, queues, projects and GPUs from the running daemon.
//!
//! The script of `divvy completion` makes the shell call this program with the words so far. The program answers at
//! once: without a daemon, or with a slow one, it completes no names and prints no error.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::StyledStr;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Shells};
use divvy_api::client::Client;
use divvy_api::home::Home;
use divvy_api::v1::job_query::SORTS;
use divvy_api::v1::{Brief, JobState};
use divvy_core::Isolation;
use divvy_core::mig::ProfileTable;

use crate::ask::filters;
use crate::{args, text};

/// Set by the shell's script: which shell asks.
const VARIABLE: &str = "DIVVY_COMPLETE";

/// The user waits for the completion, so the time is short.
const PATIENCE: Duration = Duration::from_millis(500);

/// Jobs of each state that are offered, the newest. The daemon reads no more, however many it keeps. A shell asks
/// before it prints more (bash: `completion-query-items`, 100). A shell asks before it prints more than that (bash:
/// `completion-query-items`, 100).
const MOST: usize = 100;

/// Ended jobs that are offered, the newest. Half of the pending ones: a user names an ended job less often, and mostly
/// one of the last. Half as many as of the others: a user names an ended job less often, and then one of the last.
const MOST_ENDED: usize = 50;

/// Programs of the `PATH` that are offered. A prefix of two letters seldom leaves more, and a shell takes longer with
/// each.
const MOST_PROGRAMS: usize = 500;

/// Keys of the simulated models.
const MODELS: [&str; 9] = [
    "a100-40gb",
    "a100-80gb",
    "a30-24gb",
    "b200-180gb",
    "h100-80gb",
    "h200-141gb",
    "l4-24gb",
    "rtx4090-24gb",
    "rtxpro6000-96gb",
];

/// Values of `--compute`; the last two go on with a share.
const COMPUTE: [&str; 5] = ["fair", "strict", "none", "fair=", "strict="];

/// What `usage --by` groups by.
const GROUPS: [&str; 7] = ["day", "user", "project", "queue", "gpu", "job", "namespace"];

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
            ("why", "job") => waiting_first,
            ("move" | "hold" | "release" | "change", "job" | "jobs") => waiting_first,
            ("exec" | "attach" | "suspend" | "resume" | "park" | "wake", "job" | "jobs") => running,
            ("logs" | "oom" | "advise" | "requeue", "job" | "jobs") => running_and_ended,
            ("describe", "job") => all_jobs,
            (_, "after" | "after_ok") => all_jobs,
            (_, "in_job") => running,
            (_, "job" | "jobs") => living,
            ("run" | "submit" | "shell" | "move" | "ps", "queue") => queues,
            ("ps", "state") => || words(filters::states_and_ends()),
            ("ps", "sort") => || words(SORTS),
            ("slice enter" | "slice env", "name") | ("slice rm", "names") => slices,
            (_, "project") | ("admin project set" | "admin project rm", "name") => projects,
            ("admin gpu", "gpu") | ("selftest", "gpu") | (_, "gpus_on") => gpus,
            (_, "isolation") => || words(Isolation::ALL.map(|kind| kind.to_string())),
            (_, "compute") => || words(COMPUTE),
            (_, "mig_profile") => mig_profiles,
            (_, "sim") => || words(MODELS.map(|model| format!("{model}:1"))),
            ("usage", "by") => return arg.add(ArgValueCompleter::new(groups)),
            ("run" | "submit" | "exec" | "advise" | "slice enter", "command") => {
                return arg.add(ArgValueCompleter::new(CommandLine));
            }
            _ => return arg,
        };
        arg.add(ArgValueCandidates::new(candidates))
    })
}

/// Fixed values, in this order.
fn words(words: impl IntoIterator<Item: Into<OsString>>) -> Vec<CompletionCandidate> {
    let all = words.into_iter().enumerate();
    all.map(|(order, word)| CompletionCandidate::new(word).display_order(Some(order)))
        .collect()
}

/// The last item of a list with commas, without the items before it.
fn groups(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else {
        return Vec::new();
    };
    let (before, last) = typed
        .rfind(',')
        .map_or(("", typed), |comma| typed.split_at(comma + 1));
    let others: Vec<&str> = before.split(',').collect();
    let free = GROUPS.into_iter().filter(|word| !others.contains(word));
    free.filter(|word| word.starts_with(last))
        .map(|word| CompletionCandidate::new(format!("{before}{word}")))
        .collect()
}

/// MIG profiles of the known models, the smallest first.
fn mig_profiles() -> Vec<CompletionCandidate> {
    let mut names = Vec::new();
    for table in MODELS.into_iter().filter_map(ProfileTable::of_model) {
        let plain = table.plain().map(|profile| profile.name.to_string());
        names.extend(
            plain
                .filter(|name| !names.contains(name))
                .collect::<Vec<_>>(),
        );
    }
    let all = names.into_iter().enumerate();
    all.map(|(order, name)| CompletionCandidate::new(name).display_order(Some(order)))
        .collect()
}

/// A program and its arguments: the first word is a program, every other one a path.
struct CommandLine;

impl ValueCompleter for CommandLine {
    fn complete(&self, typed: &OsStr) -> Vec<CompletionCandidate> {
        PathCompleter::any().complete(typed)
    }

    fn complete_at(&self, place: usize, typed: &OsStr) -> Vec<CompletionCandidate> {
        let mut found = self.complete(typed);
        if place == 0 && !typed.as_encoded_bytes().contains(&b'/') {
            found.extend(programs(typed));
        }
        found
    }
}

/// Names of executable files in the folders of `PATH`, in alphabetical order.
fn programs(begin: &OsStr) -> Vec<CompletionCandidate> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter_map(|folder| fs::read_dir(folder).ok());
    let is_program = |entry: &fs::DirEntry| {
        // Of a link, the file that it leads to.
        fs::metadata(entry.path()).is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
    };
    let named = folders.flat_map(Iterator::flatten).filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes()
            .starts_with(begin.as_encoded_bytes())
    });
    let names: BTreeSet<OsString> = named
        .filter(is_program)
        .map(|entry| entry.file_name())
        .collect();
    let names = names.into_iter().take(MOST_PROGRAMS);
    names.map(CompletionCandidate::new).collect()
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
    /// Number of the job: a newer job has a higher one.
    number: u64,
    /// Reference of the job alone: `12_3` for a job of an array.
    id: String,
    /// Reference of its whole array.
    array: Option<String>,
    name: String,
    state: Cow<'static, str>,
}

impl From<Brief<'_>> for Known {
    fn from(job: Brief<'_>) -> Self {
        Self {
            state: text::state_of(&job),
            number: job.id.parse().unwrap_or_default(),
            id: job.reference().to_owned(),
            array: job
                .task
                .as_deref()
                .and_then(|task| Some(task.split_once('_')?.0.to_owned())),
            name: job.name.into_owned(),
        }
    }
}

/// The newest jobs in these states, those of the first state first, each state's newest first.
fn known(states: &[JobState]) -> Vec<Known> {
    let mut jobs = Vec::new();
    let asked = ask(async |client| {
        for state in states {
            let most = match state {
                JobState::Ended => MOST_ENDED,
                _ => MOST,
            };
            let from = jobs.len();
            let take = |job: Brief<'_>| jobs.push(Known::from(job));
            client.newest_briefly(*state, most, take).await?;
            jobs[from..].reverse();
        }
        Ok(())
    });
    // Some of them would look like all.
    asked.map_or_else(Vec::new, |()| jobs)
}

const RUNNING: [JobState; 3] = [JobState::Running, JobState::Starting, JobState::Stopping];

fn running() -> Vec<CompletionCandidate> {
    offered(&known(&RUNNING))
}

fn living() -> Vec<CompletionCandidate> {
    offered(&known(&[&RUNNING[..], &[JobState::Queued]].concat()))
}

fn waiting_first() -> Vec<CompletionCandidate> {
    offered(&known(&[&[JobState::Queued], &RUNNING[..]].concat()))
}

fn running_and_ended() -> Vec<CompletionCandidate> {
    offered(&known(&[&RUNNING[..], &[JobState::Ended]].concat()))
}

fn all_jobs() -> Vec<CompletionCandidate> {
    let others = [JobState::Queued, JobState::Ended];
    offered(&known(&[&RUNNING[..], &others].concat()))
}

/// By number, in this order; by name where only one has it; and `last`, the newest.
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
    let by_number = jobs.iter().map(|job| candidate(&job.id, about(job)));
    let named = jobs
        .iter()
        .filter(|job| is_plain(&job.name) && is_unique(&job.name));
    let by_name = named.map(|job| candidate(&job.name, format!("#{}, {}", job.id, job.state)));
    let newest = jobs.iter().max_by_key(|job| job.number);
    let last = newest.map(|job| candidate("last", about(job)));
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

fn slices() -> Vec<CompletionCandidate> {
    let claims = ask(async |client| client.claims().await).unwrap_or_default();
    let slices = claims
        .into_iter()
        .filter(|claim| claim.namespace.is_empty());
    slices
        .map(|claim| candidate(claim.uid, claim.owner))
        .collect()
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
        for shell in Shells::builtins().names() {
            let script = String::from_utf8(script(shell).unwrap()).unwrap();
            assert!(script.contains(VARIABLE), "{shell}: {script}");
            assert!(script.contains("divvy"), "{shell}");
        }
        let shells: Vec<&str> = Shells::builtins().names().collect();
        assert_eq!(shells, ["bash", "elvish", "fish", "powershell", "zsh"]);
        assert!(script("tcsh").unwrap().is_empty());
    }

    fn texts(candidates: Vec<CompletionCandidate>) -> Vec<String> {
        let values = candidates.iter().map(CompletionCandidate::get_value);
        values
            .map(|value| value.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn the_models_are_those_of_the_simulator() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/models");
        let files = fs::read_dir(folder).unwrap().flatten();
        let names = files.map(|file| file.path().file_stem().unwrap().to_owned());
        let names: BTreeSet<OsString> = names.collect();
        assert_eq!(names, BTreeSet::from(MODELS.map(OsString::from)));
        let profiles = texts(mig_profiles());
        for name in ["1g.5gb", "2g.10gb", "7g.80gb"] {
            assert!(
                profiles.iter().any(|profile| profile == name),
                "{profiles:?}"
            );
        }
    }

    #[test]
    fn a_list_of_groups_goes_on_after_a_comma() {
        let after = |typed: &str| texts(groups(OsStr::new(typed)));
        assert_eq!(after("").len(), 7);
        assert_eq!(after("d"), ["day"]);
        assert_eq!(after("us"), ["user"]);
        assert_eq!(
            after("user,"),
            [
                "user,day",
                "user,project",
                "user,queue",
                "user,gpu",
                "user,job",
                "user,namespace"
            ]
        );
        assert_eq!(after("user,project,g"), ["user,project,gpu"]);
    }

    #[test]
    fn a_program_is_completed_only_as_the_first_word() {
        let first = |typed: &str| texts(CommandLine.complete_at(0, OsStr::new(typed)));
        assert!(first("s").contains(&"sh".to_owned()));
        let later = texts(CommandLine.complete_at(1, OsStr::new("s")));
        assert!(!later.contains(&"sh".to_owned()), "{later:?}");
        assert!(first("./s").iter().all(|path| path.starts_with("./")));
        assert!(programs(OsStr::new("")).len() <= MOST_PROGRAMS);
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
                let completes = arg.get::<ArgValueCompleter>().is_some();
                assert!(asks || completes || !is_job, "{path}: {arg}");
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
