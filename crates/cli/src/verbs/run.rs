//! `run`: submits a job, waits for its slice, then supervises its program on this terminal.
//!
//! Until the job has its slice, a signal cancels it. After that the program is in the foreground and gets the
//! terminal's signals itself.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use divvy_api::client::{Client, WaitFor};
use divvy_api::standalone::StandaloneOptions;
use divvy_api::v1::{Error, Job, JobState, Runner, Submit};
use jiff::Timestamp;

use super::reconnect::Reconnect;
use super::{run_remote, stop_reasons, submit, wait};
use crate::ask::program::NoProgram;
use crate::call::{Outcome, block_on, signals::Signals};
use crate::start::{self, DaemonWanted};
use crate::{Backend, args, ask, error_output, output, render, text};

/// How long one question for the slice may take; shorter where a person wants to see why it waits.
const POLL: Duration = Duration::from_secs(20);
pub(super) const POLL_WATCHED: Duration = Duration::from_secs(2);

/// How often the line of a waiting job is drawn. The line has seconds in it, so it changes no more often.
const TICK: Duration = Duration::from_secs(1);

/// How long the causes of a program's failure may take to be told.
const CAUSES: Duration = Duration::from_secs(3);

/// Result of the wait for a slice.
pub(super) enum StartWait {
    /// The job holds its slice, and its folder says what to start.
    Start(Box<Job>),
    /// The job ended, with this exit code.
    Over(u8),
    /// The daemon ran the job to its end.
    Away(ExitCode),
}

pub fn run(args: &args::Run, backend: Backend) -> Outcome {
    let mut submit = ask::submit(&args.job, Runner::Client)?;
    submit.with_client = !args.outlive_client;
    if args.no_daemon {
        if let Err(missing) = ask::program::look_up(&submit) {
            return Ok(ExitCode::from(refuse(&missing)));
        }
        return Ok(ExitCode::from((backend.solo)(StandaloneOptions {
            submit,
            docker: Vec::new(),
            sim: args.job.sim.clone(),
        })?));
    }
    on_terminal(submit, DaemonWanted::from(&args.job), backend)
}

/// Says what is wrong with the program; the exit code is a shell's.
fn refuse(missing: &NoProgram) -> u8 {
    error_output::report(&missing.error, false);
    missing.code
}

/// Waits for the job's slice, and is its supervisor then.
pub fn on_terminal(submission: Submit, wanted: DaemonWanted<'_>, backend: Backend) -> Outcome {
    let turn = block_on(async {
        let client = wanted.client()?;
        if let Err(missing) = ask::program::check(&client, &submission, wanted).await? {
            return Ok(StartWait::Over(refuse(&missing)));
        }
        if start::agent(&client, wanted).await?.system {
            return run_remote::run(&client, submission, wanted)
                .await
                .map(StartWait::Away);
        }
        let job = submit::once(&client, submission, wanted).await?;
        Ok(wait_for_turn(&client, job).await?)
    })?;
    let code = match turn {
        StartWait::Over(code) => code,
        StartWait::Away(code) => return Ok(code),
        StartWait::Start(job) => {
            let ran = (backend.run_here)(Path::new(&job.directory))?;
            if let Some((at, why)) = &ran.stopped {
                stop_reasons::report_stop(&job.id, *at, why);
            }
            if ran.code != 0 {
                tell_causes(&job.id, wanted, ran.stopped.is_some());
            }
            ran.code
        }
    };
    Ok(ExitCode::from(code))
}

/// Waits until the job may start, and says why it waits.
pub(super) async fn wait_for_turn(client: &Client, mut job: Job) -> Result<StartWait, Error> {
    let mut signals = Signals::that_end()?;
    let (mut line, mut away) = (output::LiveLine::on_stderr(), Reconnect::default());
    let poll = if output::is_watched() {
        POLL_WATCHED
    } else {
        POLL
    };
    loop {
        match job.state {
            JobState::Starting => return Ok(StartWait::Start(Box::new(job))),
            JobState::Queued => say_why(&job, &mut line),
            JobState::Running | JobState::Stopping => {}
            JobState::Ended => {
                line.erase();
                stop_reasons::tell_end(&job);
                return wait::job_exit_code(&job).map(StartWait::Over);
            }
        }
        tokio::select! {
            biased;
            number = signals.next() => {
                line.erase();
                // Without a daemon to cancel it now: a job without its client is cancelled when the daemon is back.
                if client.cancel(&job.id).await.is_ok() {
                    output::progress(&format!("#{} was removed from queue {}", job.id, job.queue));
                }
                return Ok(StartWait::Over(128 + number));
            }
            answer = client.wait(&job.id, WaitFor::Starting, poll) => match answer {
                Ok(now) => {
                    away.back();
                    job = now;
                }
                Err(error) => {
                    line.erase();
                    away.retry_or_fail(error).await?;
                }
            },
            () = follow_time(&job, &mut line) => {}
        }
    }
}

/// Draws the line of a waiting job every second, for as long as it is awaited.
pub(super) async fn follow_time(job: &Job, line: &mut output::LiveLine) {
    if !line.is_live() || job.state != JobState::Queued {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(TICK).await;
        say_why(job, line);
    }
}

/// Place, time, start and reason of a waiting job in one line; on a terminal that cannot redraw one, a line each time
/// the reason changes.
pub(super) fn say_why(job: &Job, line: &mut output::LiveLine) {
    let reason = job.reason.as_deref();
    let reason = reason.unwrap_or("not yet considered by the planner");
    let plain = format!("#{} waits in queue {}: {reason}", job.id, job.queue);
    line.show(&waiting(job, reason, Timestamp::now()), &plain);
}

/// `#7 waits 2m12s · place 3 in queue default · starts in about 5m · needs 1 whole GPU; …`.
fn waiting(job: &Job, reason: &str, now: Timestamp) -> String {
    let mut parts = vec![format!(
        "#{} waits {}",
        job.id,
        text::elapsed(job.submitted_at, now)
    )];
    parts.push(match job.place {
        Some(place) => format!("place {place} in queue {}", job.queue),
        None => format!("queue {}", job.queue),
    });
    parts.extend(render::start(job, now).map(|start| format!("starts {start}")));
    parts.push(reason.to_owned());
    parts.join(" · ")
}

/// After a failure: whether Divvy or the limit may have been its cause. Best effort, the program's exit code stands
/// either way.
fn tell_causes(id: &str, wanted: DaemonWanted<'_>, is_told: bool) {
    // The agent has the last word on a slice once it has settled the job, which it does within a moment.
    let asked = block_on(async {
        let client = wanted.client()?;
        let settled = client.wait(id, WaitFor::Ended, Duration::from_secs(1));
        // A daemon that hangs does not keep the program's exit code from the caller.
        Ok(tokio::time::timeout(CAUSES, settled)
            .await
            .ok()
            .transpose()?)
    });
    let asked = asked.ok().flatten();
    if let Some(job) = asked.as_ref().filter(|_| !is_told) {
        stop_reasons::tell_end(job);
    }
    for slice in asked
        .iter()
        .flat_map(|job| &job.slices)
        .filter(|slice| slice.denials > 0)
    {
        let size = slice
            .last_denied_bytes
            .map_or_else(|| "memory".to_owned(), text::memory);
        let figures = text::memories(&[slice.memory_peak_bytes, slice.memory_limit_bytes]);
        output::say(&format!(
            "#{id} ran out of GPU memory: {size} refused on GPU {}, with up to {figures} in use; `divvy oom {id}` shows details",
            slice.gpu_index
        ));
    }
}
