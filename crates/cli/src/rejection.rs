//! A command line that clap rejects, as an error of ours: its message, and a hint that knows other tools' verbs and flags.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use divvy_api::daemon::keys;
use divvy_api::v1::{Error, ErrorCode};
use divvy_core::docker;

use crate::args::{self, sbatch};
use crate::error_output::shortened;

/// What clap refused, in our form: its first paragraph, and its tips (or where to read on) as the hint. `words` are the
/// whole command line.
pub fn from_clap(error: &clap::Error, words: &[OsString]) -> Error {
    let text = error.render().to_string();
    let mut message = String::new();
    let mut tips: Vec<String> = Vec::new();
    let mut usage = String::new();
    let (mut in_message, mut is_dropped) = (true, false);
    for line in text.lines().map(str::trim) {
        if let Some(tip) = line.strip_prefix("tip: ") {
            tips.extend(useful(tip));
            is_dropped |= useful(tip).is_none();
            in_message = false;
        } else if let Some(line) = line.strip_prefix("Usage: ") {
            line.clone_into(&mut usage);
            in_message = false;
        } else if line.is_empty() {
            in_message &= message.is_empty();
        } else if in_message {
            message.push_str(if message.is_empty() { "" } else { " " });
            message.push_str(line.strip_prefix("error: ").unwrap_or(line));
        }
    }
    let takes_jobs = words
        .get(1)
        .is_some_and(|verb| verb == "submit" || verb == "run");
    if let Some(hint) = of_other_flags(error, takes_jobs) {
        return Error::new(ErrorCode::Usage, shortened(&message)).hint(hint);
    }
    if let Some(refusal) = of_former(error).filter(|_| words.iter().any(|word| word == "daemon")) {
        return refusal;
    }
    if let Some(hint) = of_other_tools(error) {
        return Error::new(ErrorCode::Usage, shortened(&message)).hint(hint);
    }
    if let Some(hint) = of_docker(error, words) {
        return Error::new(ErrorCode::Usage, shortened(&message)).hint(hint);
    }
    let hint = match (tips.is_empty(), usage.is_empty() || is_dropped) {
        (false, _) => tips.join("; "),
        (true, false) => format!("usage: {usage}"),
        (true, true) => match words.get(1).filter(|verb| is_verb(verb)) {
            Some(verb) => format!("see `divvy {} --help`", verb.display()),
            None => "see `divvy --help`".to_owned(),
        },
    };
    Error::new(ErrorCode::Usage, shortened(&message)).hint(hint)
}

/// Verbs of Slurm, Docker, git and monitors, and ours for them.
const OTHER_TOOLS: [(&[&str], &str); 12] = [
    (
        &["kill", "rm", "delete", "stop", "scancel", "abort", "qdel"],
        "cancel",
    ),
    (&["squeue", "list", "ls", "jobs", "qstat"], "ps"),
    (&["sbatch", "qsub", "add", "enqueue"], "submit"),
    (&["srun", "start", "execute"], "run"),
    (&["salloc", "bash", "login"], "shell"),
    (&["status", "sinfo", "nvidia-smi", "smi", "nodes"], "gpus"),
    (&["sacct", "history"], "ps -a"),
    (&["log", "tail", "output"], "logs"),
    (&["show", "scontrol", "inspect", "job"], "describe"),
    (&["htop", "nvitop", "watch", "monitor"], "top"),
    (&["info", "check", "diagnose"], "doctor"),
    (&["version"], "--version"),
];

/// The verb for one of another tool.
fn of_other_tools(error: &clap::Error) -> Option<String> {
    let named = error.get(ContextKind::InvalidSubcommand)?;
    let (ErrorKind::InvalidSubcommand, ContextValue::String(verb)) = (error.kind(), named) else {
        return None;
    };
    let mut tools = OTHER_TOOLS.iter();
    let (_, ours) = tools.find(|(verbs, _)| verbs.contains(&verb.as_str()))?;
    Some(format!("use `divvy {ours}`"))
}

/// The flag of Divvy for a flag of tools that print JSON, and of Slurm where the verb takes jobs.
fn of_other_flags(error: &clap::Error, takes_jobs: bool) -> Option<&'static str> {
    let named = error.get(ContextKind::InvalidArg)?;
    let (ErrorKind::UnknownArgument, ContextValue::String(flag)) = (error.kind(), named) else {
        return None;
    };
    match flag.as_str() {
        "--json" | "--format" => Some("JSON is `-o json`"),
        flag => sbatch::instead_of(flag.strip_prefix("--").filter(|_| takes_jobs)?),
    }
}

/// The key for a flag of `daemon` in former versions.
fn of_former(error: &clap::Error) -> Option<Error> {
    let named = error.get(ContextKind::InvalidArg)?;
    let (ErrorKind::UnknownArgument, ContextValue::String(flag)) = (error.kind(), named) else {
        return None;
    };
    let key = keys::of_former(flag.strip_prefix("--")?)?;
    let message = format!("{flag} is the key {} of the file", key.name);
    let hint = format!(
        "say --set {}=VALUE; a value: {}",
        key.name,
        key.form.replace('`', "")
    );
    Some(Error::new(ErrorCode::Usage, message).hint(hint))
}

