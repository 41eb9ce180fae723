//! The supervisor of one job: starts the program once, stops it when told, writes down how it ended.
//!
//! May use: `host`, `registry`, `model`, `job_dir`, `exec`.
//! Used by: `container`, `controller`, `daemon`, `diagnostics`, `standalone`.
//!
//! ```text
//! daemon                              supervisor                               program
//! locks the record, spawns ─────────► keeps the lock (descriptor 0)
//!                                     launch, synced
//!                                     spawns ─────────────────────────────────► runs
//!                                     started
//! SIGTERM to stop ──────────────────► SIGTERM, after the grace SIGKILL ───────► ends
//!                                     ends what the program left behind
//!                                     exit, synced; exits, lock drops
//! ```
//! No threads, no async, no memory of the daemon: daemon and supervisor can each die at any line. `launch` is the
//! line that is crossed once: before it the job may be put back, after it the program is never started again.
//! It is a subreaper, so also what the program daemonises stays its descendant and ends with the job.
//!
//! The same code serves `divvy run`, inside the command-line process and on its terminal: there the program stays in
//! the terminal's foreground group, so that keys reach it as if Divvy were not there.

mod bind_mounts;
pub mod enter;
pub mod forkserver;
pub mod handle;
pub mod injection;
pub mod job_environment;
mod launch;
pub mod ldso;
pub mod output;
pub mod resolve_program;
pub mod script;
pub mod watch;

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use divvy_api::disposition::is_ignored;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitOptions, WaitStatus, kill_process_group};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

use crate::exec::ExecReply;
use crate::exec::server::{self, ExecServer, IncomingRequest};
use crate::host::account::AccountError;
use crate::host::cgroup::{Cgroup, CgroupStatus};
use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::host::log_times::LogTimes;
use crate::host::log_trim::LogTrimmer;
use crate::host::process::{self, Process};
use crate::job_dir::container_spec::Plan;
use crate::job_dir::{ExitRecord, JobDir, LaunchSpec, RecordError, RunOutcome, StartRecord};
use crate::registry;
use launch::{ExecStdio, Launcher};

/// The umask of a job of root's daemon: that of units of systemd (systemd.exec(5), `UMask=`).
const JOB_UMASK: rustix::fs::Mode = rustix::fs::Mode::from_bits_retain(0o022);

/// The exit code of a supervisor whose user database does not answer: EX_TEMPFAIL of sysexits.h.
pub const UNKNOWN_USER: u8 = 75;

/// That of one whose user database has no account for the uid: EX_NOUSER. Of sysexits.h.
pub const ABSENT_USER: u8 = 67;

/// Interval at which a stop searches again for processes that fork faster than they can be ended. So a program that
/// forks every 20 ms is caught after a few; a shorter pause would take its processor.
const SWEEP: Duration = Duration::from_millis(20);

/// How long a client tries to get hold of its job. A holder reads or writes one record, within milliseconds; longer
/// would look like a hang.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// How often a record that the disk did not take is written again.
const EXIT_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Between two times of [`Upkeep`]: as often as a daemon looks. So a job without a daemon is served as well as one with
/// it.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Why a supervisor gave up: before it wrote `launch`, but where it says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("another process supervises {0}")]
    Locked(String),
    #[error("{0} contains no job to start")]
    NoSpec(String),
    #[error("{0} was started already, and a job is never started twice")]
    AlreadyStarted(String),
    /// The daemon puts the job back into its queue.
    #[error("the user of {0} is unknown now")]
    UnknownUser(String, #[source] AccountError),
    #[error("cannot prepare the supervisor")]
    Setup(#[source] io::Error),
    /// After it did: the next supervisor goes on from there.
    #[error(
        "the container engine does not respond, so the state of container {0} is unknown; the next supervisor ends \
         the container"
    )]
    ContainerStateUnknown(String),
}

/// Supervises a job in a container, which the caller knows how to do: `container` lies above this room.
pub type RunContainer =
    fn(&JobDir, &LaunchSpec, &Plan, StdioMode) -> Result<RunOutcome, SuperviseError>;

