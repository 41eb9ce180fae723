//! Validation of a submission: every check that needs the request alone.

pub mod budget;
pub mod limits;

use std::path::Path;

use divvy_api::v1::{self, Error, ErrorCode, Submit};
use divvy_core::units::{ComputeModeError, LatencyGoalError};
use divvy_core::{
    Amount, Compute, Gpu, Isolation, LatencyGoal, NeverFits, Request, Share, can_ever_fit, command,
};

/// Refuses what no program can be started with.
pub fn check_texts(submit: &Submit) -> Result<(), Error> {
    let has_own = submit.container.is_some() && submit.command.is_empty();
    if !has_own && submit.command.first().is_none_or(String::is_empty) {
        return Err(usage("the command is empty").hint("put the program after `--`"));
    }
    if submit
        .notify
        .as_deref()
        .is_some_and(|line| line.trim().is_empty())
    {
        return Err(usage("the notification command is empty")
            .hint("leave --notify out, or give a line for `sh -c`"));
    }
    let files = submit.output.iter();
    let texts =
        submit
            .command
            .iter()
            .chain([&submit.cwd])
            .chain(submit.container.iter().flat_map(|container| {
                std::iter::once(&container.image).chain(&container.arguments)
            }))
            .chain(submit.env.keys())
            .chain(submit.env.values())
            .chain(submit.secrets.keys())
            .chain(submit.secrets.values())
            .chain(&submit.notify)
            .chain(files.flat_map(|files| files.stdout.iter().chain(&files.stderr)));
    if texts.into_iter().any(|text| text.contains('\0')) {
        return Err(usage(
            "a NUL byte cannot be part of a command, a path or an environment",
        ));
    }
    if let Some(name) = submit
        .env
        .keys()
        .chain(submit.secrets.keys())
        .find(|name| name.is_empty() || name.contains('='))
    {
        return Err(usage(format!(
            "{name:?}: not a valid name of an environment variable"
        )));
    }
    // Of a variable that is not set, more often than not: then all jobs would be one.
    if submit.idempotency_key.as_deref() == Some("") {
        return Err(usage("the idempotency key is empty")
            .hint("leave it out, or use a key that names this submission"));
    }
    if !Path::new(&submit.cwd).is_absolute() {
        return Err(usage(format!(
            "the working directory {:?} is not absolute",
            submit.cwd
        )));
    }
    Ok(())
}

/// How compute time is to be divided.
pub fn compute(text: &str) -> Result<Compute, Error> {
    text.parse()
        .map_err(|error: ComputeModeError| usage(error.to_string()).hint(error.hint()))
}

/// In which time the job's requests should be answered.
fn latency_goal(text: &str) -> Result<LatencyGoal, Error> {
    text.parse()
        .map_err(|error: LatencyGoalError| usage(error.to_string()).hint(error.hint()))
}

/// The request with the latency goal of its queue or project, if it has none and can have one.
///
/// # Errors
/// The share of a job with a goal is more than all such jobs of a GPU may have: it would wait for ever.
pub fn with_latency(
    mut request: Request,
    goal: Option<LatencyGoal>,
    most: Share,
    gpus: &[Gpu],
) -> Result<Request, Error> {
    let takes_turns = !matches!(request.amount, Amount::Mig(_));
    if takes_turns && let Ok(compute) = request.compute.or_latency(goal) {
        request.compute = compute;
    }
    let share = request.compute.share.or_else(|| match request.amount {
        Amount::Share(share) | Amount::Shares { share, .. } => Some(share),
        Amount::Memory(memory) => gpus.iter().filter_map(|gpu| gpu.share_of(memory)).min(),
        _ => None,
    });
    let over = share.filter(|share| *share < Share::FULL && *share > most);
    match (request.compute.latency, over) {
        (Some(goal), Some(share)) => Err(usage(format!(
            "latency goal {goal}: the job's share is {share}, and jobs with a goal have at most {most} of a GPU"
        ))
        .hint(format!("--compute fair={most}, or the key latency.share"))),
        _ => Ok(request),
    }
}

