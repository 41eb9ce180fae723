//! `daemon --stop` and `daemon --status`: ends or shows the daemon of this instance.
//!
//! Running jobs go on, and the next daemon adopts them. The daemon first ends the tasks that it took from another server.
//! The lock file names a daemon that does not respond: `--stop` sends it SIGTERM, then SIGCONT if it is stopped, then
//! SIGKILL.

use std::process::ExitCode;
use std::time::Duration;

use divvy_api::client::Client;
use divvy_api::home::{Holder, Home, LockFile};
use divvy_api::v1::{Error, ErrorCode, FrontEnd, Gpu, Job, JobState, Node};
use divvy_core::{GpuSelection, GpuUuid, parse_gpus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::args;
use crate::call::{Outcome, called, client, client_called};
use crate::error_output::{Result, usage};
use crate::output;
use crate::render;
use crate::text;

/// How long the daemon may take; it only has to finish what it writes.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long, where it ends tasks first and tells their server: what the stock agent gives its own. A shorter one would
/// leave tasks on the server that still count as running.
const PATIENCE_WITH_TASKS: Duration = Duration::from_secs(120);

/// How long a daemon that does not respond may take from SIGTERM to its end, before it is killed, and after that.
const PATIENCE_UNRESPONSIVE: Duration = Duration::from_secs(5);

/// `--stop` stands at the end of the line that started the daemon, as for the stock agent. Of that line, the workers
/// that it names say which daemon is meant, or its GPUs. Its other words have no effect.
pub async fn stop(args: &args::Daemon) -> Outcome {
    let meant = Meant::of(args)?;
    let home = called()?;
    let client = client_called(&home);
    let asked = async {
        let node = client.node().await?;
        meant.check(&node, &client).await?;
        let jobs = client.jobs(false).await?;
        Ok::<_, Error>((node, jobs))
    };
    let (node, jobs) = match asked.await {
        Err(error) if is_unresponsive(&error) || is_without_socket(&home, &error) => {
            return stop_unresponsive(&home, &meant, error);
        }
        Err(error) if error.code == ErrorCode::NoDaemon => {
            return Err(elsewhere(&home, error).into());
        }
        answer => answer?,
    };
    let running = jobs
        .iter()
        .filter(|job| job.pid.is_some() && !is_task(job))
        .count();
    let waiting = jobs
        .iter()
        .filter(|job| job.state == JobState::Queued && !is_task(job))
        .count();
    end(&node)?;
    output::say(&format!(
        "the daemon (pid {}) has stopped{}",
        node.pid,
        left(running, waiting)
    ));
    Ok(ExitCode::SUCCESS)
}

/// What becomes of the jobs that the daemon leaves.
fn left(running: usize, waiting: usize) -> String {
    let running = match running {
        0 => String::new(),
        1 => "; 1 job keeps running, and the next daemon adopts it".to_owned(),
        count => format!("; {count} jobs keep running, and the next daemon adopts them"),
    };
    let waiting = match waiting {
        0 => String::new(),
        1 => "; 1 job waits for the next daemon".to_owned(),
        count => format!("; {count} jobs wait for the next daemon"),
    };
    running + &waiting
}

fn is_unresponsive(error: &Error) -> bool {
    error.code == ErrorCode::Unresponsive
}

/// The same error, with the host that the lock of this home names, where that is another.
fn elsewhere(home: &Home, error: Error) -> Error {
    let lock = home.lock_file().ok().flatten();
    match lock.filter(LockFile::is_of_other_host) {
        Some(lock) => {
            let state = home.state().display();
            error.hint(format!(
                "the daemon of {state} is {}: stop it there",
                lock.describe()
            ))
        }
        None => error,
    }
}

/// Whether the daemon runs and has no socket now, as for a moment after a login.
fn is_without_socket(home: &Home, error: &Error) -> bool {
    error.code == ErrorCode::NoDaemon && matches!(home.holder(), Ok(Some(_)))
}

/// Ends the process that holds the lock, whatever it hangs in.
fn stop_unresponsive(home: &Home, meant: &Meant<'_>, error: Error) -> Outcome {
    let hint = match meant {
        Meant::Any => None,
        Meant::Workers(_) => {
            Some("its worker is unknown while it does not respond; omit the worker to stop it")
        }
        Meant::Gpus(_) => {
            Some("its GPUs are unknown while it does not respond; omit --gpus to stop it")
        }
    };
    if let Some(hint) = hint {
        return Err(error.hint(hint).into());
    }
    let lock = home.daemon_lock();
    let holder = home.holder().map_err(|why| {
        let code = match why.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorCode::NotAllowed,
            _ => ErrorCode::Internal,
        };
        let why = format!(
            "{}, and its lock {} cannot be read: {why}",
            error.message,
            lock.display()
        );
        Error::new(code, why).hint("only its user or root can stop it")
    })?;
    let Some(holder) = holder else {
        let why = format!(
            "{}, and no process holds its lock {}",
            error.message,
            lock.display()
        );
        return Err(Error::new(ErrorCode::Unresponsive, why)
            .hint("another program listens on the socket: ss -xlp")
            .into());
    };
    let how = end_by_force(holder, PATIENCE_UNRESPONSIVE)?;
    output::say(&format!(
        "the daemon (pid {}) did not respond and was ended with {how}; jobs keep running, and the next daemon adopts them",
        holder.pid
    ));
    Ok(ExitCode::SUCCESS)
}

