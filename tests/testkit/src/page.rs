//! `divvy web` as a program, and HTTP by hand: the requests that no browser sends as well as those that one does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{Bounded as _, Home, PATIENCE, bounded};
use rustix::process::{Pid, Signal, kill_process};

/// A running `divvy web`.
#[derive(Debug)]
pub struct Page {
    child: Child,
    said: PathBuf,
    /// `http://127.0.0.1:PORT/#TOKEN`
    pub url: String,
    /// `ssh -N -L …`
    pub ssh: String,
    /// `127.0.0.1:PORT`
    pub address: String,
    pub token: String,
}

impl Page {
    /// Starts `divvy web WORDS…` and waits for its address.
    ///
    /// # Panics
    /// When it ends instead.
    #[must_use]
    #[track_caller]
    pub fn open(home: &Home, words: &[&str]) -> Self {
        let command = home.divvy_command(&[&["web"], words].concat());
        Self::of(home, command)
    }

    /// The same as another user.
    ///
    /// # Panics
    /// When it ends instead.
    #[must_use]
    #[track_caller]
    pub fn open_as(home: &Home, uid: &str, words: &[&str]) -> Self {
        let mut command = home.divvy_as(uid);
        command.arg("web").args(words);
        Self::of(home, command)
    }

    #[track_caller]
    fn of(home: &Home, mut command: Command) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let said = home.scratch().join(format!("web-{number}.stderr"));
        let log = File::create(&said).expect("the folder can be written");
        let child = command.stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = child.expect("divvy starts");
        let stdout = child.stdout.take().expect("a pipe");
        let lines: Vec<String> = bounded("divvy web prints two lines", || {
            let lines = BufReader::new(stdout).lines().take(2);
            lines.map_while(Result::ok).collect()
        });
        let [url, ssh] = lines.try_into().unwrap_or_else(|lines| {
            let said = fs::read_to_string(&said).unwrap_or_default();
            panic!("divvy web printed {lines:?} and {said}")
        });
        let parts = url.strip_prefix("http://");
        let (address, token) = (parts.and_then(|rest| rest.split_once("/#"))).expect("an address");
        let (address, token) = (address.to_owned(), token.to_owned());
        Self {
            child,
            said,
            url,
            ssh,
            address,
            token,
        }
    }

    /// The answer to `METHOD PATH` as the page itself asks.
    ///
    /// # Panics
    /// When no whole answer comes.
    #[must_use]
    #[track_caller]
    pub fn fetch(&self, request: &str) -> Answer {
        let (host, token) = (&self.address, &self.token);
        let lines =
            format!("host: {host}\nauthorization: Bearer {token}\nsec-fetch-site: same-origin\n");
        ask(&self.address, &format!("{request}\n{lines}"), b"")
    }

    /// Its port on 127.0.0.1.
    ///
    /// # Panics
    /// When it printed none.
    #[must_use]
    pub fn port(&self) -> u16 {
        let port = self.address.rsplit_once(':').map(|(_, port)| port.parse());
        port.and_then(Result::ok).expect("an address with a port")
    }

    /// `http://127.0.0.1:PORT`
    #[must_use]
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it has written to stderr.
    #[must_use]
    pub fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as Ctrl-C does; its exit code.
    ///
    /// # Panics
    /// When a signal ended it.
    #[must_use]
    pub fn stop(mut self) -> i32 {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it is our child");
        let status = self
            .child
            .wait_bounded()
            .expect("a child can be waited for");
        status.code().expect("it ends by itself when asked")
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait_bounded();
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// 0: the server closed the connection without an answer.
    pub status: u16,
    /// By their names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    /// # Panics
    /// When it has none.
    #[must_use]
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.unwrap_or_else(|| panic!("no header {name}: {:?}", self.headers))
    }

    /// # Panics
    /// When it is none.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// A connection.
///
/// # Panics
/// When the server takes none.
#[must_use]
#[track_caller]
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server takes connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
    stream
}

/// One call over a connection of its own: a request line without the version, then headers, each on a line.
///
/// # Panics
/// When no whole answer comes.
#[must_use]
#[track_caller]
pub fn ask(address: &str, request: &str, body: &[u8]) -> Answer {
    let mut lines = request.lines();
    let first = lines.next().expect("a request line");
    let mut text = format!("{first} HTTP/1.1\r\nconnection: close\r\n");
    for line in lines {
        text += line;
        text += "\r\n";
    }
    if !body.is_empty() {
        text += &format!("content-length: {}\r\n", body.len());
    }
    text += "\r\n";
    let mut stream = connect(address);
    // A server that refuses the headers closes before it has read all of them.
    let _ = stream.write_all(&[text.as_bytes(), body].concat());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    parse(&answer)
}

fn parse(answer: &[u8]) -> Answer {
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Answer {
            status: 0,
            headers: BTreeMap::new(),
            body: answer.to_vec(),
        };
    };
    let head = String::from_utf8_lossy(&answer[..end]);
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let body = &answer[end + 4..];
    let is_chunked = headers
        .get("transfer-encoding")
        .is_some_and(|how| how == "chunked");
    Answer {
        status: status.expect("a status"),
        body: if is_chunked {
            joined(body)
        } else {
            body.to_vec()
        },
        headers,
    }
}

/// The chunks of a body (RFC 9112, section 7.1).
fn joined(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = chunks.windows(2).position(|two| two == b"\r\n") {
        let length = std::str::from_utf8(&chunks[..end]).ok();
        let length = length.and_then(|digits| usize::from_str_radix(digits, 16).ok());
        let length = length.expect("the length of a chunk");
        if length == 0 {
            break;
        }
        body.extend_from_slice(&chunks[end + 2..end + 2 + length]);
        chunks = &chunks[end + 4 + length..];
    }
    body
}
