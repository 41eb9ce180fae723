//! Liveness of the daemon: tells a late answer from a daemon that hangs.
//!
//! ```text
//! call ─── 1 s ──► probe: GET /healthz on a second connection
//!                    ├─ answered: the daemon lives, and the call may take its time; probe again 5 s later
//!                    └─ silent 2 s: say so · 10 s: fail, or go on waiting where the call is long by design
//! ```
//! Time is counted in ticks of this process, so that a client that was itself stopped blames no daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::sleep;

use crate::home::system;
use crate::proc;
use crate::v1::{Error, ErrorCode};

/// One step of the count. A tenth of the shortest period below, so that a period is at most a tenth too long; each step
/// wakes the client.
const TICK: Duration = Duration::from_millis(100);
/// A call that takes longer than this has the daemon probed.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// Between two probes of a daemon that lives. A hang is seen at most so much later. Half would double the calls of
/// every waiting client without a gain for its user.
const PROBE_AGAIN: Duration = Duration::from_secs(5);
/// Silence until the client says so.
const SAY_AFTER: Duration = Duration::from_secs(2);
/// Silence until a call fails. A slow disk holds the daemon up for seconds, so half would fail calls that succeed.
/// Double leaves a script without an answer for no reason.
const FAIL_AFTER: Duration = Duration::from_secs(10);
/// Silence between two lines of a client that goes on waiting. A night of waiting leaves some hundred lines in a
/// script's log; ten seconds would leave thousands.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// Behaviour of a call while the daemon does not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Fails after [`FAIL_AFTER`].
    Bounded,
    /// Says so and goes on waiting: the call is long by design, and its connection breaks when the daemon ends.
    Endless,
}

/// Attends to calls of the daemon behind one socket.
#[derive(Clone, Debug)]
pub(super) struct Liveness {
    socket: PathBuf,
    say: Option<fn(&str)>,
    /// How long a [`TICK`] takes; tests are quicker.
    tick: Duration,
    /// Pid and uid of the process that listens, by the kernel's word; zero while unknown.
    peer: Arc<(AtomicU32, AtomicU32)>,
}

impl Liveness {
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            say: None,
            tick: TICK,
            peer: Arc::default(),
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn telling(self, say: fn(&str)) -> Self {
        Self {
            say: Some(say),
            ..self
        }
    }

    /// Notes the process that listens.
    pub fn note_peer(&self, stream: &UnixStream) {
        let Ok(peer) = stream.peer_cred() else { return };
        let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok());
        self.peer.0.store(pid.unwrap_or(0), Ordering::Relaxed);
        self.peer.1.store(peer.uid(), Ordering::Relaxed);
    }

    /// Returns the result of `work`.
    ///
    /// # Errors
    /// [`ErrorCode::Unresponsive`] when the daemon answers neither it nor a probe, and patience is bounded.
    pub async fn attend<T>(
        &self,
        patience: Patience,
        work: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let mut work = std::pin::pin!(work);
        let mut probe_after = PROBE_AFTER;
        let mut waited = Duration::ZERO;
        loop {
            while waited < probe_after {
                tokio::select! {
                    biased;
                    done = &mut work => return Ok(done),
                    () = sleep(self.tick) => waited += TICK,
                }
            }
            // Of the first probe the call itself has been silent for as long.
            let silent = if probe_after == PROBE_AFTER {
                waited
            } else {
                Duration::ZERO
            };
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                alive = self.probed(patience, silent) => alive?,
            }
            (probe_after, waited) = (PROBE_AGAIN, Duration::ZERO);
        }
    }

    /// Returns once the daemon shows a sign of life.
    async fn probed(&self, patience: Patience, mut silent: Duration) -> Result<(), Error> {
        let mut probe = std::pin::pin!(self.probe());
        let mut say_at = SAY_AFTER;
        loop {
            tokio::select! {
                biased;
                () = &mut probe => break,
                () = sleep(self.tick) => silent += TICK,
            }
            if silent >= FAIL_AFTER && patience == Patience::Bounded {
                return Err(self.unresponsive(silent));
            }
            if silent >= say_at {
                let state = self.silence(silent);
                self.report(&match patience {
                    Patience::Bounded => {
                        format!("{state}; waiting up to {} s", FAIL_AFTER.as_secs())
                    }
                    Patience::Endless => format!("{state}; waiting for it"),
                });
                say_at += SAY_AGAIN;
            }
        }
        if say_at > SAY_AFTER {
            self.report("the daemon responds again");
        }
        Ok(())
    }

    /// Asks until there is a sign of life.
    async fn probe(&self) {
        while self.is_silent().await {
            sleep(self.tick).await;
        }
    }

    /// Whether a probe gets no answer. A connection that the daemon takes and closes is an answer: it may be one too
    /// many.
    async fn is_silent(&self) -> bool {
        let Ok(stream) = UnixStream::connect(&self.socket).await else {
            return true;
        };
        self.note_peer(&stream);
        let Ok((mut sender, connection)) = handshake(TokioIo::new(stream)).await else {
            return false;
        };
        tokio::spawn(connection);
        let request = Request::get("/healthz").header(HOST, "divvy");
        match request.body(Empty::<Bytes>::new()) {
            Ok(request) => drop(sender.send_request(request).await),
            Err(_) => return true,
        }
        false
    }

    fn report(&self, line: &str) {
        if let Some(say) = self.say {
            say(line);
        }
    }

    /// `the daemon does not respond (pid 12 is stopped, no answer for 2 s)`.
    fn silence(&self, silent: Duration) -> String {
        let pid = self.peer.0.load(Ordering::Relaxed);
        let pid = match (pid, is_stopped(pid)) {
            (0, _) => String::new(),
            (pid, true) => format!("pid {pid} is stopped, "),
            (pid, false) => format!("pid {pid}, "),
        };
        format!(
            "the daemon does not respond ({pid}no answer for {} s)",
            silent.as_secs()
        )
    }

    fn unresponsive(&self, silent: Duration) -> Error {
        let (pid, uid) = (
            self.peer.0.load(Ordering::Relaxed),
            self.peer.1.load(Ordering::Relaxed),
        );
        let is_ours = [uid, 0].contains(&rustix::process::geteuid().as_raw());
        let hint = match is_ours {
            true if is_stopped(pid) => {
                format!("continue it: kill -CONT {pid}; its jobs keep running")
            }
            true if system::is_socket(&self.socket) => {
                "restart it: systemctl restart divvy; its jobs keep running".to_owned()
            }
            true => {
                "restart it: divvy daemon --stop; divvy daemon; its jobs keep running".to_owned()
            }
            false => {
                "ask an administrator to restart it; its jobs keep running: systemctl status divvy"
                    .to_owned()
            }
        };
        Error::new(ErrorCode::Unresponsive, self.silence(silent)).hint(hint)
    }
}