/// Ends a process that may be stopped, or deaf to SIGTERM; by which signal.
fn end_by_force(holder: Holder, patience: Duration) -> Result<String> {
    let failed = |errno| cannot_stop(holder.pid, errno);
    let process = opened(holder.pid).map_err(failed)?;
    // The descriptor is fixed on the process that has the pid now; this says that it is the one that wrote the lock.
    if !holder.is_alive() {
        return Err(failed(Errno::SRCH));
    }
    let send = |signal| pidfd_send_signal(&process, signal).map_err(failed);
    send(Signal::TERM)?;
    // A stopped process takes SIGTERM once it is continued.
    send(Signal::CONT)?;
    if has_ended(&process, patience).map_err(failed)? {
        return Ok("SIGTERM".to_owned());
    }
    send(Signal::KILL)?;
    let seconds = patience.as_secs();
    if has_ended(&process, patience).map_err(failed)? {
        return Ok(format!("SIGKILL, {seconds} s after SIGTERM"));
    }
    let why = format!(
        "the daemon (pid {}) has not ended {seconds} s after SIGKILL: a call of the driver or the disk holds it",
        holder.pid
    );
    Err(Error::new(ErrorCode::TimedOut, why)
        .hint("the kernel ends it when that call returns; see `dmesg` for the cause"))
}

/// A descriptor of the process, so that no other is meant should its number be given anew.
fn opened(pid: u32) -> std::result::Result<OwnedFd, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

fn has_ended(process: &OwnedFd, patience: Duration) -> std::result::Result<bool, Errno> {
    let patience = Timespec::try_from(patience).map_err(|_| Errno::INVAL)?;
    let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience))?;
    Ok(ended > 0)
}

