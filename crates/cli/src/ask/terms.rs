//! Conversion of the flags for priority, time limits, dependencies and variables into the submission.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_api::daemon::parse_duration;
use divvy_api::v1::{After, Array, Idle, IdleAction, Submit};

use crate::args::{IdleWord, TermArgs};
use crate::error_output::{Result, usage};

/// An array has fewer; the daemon says how many.
const MOST_INDICES: u32 = 100_000;

/// Adds what these words say.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) with the word that is wrong and what would be right.
pub fn add(args: &TermArgs, submit: &mut Submit) -> Result<()> {
    if let Some(text) = &args.priority {
        submit.priority = priority(text)?;
    }
    submit.time_limit_s = args
        .time
        .as_deref()
        .map(|text| seconds("--time", text))
        .transpose()?;
    submit.idle = match &args.park_after {
        Some(text) => Some(Idle {
            after_s: seconds("--park-after", text)?,
            action: IdleAction::Park,
        }),
        None => idle(args.idle_timeout.as_deref(), args.idle_action)?,
    };
    let after = |ok| {
        move |job: &String| After {
            job: job.trim_start_matches('#').to_owned(),
            ok,
        }
    };
    submit.after = args.after.iter().map(after(false)).collect();
    submit.after.extend(args.after_ok.iter().map(after(true)));
    for file in &args.env_file {
        submit.env.extend(from_file(file)?);
    }
    for word in &args.env {
        let (name, value) = variable("--env", word)?;
        submit.env.insert(name, value);
    }
    for word in &args.secret {
        let (name, value) = variable("--secret", word)?;
        submit.env.remove(&name);
        submit.secrets.insert(name, value);
    }
    Ok(())
}

/// Parses `--priority`.
///
/// # Errors
/// As [`add`].
pub fn priority(text: &str) -> Result<i32> {
    text.parse().map_err(|_| {
        usage(
            format!("--priority {text}: not a whole number"),
            "use a number from -1000 to 1000",
        )
    })
}

/// Parses `--idle-timeout` and `--idle-action`.
///
/// # Errors
/// As [`add`].
pub fn idle(timeout: Option<&str>, action: Option<IdleWord>) -> Result<Option<Idle>> {
    let Some(text) = timeout else { return Ok(None) };
    let after_s = match text {
        "none" => 0,
        text => seconds("--idle-timeout", text)?,
    };
    let action = action.unwrap_or(IdleWord::Notify).into();
    Ok(Some(Idle { after_s, action }))
}

/// A length of time of at least a second, in whole ones.
///
/// # Errors
/// As [`add`].
pub fn seconds(flag: &str, text: &str) -> Result<u64> {
    let length = parse_duration(text).filter(|length| length.subsec_nanos() == 0);
    length.map(|length| length.as_secs()).ok_or_else(|| {
        usage(
            format!("{flag} {text}: not a duration in whole seconds"),
            "use 90s, 30m, 2h or 1h30m",
        )
    })
}

