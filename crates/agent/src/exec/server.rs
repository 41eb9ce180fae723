//! The exec server in a job's supervisor: accepts calls, starts exec sessions, reports their exits. It never waits for
//! another process, except briefly for the daemon.

use std::fs;
use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Signal, kill_process, kill_process_group};

use super::{EXEC_SOCKET, ExecReply, ExecRequest, LARGEST};
use crate::host::process;

/// The signal on which a supervisor opens its door: few jobs have guests, and a socket is a file that is made and
/// deleted.
pub const OPEN_EXEC_SIGNAL: i32 = signal_hook::consts::SIGUSR1;

/// Guests of one job at once. Each is a descriptor of its supervisor, which has 1024 as a rule. So they take an eighth
/// of it; the streams of the job and of each session need the others.
const MAX_SESSIONS: usize = 128;

/// How long the rest of a call may take to come. The daemon sends it in one go.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The listening socket, and the accepted calls.
#[derive(Debug)]
pub struct ExecServer {
    listener: UnixListener,
    path: PathBuf,
    sessions: Vec<ExecSession>,
}

/// A program that has not been waited for, so its pid is its own.
#[derive(Debug)]
struct ExecSession {
    pid: u32,
    /// The caller's connection; `None` once it has gone.
    client: Option<UnixStream>,
}

/// What a call asks of the supervisor.
#[derive(Debug)]
pub enum IncomingRequest {
    Enter {
        command: Vec<String>,
        terminal: Option<String>,
        descriptors: Vec<OwnedFd>,
    },
    Signal(Signal),
}

impl ExecServer {
    /// Opens the door of the job in this folder, in place of one that a supervisor left.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(EXEC_SOCKET);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // As in `send_request`.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, dir, flags, Mode::empty())?;
        let short = format!("/proc/self/fd/{}/{EXEC_SOCKET}", folder.as_raw_fd());
        let listener = UnixListener::bind(short)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            path,
            sessions: Vec::new(),
        })
    }

    /// What to wait on besides signals.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let lines = self
            .sessions
            .iter()
            .filter_map(|guest| guest.client.as_ref());
        std::iter::once(self.listener.as_fd()).chain(lines.map(|line| line.as_fd()))
    }

    /// The next call, if one is there: what it asks, and where it is answered.
    pub fn next_request(&self) -> Option<(IncomingRequest, UnixStream)> {
        loop {
            let (stream, _) = self.listener.accept().ok()?;
            // A caller that makes no sense is let go.
            if let Ok(Some(asked)) = recv_request(&stream) {
                return Some((asked, stream));
            }
        }
    }

    /// Whether another guest may come in.
    pub fn is_full(&self) -> bool {
        self.sessions.len() >= MAX_SESSIONS
    }

    /// A guest was started.
    pub fn add_session(&mut self, pid: u32, line: UnixStream) {
        let line = line.set_nonblocking(true).map(|()| line).ok();
        let mut guest = ExecSession { pid, client: line };
        guest.reply(&ExecReply::Started { pid });
        if guest.client.is_none() {
            guest.hang_up();
        }
        self.sessions.push(guest);
    }

    /// A child ended, perhaps a guest.
    pub fn report_exit(&mut self, pid: u32, exit_code: i32) {
        if let Some(at) = self.sessions.iter().position(|guest| guest.pid == pid) {
            let mut guest = self.sessions.swap_remove(at);
            guest.reply(&ExecReply::Ended { exit_code });
        }
    }

    /// Passes on what callers say of their guests: signals, and that they are gone.
    pub fn poll_clients(&mut self) {
        for guest in &mut self.sessions {
            guest.poll_client();
        }
    }

    /// The job ends: its guests shall, too. A shell does not hear SIGTERM.
    pub fn stop(&self) {
        for guest in &self.sessions {
            for signal in [Signal::TERM, Signal::HUP, Signal::CONT] {
                guest.signal(signal);
            }
        }
    }
}

impl Drop for ExecServer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl ExecSession {
    fn reply(&mut self, word: &ExecReply) {
        send_reply(&mut self.client, word);
    }

