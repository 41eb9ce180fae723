//! `wait`, `cancel` and the other actions on jobs.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use divvy_api::client::{Act, Client, JobSelection, WaitFor};
use divvy_api::daemon::parse_duration;
use divvy_api::v1::{EndReason, Error, ErrorCode, Job, JobState};

use super::reconnect::Reconnect;
use super::{select, stop_reasons};
use crate::args::{Cancel, Parked, Suspend, Wait};
use crate::call::{Outcome, client, reference};
use crate::error_output::{self, Result, usage};
use crate::output::{self, print, view};
use crate::{render, text};

/// How long one question for the end may take.
const POLL: Duration = Duration::from_secs(20);

/// The exit code an ended job passes on: the program's, where there is one.
///
/// # Errors
/// If the job ended without its program: it never started, or its end is unknown.
pub fn job_exit_code(job: &Job) -> Result<u8> {
    let reason = || {
        job.reason
            .as_deref()
            .map(|reason| format!(": {}", text::clean(reason)))
            .unwrap_or_default()
    };
    let failed = |code, what: &str| {
        let job = job.reference();
        Error::new(code, format!("#{job} {what}{}", reason())).hint(format!("divvy describe {job}"))
    };
    match (job.exit_code, job.end_reason) {
        (Some(code), _) => Ok(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(EndReason::Completed | EndReason::Released)) => Ok(0),
        (None, Some(EndReason::LaunchFailed)) => {
            Err(failed(ErrorCode::LaunchFailed, "could not be started"))
        }
        (None, Some(EndReason::Cancelled)) => Err(failed(
            ErrorCode::LaunchFailed,
            "was cancelled before it started",
        )),
        (None, Some(EndReason::SupervisorLost)) => Err(failed(
            ErrorCode::Internal,
            "lost its supervisor, so its exit code is unknown",
        )),
        (None, Some(EndReason::DependencyFailed)) => {
            Err(failed(ErrorCode::LaunchFailed, "was never started"))
        }
        (
            None,
            Some(
                EndReason::Failed
                | EndReason::Bypass
                | EndReason::TimeLimit
                | EndReason::IdleTimeout
                | EndReason::GpuLost,
            )
            | None,
        ) => Err(failed(ErrorCode::Internal, "ended without an exit code")),
    }
}

pub async fn wait(args: Wait) -> Outcome {
    let deadline = match &args.timeout {
        None => None,
        Some(text) => Some(Instant::now() + time(text)?),
    };
    let client = client()?;
    let mut ended = Vec::with_capacity(args.jobs.len());
    for name in &args.jobs {
        // Found at once: what does not exist is not waited for, and `last` stays the job it was.
        let now = client.wait_for(reference(name), WaitFor::Ended, Duration::ZERO);
        ended.push(now.await?);
    }
    for meant in &mut ended {
        until_ended(&client, meant, deadline).await?;
        if args.bell {
            output::ring();
        }
        meant.jobs.iter().for_each(stop_reasons::tell_end);
    }
    if let Some(format) = args.output {
        let mut jobs = Vec::with_capacity(ended.len());
        for meant in &ended {
            match &meant.array {
                None => jobs.extend(meant.jobs.iter().cloned()),
                Some(array) => jobs.extend(client.jobs_of(array).await?.jobs),
            }
        }
        print(render::list(&jobs, format, view(), render::jobs)?)?;
    }
    // Of an array the one that decides.
    let mut verdicts = ended
        .iter()
        .flat_map(|meant| &meant.jobs)
        .map(job_exit_code);
    Ok(ExitCode::from(
        verdicts
            .find(|verdict| !matches!(verdict, Ok(0)))
            .unwrap_or(Ok(0))?,
    ))
}

fn time(text: &str) -> Result<Duration> {
    parse_duration(text).ok_or_else(|| {
        usage(
            format!("--timeout {text}: not a duration"),
            "use 90s, 5m or 1h30m",
        )
    })
}

/// Waits for a job, or for all jobs of an array, to end.
async fn until_ended(
    client: &Client,
    meant: &mut JobSelection,
    deadline: Option<Instant>,
) -> Result<()> {
    let (reference, mut away) = (meant.reference(), Reconnect::default());
    let lives = |meant: &JobSelection| {
        let mut jobs = meant.jobs.iter();
        jobs.find(|job| job.state != JobState::Ended).cloned()
    };
    while let Some(job) = lives(meant) {
        let left = deadline.map_or(POLL, |deadline| {
            deadline.saturating_duration_since(Instant::now()).min(POLL)
        });
        if left.is_zero() {
            let message = format!(
                "#{} is still {} at the end of --timeout",
                job.reference(),
                text::state(&job)
            );
            return Err(Error::new(ErrorCode::TimedOut, message)
                .hint(format!("the job continues: divvy wait {reference}")));
        }
        // The agent counts in whole seconds; the last part of one is waited for here.
        let wait = client.wait_for(&reference, WaitFor::Ended, POLL);
        match tokio::time::timeout(left, wait).await {
            Ok(Ok(now)) => {
                away.back();
                *meant = now;
            }
            Ok(Err(error)) => away.retry_or_fail(error).await?,
            Err(_) => {}
        }
    }
    Ok(())
}

pub async fn cancel(args: Cancel) -> Outcome {
    act_on_named_or_matching(args, &select::CANCEL).await
}

