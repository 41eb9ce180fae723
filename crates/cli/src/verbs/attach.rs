//! `attach`: follows the output of a running job, passes signals to its program, and returns its exit code.
//!
//! The output comes from the job's log, so it does not depend on its readers. There is no input: a job that the daemon
//! started has none.

use std::process::ExitCode;
use std::time::Duration;

use divvy_api::client::{Client, WaitFor};
use divvy_api::v1::{Error, ErrorCode, Job, JobState, Runner, Signal};
use tokio::signal::unix::SignalKind;

use super::follow::Log;
use super::reconnect::Reconnect;
use super::{files, stop_reasons, wait};
use crate::args;
use crate::call::{Outcome, client, one_job, signals::Signals};
use crate::output::{progress, say};

/// How long one question for the end may take.
const POLL: Duration = Duration::from_secs(20);

pub async fn attach(args: args::Attach) -> Outcome {
    let client = client()?;
    let job = one_job(&client, &args.job).await?;
    check(&job)?;
    files::report_output_files(&job);
    let id = job.reference();
    let from = if args.from_start {
        Log::from_start()
    } else {
        Log::from_now(&client, &id).await?
    };
    progress(&if args.no_signals {
        format!("attached to #{id}; Ctrl-C ends attach, not the job")
    } else {
        format!("attached to #{id}; Ctrl-C goes to its program")
    });
    let output = from.follow(&client, &id);
    let requeues = stop_reasons::report_requeues(&client, &id);
    tokio::pin!(output, requeues);
    if args.no_signals {
        tokio::select! {
            never = &mut requeues => match never {},
            ended = &mut output => ended?,
        }
    } else {
        let mut signals = passed()?;
        loop {
            tokio::select! {
                never = &mut requeues => match never {},
                ended = &mut output => break ended?,
                sent = signals.next() => match client.signal(&id, sent).await {
                    // It has just ended, or the daemon is away: its output says so.
                    Err(error)
                        if matches!(
                            error.code,
                            ErrorCode::Conflict | ErrorCode::NoDaemon | ErrorCode::Unresponsive
                        ) =>
                    {
                        say(&format!("cannot send {}: {}", sent.name(), error.message));
                    }
                    sent => drop(sent?),
                },
            }
        }
    }
    verdict(&client, &id).await
}

/// Whether the job runs.
fn check(job: &Job) -> Result<(), Error> {
    let refused = |why: String, hint: String| Err(Error::new(ErrorCode::Conflict, why).hint(hint));
    match job.state {
        JobState::Ended => refused(
            format!("#{} has ended", job.reference()),
            match job.runner {
                Runner::Supervisor => {
                    format!("`divvy logs {}` prints its output", job.reference())
                }
                Runner::Client | Runner::Claim => {
                    format!("`divvy describe {}` shows how", job.reference())
                }
            },
        ),
        _ if job.runner == Runner::Client => refused(
            format!(
                "#{} prints to the terminal of its `divvy run`, so attach cannot show its output",
                job.reference()
            ),
            format!("`divvy shell {}` opens a shell inside it", job.reference()),
        ),
        _ => Ok(()),
    }
}

/// How the job ended, as an exit code.
async fn verdict(client: &Client, job: &str) -> Outcome {
    let mut away = Reconnect::default();
    loop {
        match client.wait(job, WaitFor::Ended, POLL).await {
            Ok(job) if job.ended_at.is_some() => {
                stop_reasons::tell_end(&job);
                return Ok(ExitCode::from(wait::job_exit_code(&job)?));
            }
            Ok(_) => away.back(),
            Err(error) => away.retry_or_fail(error).await?,
        }
    }
}

/// The signals that are the job's. A closed terminal ends this client alone.
fn passed() -> Result<Signals<Signal>, Error> {
    let passed = [
        Signal::Int,
        Signal::Quit,
        Signal::Term,
        Signal::Usr1,
        Signal::Usr2,
    ];
    Signals::listen(passed.map(|sent| (SignalKind::from_raw(i32::from(sent.number())), sent)))
}