/// What the supervisor of a run without a daemon does in the daemon's place while its program runs.
pub type Upkeep<'a> = Box<dyn FnMut() + 'a>;

/// Where the program's terminal and signals come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StdioMode {
    /// Its own session, no input, output where the daemon opened it.
    Background,
    /// The caller's standard streams, in the foreground of a terminal: keys reach the program by themselves.
    Foreground,
    /// The caller's standard streams without a terminal: signals to us are passed on.
    Attached,
}

impl StdioMode {
    /// Whether the supervisor listens for SIGINT, SIGQUIT or SIGHUP. In front of its caller a signal that the caller
    /// ignores stays ignored, for the program too; the daemon's jobs have default signals, whatever the daemon was
    /// started with.
    pub fn handles_signal(self, signal: i32) -> bool {
        self == Self::Background || !is_ignored(signal)
    }
}

/// `divvy supervise DIR`: with a socket as standard input, the process is the daemon's [fork
/// server](crate::supervisor::forkserver), and the supervisors of the daemon's jobs are copies of it. For one job the
/// daemon starts it with the locked record.
pub fn supervise(dir: &Path, run_container: RunContainer) -> ExitCode {
    if let Err(error) = divvy_fork::mark_close_on_exec() {
        write_stderr(&format!(
            "cannot mark file descriptors as close-on-exec: {error}"
        ));
        return ExitCode::FAILURE;
    }
    divvy_fork::drop_inherited();
    if rustix::process::geteuid().is_root() {
        // Other users' jobs get no umask of root's shell: 0 would let every user write their files.
        rustix::process::umask(JOB_UMASK);
    }
    let is_fork_server = forkserver::is_requested();
    // Copies of the fork server keep it, so that the job's GPUs count as held without a daemon.
    let _hold = match is_fork_server {
        true => dir.parent().and_then(registry::hold),
        false => hold_for(dir),
    };
    match is_fork_server {
        true => forkserver::serve(run_container),
        false => supervise_one(dir, run_container).into(),
    }
}

/// Supervises the job of this folder to its end, with the locked record as standard input; answers this process's exit
/// code.
pub(crate) fn supervise_one(dir: &Path, run_container: RunContainer) -> u8 {
    match in_background(&JobDir::new(dir), run_container) {
        Ok(_) => 0,
        Err(error) => {
            write_stderr(&error_chain(&error));
            match error {
                SuperviseError::UnknownUser(_, AccountError::Absent { .. }) => ABSENT_USER,
                SuperviseError::UnknownUser(..) => UNKNOWN_USER,
                _ => 1,
            }
        }
    }
}

/// Runs a job that the daemon placed for this process, on its terminal; answers the program's code as a shell would.
///
/// # Errors
/// When the job must not be started by this process; then nothing was.
pub fn run_client_job(dir: &JobDir, run_container: RunContainer) -> Result<i32, SuperviseError> {
    divvy_fork::survive_file_limit();
    let _lock = take_lock(dir)?;
    let hold = hold_for(dir.path());
    let code = run_here(dir, run_container, None);
    if let Some(hold) = hold {
        hold.release();
    }
    code
}

/// The hold for the job in this folder.
fn hold_for(dir: &Path) -> Option<registry::files::Hold> {
    registry::hold(dir.parent()?.parent()?)
}

/// The same, for a job with a lock that the caller holds.
pub fn run_here(
    dir: &JobDir,
    run_container: RunContainer,
    upkeep: Option<Upkeep<'_>>,
) -> Result<i32, SuperviseError> {
    let place = if in_foreground() {
        StdioMode::Foreground
    } else {
        StdioMode::Attached
    };
    let outcome = run(dir, place, run_container, upkeep)?;
    Ok(outcome.code().unwrap_or(125))
}

