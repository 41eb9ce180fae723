//! The fork server (zygote): a single-threaded child process that forks supervisors, so that starting a job costs no
//! exec.
//!
//! ```text
//! daemon                               fork server                      supervisor
//! job's folder, lock, log ───────────► forks ─────────────────────────► supervises, as one that was started
//!                         ◄─────────── born PID
//!                         ◄─────────── ended PID, how                   ends
//! ```
//! The daemon starts it from the same program, and it ends when the daemon's end of the socket closes. Supervisors do
//! not end with it. It decides nothing, opens nothing and remembers only its children; it has one thread, without which
//! it could not fork.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use divvy_api::sync;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
    sockopt::{Timeout, set_socket_timeout, socket_type},
};
use rustix::process::{PidfdFlags, WaitOptions, pidfd_open, waitpid};
use serde::{Deserialize, Serialize};

use crate::host::failpoint;
use crate::host::process::{Process, to_rustix_pid};
use crate::host::rlimits;
use crate::registry;
use crate::supervisor::{self, RunContainer};

/// How long it may take over one copy.
const FORK_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a start failed because the fork server ended meanwhile, or was killed for not answering. Then the job's lock
/// tells whether a supervisor exists.
pub fn is_server_gone(error: &io::Error) -> bool {
    let kinds = [
        io::ErrorKind::UnexpectedEof,
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::TimedOut,
    ];
    kinds.contains(&error.kind())
}

/// Longest path that the kernel takes (limits.h, `PATH_MAX`), and longest message.
const LONGEST: usize = 4096;

/// A reply of the fork server.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ForkReply {
    Forked {
        process: Process,
    },
    /// There can be no copy now; what the kernel said.
    Failed {
        errno: i32,
    },
    /// As wait(2) has it.
    Ended {
        pid: u32,
        status: i32,
    },
}

/// This process's fork server, from the first supervisor on.
static FORK_SERVER: Mutex<Option<ForkServer>> = Mutex::new(None);

/// The daemon's side.
#[derive(Debug)]
struct ForkServer {
    socket: OwnedFd,
    process: Child,
    /// Exit codes of ended children that no caller has asked for yet.
    ended: BTreeMap<u32, ExitStatus>,
    /// It says nothing any more.
    is_unresponsive: bool,
}

/// A supervisor that the fork server started.
#[derive(Debug)]
pub struct ForkedSupervisor {
    pub process: Process,
    /// The pid of its fork server: another one would know nothing of it.
    server_pid: u32,
}

impl ForkedSupervisor {
    /// Has the fork server start the supervisor of the job in this folder, with the lock as its standard input and the
    /// log as its output. `program` is this program, to start a fork server from if there is none.
    ///
    /// # Errors
    /// What starting a program says, or fork(2); [`is_server_gone`].
    pub fn start(program: &Path, folder: &Path, lock: &File, log: &File) -> io::Result<Self> {
        let mut ours = sync::lock(&FORK_SERVER);
        if !ours.as_mut().is_some_and(ForkServer::is_running) {
            *ours = None;
        }
        let server = match &mut *ours {
            Some(server) => server,
            none => none.insert(ForkServer::start(program, folder)?),
        };
        let born = server.fork_request(folder, lock, log);
        if born.as_ref().is_err_and(is_server_gone) {
            // Stopped or dead: what it has not heard it will not hear.
            let _ = server.process.kill();
        }
        Ok(Self {
            process: born?,
            server_pid: server.process.id(),
        })
    }

    /// How it ended, as far as was heard ([`hear`]).
    ///
    /// # Errors
    /// The fork server is gone, and the exit code with it.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        let mut ours = sync::lock(&FORK_SERVER);
        let server = ours
            .as_mut()
            .filter(|server| server.process.id() == self.server_pid)
            .ok_or(io::ErrorKind::NotFound)?;
        match server.ended.remove(&self.process.pid) {
            Some(status) => Ok(Some(status)),
            None if server.is_unresponsive => Err(io::ErrorKind::UnexpectedEof.into()),
            None => Ok(None),
        }
    }
}

/// Reads the replies of the fork server, about all supervisors at once.
pub fn poll_replies() {
    let mut ours = sync::lock(&FORK_SERVER);
    if let Some(server) = &mut *ours {
        server.is_unresponsive = server.drain_replies().is_err();
    }
}

