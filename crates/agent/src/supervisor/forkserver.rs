//! The fork server (zygote): a single-threaded process that forks supervisors, so that starting a job costs no exec.
//!
//! ```text
//! daemon                               fork server                      supervisor
//!                         ◄─────────── hello: protocol, PID
//! job's folder, lock, log ───────────► forks ─────────────────────────► supervises, as one that was started
//!                         ◄─────────── forked PID
//!                         ◄─────────── ended PID, how                   ends
//! ```
//! The daemon reaches it in one of two ways, and speaks the same messages to both:
//!
//! | started by | standard input of the fork server | restrictions and control group of jobs |
//! |---|---|---|
//! | the daemon, as its child | a connected socket | the daemon's |
//! | systemd, by socket activation, in a unit of its own | the listening socket (`StandardInput=socket`) | the unit's |
//!
//! It serves one daemon and ends when that daemon's end of the socket closes, so the next daemon gets a fork server of
//! the program that is installed by then. Supervisors do not end with it. It decides nothing, opens nothing and
//! remembers only its children; it has one thread, without which it could not fork.

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
use std::time::{Duration, Instant};

use divvy_api::daemon::DeviceNodes;
use divvy_api::sync;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect,
    recv, recvmsg, send, sendmsg, socket_with, socketpair,
    sockopt::{Timeout, set_socket_timeout, socket_acceptconn, socket_peercred, socket_type},
};
use rustix::process::{PidfdFlags, Signal, WaitOptions, geteuid, pidfd_open, waitpid};
use serde::{Deserialize, Serialize};

use crate::host::cgroup::{self, JobCgroups};
use crate::host::device_nodes::DeviceGroups;
use crate::host::failpoint;
use crate::host::process::mounts::remove_mounts_in;
use crate::host::process::{Process, to_rustix_pid};
use crate::host::rlimits;
use crate::job_dir::JobDir;
use crate::registry;
use crate::supervisor::{self, RunContainer};

/// How long it may take over one copy.
const FORK_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a new daemon waits for the fork server that still serves its predecessor. A predecessor that ends releases
/// it within moments; longer would delay a restart.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of the attempts meanwhile. So a restart is no more than that late; a shorter pause would be busy waiting.
const BUSY_RETRY: Duration = Duration::from_millis(20);

/// Version of the messages. A fork server that was started after an upgrade of the program may have a newer one than
/// the daemon.
const PROTOCOL: u32 = 1;

/// Interval of looking for control groups that have come since.
const REGROUP: Duration = Duration::from_secs(10);
const REGROUP_POLL: Timespec = Timespec {
    tv_sec: REGROUP.as_secs().cast_signed(),
    tv_nsec: 0,
};

/// Longest path that the kernel takes (limits.h, `PATH_MAX`), and longest message.
const LONGEST: usize = 4096;

/// Why the fork server of a unit serves this daemon no starts now.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    #[error("cannot connect to the fork server at {socket}")]
    Connect {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the fork server at {socket} belongs to uid {uid}, not to root and not to this daemon's user"
    )]
    WrongUser { socket: PathBuf, uid: u32 },
    #[error("the fork server at {socket} serves another daemon (pid {daemon})")]
    Busy { socket: PathBuf, daemon: u32 },
    #[error(
        "the fork server at {socket} speaks version {theirs} of its protocol and this daemon version {PROTOCOL}: \
         restart the daemon"
    )]
    OtherProtocol { socket: PathBuf, theirs: u32 },
    #[error("cannot keep users from the GPUs' device nodes: {0}")]
    DeviceNodes(String),
}

/// Whether a start failed because the fork server ended meanwhile, was killed for not answering, or cannot be reached.
/// Then the job's lock tells whether a supervisor exists.
pub fn is_server_gone(error: &io::Error) -> bool {
    let kinds = [
        io::ErrorKind::UnexpectedEof,
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::TimedOut,
    ];
    kinds.contains(&error.kind()) || error.get_ref().is_some_and(|inner| inner.is::<UnitError>())
}