fn in_background(dir: &JobDir, run_container: RunContainer) -> Result<RunOutcome, SuperviseError> {
    let _lock = inherited_lock(dir)?;
    // Fails only where we lead a group already, and then that group is as good.
    let _ = rustix::process::setsid();
    run(dir, StdioMode::Background, run_container, None)
}

/// Takes the lock. The daemon may hold it for a moment, to see whether a supervisor does.
fn take_lock(dir: &JobDir) -> Result<std::fs::File, SuperviseError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match dir.lock()? {
            Some(lock) => return Ok(lock),
            None if Instant::now() > deadline => {
                return Err(SuperviseError::Locked(dir.path().display().to_string()));
            }
            None => std::thread::sleep(SWEEP),
        }
    }
}

/// Standard input is the daemon's locked descriptor; started by hand it is not, and the lock is taken here.
fn inherited_lock(dir: &JobDir) -> Result<Option<std::fs::File>, SuperviseError> {
    let same =
        |a: rustix::fs::Stat, b: rustix::fs::Stat| a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    let ours = rustix::fs::fstat(dir.open_lock()?).map_err(setup)?;
    if rustix::fs::fstat(io::stdin()).is_ok_and(|stdin| same(stdin, ours)) {
        let held = rustix::fs::flock(
            io::stdin(),
            rustix::fs::FlockOperation::NonBlockingLockExclusive,
        );
        return held
            .map(|()| None)
            .map_err(|_| SuperviseError::Locked(dir.path().display().to_string()));
    }
    dir.lock()?
        .map(Some)
        .ok_or_else(|| SuperviseError::Locked(dir.path().display().to_string()))
}

/// Whether a terminal's keys reach this process: its group is the terminal's foreground group.
fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
}

fn run(
    dir: &JobDir,
    place: StdioMode,
    run_container: RunContainer,
    upkeep: Option<Upkeep<'_>>,
) -> Result<RunOutcome, SuperviseError> {
    let name = || dir.path().display().to_string();
    let (spec, record) = dir.read_all()?;
    if record.exit.is_some() {
        return Err(SuperviseError::AlreadyStarted(name()));
    }
    let mut spec = spec.ok_or_else(|| SuperviseError::NoSpec(name()))?;
    // A container that runs already goes on, also when the uid has another account now.
    if record.launch.is_none()
        && let Some(user) = spec.user.take()
    {
        match user.with_known_groups() {
            Ok(user) => spec.user = Some(user),
            Err(unknown @ (AccountError::Unknown(_) | AccountError::Absent { .. })) => {
                return Err(SuperviseError::UnknownUser(name(), unknown));
            }
            Err(changed @ AccountError::Changed { .. }) => {
                let launch_error = changed.to_string();
                write_stderr(&launch_error);
                let outcome = RunOutcome::Launch {
                    launch_error,
                    exit_code: 125,
                };
                finish(dir, place, &outcome);
                return Ok(outcome);
            }
        }
    }
    if let Some(plan) = &spec.container {
        return run_container(dir, &spec, plan, place);
    }
    if record.launch.is_some() {
        return Err(SuperviseError::AlreadyStarted(name()));
    }
    reach("supervise.locked");
    let mut watch = SignalWatch::new(place).map_err(SuperviseError::Setup)?;
    // Kernels without it (before 3.4) leave daemonised children to init.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let me = Process::this().map_err(SuperviseError::Setup)?;

    dir.write_launch(&StartRecord::now(me))?;
    reach("supervise.launched");
    let laid = script::install(dir, &mut spec);
    let outcome = match laid.and_then(|()| start(&spec, place)) {
        Ok((pid, host, held)) => {
            reach("supervise.spawned");
            // The program of `divvy run` has what its caller opened for it, as under env(1); guests have not.
            if let Err(error) = divvy_fork::mark_close_on_exec() {
                write_stderr(&format!(
                    "cannot mark file descriptors as close-on-exec: {error}"
                ));
            }
            let program = Process::with_pid(pid).unwrap_or(Process { pid, start_time: 0 });
            // Without the record the daemon shows no pid, and learns of the end all the same.
            let begun = StartRecord::now(program);
            log_record_error(dir.write_started_as(&begun, host.limiter(), &held));
            reach("supervise.started");
            let grace = Duration::from_millis(spec.grace_ms);
            let group = held
                .group
                .map(|at| Cgroup::at(at).staying(spec.needs_group));
            let outcome = ProcessTree {
                dir,
                pid,
                stdio_mode: place,
                grace,
                stopping_since: None,
                deadline: (spec.ends_after_ms)
                    .map(|time| Instant::now() + Duration::from_millis(time)),
                cgroup: group.clone(),
                launcher: host,
                exec_server: None,
                upkeep: upkeep.map(|upkeep| (upkeep, Instant::now() + UPKEEP_INTERVAL)),
                log_trimmer: spec
                    .log_most
                    .filter(|_| place == StdioMode::Background)
                    .map(|most| LogTrimmer::new(most).with_times(LogTimes::new(dir.log_times()))),
            }
            .run_to_end(&mut watch);
            if let Some(group) = group {
                group.remove();
            }
            outcome
        }
        Err(resolve_program::LaunchError { code, message }) => {
            write_stderr(&message);
            RunOutcome::Launch {
                launch_error: message,
                exit_code: code,
            }
        }
    };
    reach("supervise.ended");
    finish(dir, place, &outcome);
    reach("supervise.recorded");
    Ok(outcome)
}