/// The request, if these GPUs could ever serve it.
pub fn request(amount: Amount, submit: &Submit, gpus: &[Gpu]) -> Result<Request, Error> {
    let compute = match submit.compute.as_deref() {
        None => Compute::default(),
        Some(text) => compute(text)?,
    };
    let goal = submit.latency.as_deref().map(latency_goal).transpose()?;
    let compute = compute
        .or_latency(goal)
        .map_err(|error| usage(error.to_string()).hint(error.hint()))?;
    if matches!(amount, Amount::Mig(_)) && compute != Compute::default() {
        let why = format!(
            "--compute {compute}: a MIG instance has its own compute units, so no compute mode applies"
        );
        return Err(usage(why).hint("leave --compute out"));
    }
    let on = &submit.gpus_on;
    if let Some(index) = on
        .iter()
        .find(|index| !gpus.iter().any(|gpu| gpu.index == **index))
    {
        let there = gpus
            .iter()
            .map(|gpu| gpu.index.to_string())
            .collect::<Vec<_>>()
            .join(", ");
        return Err(usage(format!("there is no GPU {index} here"))
            .hint(format!("the GPUs here are {there}")));
    }
    let request = Request {
        amount,
        compute,
        on: on.clone(),
        isolation: match (submit.isolation.into(), &submit.container) {
            // The driver's limit comes after a container's start; a MIG instance is there before.
            (Isolation::Driver, Some(_)) => Isolation::Hardware,
            (isolation, _) => isolation,
        },
        exact: submit.memory_exact,
        gives_way: false,
    };
    can_ever_fit(gpus, &request).map_err(never_fits)?;
    Ok(request)
}

/// A request that exceeds these GPUs, even when all jobs have ended.
pub fn never_fits(never: NeverFits) -> Error {
    let nearest = never
        .nearest
        .as_ref()
        .map(|request| v1::Amount::from(request.amount));
    let hint = never.hint();
    Error::new(ErrorCode::NeverFits, never.message)
        .hint(hint)
        .details(serde_json::json!({ "nearest": nearest }))
}

/// The name given, if it can be one, else that of what the command runs.
pub fn name(given: Option<String>, command: &[String]) -> Result<String, Error> {
    match given {
        Some(name) if name.trim().is_empty() || name.contains(char::is_control) => {
            Err(usage(format!("{name:?}: not a valid name of a job"))
                .hint("use a word, or leave the name out to use that of the program"))
        }
        Some(name) if is_reference(&name) => {
            let why = format!("the name {name:?} is reserved for references to jobs");
            Err(usage(why).hint("use a name that is neither a number nor `last`"))
        }
        Some(name) => Ok(name),
        None => Ok(match command::name(command).as_deref() {
            None => "job".to_owned(),
            Some(name) if is_reference(name) => {
                truncate_name(&format!("job-{}", name.trim_start_matches('#'))).to_owned()
            }
            Some(name) => truncate_name(name).to_owned(),
        }),
    }
}

/// Whether a command takes this text for a job's number, or for the newest job.
fn is_reference(name: &str) -> bool {
    name == "last" || name.trim_start_matches('#').parse::<u64>().is_ok()
}

/// As much of a name as a job's may have.
pub fn truncate_name(name: &str) -> &str {
    let fits = |at: &usize| *at <= limits::LONGEST_NAME;
    let ends = name.char_indices().map(|(at, one)| at + one.len_utf8());
    &name[..ends.take_while(fits).last().unwrap_or(0)]
}

pub fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::Usage, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn submit(command: &[&str]) -> Submit {
        Submit {
            command: command.iter().map(ToString::to_string).collect(),
            cwd: "/".into(),
            ..Submit::default()
        }
    }

    #[test]
    fn what_no_program_can_be_started_with_is_refused() {
        assert!(check_texts(&submit(&["true"])).is_ok());
        let env = |name: &str, value: &str| Submit {
            env: [(name.into(), value.into())].into(),
            ..submit(&["true"])
        };
        let wrong = [
            submit(&[]),
            submit(&[""]),
            submit(&["a\0b"]),
            Submit {
                cwd: "relative".into(),
                ..submit(&["true"])
            },
            env("", "x"),
            env("A=B", "x"),
            env("A", "x\0"),
        ];
        for submit in wrong {
            assert_eq!(
                check_texts(&submit).unwrap_err().code,
                ErrorCode::Usage,
                "{submit:?}"
            );
        }
    }

    #[test]
    fn a_job_is_named_after_its_program_and_never_like_a_number() {
        let command = ["/usr/bin/python3".to_owned(), "train.py".to_owned()];
        assert_eq!(name(None, &command).unwrap(), "train.py");
        assert_eq!(name(Some("train".into()), &command).unwrap(), "train");
        for (program, named) in [
            ("last", "job-last"),
            ("/opt/bin/#3", "job-3"),
            ("./7", "job-7"),
            (" ", "job"),
        ] {
            assert_eq!(
                name(None, &[program.to_owned()]).unwrap(),
                named,
                "{program:?}"
            );
        }
        // 199 bytes and one of two.
        let long = ["x".repeat(199) + "ö"];
        assert_eq!(name(None, &long).unwrap(), "x".repeat(199));
        for wrong in ["", " ", "7", "#7", "last", "a\nb"] {
            assert_eq!(
                name(Some(wrong.into()), &command).unwrap_err().code,
                ErrorCode::Usage,
                "{wrong:?}"
            );
        }
    }
}
