//! Actions on jobs by filters: shown, confirmed, and never on another user's jobs by accident.
//!
//! ```text
//! --yes                        filters ─────────────────────────────► the daemon selects and acts
//! --dry-run                    filters, dry run ─► list
//! on a terminal                filters, dry run ─► list, question ──► filters, and the numbers that the user saw
//! ```

use std::io::{self, BufRead, IsTerminal as _, Write};
use std::process::ExitCode;

use divvy_api::client::{Act, Client};
use divvy_api::v1::{Job, JobQuery, JobsChange};
use jiff::Timestamp;

use super::wait::said;
use crate::args::{Cancel, Format};
use crate::ask::filters;
use crate::call::Outcome;
use crate::error_output::{Result, usage};
use crate::output::{self, Stop, print, say, view};
use crate::{error_output, render, text};

/// Jobs that the question names. Enough to see that a pattern takes more than was meant; a longer list hides the
/// question.
const SHOWN: usize = 10;

/// An action that filters select jobs for.
pub struct Action {
    /// `cancel`
    pub verb: &'static str,
    /// `cancelled`
    pub done: &'static str,
    pub act: Act,
    /// What the line about an array calls its other jobs.
    pub others: &'static str,
}

pub const CANCEL: Action = Action {
    verb: "cancel",
    done: "cancelled",
    act: Act::Cancel,
    others: "had already ended",
};
pub const HOLD: Action = Action {
    verb: "hold",
    done: "held",
    act: Act::Hold,
    others: "unchanged",
};
pub const RELEASE: Action = Action {
    verb: "release",
    done: "released",
    act: Act::Unhold,
    others: "unchanged",
};
pub const REQUEUE: Action = Action {
    verb: "requeue",
    done: "requeued",
    act: Act::Requeue,
    others: "unchanged",
};
pub const SUSPEND: Action = Action {
    verb: "suspend",
    done: "suspended",
    act: Act::Suspend,
    others: "unchanged",
};
pub const RESUME: Action = Action {
    verb: "resume",
    done: "resumed",
    act: Act::Resume,
    others: "unchanged",
};

/// Acts on the jobs that the filters select, once the user has agreed.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) without a terminal for the question, or for a wrong word. The
/// exit code is that of the first job that refused the action.
pub async fn act(client: &Client, args: &Cancel, action: &Action) -> Outcome {
    let query = query(args)?;
    let change = JobsChange::from(action.act);
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !can_ask && !args.select.yes && !args.select.dry_run {
        let why = format!(
            "divvy {} with filters asks before it acts, and here is no terminal",
            action.verb
        );
        return Err(usage(why, "add --yes, or list the jobs with --dry-run").into());
    }
    let only = if args.select.yes {
        None
    } else {
        match agreed(client, args, action, &query).await? {
            Some(numbers) => Some(numbers),
            None => return Ok(ExitCode::SUCCESS),
        }
    };
    let changed = client
        .change_jobs(&query, &JobsChange { only, ..change })
        .await?;
    if changed.jobs.is_empty() && changed.refused.is_empty() {
        say_no_jobs(args, action);
    }
    let json = args.output.is_some_and(Format::is_json);
    let mut outcome = ExitCode::SUCCESS;
    // Backwards, so that the exit code is that of the first that refused.
    for error in changed.refused.iter().rev() {
        outcome = error_output::report(error, json);
    }
    match args.output {
        Some(format) => print(render::list(&changed.jobs, format, view(), render::jobs)?)?,
        None => changed.jobs.iter().for_each(|job| output::say(&said(job))),
    }
    Ok(outcome)
}

/// The numbers of the jobs that the filters select, once the user has seen them and agreed; `None` where nothing is to
/// be changed.
async fn agreed(
    client: &Client,
    args: &Cancel,
    action: &Action,
    query: &JobQuery,
) -> std::result::Result<Option<Vec<String>>, Stop> {
    let change = JobsChange {
        dry_run: true,
        ..JobsChange::from(action.act)
    };
    let jobs = client.change_jobs(query, &change).await?.jobs;
    if jobs.is_empty() {
        say_no_jobs(args, action);
    }
    if args.select.dry_run {
        let format = args.output.unwrap_or(Format::Table);
        // The wide table has a row for each job.
        let table = match format {
            Format::Wide => render::jobs,
            _ => render::folded_jobs,
        };
        print(render::list(&jobs, format, view(), table)?)?;
        if !jobs.is_empty() {
            say(&format!("{} would be {}", counted(jobs.len()), action.done));
        }
        return Ok(None);
    }
    let (mut answers, mut questions) = (io::stdin().lock(), io::stderr());
    if jobs.len() > 1 && !agrees(&jobs, action.verb, &mut answers, &mut questions)? {
        say("nothing was changed");
        return Ok(None);
    }
    let numbers = jobs.into_iter().map(|job| job.id).collect::<Vec<_>>();
    Ok((!numbers.is_empty()).then_some(numbers))
}