/// Writes down how it ended.
pub(crate) fn finish(dir: &JobDir, place: StdioMode, outcome: &RunOutcome) {
    let exit = ExitRecord {
        outcome: outcome.clone(),
        at: now(),
    };
    match place {
        StdioMode::Background => write_exit_at_last(dir, &exit),
        // The client at the terminal gets the code.
        StdioMode::Foreground | StdioMode::Attached => log_record_error(dir.write_exit(&exit)),
    }
}

/// Only this process knows how the program ended, so it waits until a full disk has room: the daemon sees the lock held
/// until then. A folder that was removed needs no record.
fn write_exit_at_last(dir: &JobDir, exit: &ExitRecord) {
    let mut said = false;
    while let Err(error) = dir.write_exit(exit) {
        if !std::mem::replace(&mut said, true) {
            log_record_error(Err(error));
        }
        if !dir.path().is_dir() {
            return;
        }
        std::thread::sleep(EXIT_RETRY_INTERVAL);
    }
}

/// Prepares and starts the program; also returns the environment of exec sessions, and the job's process container.
fn start(
    spec: &LaunchSpec,
    place: StdioMode,
) -> Result<(u32, Launcher<'_>, CgroupStatus), resolve_program::LaunchError> {
    let (mut host, mut held) = Launcher::prepare(spec)?;
    match host.start(place, &mut held) {
        Ok(pid) => Ok((pid, host, held)),
        Err(error) => {
            if let Some(group) = held.group {
                Cgroup::at(group).staying(spec.needs_group).remove();
            }
            Err(error)
        }
    }
}

/// The program and all that descends from it.
struct ProcessTree<'a> {
    dir: &'a JobDir,
    pid: u32,
    stdio_mode: StdioMode,
    grace: Duration,
    /// When SIGTERM was sent.
    stopping_since: Option<Instant>,
    /// When it is stopped, if it has not ended by then.
    deadline: Option<Instant>,
    cgroup: Option<Cgroup>,
    launcher: Launcher<'a>,
    /// Open once a client has asked for it.
    exec_server: Option<ExecServer>,
    /// What to do now and then, and when to do it next.
    upkeep: Option<(Upkeep<'a>, Instant)>,
    /// Of the log, which is standard output.
    log_trimmer: Option<LogTrimmer>,
}

