//! `move` and `change`: the queue, place and request of pending jobs.

use divvy_api::v1::JobChange;

use super::wait::{act_on_each, change_each};
use crate::args::{AmountArgs, Cancel, Change, Move};
use crate::ask;
use crate::ask::terms;
use crate::call::{Outcome, client};
use crate::error_output::{Result, usage};
use crate::text;

pub async fn move_jobs(args: Move) -> Outcome {
    let change = moved(&args)?;
    apply(args.jobs, args.output, change).await
}

pub async fn change(args: Change) -> Outcome {
    let change = changed(&args)?;
    apply(args.jobs, args.output, change).await
}

async fn apply(
    jobs: Vec<String>,
    output: Option<crate::args::Format>,
    change: JobChange,
) -> Outcome {
    let client = client()?;
    let jobs = Cancel {
        jobs,
        output,
        ..Cancel::default()
    };
    let act = async |name: &str| client.change(name, &change).await;
    match in_words(&change) {
        words if words.is_empty() => act_on_each(jobs, act).await,
        words => change_each(jobs, &words, act).await,
    }
}

/// What a job has after this change: `priority 50, time limit 2h`. Its state shows queue and place.
fn in_words(change: &JobChange) -> String {
    let amount = change.amount.as_ref().map(|amount| {
        let amount = text::amount_in_words(amount);
        format!("a request of {amount}")
    });
    let priority = change
        .priority
        .map(|priority| format!("priority {priority}"));
    let time = change.time_limit_s.map(|seconds| match seconds {
        0 => "no time limit".to_owned(),
        seconds => format!("time limit {}", text::seconds(seconds)),
    });
    let name = change.name.as_deref();
    let name = name.map(|name| format!("the name {}", text::clean(name)));
    let words = [amount, priority, time, name].into_iter().flatten();
    words.collect::<Vec<_>>().join(", ")
}

/// Returns the change that the flags of `move` describe.
fn moved(args: &Move) -> Result<JobChange> {
    Ok(JobChange {
        queue: args.queue.clone(),
        top: args.top,
        amount: amount(&args.amount)?,
        ..JobChange::default()
    })
}

/// Returns the change that the flags of `change` describe.
fn changed(args: &Change) -> Result<JobChange> {
    let time_limit_s = match args.time.as_deref() {
        Some("none") => Some(0),
        Some(text) => match terms::seconds("--time", text)? {
            0 => {
                let why = format!("--time {text}: the time limit must be above 0");
                return Err(usage(why, "use 30m, 2h, or none for no limit"));
            }
            seconds => Some(seconds),
        },
        None => None,
    };
    let change = JobChange {
        amount: amount(&args.amount)?,
        priority: args.priority.as_deref().map(terms::priority).transpose()?,
        time_limit_s,
        name: args.name.clone(),
        ..JobChange::default()
    };
    if change == JobChange::default() {
        return Err(usage(
            "no change given",
            "add --priority 5, --time 2h, -g 0.5, --gpu-memory 12G, --mig-profile 2g.10gb or --name NAME",
        ));
    }
    Ok(change)
}

fn amount(args: &AmountArgs) -> Result<Option<divvy_api::v1::Amount>> {
    let amount = match args.mig_profile.as_deref() {
        Some(profile) => Some(ask::mig_profile(profile)?),
        None => ask::amount(args.gpu.as_deref(), args.gpu_memory.as_deref())?,
    };
    Ok(amount.map(Into::into))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use divvy_api::v1::{Amount, ErrorCode};

    use super::*;
    use crate::args::{Verb, parse};
    use crate::rejection::from_clap;

    /// What `divvy` and these words ask for.
    fn parse_change(line: &str) -> Result<JobChange> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        match parse(&words)
            .map_err(|error| from_clap(&error, &words))?
            .verb
        {
            Verb::Move(args) => moved(&args),
            Verb::Change(args) => changed(&args),
            verb => panic!("another verb: {verb:?}"),
        }
    }

    #[test]
    fn a_change_says_what_changed() {
        for (line, words) in [
            ("change 7 --priority 50", "priority 50"),
            ("change 7 --time 3h --name b", "time limit 3h, the name b"),
            (
                "change 7 --time none -g 0.5",
                "a request of 0.5 of a GPU, no time limit",
            ),
            ("move 7 --top", ""),
        ] {
            assert_eq!(
                in_words(&parse_change(&format!("divvy {line}")).unwrap()),
                words,
                "{line}"
            );
        }
    }

    #[test]
    fn what_is_asked_of_a_waiting_job_is_read() {
        let share = |thousandths| Some(Amount::Share { thousandths });
        let top = JobChange {
            top: true,
            ..JobChange::default()
        };
        assert_eq!(parse_change("divvy move 3 --top").unwrap(), top);
        let to = JobChange {
            queue: Some("half".into()),
            amount: share(500),
            ..top
        };
        assert_eq!(
            parse_change("divvy move 3 4 -q half -g 0.5 --top").unwrap(),
            to
        );
        let all = JobChange {
            amount: Some(Amount::Mig {
                profile: "2g.10gb".into(),
            }),
            priority: Some(-5),
            time_limit_s: Some(5400),
            name: Some("x".into()),
            ..JobChange::default()
        };
        let line = "divvy change 3 --priority -5 --time 1h30m --mig-profile 2g.10gb --name x";
        assert_eq!(parse_change(line).unwrap(), all);
        let unlimited = parse_change("divvy change 3 --time none").unwrap();
        assert_eq!(unlimited.time_limit_s, Some(0));
    }

    #[test]
    fn what_cannot_be_asked_of_a_waiting_job_is_refused_with_the_word_and_a_hint() {
        for (line, named) in [
            ("divvy move 3", "--queue"),
            ("divvy move --top", "JOB"),
            (
                "divvy move 3 -q half -g 1 --gpu-memory 4G",
                "cannot be used with",
            ),
            ("divvy move 3 -q half -g half", "-g half"),
            ("divvy change 3", "no change given"),
            ("divvy change --time 2h", "JOB"),
            ("divvy change 3 --priority high", "--priority high"),
            ("divvy change 3 --time 2", "--time 2"),
            ("divvy change 3 --time 0s", "--time 0s"),
            ("divvy change 3 --time -1s", "-1"),
            ("divvy change 3 --gpu-memory 4GB", "--gpu-memory 4GB"),
            ("divvy change 3 --mig-profile 2G", "--mig-profile"),
            (
                "divvy change 3 -g 1 --mig-profile 2g.10gb",
                "cannot be used with",
            ),
        ] {
            let error = parse_change(line).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{line}");
            assert!(error.message.contains(named), "{line}: {}", error.message);
            assert!(error.hint.is_some(), "{line}");
        }
    }
}
