//! `daemon --stop`: ends the daemon of this instance. Jobs that run go on, and the next daemon finds them; tasks that it took from
//! another server are ended by it first. `daemon --status`: what there would be to stop.

use std::process::ExitCode;
use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode, FrontEnd, Job, JobState, Node};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Outcome, client};
use crate::failure::Result;
use crate::output;
use crate::text;

/// How long the daemon may take; it only has to finish what it writes.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long, where it ends tasks first and tells their server: what the stock agent gives its own.
const PATIENCE_WITH_TASKS: Duration = Duration::from_secs(120);

/// `worker`: the one that is meant, where one is named.
pub async fn stop(worker: Option<&str>) -> Outcome {
    let client = client()?;
    let node = client.node().await?;
    check_worker(&node, worker)?;
    let jobs = client.jobs(false).await?;
    let running = jobs
        .iter()
        .filter(|job| job.pid.is_some() && !is_task(job))
        .count();
    end(&node)?;
    let jobs = match running {
        0 => String::new(),
        1 => "; 1 job runs on, and the next daemon finds it".to_owned(),
        count => format!("; {count} jobs run on, and the next daemon finds them"),
    };
    output::say(&format!("the daemon (pid {}) has stopped{jobs}", node.pid));
    Ok(ExitCode::SUCCESS)
}

/// The daemon that serves, its front end, and what it runs.
pub async fn status() -> Outcome {
    let client = client()?;
    let node = client.node().await?;
    let (queues, jobs) = (client.queues().await?, client.jobs(false).await?);
    let mut lines = vec![format!("daemon   pid {}, divvy {}", node.pid, node.version)];
    if let Some(FrontEnd {
        kind,
        worker,
        server,
        ..
    }) = &node.front_end
    {
        lines.push(format!("worker   {worker} of {kind} at {server}"));
    }
    let shown = queues.iter().map(|queue| match &queue.amount {
        Some(amount) => format!("{}={}", queue.name, text::amount(amount)),
        None => queue.name.clone(),
    });
    lines.push(format!("queues   {}", shown.collect::<Vec<_>>().join(" ")));
    let holding = jobs.iter().filter(|job| !job.slices.is_empty());
    let held = holding.map(|job| {
        let labels: Vec<&str> = job
            .slices
            .iter()
            .map(|slice| slice.label.as_str())
            .collect();
        format!(
            "#{} {} on {}",
            job.id,
            text::clean(&job.name),
            labels.join(",")
        )
    });
    let held: Vec<String> = held.collect();
    lines.push(match held.is_empty() {
        true => "runs     nothing".to_owned(),
        false => format!("runs     {}", held.join("; ")),
    });
    let waiting = jobs
        .iter()
        .filter(|job| job.state == JobState::Queued)
        .count();
    lines.push(format!("waiting  {waiting}"));
    output::print(&(lines.join("\n") + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses to stop another worker than the one that was named.
fn check_worker(node: &Node, worker: Option<&str>) -> Result<()> {
    let is = node.front_end.as_ref().map(|front| front.worker.as_str());
    match (worker, is) {
        (None, _) => Ok(()),
        (Some(wanted), Some(is)) if wanted == is => Ok(()),
        (Some(wanted), is) => {
            let is = is.map_or_else(
                || "no worker of a server".to_owned(),
                |is| format!("worker {is}"),
            );
            let error = Error::new(
                ErrorCode::NotFound,
                format!("the daemon here is {is}, not {wanted}"),
            );
            Err(error.hint(
                "leave the worker out to stop it all the same, or set DIVVY_HOME for the other's",
            ))
        }
    }
}

/// Whether its front end took it from a server.
fn is_task(job: &Job) -> bool {
    job.labels.keys().any(|name| name.starts_with("clearml."))
}

/// Asks the process to end and waits until it has, so that its lock is free.
fn end(node: &Node) -> Result<()> {
    let failed = |errno: Errno| {
        let code = if errno == Errno::PERM {
            ErrorCode::NotAllowed
        } else {
            ErrorCode::Internal
        };
        Error::new(
            code,
            format!("the daemon (pid {}) cannot be stopped: {errno}", node.pid),
        )
    };
    let pid = i32::try_from(node.pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| failed(Errno::SRCH))?;
    // A descriptor of the process, so that no other is meant should its number be given anew.
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let given = match node.front_end {
        Some(_) => PATIENCE_WITH_TASKS,
        None => PATIENCE,
    };
    let patience = Timespec::try_from(given).map_err(|_| failed(Errno::INVAL))?;
    match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)).map_err(failed)? {
        0 => {
            let message = format!(
                "the daemon (pid {}) has not ended {} s after SIGTERM",
                node.pid,
                given.as_secs()
            );
            Err(Error::new(ErrorCode::TimedOut, message).hint("its log says what it is doing"))
        }
        _ => Ok(()),
    }
}