pub async fn requeue(args: Cancel) -> Outcome {
    act_on_named_or_matching(args, &select::REQUEUE).await
}

pub async fn suspend(args: Suspend) -> Outcome {
    if !args.release_memory {
        return act_on_named_or_matching(args.jobs, &select::SUSPEND).await;
    }
    let client = client()?;
    let action = select::Action {
        act: Act::Release,
        ..select::SUSPEND
    };
    if args.jobs.jobs.is_empty() {
        return select::act(&client, &args.jobs, &action).await;
    }
    act_on_each(args.jobs, async |name| {
        released(client.act(name, Act::Release).await?)
    })
    .await
}

pub async fn resume(args: Cancel) -> Outcome {
    act_on_named_or_matching(args, &select::RESUME).await
}

/// Parks jobs, or wakes them.
pub async fn park(args: Parked, parks: bool) -> Outcome {
    let client = client()?;
    let named = Cancel {
        jobs: args.jobs,
        output: args.output,
        ..Cancel::default()
    };
    act_on_each(named, async |name| match parks {
        true => Ok(client.park(name).await?),
        false => Ok(client.wake(name).await?),
    })
    .await
}

pub async fn hold(args: Cancel) -> Outcome {
    act_on_named_or_matching(args, &select::HOLD).await
}

pub async fn release(args: Cancel) -> Outcome {
    act_on_named_or_matching(args, &select::RELEASE).await
}

/// Acts on the named jobs, or else on those that the filters select.
async fn act_on_named_or_matching(args: Cancel, action: &select::Action) -> Outcome {
    let client = client()?;
    if args.jobs.is_empty() {
        return select::act(&client, &args, action).await;
    }
    let act = async |name: &str| client.act(name, action.act).await;
    each_but(args, act, action.others, said).await
}

/// A daemon that does not know what was asked for suspends a job, and says nothing of its memory.
fn released(meant: JobSelection) -> Result<JobSelection> {
    for job in &meant.jobs {
        if job.suspended && job.gpu_memory.is_none() {
            let id = job.reference();
            output::say(&format!(
                "#{id} keeps its GPUs: the daemon is older than this divvy and cannot release memory"
            ));
        }
    }
    Ok(meant)
}

/// `#3 train is suspended`, with where its memory is if that was to be released; of a waiting job, where it waits and
/// what for.
pub(super) fn said(job: &Job) -> String {
    let (id, name) = (job.reference(), text::clean(&job.name));
    let reason = job.reason.as_deref().map(text::clean);
    if job.state == JobState::Queued {
        let place = job.place.map(|place| format!(", place {place}"));
        let reason = reason.map(|reason| format!(": {reason}"));
        return format!(
            "#{id} {name} waits in queue {}{}{}",
            text::clean(&job.queue),
            place.unwrap_or_default(),
            reason.unwrap_or_default()
        );
    }
    let state = format!("#{id} {name} is {}", text::state(job));
    match reason.filter(|_| job.gpu_memory.is_some()) {
        Some(reason) => format!("{state}: {reason}"),
        None => state,
    }
}

/// Does the same to several jobs and arrays, and says how each is now.
pub(super) async fn act_on_each<T: Into<JobSelection>>(
    args: Cancel,
    act: impl AsyncFn(&str) -> Result<T>,
) -> Outcome {
    each_but(args, act, "unchanged", said).await
}

/// The same. `change`: what each job has now, such as `priority 50`.
pub(super) async fn change_each<T: Into<JobSelection>>(
    args: Cancel,
    change: &str,
    act: impl AsyncFn(&str) -> Result<T>,
) -> Outcome {
    each_but(args, act, "unchanged", |job| said_changed(job, change)).await
}

/// `#12 train now has priority 50; it waits in queue default, place 3`.
fn said_changed(job: &Job, change: &str) -> String {
    let known = format!("#{} {} ", job.reference(), text::clean(&job.name));
    let now = said(job);
    let state = now.strip_prefix(&known).unwrap_or(&now);
    format!("{known}now has {change}; it {state}")
}

/// The same. `others`: what it says of an array's jobs to which nothing was done.
async fn each_but<T: Into<JobSelection>>(
    args: Cancel,
    act: impl AsyncFn(&str) -> Result<T>,
    others: &str,
    said: impl Fn(&Job) -> String,
) -> Outcome {
    let json = args.output.is_some_and(crate::args::Format::is_json);
    let (mut changed, mut outcome) = (Vec::new(), ExitCode::SUCCESS);
    for name in args.jobs.iter().rev() {
        // Backwards, so that the exit code is that of the first that was refused.
        match act(reference(name)).await {
            Ok(meant) => changed.push(meant.into()),
            Err(error) => outcome = error_output::report(&error, json),
        }
    }
    changed.reverse();
    if let Some(format) = args.output {
        let jobs: Vec<Job> = changed.into_iter().flat_map(|meant| meant.jobs).collect();
        print(render::list(&jobs, format, view(), render::jobs)?)?;
        return Ok(outcome);
    }
    for meant in &changed {
        match &meant.array {
            None => meant.jobs.iter().for_each(|job| output::say(&said(job))),
            Some(array) => output::say(&render::array_changed(array, &meant.jobs, others)),
        }
    }
    Ok(outcome)
}