impl ForkServer {
    /// `folder` is for process listings: it shows the instance.
    fn start(program: &Path, folder: &Path) -> io::Result<Self> {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        set_socket_timeout(&socket, Timeout::Recv, Some(FORK_TIMEOUT))?;
        let mut command = Command::new(program);
        command
            .arg("supervise")
            .arg(folder.parent().unwrap_or(folder))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null());
        failpoint::forward_to(&mut command);
        registry::files::forward_to(&mut command);
        let process = command.spawn()?;
        rlimits::restore_nofile_limit(&process);
        Ok(Self {
            socket,
            process,
            ended: BTreeMap::new(),
            is_unresponsive: false,
        })
    }

    fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    fn fork_request(&mut self, folder: &Path, lock: &File, log: &File) -> io::Result<Process> {
        let given = [lock.as_fd(), log.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&given));
        let message = [IoSlice::new(folder.as_os_str().as_bytes())];
        retry_on_eintr(|| sendmsg(&self.socket, &message, &mut control, SendFlags::NOSIGNAL))?;
        loop {
            let said = self.recv_reply(RecvFlags::empty());
            match said.map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
                _ => error,
            })? {
                ForkReply::Forked { process } => return Ok(process),
                ForkReply::Failed { errno } => return Err(io::Error::from_raw_os_error(errno)),
                ForkReply::Ended { pid, status } => self.record_exit(pid, status),
            }
        }
    }

    /// Takes in what it has said.
    fn drain_replies(&mut self) -> io::Result<()> {
        loop {
            match self.recv_reply(RecvFlags::DONTWAIT) {
                Ok(ForkReply::Ended { pid, status }) => self.record_exit(pid, status),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn record_exit(&mut self, pid: u32, status: i32) {
        self.ended.insert(pid, ExitStatus::from_raw(status));
    }

    fn recv_reply(&self, flags: RecvFlags) -> io::Result<ForkReply> {
        let mut message = [0; LONGEST];
        match retry_on_eintr(|| recv(&self.socket, &mut message, flags)) {
            Ok((0, _)) | Err(Errno::CONNRESET) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((length, _)) => Ok(serde_json::from_slice(&message[..length])?),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Whether standard input is the daemon's socket, and this process is to be its fork server.
pub fn is_requested() -> bool {
    socket_type(io::stdin()) == Ok(SocketType::SEQPACKET)
}

/// Runs the fork server until the daemon is gone.
pub fn serve(run_container: RunContainer) -> ExitCode {
    match serve_requests(run_container) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            supervisor::write_stderr(&format!("the fork server of supervisors ends: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve_requests(run_container: RunContainer) -> io::Result<()> {
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    // What is copied shall not have it as its input.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    crate::host::cgroup::cache_own();
    // Closed in children: a child that held them would receive these messages, and keep the socket open for ever.
    let mut own = Some((socket, BTreeMap::new()));
    while let Some((socket, children)) = &mut own {
        let ready = wait_ready(socket, children)?;
        for pid in ready.ended {
            children.remove(&pid);
            let waited = to_rustix_pid(pid)
                .map(|pid| retry_on_eintr(|| waitpid(Some(pid), WaitOptions::empty())));
            if let Some(Ok(Some((_, status)))) = waited {
                let status = status.as_raw();
                send_reply(socket, &ForkReply::Ended { pid, status })?;
            }
        }
        if !ready.has_request {
            continue;
        }
        let Some((folder, lock, log)) = recv_request(socket)? else {
            return Ok(());
        };
        let born = divvy_fork::fork(|| {
            drop(own.take());
            match become_supervisor(&folder, lock.as_fd(), log.as_fd(), run_container) {
                Ok(code) => code,
                Err(error) => {
                    supervisor::write_stderr(&format!(
                        "cannot supervise {}: {error}",
                        folder.display()
                    ));
                    1
                }
            }
        });
        let Some((socket, children)) = &mut own else {
            return Ok(());
        };
        match born {
            Ok(pid) => {
                // Until it is waited for its pid is its own.
                let process = Process::with_pid(pid).unwrap_or(Process { pid, start_time: 0 });
                send_reply(socket, &ForkReply::Forked { process })?;
                if let Some(handle) = to_rustix_pid(pid) {
                    children.insert(pid, pidfd_open(handle, PidfdFlags::empty())?);
                }
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
                send_reply(socket, &ForkReply::Failed { errno })?;
            }
        }
    }
    Ok(())
}

/// What there is to do.
struct Readiness {
    /// The daemon has said something, or is gone.
    has_request: bool,
    /// These have ended.
    ended: Vec<u32>,
}

/// Waits for the daemon and for ending children.
fn wait_ready(socket: &OwnedFd, children: &BTreeMap<u32, OwnedFd>) -> io::Result<Readiness> {
    let handles = children
        .values()
        .map(|handle| PollFd::new(handle, PollFlags::IN));
    let mut handles: Vec<PollFd<'_>> = std::iter::once(PollFd::new(socket, PollFlags::IN))
        .chain(handles)
        .collect();
    retry_on_eintr(|| poll(&mut handles, None))?;
    let mut is_ready = handles.iter().map(|handle| !handle.revents().is_empty());
    let asked = is_ready.next().unwrap_or(false);
    let ended = children.keys().zip(is_ready).filter(|(_, ready)| *ready);
    Ok(Readiness {
        has_request: asked,
        ended: ended.map(|(pid, _)| *pid).collect(),
    })
}

/// A job's folder, its lock and its log; `None` once the daemon is gone.
fn recv_request(socket: &OwnedFd) -> io::Result<Option<(PathBuf, OwnedFd, OwnedFd)>> {
    let mut folder = [0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length = {
        let mut parts = [IoSliceMut::new(&mut folder)];
        retry_on_eintr(|| recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?.bytes
    };
    let mut given = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            given.extend(rights);
        }
    }
    let mut given = given.into_iter();
    match (length, given.next(), given.next()) {
        (0, ..) => Ok(None),
        (length, Some(lock), Some(log)) => {
            let folder = OsStr::from_bytes(&folder[..length]);
            Ok(Some((folder.into(), lock, log)))
        }
        _ => Err(io::Error::other(
            "the daemon's request has no lock and no log",
        )),
    }
}

fn become_supervisor(
    folder: &Path,
    lock: BorrowedFd<'_>,
    log: BorrowedFd<'_>,
    run_container: RunContainer,
) -> io::Result<u8> {
    rustix::stdio::dup2_stdin(lock)?;
    rustix::stdio::dup2_stdout(log)?;
    rustix::stdio::dup2_stderr(log)?;
    std::env::set_current_dir(folder)?;
    Ok(supervisor::supervise_one(folder, run_container))
}

fn send_reply(socket: &OwnedFd, said: &ForkReply) -> io::Result<()> {
    let said = serde_json::to_vec(said)?;
    match retry_on_eintr(|| send(socket, &said, SendFlags::NOSIGNAL)) {
        // The daemon is gone, which the next read says too.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Calls again what a signal has interrupted.
fn retry_on_eintr<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