/// Whether the process is stopped by a signal or a debugger: the third field of `/proc/PID/stat` (proc(5)).
fn is_stopped(pid: u32) -> bool {
    proc::stat(pid).is_some_and(|fields| fields.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::net::UnixListener as Silent;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::*;
    use crate::client::{Client, WaitFor};

    /// A second takes 20 ms.
    const QUICK: Duration = Duration::from_millis(2);

    thread_local! {
        static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn note(line: &str) {
        TOLD.with_borrow_mut(|told| told.push(line.to_owned()));
    }

    fn client(folder: &Path) -> Client {
        let mut client = Client::new(folder.join("divvy.sock")).telling(note);
        client.liveness.tick = QUICK;
        client
    }

    #[tokio::test]
    async fn a_socket_whose_owner_never_answers_is_named_after_2_s_and_given_up_after_10() {
        let dir = tempfile::tempdir().unwrap();
        let client = client(dir.path());
        let _silent = Silent::bind(client.socket()).unwrap();
        let error = client.node().await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unresponsive);
        let pid = std::process::id();
        let silence =
            |seconds| format!("the daemon does not respond (pid {pid}, no answer for {seconds} s)");
        assert_eq!(error.message, silence(10));
        assert!(error.hint.unwrap().contains("divvy daemon --stop"));
        let told = TOLD.with_borrow(Clone::clone);
        assert_eq!(told, [format!("{}; waiting up to 10 s", silence(2))]);
    }

    #[tokio::test]
    async fn a_daemon_whose_queue_of_connections_is_full_does_not_respond_either() {
        let dir = tempfile::tempdir().unwrap();
        let client = client(dir.path());
        let silent = Silent::bind(client.socket()).unwrap();
        rustix::net::listen(&silent, 0).unwrap();
        let _queued = UnixStream::connect(client.socket()).await.unwrap();
        let error = client.node().await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unresponsive, "{error}");
    }

    #[tokio::test]
    async fn a_call_that_is_long_by_design_waits_on_and_says_so_once_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let client = client(dir.path());
        let _silent = Silent::bind(client.socket()).unwrap();
        let waited = client.wait("7", WaitFor::Ended, Duration::from_secs(20));
        let lines = async {
            while TOLD.with_borrow(Vec::len) < 2 {
                sleep(QUICK).await;
            }
        };
        tokio::select! {
            answer = waited => panic!("{answer:?}"),
            () = lines => {}
        }
        let told = TOLD.with_borrow(Clone::clone);
        assert!(
            told[0].ends_with("no answer for 2 s); waiting for it"),
            "{told:?}"
        );
        assert!(
            told[1].ends_with("no answer for 62 s); waiting for it"),
            "{told:?}"
        );
    }

    #[tokio::test]
    async fn a_daemon_that_answers_probes_may_take_its_time_for_a_call() {
        let dir = tempfile::tempdir().unwrap();
        let client = client(dir.path());
        let listener = UnixListener::bind(client.socket()).unwrap();
        let (mut probes, mut late) = (0, None);
        let answering = async {
            while probes < 4 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut piece = [0; 1024];
                let length = stream.read(&mut piece).await.unwrap();
                if piece[..length].starts_with(b"GET /healthz ") {
                    probes += 1;
                    let alive = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n";
                    stream.write_all(alive).await.unwrap();
                } else {
                    late = Some(stream);
                }
            }
            let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
            late.as_mut().unwrap().write_all(answer).await.unwrap();
        };
        // Four probes are 16 s.
        let (answer, ()) = tokio::join!(client.node(), answering);
        let error = answer.unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal, "it was answered: {error}");
        assert_eq!(TOLD.with_borrow(Vec::len), 0);
    }
}
