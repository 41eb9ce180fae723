//! Selection of jobs by filters, for `cancel` and the other actions: shown, confirmed, and never another user's by
//! accident.

use std::io::{self, BufRead, IsTerminal as _, Write};

use divvy_api::client::Client;
use divvy_api::v1::{Job, JobQuery, JobState};
use jiff::Timestamp;

use crate::args::{Cancel, Format};
use crate::ask::filters;
use crate::error_output::{Result, usage};
use crate::output::{Stop, print, say, view};
use crate::{render, text};

/// Jobs that the question names.
const SHOWN: usize = 10;

/// An action, and the jobs to which it applies unless `--state` names others.
pub struct Action {
    /// `cancel`
    pub verb: &'static str,
    /// `cancelled`
    pub done: &'static str,
    /// States, as the API names them; `None`: all jobs that have not ended.
    pub states: Option<&'static str>,
    pub applies: fn(&Job) -> bool,
}

pub const CANCEL: Action = Action {
    verb: "cancel",
    done: "cancelled",
    states: None,
    applies: |_| true,
};
pub const HOLD: Action = Action {
    verb: "hold",
    done: "held",
    states: Some("queued"),
    applies: |job| job.hold.is_none(),
};
pub const RELEASE: Action = Action {
    verb: "release",
    done: "released",
    states: Some("queued"),
    applies: |job| job.hold.is_some(),
};
pub const REQUEUE: Action = Action {
    verb: "requeue",
    done: "requeued",
    states: Some("starting,running"),
    applies: |_| true,
};
pub const SUSPEND: Action = Action {
    verb: "suspend",
    done: "suspended",
    states: Some("running"),
    applies: |job| !job.suspended,
};
pub const RESUME: Action = Action {
    verb: "resume",
    done: "resumed",
    states: Some("running"),
    applies: |job| job.suspended,
};

/// The references of the jobs to act on: the named ones, or those that match the filters once the user has agreed.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) without a terminal for the question, or for a wrong word.
pub async fn selected(
    client: &Client,
    args: &Cancel,
    action: &Action,
) -> std::result::Result<Vec<String>, Stop> {
    if !args.jobs.is_empty() {
        return Ok(args.jobs.clone());
    }
    let query = query(args, action)?;
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !can_ask && !args.select.yes && !args.select.dry_run {
        let why = format!(
            "divvy {} with filters asks before it acts, and here is no terminal",
            action.verb
        );
        return Err(usage(why, "add --yes, or list the jobs with --dry-run").into());
    }
    let mut jobs = client.job_page(&query).await?.jobs;
    // A job in another state that the user asked for is refused by the daemon, as if it were named.
    if args.select.state.is_none() {
        jobs.retain(action.applies);
    }
    // Ended jobs stay as they are.
    jobs.retain(|job| job.state != JobState::Ended);
    if jobs.is_empty() {
        let mut words = filters::in_words(&args.select.filter());
        if let (None, Some(states)) = (&args.select.state, action.states) {
            words.push_str(&format!(" --state {states}"));
        }
        say(&format!("no jobs to {} match {words}", action.verb));
    }
    if args.select.dry_run {
        let format = args.output.unwrap_or(Format::Table);
        print(render::list(&jobs, format, view(), render::jobs)?)?;
        if !jobs.is_empty() {
            say(&format!("{} would be {}", counted(jobs.len()), action.done));
        }
        return Ok(Vec::new());
    }
    let must_ask = jobs.len() > 1 && !args.select.yes;
    if must_ask
        && !agrees(
            &jobs,
            action.verb,
            &mut io::stdin().lock(),
            &mut io::stderr(),
        )?
    {
        say("nothing was changed");
        return Ok(Vec::new());
    }
    Ok(jobs.iter().map(Job::reference).collect())
}

fn query(args: &Cancel, action: &Action) -> Result<JobQuery> {
    let query = filters::query(&args.select.filter(), false, Timestamp::now())?;
    Ok(JobQuery {
        state: query.state.or_else(|| action.states.map(str::to_owned)),
        ..query
    })
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
    use crate::error_output::from_clap;

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
    fn each_verb_selects_the_callers_jobs_in_the_states_that_it_can_change() {
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
            ("hold --me", of(&me, Some("queued"))),
            ("release -q night --yes", queue(of(&me, Some("queued")))),
            ("requeue --me -s running", of(&me, Some("running"))),
            ("requeue --me", of(&me, Some("starting,running"))),
            ("suspend --me --release-memory", of(&me, Some("running"))),
            ("resume -u ana --dry-run", of("ana", Some("running"))),
        ] {
            let (args, action) = typed(line).unwrap();
            assert_eq!(query(&args, &action).unwrap(), expected, "{line}");
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
            let error = typed(line)
                .and_then(|(args, action)| query(&args, &action))
                .unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{line}");
            assert!(error.message.contains(named), "{line}: {}", error.message);
            assert!(error.hint.is_some(), "{line}");
        }
    }
}
