//! A door before the container engine: it passes calls on, and fails the one that a test names, in the way that it names.
//!
//! ```text
//! supervisor ──► door ──► engine      each connection carries one call: the door asks the engine to close it after its answer
//! ```

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tempfile::TempDir;

use super::Engine;

/// Connections that an engine which has gone away refuses before it is back.
const REFUSALS: u32 = 3;

/// What the door says where it answers itself.
pub const WORDS: &str = "the engine has a bad day";

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It never reaches the engine, and nobody answers.
    Unheard,
    /// The engine does it, and its answer never comes.
    Unanswered,
    /// The engine goes away with this call and all others, and is back after a while.
    Gone,
    /// The same, and it is not back.
    GoneForGood,
    /// The engine does it, and is gone before it answers, for good.
    GoneUnanswered,
    /// Nobody answers, and the engine hears of it when the next of its kind comes: just before that.
    Late,
    /// The engine answers that it cannot: status 500, and [`WORDS`].
    Refused,
    /// The same, to this and to all of its kind.
    RefusedForGood,
}

/// A call, without what differs from job to job: `POST /containers/*/start`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub what: String,
    /// Since the test began to listen a container was started.
    pub once_started: bool,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.once_started {
            ", once started"
        } else {
            ""
        };
        write!(f, "{}{when}", self.what)
    }
}

#[derive(Default)]
struct State {
    /// Every call since the test began to listen.
    heard: Vec<Call>,
    once_started: bool,
    armed: Option<(Call, Fault)>,
    refused: Option<Call>,
    /// A request that the engine is yet to hear of.
    late: Option<(String, Vec<u8>)>,
    /// Connections that are still to be refused.
    refusals: u32,
    open: Vec<UnixStream>,
}

/// The door; shut for good when dropped.
pub struct FaultProxy {
    folder: TempDir,
    shared: Arc<Shared>,
}

struct Shared {
    engine: PathBuf,
    state: Mutex<State>,
}

impl FaultProxy {
    /// # Panics
    /// When there can be no socket.
    #[must_use]
    pub fn before(engine: &Engine) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("divvy-door-")
            .tempdir()
            .expect("a temporary folder can be made");
        let listener = UnixListener::bind(socket(folder.path())).expect("the folder is new");
        let shared = Arc::new(Shared {
            engine: engine.socket(),
            state: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let serving = Arc::clone(&serving);
                thread::spawn(move || serving.serve(caller));
            }
        });
        Self { folder, shared }
    }

    /// `DOCKER_HOST`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("unix://{}", socket(self.folder.path()).display())
    }

    /// Begins to listen anew, and fails the next call of this kind.
    pub fn fail(&self, next: Option<(&Call, Fault)>) {
        let mut state = self.shared.state();
        *state = State {
            armed: next.map(|(call, fault)| (call.clone(), fault)),
            open: std::mem::take(&mut state.open),
            ..State::default()
        };
    }

    /// Whether the call that was to fail has come.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.state().armed.is_none()
    }

    /// Every call since the test began to listen.
    #[must_use]
    pub fn heard(&self) -> Vec<Call> {
        self.shared.state().heard.clone()
    }

    /// Their kinds, in the order in which they first came.
    #[must_use]
    pub fn kinds(&self) -> Vec<Call> {
        let mut kinds = Vec::new();
        for call in self.heard() {
            if !kinds.contains(&call) {
                kinds.push(call);
            }
        }
        kinds
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("sock")
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.state().shut(u32::MAX);
    }
}