fn say_no_jobs(args: &Cancel, action: &Action) {
    let words = filters::in_words(&args.select.filter());
    say(&format!("no jobs to {} match {words}", action.verb));
}

fn query(args: &Cancel) -> Result<JobQuery> {
    filters::query(&args.select.filter(), false, Timestamp::now())
}

fn counted(jobs: usize) -> String {
    match jobs {
        1 => "1 job".to_owned(),
        jobs => format!("{jobs} jobs"),
    }
}

/// Names the jobs and asks once. Anything but `y` and `yes` means no.
fn agrees(
    jobs: &[Job],
    verb: &str,
    answers: &mut impl BufRead,
    questions: &mut impl Write,
) -> std::result::Result<bool, Stop> {
    for job in jobs.iter().take(SHOWN) {
        let (id, name) = (job.reference(), text::clean(&job.name));
        let (state, user) = (text::state(job), text::clean(&job.user));
        writeln!(questions, "  #{id} {name} of {user}: {state}")?;
    }
    let more = jobs.len().saturating_sub(SHOWN);
    if more > 0 {
        writeln!(questions, "  and {more} more")?;
    }
    write!(questions, "{verb} these {}? [y/N] ", counted(jobs.len()))?;
    questions.flush()?;
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    let answer = answer.trim().to_lowercase();
    Ok(["y", "yes"].contains(&&*answer))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use divvy_api::v1::ErrorCode;

    use super::*;
    use crate::args::{Verb, parse};
    use crate::rejection::from_clap;

    /// The action and its arguments, as typed.
    fn typed(line: &str) -> Result<(Cancel, Action)> {
        let words: Vec<OsString> = format!("divvy {line}")
            .split(' ')
            .map(OsString::from)
            .collect();
        let cli = parse(&words).map_err(|error| from_clap(&error, &words))?;
        Ok(match cli.verb {
            Verb::Cancel(args) => (args, CANCEL),
            Verb::Hold(args) => (args, HOLD),
            Verb::Release(args) => (args, RELEASE),
            Verb::Requeue(args) => (args, REQUEUE),
            Verb::Suspend(args) => (args.jobs, SUSPEND),
            Verb::Resume(args) => (args, RESUME),
            verb => panic!("{verb:?}"),
        })
    }

    #[test]
    fn filters_select_the_callers_jobs_unless_a_user_is_named() {
        let me = rustix::process::getuid().as_raw().to_string();
        let of = |user: &str, state: Option<&str>| JobQuery {
            user: Some(user.to_owned()),
            state: state.map(str::to_owned),
            ..JobQuery::default()
        };
        let queue = |query: JobQuery| JobQuery {
            queue: Some("night".to_owned()),
            ..query
        };
        for (line, expected) in [
            ("cancel --me", of(&me, None)),
            ("cancel -q night", queue(of(&me, None))),
            ("cancel -u ana -q night", queue(of("ana", None))),
            ("cancel -u 1000 -s pending", of("1000", Some("queued"))),
            (
                "cancel -p vision",
                JobQuery {
                    project: Some("vision".into()),
                    ..of(&me, None)
                },
            ),
            (
                "cancel --name x*",
                JobQuery {
                    name: Some("x*".into()),
                    ..of(&me, None)
                },
            ),
            ("release -q night --yes", queue(of(&me, None))),
            ("requeue --me -s running", of(&me, Some("running"))),
            ("suspend --me --release-memory", of(&me, None)),
            ("resume -u ana --dry-run", of("ana", None)),
        ] {
            let (args, _) = typed(line).unwrap();
            assert_eq!(query(&args).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn names_and_filters_are_not_mixed_and_wrong_words_are_usage_errors() {
        for (line, named) in [
            ("cancel", "<JOB>"),
            ("cancel 3 --me", "cannot be used with"),
            ("cancel 3 -q night", "cannot be used with"),
            ("cancel 3 --yes", "cannot be used with"),
            ("cancel --yes", "<JOB>"),
            ("cancel --dry-run", "<JOB>"),
            ("cancel --me -u ana", "cannot be used with"),
            ("cancel --me --yes --dry-run", "cannot be used with"),
            ("cancel --me -s asleep", "asleep"),
            ("hold --name", "--name"),
        ] {
            let error = typed(line).and_then(|(args, _)| query(&args)).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{line}");
            assert!(error.message.contains(named), "{line}: {}", error.message);
            assert!(error.hint.is_some(), "{line}");
        }
    }
}