impl ProcessTree<'_> {
    fn run_to_end(mut self, watch: &mut SignalWatch) -> RunOutcome {
        let mut outcome = None;
        loop {
            let childless = self.reap(&mut outcome);
            if let (Some(outcome), true) = (&outcome, childless) {
                if let Some(bound) = &mut self.log_trimmer {
                    bound.trim(io::stdout());
                }
                return outcome.clone();
            }
            let left = self
                .deadline
                .map(|until| until.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            if (outcome.is_some() || is_over) && self.stopping_since.is_none() {
                self.stop();
            }
            let killing = self
                .stopping_since
                .is_some_and(|since| since.elapsed() >= self.grace);
            if killing {
                self.kill();
            }
            let timeout = match self.stopping_since {
                Some(_) if killing => Some(SWEEP),
                Some(since) => Some(self.grace.saturating_sub(since.elapsed())),
                None => left,
            };
            let look = self.log_trimmer.as_ref().map(LogTrimmer::until_next_check);
            let upkeep = self.upkeep_if_due();
            let timeout = [timeout, look, upkeep].into_iter().flatten().min();
            for signal in watch.wait(timeout, self.exec_server.as_ref()) {
                self.forward_signal(signal);
            }
            self.serve_exec();
            if let Some(bound) = &mut self.log_trimmer {
                bound.trim_if_due(io::stdout());
            }
        }
    }

    /// Does the upkeep if its time has come, and says after what time it is due next.
    fn upkeep_if_due(&mut self) -> Option<Duration> {
        let (upkeep, next) = self.upkeep.as_mut()?;
        if Instant::now() >= *next {
            upkeep();
            *next = Instant::now() + UPKEEP_INTERVAL;
        }
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Collects what has ended; true when no child is left.
    fn reap(&mut self, outcome: &mut Option<RunOutcome>) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == process::to_rustix_pid(self.pid) => {
                    *outcome = Some(to_outcome(status))
                }
                Ok(Some((pid, status))) => {
                    let pid = pid.as_raw_nonzero().get().unsigned_abs();
                    if let (Some(door), Some(code)) =
                        (&mut self.exec_server, to_outcome(status).code())
                    {
                        door.report_exit(pid, code);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return false,
                Err(_) => {
                    // No child and no status: another process reaped it, which only a bug can do.
                    outcome.get_or_insert(RunOutcome::Signaled { signal: 9 });
                    return true;
                }
            }
        }
    }

    /// Lets guests in, and hears what their callers say.
    fn serve_exec(&mut self) {
        let Some(mut door) = self.exec_server.take() else {
            return;
        };
        door.poll_clients();
        while let Some((asked, line)) = door.next_request() {
            let mut line = Some(line);
            match asked {
                IncomingRequest::Signal(signal) => {
                    self.signal(signal);
                    server::send_reply(&mut line, &ExecReply::Sent);
                }
                IncomingRequest::Enter {
                    command,
                    terminal,
                    descriptors,
                } => match self.start_exec(
                    &command,
                    ExecStdio::from_request(terminal, descriptors),
                    door.is_full(),
                ) {
                    Ok(pid) => {
                        if let Some(line) = line {
                            door.add_session(pid, line);
                        }
                    }
                    Err(resolve_program::LaunchError { code, message }) => {
                        let exit_code = code;
                        server::send_reply(&mut line, &ExecReply::Refused { exit_code, message });
                    }
                },
            }
        }
        self.exec_server = Some(door);
    }

    fn start_exec(
        &mut self,
        command: &[String],
        ends: Option<ExecStdio>,
        is_full: bool,
    ) -> Result<u32, resolve_program::LaunchError> {
        let refused = |why: &str| resolve_program::LaunchError {
            code: 125,
            message: why.to_owned(),
        };
        match ends {
            _ if self.stopping_since.is_some() => Err(refused("the job is being stopped")),
            _ if is_full => Err(refused("too many exec sessions in this job already")),
            None => Err(refused(
                "the call does not have the file descriptors that it announces",
            )),
            Some(ends) => self.launcher.start_exec(command, &ends),
        }
    }

    fn forward_signal(&mut self, signal: i32) {
        match signal {
            SIGTERM => self.stop(),
            // The terminal has sent them to the program as well.
            SIGINT | SIGQUIT if self.stdio_mode == StdioMode::Foreground => {}
            SIGINT => self.signal(Signal::INT),
            SIGQUIT => self.signal(Signal::QUIT),
            SIGHUP => self.signal(Signal::HUP),
            server::OPEN_EXEC_SIGNAL if self.exec_server.is_none() => {
                let opened = ExecServer::open(self.dir.path());
                let opened = opened.map_err(|error| {
                    write_stderr(&format!("cannot accept exec sessions: {error}"))
                });
                self.exec_server = opened.ok();
            }
            _ => {}
        }
    }

    /// Asks everything to end; the grace runs from the first time.
    fn stop(&mut self) {
        self.signal(Signal::TERM);
        if let Some(door) = &self.exec_server {
            door.stop();
        }
        // Suspended processes have to go on to receive the signal.
        for process in process::descendants(std::process::id()) {
            let _ = process.signal(Signal::CONT);
        }
        self.stopping_since.get_or_insert_with(Instant::now);
    }

    fn signal(&self, signal: Signal) {
        if self.stdio_mode != StdioMode::Foreground
            && let Some(group) = process::to_rustix_pid(self.pid)
            && kill_process_group(group, signal).is_ok()
        {
            return;
        }
        // In a terminal's foreground the group is the user's own; and a group may be gone while its children are not.
        for process in process::descendants(std::process::id()) {
            let _ = process.signal(signal);
        }
    }

    fn kill(&self) {
        if let Some(group) = &self.cgroup {
            let _ = group.kill();
        }
        for process in process::descendants(std::process::id()) {
            let _ = process.signal(Signal::KILL);
        }
    }
}