    fn poll_client(&mut self) {
        let mut said = [0; 64];
        while let Some(line) = &mut self.client {
            match line.read(&mut said) {
                Ok(0) => self.hang_up(),
                Ok(length) => {
                    let signals = said
                        .iter()
                        .take(length)
                        .filter_map(|number| allowed_signal(*number));
                    signals.for_each(|signal| self.signal(signal));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A caller that dies before it has read all replies leaves ECONNRESET behind.
                Err(_) => self.hang_up(),
            }
        }
    }

    /// Its caller is gone.
    fn hang_up(&mut self) {
        self.client = None;
        self.signal(Signal::HUP);
        self.signal(Signal::CONT);
    }

    /// To all of its group. It leads one, or is about to.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = process::to_rustix_pid(self.pid)
            && kill_process_group(pid, signal).is_err()
        {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Sends a reply to the caller, and drops a broken connection: a reply is shorter than any buffer.
pub fn send_reply(line: &mut Option<UnixStream>, word: &ExecReply) {
    let Some(stream) = line else { return };
    let mut text = serde_json::to_vec(word).unwrap_or_default();
    text.push(b'\n');
    if stream.write_all(&text).is_err() {
        *line = None;
    }
}

/// Reads one call of a process of this one's user, or of root.
fn recv_request(mut stream: &UnixStream) -> io::Result<Option<IncomingRequest>> {
    let caller = socket_peercred(stream)?.uid;
    if caller != rustix::process::geteuid() && !caller.is_root() {
        return Ok(None);
    }
    // One that is accepted does not inherit this.
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let mut head = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut head)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let length = usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX);
    if got.bytes != head.len() || length > LARGEST {
        return Ok(None);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(match serde_json::from_slice(&body) {
        Ok(ExecRequest::Enter { command, terminal }) => {
            let expected = if terminal.is_some() { 1 } else { 3 };
            (descriptors.len() == expected).then_some(IncomingRequest::Enter {
                command,
                terminal,
                descriptors,
            })
        }
        Ok(ExecRequest::Signal { number }) => allowed_signal(number).map(IncomingRequest::Signal),
        Err(_) => None,
    })
}

/// The signals that are passed on.
fn allowed_signal(number: u8) -> Option<Signal> {
    divvy_api::v1::Signal::with_number(number)?;
    Signal::from_named_raw(i32::from(number))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::exec::client::send_request;

    fn enter(terminal: Option<&str>) -> ExecRequest {
        ExecRequest::Enter {
            command: vec!["true".into()],
            terminal: terminal.map(str::to_owned),
        }
    }

    #[test]
    fn a_call_brings_its_words_and_its_descriptors_however_long_the_path_is() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("x".repeat(200));
        fs::create_dir(&dir).unwrap();
        let door = ExecServer::open(&dir).unwrap();
        assert!(door.next_request().is_none(), "nobody called");
        let (mut read, write) = io::pipe().unwrap();
        let ends = [write.as_fd(), write.as_fd(), write.as_fd()];
        let _line = send_request(&dir, &enter(None), &ends).unwrap();
        let (asked, _) = door.next_request().unwrap();
        let IncomingRequest::Enter {
            command,
            terminal: None,
            descriptors,
        } = asked
        else {
            panic!("{asked:?}")
        };
        assert_eq!((command, descriptors.len()), (vec!["true".to_owned()], 3));
        fs::File::from(descriptors.into_iter().next().unwrap())
            .write_all(b"here\n")
            .unwrap();
        drop(write);
        let mut said = String::new();
        BufReader::new(&mut read).read_line(&mut said).unwrap();
        assert_eq!(said, "here\n");
        drop(door);
        assert!(!dir.join(EXEC_SOCKET).exists());
        assert!(send_request(&dir, &enter(None), &[]).is_err());
    }

    #[test]
    fn calls_that_make_no_sense_are_let_go_and_the_next_is_heard() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(EXEC_SOCKET), "left by somebody").unwrap();
        let door = ExecServer::open(dir.path()).unwrap();
        let kept: Vec<UnixStream> = [
            &b""[..],
            b"\0\0\0\x02{}",
            b"\xff\xff\xff\xff",
            b"\0\0\0\x1d{\"signal\":{\"number\":9}}      ",
        ]
        .iter()
        .map(|bytes| {
            let mut stream = UnixStream::connect(dir.path().join(EXEC_SOCKET)).unwrap();
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            stream
        })
        .collect();
        // A terminal that did not come with it.
        let _none = send_request(dir.path(), &enter(Some("xterm")), &[]).unwrap();
        let _line = send_request(dir.path(), &ExecRequest::Signal { number: 2 }, &[]).unwrap();
        let (asked, _) = door.next_request().unwrap();
        assert!(
            matches!(asked, IncomingRequest::Signal(Signal::INT)),
            "{asked:?}"
        );
        assert!(door.next_request().is_none());
        drop(kept);
    }

    #[test]
    fn a_guest_is_told_of_and_sent_what_its_caller_sends_and_hung_up_with_him() {
        let dir = tempfile::tempdir().unwrap();
        let mut door = ExecServer::open(dir.path()).unwrap();
        // The parent of this test may ignore the signal, and programs inherit that; they do not inherit a handler.
        let flag = std::sync::Arc::default();
        signal_hook::flag::register(signal_hook::consts::SIGHUP, flag).unwrap();
        let sleeps = || {
            use std::os::unix::process::CommandExt as _;
            let mut sleep = Command::new("sleep");
            sleep.arg("1000").stdin(Stdio::null()).process_group(0);
            sleep.spawn().unwrap()
        };
        let started = |door: &mut ExecServer| {
            let child = sleeps();
            let (mine, theirs) = UnixStream::pair().unwrap();
            door.add_session(child.id(), theirs);
            (child, mine)
        };
        let ended = |mut child: std::process::Child, door: &mut ExecServer| {
            use std::os::unix::process::ExitStatusExt as _;
            let pid = child.id();
            let status = loop {
                door.poll_clients();
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            };
            let signal = status.signal().unwrap();
            door.report_exit(pid, 128 + signal);
            signal
        };
        let (child, mut line) = started(&mut door);
        let pid = child.id();
        // Nothing that may not be sent, and then what may.
        line.write_all(&[9, 0, 15]).unwrap();
        assert_eq!(ended(child, &mut door), 15);
        let words: Vec<ExecReply> = BufReader::new(line)
            .lines()
            .take(2)
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        let expected = [
            ExecReply::Started { pid },
            ExecReply::Ended { exit_code: 143 },
        ];
        assert_eq!(words, expected);

        let (child, line) = started(&mut door);
        // As if closed, also where a process that another test has forked holds a copy.
        line.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(ended(child, &mut door), 1);
        // Died before it heard that the guest was started; and before it could be told.
        let (child, line) = started(&mut door);
        drop(line);
        assert_eq!(ended(child, &mut door), 1);
        let (mine, theirs) = UnixStream::pair().unwrap();
        mine.shutdown(std::net::Shutdown::Both).unwrap();
        let child = sleeps();
        door.add_session(child.id(), theirs);
        assert_eq!(ended(child, &mut door), 1);
        let (child, _line) = started(&mut door);
        door.stop();
        assert_eq!(ended(child, &mut door), 15);
        assert!(door.sessions.is_empty() && !door.is_full());
    }
}