/// `0-9`, `1,3,5-7`, `0-99%4`.
///
/// # Errors
/// As [`add`].
pub fn array(text: &str) -> Result<Array> {
    let wrong = || {
        usage(
            format!("--array {text}: not a list of indices"),
            "use 0-9, 1,3,5-7, or 0-99%4 for at most four at once",
        )
    };
    let (list, most) = match text.split_once('%') {
        Some((list, most)) => (list, Some(most.parse().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let mut indices = Vec::new();
    for part in list.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let read = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (from, to) = (read(from)?, read(to)?);
        if from > to {
            return Err(usage(
                format!("--array {text}: the range {part} is empty"),
                format!("write the smaller index first, as in {to}-{from}"),
            ));
        }
        // Do not expand more indices than any daemon accepts.
        if to - from > MOST_INDICES {
            return Err(usage(
                format!(
                    "--array {text}: {part} are more than {MOST_INDICES} indices, which is the limit"
                ),
                "submit several arrays, or let each job do more",
            ));
        }
        indices.extend(from..=to);
    }
    Ok(Array {
        indices,
        max_running: most,
    })
}

/// `NAME=VALUE`, or the value that this process has.
fn variable(flag: &str, word: &str) -> Result<(String, String)> {
    // The value may be a secret, and is not repeated.
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (word, None),
    };
    if name.is_empty() {
        return Err(usage(
            format!("{flag}: the name of the variable is empty"),
            "use NAME=VALUE, or NAME to pass on this shell's value",
        ));
    }
    let own = || {
        std::env::var(name).map_err(|_| {
            usage(
                format!("{flag} {name}: this shell has no such variable"),
                format!("export it, or use {name}=VALUE"),
            )
        })
    };
    Ok((name.to_owned(), value.map_or_else(own, Ok)?))
}

/// Lines `NAME=VALUE` as docker reads them: blank lines and those that begin with `#` are left out, quotes are part of
/// the value, a name alone passes on this shell's.
fn from_file(path: &Path) -> Result<BTreeMap<String, String>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        usage(
            format!("--env-file {shown} cannot be read: {error}"),
            "use a text file with lines NAME=VALUE",
        )
    })?;
    let lines = text.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| variable(&format!("--env-file {shown}:"), line))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_api::v1::Runner;

    fn empty() -> Submit {
        let body = r#"{"command":["x"],"cwd":"/","env":{"A":"old","TOKEN":"seen","KEPT":"1"}}"#;
        let submit: Submit = serde_json::from_str(body).unwrap();
        assert_eq!(submit.runner, Runner::Supervisor);
        submit
    }

    fn to_strings(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn variables_come_from_words_files_and_the_shell_and_secrets_leave_the_environment() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "# a comment\n\nA=file\nB=\"quoted\" = kept\nPATH\n",
        )
        .unwrap();
        let args = TermArgs {
            env: to_strings(&["A=word", "EMPTY="]),
            env_file: vec![file.path().to_owned()],
            secret: to_strings(&["TOKEN=a=b", "HOME"]),
            ..TermArgs::default()
        };
        let mut submit = empty();
        add(&args, &mut submit).unwrap();
        let path = std::env::var("PATH").unwrap();
        let expected = [
            ("A", "word"),
            ("B", "\"quoted\" = kept"),
            ("EMPTY", ""),
            ("KEPT", "1"),
            ("PATH", &path),
        ];
        let env = submit
            .env
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        assert_eq!(env.collect::<Vec<_>>(), expected);
        assert_eq!(submit.secrets["TOKEN"], "a=b");
        assert_eq!(submit.secrets["HOME"], std::env::var("HOME").unwrap());
    }

    #[test]
    fn arrays_are_lists_and_ranges_with_a_number_at_once() {
        let read = |text: &str| array(text).map(|array| (array.indices, array.max_running));
        assert_eq!(read("0-3%2").unwrap(), (vec![0, 1, 2, 3], Some(2)));
        assert_eq!(read("7,1,3-4").unwrap(), (vec![7, 1, 3, 4], None));
        for text in [
            "",
            "a",
            "3-1",
            "1-",
            "0-3%",
            "0-3%x",
            "1,,2",
            "0-4294967295",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_priorities_and_other_jobs_are_read() {
        let args = TermArgs {
            priority: Some("-5".into()),
            time: Some("1h30m".into()),
            after: to_strings(&["#3"]),
            after_ok: to_strings(&["train", "last"]),
            ..TermArgs::default()
        };
        let mut submit = empty();
        add(&args, &mut submit).unwrap();
        assert_eq!((submit.priority, submit.time_limit_s), (-5, Some(5400)));
        let after = |job: &str, ok| After {
            job: job.into(),
            ok,
        };
        assert_eq!(
            submit.after,
            [after("3", false), after("train", true), after("last", true)]
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_flag_and_never_with_a_secret() {
        let refused = |args: TermArgs| add(&args, &mut empty()).unwrap_err();
        let cases = [
            (
                TermArgs {
                    priority: Some("high".into()),
                    ..TermArgs::default()
                },
                "--priority high",
            ),
            (
                TermArgs {
                    time: Some("2".into()),
                    ..TermArgs::default()
                },
                "--time 2",
            ),
            (
                TermArgs {
                    time: Some("1.5s".into()),
                    ..TermArgs::default()
                },
                "--time 1.5s",
            ),
            (
                TermArgs {
                    env: to_strings(&["=x"]),
                    ..TermArgs::default()
                },
                "--env: the name of the variable is empty",
            ),
            (
                TermArgs {
                    env: to_strings(&["NO_SUCH_VARIABLE"]),
                    ..TermArgs::default()
                },
                "NO_SUCH_VARIABLE",
            ),
            (
                TermArgs {
                    env_file: vec!["/no/such/file".into()],
                    ..TermArgs::default()
                },
                "/no/such/file",
            ),
            (
                TermArgs {
                    secret: to_strings(&["=hunter2"]),
                    ..TermArgs::default()
                },
                "--secret: the name of the variable is empty",
            ),
        ];
        for (args, named) in cases {
            let error = refused(args);
            assert!(error.message.contains(named), "{}", error.message);
            assert!(!format!("{error:?}").contains("hunter2"));
            assert!(error.hint.is_some());
        }
    }
}