/// A request of the daemon: a tag, and bytes to the end of the message.
#[derive(Clone, Copy, Debug)]
enum ForkRequest<'a> {
    /// Fork a supervisor for the job of this folder. Its lock and its log come with the message.
    Fork(&'a Path),
    /// Find the parent control group for the jobs of this instance.
    FindCgroup(&'a str),
    /// Keep users' programs outside jobs from the GPUs' device nodes, or let them open the nodes.
    SetDeviceNodes(DeviceNodes),
    /// Remove the staged mounts of a container in this folder. The daemon's unit may not unmount.
    RemoveMounts(&'a Path),
}

const FORK: u8 = b'f';
const FIND_CGROUP: u8 = b'g';
const REMOVE_MOUNTS: u8 = b'm';
const OPEN_DEVICES: u8 = b'o';
const RESTRICT_DEVICES: u8 = b'r';

impl<'a> ForkRequest<'a> {
    fn encode(self) -> [IoSlice<'a>; 2] {
        match self {
            Self::Fork(folder) => [
                IoSlice::new(&[FORK]),
                IoSlice::new(folder.as_os_str().as_bytes()),
            ],
            Self::FindCgroup(instance) => [
                IoSlice::new(&[FIND_CGROUP]),
                IoSlice::new(instance.as_bytes()),
            ],
            Self::RemoveMounts(folder) => [
                IoSlice::new(&[REMOVE_MOUNTS]),
                IoSlice::new(folder.as_os_str().as_bytes()),
            ],
            Self::SetDeviceNodes(DeviceNodes::Open) => {
                [IoSlice::new(&[OPEN_DEVICES]), IoSlice::new(&[])]
            }
            Self::SetDeviceNodes(DeviceNodes::Jobs) => {
                [IoSlice::new(&[RESTRICT_DEVICES]), IoSlice::new(&[])]
            }
        }
    }

    fn decode(message: &'a [u8]) -> io::Result<Self> {
        match message {
            [FORK, folder @ ..] => Ok(Self::Fork(Path::new(OsStr::from_bytes(folder)))),
            [FIND_CGROUP, instance @ ..] => str::from_utf8(instance)
                .map(Self::FindCgroup)
                .map_err(io::Error::other),
            [REMOVE_MOUNTS, folder @ ..] => {
                Ok(Self::RemoveMounts(Path::new(OsStr::from_bytes(folder))))
            }
            [OPEN_DEVICES] => Ok(Self::SetDeviceNodes(DeviceNodes::Open)),
            [RESTRICT_DEVICES] => Ok(Self::SetDeviceNodes(DeviceNodes::Jobs)),
            _ => Err(io::Error::other("the daemon's request has an unknown tag")),
        }
    }
}

/// A reply of the fork server.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ForkReply {
    /// The first message to a daemon.
    Hello {
        protocol: u32,
        process: Process,
    },
    /// The only message to a second daemon.
    Busy {
        daemon: u32,
    },
    Forked {
        process: Process,
    },
    /// There can be no copy now; what the kernel said.
    Failed {
        errno: i32,
    },
    Cgroup(JobCgroups),
    /// Whether the device nodes are as the daemon wants them, or why not.
    DeviceNodes {
        set: Result<(), String>,
    },
    MountsRemoved,
    /// As wait(2) has it.
    Ended {
        pid: u32,
        status: i32,
    },
}

/// The fork server of this process.
static FORK_SERVER: Mutex<ForkServerSlot> = Mutex::new(ForkServerSlot {
    unit: None,
    server: None,
});

/// Where the fork server comes from, and the one that is connected.
#[derive(Debug)]
struct ForkServerSlot {
    /// `None`: the daemon starts a child.
    unit: Option<Unit>,
    server: Option<ForkServer>,
}

/// A fork server's unit, and what the daemon wants of it.
#[derive(Debug)]
struct Unit {
    socket: PathBuf,
    nodes: DeviceNodes,
}

impl Unit {
    fn connect(&self) -> io::Result<ForkServer> {
        let mut server = ForkServer::connect(&self.socket)?;
        server.send_request(ForkRequest::SetDeviceNodes(self.nodes), &[])?;
        match server.recv_answer()? {
            ForkReply::DeviceNodes { set: Ok(()) } => Ok(server),
            ForkReply::DeviceNodes { set: Err(why) } => {
                Err(io::Error::other(UnitError::DeviceNodes(why)))
            }
            other => Err(unexpected(&other)),
        }
    }
}

/// The daemon's side.
#[derive(Debug)]
struct ForkServer {
    socket: OwnedFd,
    process: Process,
    /// Absent for that of a unit, which systemd reaps.
    child: Option<Child>,
    /// Exit codes of ended children that no caller has asked for yet.
    ended: BTreeMap<u32, ExitStatus>,
    /// It says nothing any more.
    is_unresponsive: bool,
}

/// A supervisor that the fork server started.
#[derive(Debug)]
pub struct ForkedSupervisor {
    pub process: Process,
    /// Its fork server: another one would know nothing of it.
    server: Process,
}

/// Connects to the fork server of a unit, which forks all supervisors from then on, and which opens or restricts the
/// GPUs' device nodes. Returns the parent control group of
/// this instance's jobs, which lies below that of the unit, or why there is none.
///
/// # Errors
/// [`UnitError`], or that the fork server gave no answer.
pub fn use_unit(socket: &Path, instance: &str, nodes: DeviceNodes) -> io::Result<JobCgroups> {
    let mut slot = sync::lock(&FORK_SERVER);
    let unit = slot.unit.insert(Unit {
        socket: socket.to_owned(),
        nodes,
    });
    let server = unit.connect()?;
    let server = slot.server.insert(server);
    server.send_request(ForkRequest::FindCgroup(instance), &[])?;
    match server.recv_answer()? {
        ForkReply::Cgroup(groups) => Ok(groups),
        other => Err(unexpected(&other)),
    }
}

/// Has the fork server of the unit remove the staged mounts of a container in this folder, as the daemon's own unit may
/// not. Without a unit, the daemon removes them itself.
///
/// # Errors
/// That the fork server cannot be reached, or gave no answer.
pub fn remove_mounts(folder: &Path) -> io::Result<()> {
    let mut slot = sync::lock(&FORK_SERVER);
    let ForkServerSlot { unit, server } = &mut *slot;
    let Some(unit) = unit else {
        remove_mounts_in(folder);
        return Ok(());
    };
    if !server.as_mut().is_some_and(ForkServer::is_running) {
        *server = None;
    }
    let server = match server {
        Some(server) => server,
        none => none.insert(unit.connect()?),
    };
    server.send_request(ForkRequest::RemoveMounts(folder), &[])?;
    match server.recv_answer()? {
        ForkReply::MountsRemoved => Ok(()),
        other => Err(unexpected(&other)),
    }
}

impl ForkServerSlot {
    /// The fork server, started or connected if there is none.
    fn running(&mut self, program: &Path, folder: &Path) -> io::Result<&mut ForkServer> {
        if !self.server.as_mut().is_some_and(ForkServer::is_running) {
            self.server = None;
        }
        match &mut self.server {
            Some(server) => Ok(server),
            none => Ok(none.insert(match &self.unit {
                Some(unit) => unit.connect()?,
                None => ForkServer::spawn(program, folder)?,
            })),
        }
    }
}

impl ForkedSupervisor {
    /// Has the fork server start the supervisor of the job in this folder, with the lock as its standard input and the
    /// log as its output. `program` is this program, to start a fork server from if there is none.
    ///
    /// # Errors
    /// What starting a program says, or fork(2); [`is_server_gone`].
    pub fn start(program: &Path, folder: &Path, lock: &File, log: &File) -> io::Result<Self> {
        let mut slot = sync::lock(&FORK_SERVER);
        let server = slot.running(program, folder)?;
        let born = server.fork(folder, lock, log);
        if born.as_ref().is_err_and(is_server_gone) {
            // Stopped or dead: what it has not heard it will not hear.
            let _ = server.process.signal(Signal::KILL);
        }
        Ok(Self {
            process: born?,
            server: server.process,
        })
    }

    /// How it ended, as far as was heard ([`poll_replies`]).
    ///
    /// # Errors
    /// The fork server is gone, and the exit code with it.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        let mut slot = sync::lock(&FORK_SERVER);
        let server = slot
            .server
            .as_mut()
            .filter(|server| server.process == self.server)
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
    let mut slot = sync::lock(&FORK_SERVER);
    if let Some(server) = &mut slot.server {
        server.is_unresponsive = server.drain_replies().is_err();
    }
}

impl ForkServer {
    /// Starts one as a child. `folder` is for process listings: it shows the instance.
    fn spawn(program: &Path, folder: &Path) -> io::Result<Self> {
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
        let mut child = command.spawn()?;
        // Its end of the socket, which this process would otherwise hold open.
        drop(command);
        rlimits::restore_nofile_limit(&child);
        match Self::greet(&socket) {
            Ok(ForkReply::Hello { process, .. }) => Ok(Self {
                socket,
                process,
                child: Some(child),
                ended: BTreeMap::new(),
                is_unresponsive: false,
            }),
            greeted => {
                let _ = child.kill();
                let _ = child.wait();
                Err(greeted.map_or_else(|error| error, |other| unexpected(&other)))
            }
        }
    }

    /// Connects to that of a unit, which systemd starts if it does not run.
    fn connect(path: &Path) -> io::Result<Self> {
        let deadline = Instant::now() + BUSY_TIMEOUT;
        loop {
            let (socket, greeting) = Self::call_unit(path)?;
            let busy = match greeting {
                ForkReply::Hello {
                    protocol: PROTOCOL,
                    process,
                } => {
                    return Ok(Self {
                        socket,
                        process,
                        child: None,
                        ended: BTreeMap::new(),
                        is_unresponsive: false,
                    });
                }
                ForkReply::Hello { protocol, .. } => UnitError::OtherProtocol {
                    socket: path.to_owned(),
                    theirs: protocol,
                },
                ForkReply::Busy { daemon } => UnitError::Busy {
                    socket: path.to_owned(),
                    daemon,
                },
                other => return Err(unexpected(&other)),
            };
            if !matches!(busy, UnitError::Busy { .. }) || Instant::now() > deadline {
                return Err(io::Error::other(busy));
            }
            std::thread::sleep(BUSY_RETRY);
        }
    }

    fn call_unit(path: &Path) -> io::Result<(OwnedFd, ForkReply)> {
        let call = || -> io::Result<OwnedFd> {
            let kind = SocketType::SEQPACKET;
            let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
            // connect(2) waits for a place in the queue of the socket.
            set_socket_timeout(&socket, Timeout::Send, Some(FORK_TIMEOUT))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(FORK_TIMEOUT))?;
            let address = SocketAddrUnix::new(path)?;
            retry_on_eintr(|| connect(&socket, &address))?;
            Ok(socket)
        };
        let connect = |source| {
            io::Error::other(UnitError::Connect {
                socket: path.to_owned(),
                source,
            })
        };
        let socket = call().map_err(connect)?;
        let uid = socket_peercred(&socket)?.uid;
        if !uid.is_root() && uid != geteuid() {
            return Err(io::Error::other(UnitError::WrongUser {
                socket: path.to_owned(),
                uid: uid.as_raw(),
            }));
        }
        let greeting = Self::greet(&socket).map_err(connect)?;
        Ok((socket, greeting))
    }

    fn greet(socket: &OwnedFd) -> io::Result<ForkReply> {
        recv_reply(socket, RecvFlags::empty()).map_err(timed_out)
    }

    fn is_running(&mut self) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => !self.is_unresponsive && self.process.is_alive(),
        }
    }

    fn fork(&mut self, folder: &Path, lock: &File, log: &File) -> io::Result<Process> {
        self.send_request(ForkRequest::Fork(folder), &[lock.as_fd(), log.as_fd()])?;
        match self.recv_answer()? {
            ForkReply::Forked { process } => Ok(process),
            ForkReply::Failed { errno } => Err(io::Error::from_raw_os_error(errno)),
            other => Err(unexpected(&other)),
        }
    }

    fn send_request(
        &self,
        request: ForkRequest<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let message = request.encode();
        retry_on_eintr(|| sendmsg(&self.socket, &message, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// The answer to a request. The ends of supervisors may come before it.
    fn recv_answer(&mut self) -> io::Result<ForkReply> {
        loop {
            match recv_reply(&self.socket, RecvFlags::empty()).map_err(timed_out)? {
                ForkReply::Ended { pid, status } => self.record_exit(pid, status),
                answer => return Ok(answer),
            }
        }
    }

    /// Takes in what it has said.
    fn drain_replies(&mut self) -> io::Result<()> {
        loop {
            match recv_reply(&self.socket, RecvFlags::DONTWAIT) {
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
}

fn recv_reply(socket: &OwnedFd, flags: RecvFlags) -> io::Result<ForkReply> {
    let mut message = [0; LONGEST];
    match retry_on_eintr(|| recv(socket, &mut message, flags)) {
        Ok((0, _)) | Err(Errno::CONNRESET) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((length, _)) => Ok(serde_json::from_slice(&message[..length])?),
        Err(errno) => Err(errno.into()),
    }
}

/// What a receive with a timeout says of its end.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

fn unexpected(reply: &ForkReply) -> io::Error {
    io::Error::other(format!(
        "the fork server's reply is out of order: {reply:?}"
    ))
}

/// Whether standard input is a socket to the daemon, or one for it to connect to, and this process is to be its fork
/// server.
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

/// What the fork server holds open. Children close it: a child that held the sockets would receive these messages, and
/// keep the connection open for ever.
struct Served {
    daemon: OwnedFd,
    /// The socket of the unit, for the answer to a second daemon.
    listener: Option<OwnedFd>,
    children: BTreeMap<u32, OwnedFd>,
    restricted: Option<Restricted>,
}

/// The groups that cannot open the GPUs' device nodes.
struct Restricted {
    groups: DeviceGroups,
    /// When they were looked for.
    at: Instant,
    /// How that went.
    done: Result<(), String>,
}

fn serve_requests(run_container: RunContainer) -> io::Result<()> {
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    // What is copied shall not have it as its input.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    cgroup::leave_unit_group();
    cgroup::cache_own();
    let (daemon, listener) = match socket_acceptconn(&socket)? {
        true => (accept_daemon(&socket)?, Some(socket)),
        false => (socket, None),
    };
    let process = Process::this()?;
    send_reply(
        &daemon,
        &ForkReply::Hello {
            protocol: PROTOCOL,
            process,
        },
    )?;
    let mut own = Some(Served {
        daemon,
        listener,
        children: BTreeMap::new(),
        restricted: None,
    });
    while let Some(served) = &mut own {
        served.restrict_new_groups();
        let ready = served.wait_ready()?;
        for pid in ready.ended {
            served.children.remove(&pid);
            let waited = to_rustix_pid(pid)
                .map(|pid| retry_on_eintr(|| waitpid(Some(pid), WaitOptions::empty())));
            if let Some(Ok(Some((_, status)))) = waited {
                let status = status.as_raw();
                send_reply(&served.daemon, &ForkReply::Ended { pid, status })?;
            }
        }
        if ready.has_request {
            let mut message = [0; LONGEST];
            let Some((request, descriptors)) = recv_request(&served.daemon, &mut message)? else {
                return Ok(());
            };
            match request {
                ForkRequest::FindCgroup(instance) => {
                    let groups = JobCgroups::of_instance(instance);
                    send_reply(&served.daemon, &ForkReply::Cgroup(groups))?;
                }
                ForkRequest::SetDeviceNodes(nodes) => {
                    let set = served.set_device_nodes(nodes);
                    send_reply(&served.daemon, &ForkReply::DeviceNodes { set })?;
                }
                ForkRequest::RemoveMounts(folder) => {
                    remove_mounts_in(folder);
                    send_reply(&served.daemon, &ForkReply::MountsRemoved)?;
                }
                ForkRequest::Fork(folder) => {
                    fork_supervisor(&mut own, folder, descriptors, run_container)?;
                    continue;
                }
            }
        }
        if ready.has_second_daemon {
            served.refuse_second_daemon();
        }
    }
    Ok(())
}

/// Forks the supervisor of a job, and tells the daemon. In the copy `own` is empty when this returns.
fn fork_supervisor(
    own: &mut Option<Served>,
    folder: &Path,
    descriptors: Vec<OwnedFd>,
    run_container: RunContainer,
) -> io::Result<()> {
    let [lock, log] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|_| io::Error::other("the daemon's request has no lock and no log"))?;
    let born = divvy_fork::fork(|| {
        drop(own.take());
        match become_supervisor(folder, lock.as_fd(), log.as_fd(), run_container) {
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
    let Some(served) = own else { return Ok(()) };
    match born {
        Ok(pid) => {
            // Until it is waited for its pid is its own.
            let process = Process::with_pid(pid).unwrap_or(Process { pid, start_time: 0 });
            send_reply(&served.daemon, &ForkReply::Forked { process })?;
            if let Some(handle) = to_rustix_pid(pid) {
                let handle = pidfd_open(handle, PidfdFlags::empty())?;
                served.children.insert(pid, handle);
            }
            Ok(())
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            send_reply(&served.daemon, &ForkReply::Failed { errno })
        }
    }
}

/// Waits for the daemon that systemd started this process for. Another user's connection, which the mode of the socket
/// prevents, is closed.
fn accept_daemon(listener: &OwnedFd) -> io::Result<OwnedFd> {
    loop {
        let daemon = retry_on_eintr(|| accept_with(listener, SocketFlags::CLOEXEC))?;
        let uid = socket_peercred(&daemon)?.uid;
        if uid.is_root() || uid == geteuid() {
            return Ok(daemon);
        }
        supervisor::write_stderr(&format!("refused the connection of uid {}", uid.as_raw()));
    }
}

/// What there is to do.
struct Readiness {
    /// The daemon has said something, or is gone.
    has_request: bool,
    has_second_daemon: bool,
    /// These have ended.
    ended: Vec<u32>,
}

impl Served {
    /// Waits for the daemon, for a second one, and for ending children.
    fn wait_ready(&self) -> io::Result<Readiness> {
        let watched = |descriptor| PollFd::new(descriptor, PollFlags::IN);
        let mut all: Vec<PollFd<'_>> = std::iter::once(watched(&self.daemon))
            .chain(self.listener.iter().map(watched))
            .chain(self.children.values().map(watched))
            .collect();
        let timeout = self.restricted.as_ref().map(|_| &REGROUP_POLL);
        retry_on_eintr(|| poll(&mut all, timeout))?;
        let mut is_ready = all.iter().map(|one| !one.revents().is_empty());
        let mut next = || is_ready.next().unwrap_or(false);
        let has_request = next();
        let has_second_daemon = self.listener.is_some() && next();
        let ended = self.children.keys().zip(is_ready);
        Ok(Readiness {
            has_request,
            has_second_daemon,
            ended: ended
                .filter(|(_, ready)| *ready)
                .map(|(pid, _)| *pid)
                .collect(),
        })
    }

    fn set_device_nodes(&mut self, nodes: DeviceNodes) -> Result<(), String> {
        self.restricted = None;
        let groups = DeviceGroups::beside_own_slice();
        match nodes {
            DeviceNodes::Open => {
                // Without a slice of its own no fork server has restricted them, and without filters no kernel.
                if let Ok(groups) = groups
                    && let Err(why) = groups.open()
                {
                    supervisor::write_stderr(&why);
                }
                Ok(())
            }
            DeviceNodes::Jobs => {
                let groups = groups?;
                groups.restrict()?;
                self.restricted = Some(Restricted {
                    groups,
                    at: Instant::now(),
                    done: Ok(()),
                });
                Ok(())
            }
        }
    }

    /// Groups come later too, and modules of the driver with new major numbers.
    fn restrict_new_groups(&mut self) {
        let Some(restricted) = &mut self.restricted else {
            return;
        };
        if restricted.at.elapsed() < REGROUP {
            return;
        }
        restricted.at = Instant::now();
        let done = restricted.groups.restrict();
        if let Err(why) = &done
            && done != restricted.done
        {
            supervisor::write_stderr(why);
        }
        restricted.done = done;
    }

    /// Tells a second daemon which one is served.
    fn refuse_second_daemon(&self) {
        let Some(listener) = &self.listener else {
            return;
        };
        if let Ok(second) = accept_with(listener, SocketFlags::CLOEXEC) {
            let served = socket_peercred(&self.daemon);
            let daemon = served.map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
            // One that does not read it is none of this server's concern.
            let _ = send_reply(&second, &ForkReply::Busy { daemon });
        }
    }
}

/// A request and its descriptors; `None` once the daemon is gone.
fn recv_request<'a>(
    socket: &OwnedFd,
    message: &'a mut [u8; LONGEST],
) -> io::Result<Option<(ForkRequest<'a>, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length = {
        let mut parts = [IoSliceMut::new(message)];
        match retry_on_eintr(|| recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))
        {
            Err(Errno::CONNRESET) => 0,
            received => received?.bytes,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    match length {
        0 => Ok(None),
        _ => Ok(Some((
            ForkRequest::decode(&message[..length])?,
            descriptors,
        ))),
    }
}

fn become_supervisor(
    folder: &Path,
    lock: BorrowedFd<'_>,
    log: BorrowedFd<'_>,
    run_container: RunContainer,
) -> io::Result<u8> {
    rustix::stdio::dup2_stdin(lock)?;
    let reopened = reopen_log(folder, log);
    let log = reopened.as_ref().map_or(log, AsFd::as_fd);
    rustix::stdio::dup2_stdout(log)?;
    rustix::stdio::dup2_stderr(log)?;
    drop(reopened);
    std::env::set_current_dir(folder)?;
    Ok(supervisor::supervise_one(folder, run_container))
}

/// Opens the log again in this process's mount namespace. The daemon's unit has a mount namespace of its own, and an open
/// file keeps the mount that it was opened through: its flags, and for `/proc/self/fd` its path. All runs of a job share
/// the log in the job's folder, and a later run's folder lies below that.
fn reopen_log(folder: &Path, given: BorrowedFd<'_>) -> Option<File> {
    let given = rustix::fs::fstat(given).ok()?;
    let is_given = |log: &File| {
        rustix::fs::fstat(log)
            .is_ok_and(|log| (log.st_dev, log.st_ino) == (given.st_dev, given.st_ino))
    };
    [Some(folder), folder.parent()]
        .into_iter()
        .flatten()
        .filter_map(|folder| JobDir::new(folder).open_existing_log().ok())
        .find(is_given)
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