fn cannot_stop(pid: u32, errno: Errno) -> Error {
    let code = match errno {
        Errno::PERM => ErrorCode::NotAllowed,
        _ => ErrorCode::Internal,
    };
    let error = Error::new(
        code,
        format!("the daemon (pid {pid}) cannot be stopped: {errno}"),
    );
    match errno {
        Errno::PERM => error.hint("only its user or root can stop it"),
        _ => error,
    }
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
    if let Some(file) = &node.config_file {
        lines.push(format!("config   {file}"));
    }
    let shown = queues.iter().map(|queue| match &queue.amount {
        Some(amount) => format!("{}={}", queue.name, text::amount(amount)),
        None => queue.name.clone(),
    });
    lines.push(format!("queues   {}", shown.collect::<Vec<_>>().join(" ")));
    let holding = jobs.iter().filter(|job| !job.slices.is_empty());
    let held = holding.map(|job| {
        format!(
            "#{} {} on {}",
            job.id,
            text::clean(&job.name),
            render::labels(&job.slices)
        )
    });
    let held: Vec<String> = held.collect();
    lines.push(if held.is_empty() {
        "running  no job".to_owned()
    } else {
        format!("running  {}", held.join("; "))
    });
    let waiting = jobs
        .iter()
        .filter(|job| job.state == JobState::Queued)
        .count();
    lines.push(format!("pending  {waiting}"));
    output::print(&(lines.join("\n") + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The daemon that a line with `--stop` means.
enum Meant<'a> {
    Any,
    Workers(&'a [String]),
    Gpus(GpuSelection),
}

impl<'a> Meant<'a> {
    /// Refuses the line of an agent without GPUs: its GPUs would be those of any daemon.
    fn of(args: &'a args::Daemon) -> Result<Self> {
        let workers = args.stop.as_deref().unwrap_or_default();
        if !workers.is_empty() {
            return Ok(Self::Workers(workers));
        }
        for (flag, is_given) in [
            ("--cpu-only", args.clearml.stock.cpu_only),
            ("--services-mode", args.services_mode.is_some()),
        ] {
            if is_given {
                return Err(usage(
                    format!(
                        "{flag} with --stop: a daemon of Divvy has GPUs, so the line means none"
                    ),
                    format!("to stop the stock agent, run `clearml-agent daemon {flag} --stop`"),
                ));
            }
        }
        if args.gpus.is_empty() {
            return Ok(Self::Any);
        }
        let gpus = parse_gpus(&args.gpus);
        let gpus = gpus.map_err(|error| usage(format!("--gpus: {error}"), error.hint()))?;
        Ok(match gpus {
            GpuSelection::All => Self::Any,
            named => Self::Gpus(named),
        })
    }

    async fn check(&self, node: &Node, client: &Client) -> Result<()> {
        match self {
            Self::Any => Ok(()),
            Self::Workers(workers) => check_worker(node, workers),
            Self::Gpus(named) => check_gpus(node, named, client).await,
        }
    }
}

/// Refuses to stop the daemon of other GPUs than those that were named.
async fn check_gpus(node: &Node, named: &GpuSelection, client: &Client) -> Result<()> {
    let worker = node.front_end.as_ref().map(|front| front.worker.as_str());
    // A worker is called by the GPUs that its daemon was started with, whatever numbers they have now.
    if worker.and_then(gpus_of_worker).as_ref() == Some(named) {
        return Ok(());
    }
    let served = client.gpus().await?;
    let uuid = |gpu: &Gpu| gpu.uuid.parse::<GpuUuid>().ok();
    let is_named = |gpu: &Gpu| uuid(gpu).is_some_and(|uuid| named.names(gpu.index, &uuid));
    if named.count() == Some(served.len()) && served.iter().all(is_named) {
        return Ok(());
    }
    // As they were named.
    let served = match named {
        GpuSelection::Uuids(_) => GpuSelection::Uuids(served.iter().filter_map(uuid).collect()),
        GpuSelection::All | GpuSelection::Indices(_) => {
            let mut gpus: Vec<u32> = served.iter().map(|gpu| gpu.index).collect();
            gpus.sort_unstable();
            GpuSelection::Indices(gpus)
        }
    };
    let listed = |gpus: &GpuSelection| {
        let plural = if gpus.count() == Some(1) { "" } else { "s" };
        format!("GPU{plural} {gpus}")
    };
    let is = worker.map_or_else(String::new, |worker| format!(" (worker {worker})"));
    let error = Error::new(
        ErrorCode::NotFound,
        format!(
            "the daemon here serves {}{is}, not {}",
            listed(&served),
            listed(named)
        ),
    );
    Err(error.hint("omit --gpus to stop this daemon, or set DIVVY_HOME to the other daemon's"))
}

/// `0,1,2` of `node1:dgpu0-2`.
fn gpus_of_worker(worker: &str) -> Option<GpuSelection> {
    let (_, gpus) = worker.rsplit_once(':')?;
    let gpus = gpus.strip_prefix('d').unwrap_or(gpus).strip_prefix("gpu")?;
    parse_gpus(&[gpus])
        .ok()
        .filter(|gpus| matches!(gpus, GpuSelection::Indices(_)))
}

/// Refuses to stop another worker than those that were named.
fn check_worker(node: &Node, workers: &[String]) -> Result<()> {
    let is = node.front_end.as_ref().map(|front| front.worker.as_str());
    let others: Vec<&str> = workers
        .iter()
        .map(String::as_str)
        .filter(|worker| Some(*worker) != is)
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    if others.len() < workers.len() {
        output::say(&format!(
            "not this daemon: {}; each has its own DIVVY_HOME",
            others.join(", ")
        ));
        return Ok(());
    }
    let is = is.map_or_else(
        || "no worker of a server".to_owned(),
        |is| format!("worker {is}"),
    );
    let error = Error::new(
        ErrorCode::NotFound,
        format!("the daemon here is {is}, not {}", others.join(", ")),
    );
    Err(error.hint("omit the worker to stop this daemon, or set DIVVY_HOME to the other daemon's"))
}

/// Whether the job is a task that a front end took from a server.
fn is_task(job: &Job) -> bool {
    job.labels.keys().any(|name| name.starts_with("clearml."))
}

/// Asks the process to end and waits until it has, so that its lock is free.
fn end(node: &Node) -> Result<()> {
    let failed = |errno| cannot_stop(node.pid, errno);
    let process = opened(node.pid).map_err(failed)?;
    pidfd_send_signal(&process, Signal::TERM).map_err(failed)?;
    let given = match node.front_end {
        Some(_) => PATIENCE_WITH_TASKS,
        None => PATIENCE,
    };
    if has_ended(&process, given).map_err(failed)? {
        Ok(())
    } else {
        let message = format!(
            "the daemon (pid {}) has not ended {} s after SIGTERM",
            node.pid,
            given.as_secs()
        );
        Err(Error::new(ErrorCode::TimedOut, message).hint("its log shows the cause"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn a_stop_tells_of_running_and_of_waiting_jobs() {
        assert_eq!(left(0, 0), "");
        let both =
            "; 1 job keeps running, and the next daemon adopts it; 2 jobs wait for the next daemon";
        assert_eq!(left(1, 2), both);
        assert_eq!(left(0, 1), "; 1 job waits for the next daemon");
    }

    /// A shell that does what the script says, once it has said so.
    fn shell(script: &str) -> (Child, Holder) {
        let mut child = Command::new("sh")
            .args(["-c", &format!("{script}; echo; read never")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let holder = Holder::of(child.id()).unwrap();
        (child, holder)
    }

    #[test]
    fn the_gpus_of_a_daemon_are_in_the_name_of_its_worker() {
        for (worker, gpus) in [
            ("node1:dgpu0-2", Some(vec![0, 1, 2])),
            ("node1:gpu0,1", Some(vec![0, 1])),
            ("a:b:gpu3", Some(vec![3])),
            ("node1:gpuall", None),
            ("node1:0", None),
            ("mine", None),
        ] {
            let gpus = gpus.map(GpuSelection::Indices);
            assert_eq!(gpus_of_worker(worker), gpus, "{worker}");
        }
    }

    #[test]
    fn a_stopped_process_ends_by_sigterm_and_a_deaf_one_by_sigkill() {
        let (mut stopped, holder) = shell("true");
        let pid = opened(holder.pid).unwrap();
        pidfd_send_signal(&pid, Signal::STOP).unwrap();
        let how = end_by_force(holder, Duration::from_secs(20)).unwrap();
        assert_eq!(how, "SIGTERM");
        stopped.wait().unwrap();
        let (mut deaf, holder) = shell("trap '' TERM");
        let how = end_by_force(holder, Duration::from_secs(1)).unwrap();
        assert_eq!(how, "SIGKILL, 1 s after SIGTERM");
        deaf.wait().unwrap();
    }

    #[test]
    fn a_process_that_was_given_the_pid_since_is_left_alone() {
        let (mut child, holder) = shell("true");
        let other = Holder {
            start_time: holder.start_time + 1,
            ..holder
        };
        let error = end_by_force(other, Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal);
        assert!(child.try_wait().unwrap().is_none(), "it lives");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
