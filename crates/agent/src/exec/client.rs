//! The exec client: the daemon's connection to the exec server of a job's supervisor. Everything here may wait for it
//! for a while, so it is for threads that may wait.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;

use super::server::OPEN_EXEC_SIGNAL;
use super::{EXEC_SOCKET, ExecReply, ExecRequest};
use crate::job_dir::{JobDir, StartRecord};

/// How long a supervisor may take to listen. It does little else.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of checking for a socket that is being opened. The other side opens it soon, so a longer pause would be
/// felt by a user who types.
const LOOK: Duration = Duration::from_millis(1);

/// The supervisor of a job is stopped (SIGSTOP): it takes no call until it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pid {0} is stopped")]
pub struct SupervisorStopped(pub u32);

/// Bytes of a word: a path or two are in it at most. Paths have 4,096 bytes at most (Linux), so this leaves room.
const LONGEST: usize = 64 << 10;

/// Calls the supervisor of the job in this folder; its answers are lines on the stream.
///
/// # Errors
/// The socket has no listener, or the server does not accept the call; `Stopped`.
pub fn send_request(
    dir: &Path,
    call: &ExecRequest,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<UnixStream> {
    let launch = JobDir::new(dir).launch().map_err(io::Error::other)?;
    if let Some(supervisor) = launch.as_ref().map(|begun| begun.process)
        && supervisor.is_stopped()
    {
        return Err(io::Error::other(SupervisorStopped(supervisor.pid)));
    }
    let mut stream = connect_opening(dir, launch.as_ref())?;
    stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    let body = serde_json::to_vec(call)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let head = length.to_be_bytes();
    let sent = sendmsg(
        &stream,
        &[IoSlice::new(&head)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent != head.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    stream.write_all(&body)?;
    Ok(stream)
}

/// Through the door, which is opened on a signal to the job's supervisor.
fn connect_opening(dir: &Path, launch: Option<&StartRecord>) -> io::Result<UnixStream> {
    let closed = match connect(dir) {
        Err(error) if is_not_listening(&error) => error,
        other => return other,
    };
    let bell = Signal::from_named_raw(OPEN_EXEC_SIGNAL);
    let (Some(launch), Some(bell)) = (launch, bell) else {
        return Err(closed);
    };
    // It hears signals before it writes down that it launches.
    launch.process.signal(bell)?;
    let until = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match connect(dir) {
            Err(error) if is_not_listening(&error) && Instant::now() < until => {
                std::thread::sleep(LOOK);
            }
            other => return other,
        }
    }
}

/// Whether there is no socket, or none that listens: between bind(2) and listen(2), and after its supervisor's death.
fn is_not_listening(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// By the folder's descriptor: the path of a socket has at most 107 bytes (unix(7)), and that of a job's folder may
/// have more.
fn connect(dir: &Path) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, dir, flags, Mode::empty())?;
    UnixStream::connect(format!(
        "/proc/self/fd/{}/{EXEC_SOCKET}",
        folder.as_raw_fd()
    ))
}

/// The supervisor's next word.
///
/// # Errors
/// When it says nothing, or nothing that is known.
pub fn read_reply(mut stream: &UnixStream) -> io::Result<ExecReply> {
    let mut line = Vec::new();
    let mut byte = [0];
    // Byte by byte: the bytes that follow belong to another reader.
    while line.last() != Some(&b'\n') {
        if line.len() > LONGEST || stream.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.push(byte[0]);
    }
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    use super::*;
    use crate::host::process::Process;

    #[test]
    fn a_socket_that_does_not_listen_yet_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let rung = std::sync::Arc::default();
        signal_hook::flag::register(OPEN_EXEC_SIGNAL, std::sync::Arc::clone(&rung)).unwrap();
        let process = Process::this().unwrap();
        let begun = StartRecord::now(process);
        JobDir::new(dir.path()).write_launch(&begun).unwrap();
        let door = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(
            &door,
            &SocketAddrUnix::new(dir.path().join(EXEC_SOCKET)).unwrap(),
        )
        .unwrap();
        std::thread::scope(|scope| {
            let call =
                scope.spawn(|| send_request(dir.path(), &ExecRequest::Signal { number: 2 }, &[]));
            // The caller rings once it has found the socket closed.
            while !rung.load(std::sync::atomic::Ordering::SeqCst) && !call.is_finished() {
                std::thread::sleep(LOOK);
            }
            listen(&door, 1).unwrap();
            let _line = call.join().unwrap().unwrap();
        });
    }
}
