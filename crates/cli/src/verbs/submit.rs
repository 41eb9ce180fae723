//! `submit`: puts a job in a queue.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;

use divvy_api::client::Client;
use divvy_api::v1::{Error, ErrorCode, Job, Runner, Submit};

use super::files;
use crate::args::Format;
use crate::call::Outcome;
use crate::error_output::Result;
use crate::output::{print, say, view};
use crate::start::DaemonWanted;
use crate::{args, ask, container, render, start, text};

pub async fn submit(mut args: args::Submit) -> Outcome {
    if let Some(line) = &args.wrap {
        args.job.command = ["/bin/sh", "-c", line].map(OsString::from).into();
        args.job.name.get_or_insert_with(|| "wrap".to_owned());
    }
    let form = args.form();
    let mut submit = match &args.docker {
        None => ask::submit(&args.job, Runner::Supervisor)?,
        Some(image) => {
            let flags = container::unpacked(args.docker_args.as_slice())?;
            let command = match args.job.command.as_slice() {
                [] => Vec::new(),
                words => ask::command(words, ask::line_of(Runner::Supervisor))?,
            };
            let asked = container::parse_container(image, &flags)?;
            container::report_ignored(&asked);
            ask::contained(&args.job, asked, command, Runner::Supervisor)?
        }
    };
    submit.preemptible = args.preemptible;
    submit.retries = args.retries.unwrap_or(0);
    submit.array = args.array.as_deref().map(ask::terms::array).transpose()?;
    submit.dry_run = args.dry_run;
    submit.hold = args.hold;
    files::add(&args, &mut submit);
    submit.idempotency_key = args.idempotency_key;
    let wanted = DaemonWanted::from(&args.job);
    let indices = submit
        .array
        .as_ref()
        .map_or_else(Vec::new, |array| array.indices.clone());
    let client = wanted.client()?;
    let checked = ask::program::check(&client, &submit, wanted).await?;
    checked.map_err(|missing| missing.error)?;
    let job = once(&client, submit, wanted).await?;
    let array = job.array.as_ref().map(|task| task.array.clone());
    let number = array.as_ref().unwrap_or(&job.id);
    match (form, &array) {
        (Some(Format::Name), _) => print(format!("{number}\n"))?,
        (Some(format), Some(array)) if !args.dry_run => {
            let mut all = client.jobs_of(array).await?.jobs;
            if let Some(first) = all.first_mut() {
                first.warnings.clone_from(&job.warnings);
            }
            print(render::list(&all, format, view(), render::jobs)?)?;
        }
        (Some(format), _) => print(render::list(&[job], format, view(), render::jobs)?)?,
        (None, _) if args.parsable => print(format!("{number}\n"))?,
        (None, None) => print(render::submitted(&job, args.dry_run, view().now))?,
        (None, Some(_)) => {
            let last = indices.iter().max().copied().unwrap_or_default();
            print(render::submitted_array(
                &job,
                last,
                args.dry_run,
                view().now,
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How a daemon of an earlier version refuses a job that is to end with its client.
const UNKNOWN_TIE: &str = "unknown field `with_client`";

/// Submits the job once, also when the daemon dies before it has answered, and prints the daemon's warnings. The job of
/// a daemon that died may be in its journal or not; if it is, the same key makes a repeat answer with that job.
pub(super) async fn once(
    client: &Client,
    mut submit: Submit,
    wanted: DaemonWanted<'_>,
) -> Result<Job> {
    submit.idempotency_key.get_or_insert_with(fresh_key);
    start::agent(client, wanted).await?;
    refuse_in_engines_slice(client).await?;
    let job = match client.submit(&submit).await {
        Err(error) if error.code == ErrorCode::NoDaemon => {
            start::agent(client, wanted).await?;
            client.submit(&submit).await?
        }
        // Between an update of the program and the daemon's restart.
        Err(error) if submit.with_client && error.message.contains(UNKNOWN_TIE) => {
            submit.with_client = false;
            say(
                "warning: the daemon is older than this divvy: the job goes on if this command is killed; restart the \
                 daemon",
            );
            client.submit(&submit).await?
        }
        answer => answer?,
    };
    for warning in &job.warnings {
        say(&format!("warning: {warning}"));
    }
    Ok(job)
}

/// Refuses a job for a program that runs in a slice of another scheduler: the job would take a further part of a GPU, past
/// the amount that the scheduler counts.
async fn refuse_in_engines_slice(client: &Client) -> Result<()> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(id) = variable("DIVVY_JOB_ID") else {
        return Ok(());
    };
    // The number may be of another daemon, and the job may be over: then the daemon decides about this one.
    let Ok(job) = client.job(&id).await else {
        return Ok(());
    };
    let is_here = job.ended_at.is_none()
        && variable("DIVVY_SLICE").is_none_or(|slice| job.slice_directory == Some(slice));
    let Some(claim) = job.claim.as_ref().filter(|_| is_here) else {
        return Ok(());
    };
    let why = format!(
        "this program is in the slice {} of another scheduler, and a job would take GPU memory beside it",
        text::clean(&claim.uid)
    );
    let limits = job.slices.iter().map(|slice| {
        let limit = text::memory(slice.memory_limit_bytes);
        format!("{limit} of GPU {}", slice.gpu_index)
    });
    let limits = limits.collect::<Vec<_>>().join(", ");
    Err(Error::new(ErrorCode::NotAllowed, why).hint(format!(
        "start the program without `divvy run` and `divvy submit`: it has the slice's {limits}"
    )))
}

/// 128 random bits: the standard library seeds each of its hashers from the system's randomness.
fn fresh_key() -> String {
    let word = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", word(), word())
}