fn to_outcome(status: WaitStatus) -> RunOutcome {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(exit_code), _) => RunOutcome::Exited { exit_code },
        (None, signal) => RunOutcome::Signaled {
            signal: signal.unwrap_or(0),
        },
    }
}

/// Signals as poll events. Handlers, not a blocked mask: a program inherits masks but not handlers.
struct SignalWatch(SignalDelivery<UnixStream, SignalOnly>);

impl SignalWatch {
    fn new(place: StdioMode) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        let heard = |signal: &i32| place.handles_signal(*signal);
        let heard = [SIGINT, SIGQUIT, SIGHUP].into_iter().filter(heard);
        let needed = [SIGCHLD, SIGTERM, server::OPEN_EXEC_SIGNAL];
        let signals = needed.into_iter().chain(heard);
        let watch = SignalDelivery::with_pipe(read, write, SignalOnly, signals)?;
        // Each has its handler. A caller that blocked SIGTERM must not keep `divvy cancel` from the job.
        divvy_fork::unblock(&needed);
        Ok(Self(watch))
    }

    /// Waits for signals, and for calls to the exec server.
    fn wait<'a>(
        &'a mut self,
        timeout: Option<Duration>,
        door: Option<&ExecServer>,
    ) -> impl Iterator<Item = i32> + use<'a> {
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let door = door.into_iter().flat_map(ExecServer::descriptors);
        let all = std::iter::once(self.0.get_read().as_fd()).chain(door);
        let mut all: Vec<PollFd<'_>> = all
            .map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN))
            .collect();
        // Interrupted or timed out, the answer is the same: check what is pending.
        let _ = poll(&mut all, timeout.as_ref());
        self.0.pending()
    }
}

fn setup(errno: rustix::io::Errno) -> SuperviseError {
    SuperviseError::Setup(errno.into())
}

/// After `launch` nothing may stop the supervisor, so what fails is said and survived.
pub(crate) fn log_record_error(result: Result<(), RecordError>) {
    if let Err(error) = result {
        write_stderr(&error_chain(&error));
    }
}

/// Stderr may be a log on a full disk or a pipe without a reader, on which `eprintln!` would panic.
pub(crate) fn write_stderr(text: &str) {
    let _ = writeln!(io::stderr(), "divvy: {text}");
}