impl State {
    fn shut(&mut self, refusals: u32) {
        self.refusals = refusals;
        for stream in self.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// A connection; whether it is taken.
    fn admit(&mut self, caller: &UnixStream) -> bool {
        if self.refusals > 0 {
            self.refusals = self
                .refusals
                .saturating_sub(u32::from(self.refusals != u32::MAX));
            return false;
        }
        self.open.extend(caller.try_clone());
        true
    }

    /// A call; how it is to fail.
    fn hear(&mut self, what: String) -> Option<Fault> {
        let starts = what == "POST /containers/*/start";
        let call = Call {
            what,
            once_started: self.once_started,
        };
        let armed = self.armed.take_if(|(armed, _)| *armed == call);
        let is_refused = self.refused.as_ref() == Some(&call);
        let refused = is_refused.then_some(Fault::Refused);
        let fault = armed.map(|(_, fault)| fault).or(refused);
        if fault == Some(Fault::RefusedForGood) {
            self.refused = Some(call.clone());
        }
        self.heard.push(call);
        self.once_started |= starts && matches!(fault, None | Some(Fault::Unanswered));
        match fault {
            Some(Fault::Gone) => self.shut(REFUSALS),
            Some(Fault::GoneForGood) => self.shut(u32::MAX),
            // This call is on its way.
            Some(Fault::GoneUnanswered) => self.refusals = u32::MAX,
            _ => {}
        }
        fault
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut caller: UnixStream) {
        if self.state().admit(&caller) {
            // Whoever breaks off is one of the two that are tested.
            let _ = self.answer(&mut caller);
        }
        let _ = caller.shutdown(Shutdown::Both);
    }

    fn answer(&self, caller: &mut UnixStream) -> io::Result<()> {
        let (head, rest) = read_head(caller)?;
        let fault = self.state().hear(name(&head));
        match fault {
            None => {
                let is_next = |late: &mut (String, Vec<u8>)| name(&late.0) == name(&head);
                let late = self.state().late.take_if(is_next);
                late.map_or(Ok(()), |late| self.deliver(&late))?;
                self.pass(caller, &head, &rest, true)
            }
            Some(Fault::Unanswered | Fault::GoneUnanswered) => {
                self.pass(caller, &head, &rest, false)
            }
            Some(Fault::Late) => {
                let body = read_body(caller, &head, rest)?;
                self.state().late = Some((head, body));
                Ok(())
            }
            Some(Fault::Unheard | Fault::Gone | Fault::GoneForGood) => Ok(()),
            Some(Fault::Refused | Fault::RefusedForGood) => {
                let body = format!(r#"{{"message":"{WORDS}"}}"#);
                write!(
                    caller,
                    "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nConnection: close\r\n\
                     Content-Length: {}\r\n\r\n{body}",
                    body.len()
                )?;
                caller.shutdown(Shutdown::Write)?;
                // What is not read when a socket is closed takes the answer with it.
                io::copy(caller, &mut io::sink()).map(drop)
            }
        }
    }

    /// A request that nobody waits for any more.
    fn deliver(&self, (head, body): &(String, Vec<u8>)) -> io::Result<()> {
        let mut engine = UnixStream::connect(&self.engine)?;
        engine.write_all(for_one_call(head).as_bytes())?;
        engine.write_all(body)?;
        io::copy(&mut engine, &mut io::sink()).map(drop)
    }

    /// The call to the engine, and its answer to the caller, who may not get to see it.
    fn pass(&self, caller: &UnixStream, head: &str, rest: &[u8], answer: bool) -> io::Result<()> {
        let mut engine = UnixStream::connect(&self.engine)?;
        self.state().open.extend(engine.try_clone());
        engine.write_all(for_one_call(head).as_bytes())?;
        engine.write_all(rest)?;
        let (mut from, mut to) = (caller.try_clone()?, engine.try_clone()?);
        let asking = thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let told = if answer {
            io::copy(&mut engine, &mut caller.try_clone()?)
        } else {
            io::copy(&mut engine, &mut io::sink())
        };
        let _ = caller.shutdown(Shutdown::Both);
        // The engine keeps a container locked while it sends an archive that its caller does not read to the end.
        if told.is_err() {
            let _ = engine.shutdown(Shutdown::Both);
        }
        let _ = asking.join();
        told.map(drop)
    }
}

/// A request up to its empty line, and what came with it.
fn read_head(caller: &mut UnixStream) -> io::Result<(String, Vec<u8>)> {
    const END: &[u8] = b"\r\n\r\n";
    let mut read = Vec::new();
    loop {
        if let Some(at) = read.windows(END.len()).position(|window| window == END) {
            let rest = read.split_off(at + END.len());
            return Ok((String::from_utf8_lossy(&read).into_owned(), rest));
        }
        let mut buffer = [0; 4096];
        match caller.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => read.extend_from_slice(&buffer[..count]),
        }
    }
}

/// The body of a request of which this much has come.
fn read_body(caller: &mut UnixStream, head: &str, mut body: Vec<u8>) -> io::Result<Vec<u8>> {
    let head = head.to_ascii_lowercase();
    let mut lengths = head
        .lines()
        .filter_map(|line| line.strip_prefix("content-length:"));
    let length = lengths.next().and_then(|length| length.trim().parse().ok());
    let read = body.len();
    body.resize(read.max(length.unwrap_or(0)), 0);
    caller.read_exact(&mut body[read..])?;
    Ok(body)
}

/// The same request, after whose answer the connection ends; one that turns into a stream ends by itself.
fn for_one_call(head: &str) -> String {
    if head.to_ascii_lowercase().contains("\r\nconnection:") {
        head.to_owned()
    } else {
        head.replacen("\r\n", "\r\nConnection: close\r\n", 1)
    }
}

/// `GET /v1.41/containers/abc/json?x=y HTTP/1.1` is `GET /containers/*/json`.
fn name(head: &str) -> String {
    let mut words = head.split(' ');
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let is_version = |part: &str| part.starts_with("v1.");
    let parts = path.split('/').filter(|part| !part.is_empty());
    let parts: Vec<&str> = parts.skip_while(|part| is_version(part)).collect();
    let named = match parts[..] {
        ["containers" | "images" | "volumes" | "exec", _, _, ..] => {
            [parts[0], "*", parts[parts.len() - 1]].join("/")
        }
        ["containers" | "images" | "volumes", last] if !matches!(last, "create" | "json") => {
            [parts[0], "*"].join("/")
        }
        _ => parts.join("/"),
    };
    format!("{method} /{named}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart_by_what_they_do() {
        for (line, known) in [
            ("GET /version HTTP/1.1\r\n", "GET /version"),
            (
                "POST /v1.41/containers/create?name=a HTTP/1.1\r\n",
                "POST /containers/create",
            ),
            (
                "GET /v1.41/containers/json?all=true HTTP/1.1\r\n",
                "GET /containers/json",
            ),
            (
                "GET /v1.41/containers/a/json HTTP/1.1\r\n",
                "GET /containers/*/json",
            ),
            (
                "GET /v1.41/images/a/b/json HTTP/1.1\r\n",
                "GET /images/*/json",
            ),
            (
                "DELETE /v1.41/containers/a?v=true HTTP/1.1\r\n",
                "DELETE /containers/*",
            ),
        ] {
            assert_eq!(name(line), known);
        }
    }

    #[test]
    fn a_connection_that_turns_into_a_stream_is_left_alone() {
        let plain = "GET /info HTTP/1.1\r\nHost: x\r\n\r\n";
        assert!(for_one_call(plain).starts_with("GET /info HTTP/1.1\r\nConnection: close\r\nHost"));
        let stream = "POST /attach HTTP/1.1\r\nConnection: Upgrade\r\n\r\n";
        assert_eq!(for_one_call(stream), stream);
    }
}
