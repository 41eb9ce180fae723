//! `run` on the system's daemon: the daemon starts the program as its user, and its output comes from the job's log.
//!
//! The program has no terminal and no input; stdout and stderr come together. A signal cancels the job, and the verb
//! waits for its end.

use std::process::ExitCode;
use std::time::Duration;

use divvy_api::client::{Client, WaitFor};
use divvy_api::v1::{Error, ErrorCode, Job, JobState, Runner, Submit};

use super::follow::Log;
use super::reconnect::Reconnect;
use super::run::{POLL_WATCHED, follow_time, say_why};
use super::{stop_reasons, submit, wait};
use crate::call::{Outcome, signals::Signals};
use crate::output::{self, LiveLine};
use crate::start::DaemonWanted;

/// How long one question for the end may take.
const POLL: Duration = Duration::from_secs(20);

/// Shows why the job waits, until it starts or ends, or a signal cancels it.
async fn until_started(
    client: &Client,
    mut job: Job,
    signals: &mut Signals<u8>,
) -> Result<(), Error> {
    let mut line = LiveLine::on_stderr();
    while job.state == JobState::Queued && output::is_watched() {
        say_why(&job, &mut line);
        tokio::select! {
            biased;
            _ = signals.next() => {
                line.erase();
                return cancel(client, &job.id).await;
            }
            answer = client.wait(&job.id, WaitFor::Starting, POLL_WATCHED) => match answer {
                Ok(now) => job = now,
                // Following the output waits for the daemon.
                Err(_) => return Ok(()),
            },
            () = follow_time(&job, &mut line) => {}
        }
    }
    Ok(())
}

/// A second one cancels again, which changes nothing: the grace runs.
async fn cancel(client: &Client, id: &str) -> Result<(), Error> {
    match client.cancel(id).await {
        Err(error) if error.code != ErrorCode::Conflict => Err(error),
        _ => Ok(()),
    }
}

pub async fn run(client: &Client, submission: Submit, wanted: DaemonWanted<'_>) -> Outcome {
    let submission = Submit {
        runner: Runner::Supervisor,
        ..submission
    };
    // The daemon cancels the job once this process has ended, so it waits for as long as the daemon is away.
    let away = || {
        if submission.with_client {
            Reconnect::without_end()
        } else {
            Reconnect::default()
        }
    };
    let (output, mut away) = (Log::from_start().reconnecting(away()), away());
    let job = submit::once(client, submission, wanted).await?;
    let mut signals = Signals::that_end()?;
    until_started(client, job.clone(), &mut signals).await?;
    let output = output.follow(client, &job.id);
    tokio::pin!(output);
    let requeues = stop_reasons::report_requeues(client, &job.id);
    tokio::pin!(requeues);
    loop {
        tokio::select! {
            never = &mut requeues => match never {},
            ended = &mut output => {
                ended?;
                break;
            }
            _ = signals.next() => {}
        }
        cancel(client, &job.id).await?;
    }
    loop {
        match client.wait(&job.id, WaitFor::Ended, POLL).await {
            Ok(job) if job.ended_at.is_some() => {
                stop_reasons::tell_end(&job);
                return Ok(ExitCode::from(wait::job_exit_code(&job)?));
            }
            Ok(_) => away.back(),
            Err(error) => away.retry_or_fail(error).await?,
        }
    }
}