/// How `daemon --docker` takes a flag of `docker run`, where that is the flag that it does not know.
fn of_docker(error: &clap::Error, words: &[OsString]) -> Option<&'static str> {
    let named = error.get(ContextKind::InvalidArg)?;
    let (ErrorKind::UnknownArgument, ContextValue::String(flag)) = (error.kind(), named) else {
        return None;
    };
    let flag = flag.split([' ', '=']).next().unwrap_or_default();
    let is_daemon = words.iter().any(|word| word == "daemon");
    let at = words
        .iter()
        .position(|word| word == "--docker" || word == "--podman")?;
    let is_behind = words[at..]
        .iter()
        .any(|word| word.to_string_lossy().starts_with(flag));
    (is_daemon && is_behind && is_of_docker(flag))
        .then_some("quote the image with its flags: --docker 'IMAGE -v /data:/data'")
}

/// Whether `docker run` has the flag, as far as Divvy's table knows it.
fn is_of_docker(flag: &str) -> bool {
    let line = [flag, "value", "image"].map(str::to_owned);
    docker::parse_command_line(&line, &[]).is_ok()
}

/// A tip of clap's without verbs that are hidden; nothing where none is left, and for the advice to pass a flag that does not exist as
/// a value.
fn useful(tip: &str) -> Option<String> {
    if tip.starts_with("to pass '") {
        return None;
    }
    let Some((before, names)) = tip
        .split_once("subcommand")
        .filter(|_| tip.contains("similar"))
    else {
        return Some(tip.to_owned());
    };
    let (middle, names) = names.split_once(": ")?;
    let shown: Vec<&str> = (names.split(", "))
        .filter(|name| !is_hidden(name.trim_matches('\'')))
        .collect();
    if shown.is_empty() {
        None
    } else {
        Some(format!("{before}subcommand{middle}: {}", shown.join(", ")))
    }
}

fn is_hidden(verb: &str) -> bool {
    let command = args::command();
    let hidden = command.find_subcommand(verb);
    hidden.is_some_and(clap::Command::is_hide_set)
}

fn is_verb(word: &OsString) -> bool {
    args::command().find_subcommand(word).is_some()
}

/// Whether clap answers with help or the version, asked for or in place of a missing verb.
pub fn is_help(error: &clap::Error) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(
        error.kind(),
        DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_clap_becomes_a_message_and_a_hint() {
        let refused = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            from_clap(&crate::args::parse(&words).unwrap_err(), &words)
        };
        let error = refused(&["divvy", "pss"]);
        assert_eq!(error.message, "unrecognized subcommand 'pss'");
        assert!(error.hint.unwrap().contains("'ps'"));
        let hint = refused(&["divvy", "supervis"]).hint.unwrap_or_default();
        assert!(!hint.contains("supervise"), "{hint}");
        let verbs = args::command();
        for (others, ours) in OTHER_TOOLS {
            for other in others {
                assert!(verbs.find_subcommand(other).is_none(), "{other} is a verb");
                let error = refused(&["divvy", other]);
                assert_eq!(error.hint.unwrap(), format!("use `divvy {ours}`"));
            }
            let verb = ours.split(' ').next().unwrap();
            assert!(verb.starts_with('-') || verbs.find_subcommand(verb).is_some());
        }
        for (words, hint) in [
            (
                &["divvy", "submit", "--mail-type", "x"][..],
                "Divvy sends no mail; use --notify CMD to run a command when the job has ended",
            ),
            (
                &["divvy", "submit", "--partition", "gpu"],
                "Divvy has queues instead of partitions; use -q QUEUE",
            ),
            (&["divvy", "ps", "--json"], "JSON is `-o json`"),
            (&["divvy", "gpus", "--format=json"], "JSON is `-o json`"),
            (
                &["divvy", "cancel", "--everything"],
                "see `divvy cancel --help`",
            ),
        ] {
            assert_eq!(refused(words).hint.as_deref(), Some(hint), "{words:?}");
        }
        let long = "é".repeat(100_000);
        let error = refused(&["divvy", "ps", "-o", &long]);
        let ends = (
            error.message.starts_with("invalid value 'é"),
            error.message.ends_with(']'),
        );
        assert_eq!((ends, error.message.chars().count()), ((true, true), 603));
        let error = refused(&["divvy", "ps", "-o", "xml"]);
        assert!(
            error
                .message
                .starts_with("invalid value 'xml' for '--output <FORMAT>'"),
            "{}",
            error.message
        );
        assert!(error.message.contains("ndjson"), "{}", error.message);
        let error = refused(&["divvy", "submit", "-o", "csv", "--", "true"]);
        let both = "--output csv: neither a format (table, wide, json, ndjson, name) nor a file,";
        assert!(error.message.starts_with(both), "{}", error.message);
        assert_eq!(error.hint.as_deref(), Some("for a file write `-o ./csv`"));
        let error = refused(&["divvy", "wait"]);
        assert!(error.message.contains("<JOB>"), "{}", error.message);
        assert!(error.hint.unwrap().starts_with("usage: divvy wait"));
    }
}
