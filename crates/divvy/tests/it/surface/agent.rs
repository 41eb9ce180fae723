//! An agent that says what a test wants it to say: HTTP over a unix socket, one thread a connection.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use divvy_api::version;
use divvy_testkit::Bounded as _;

/// What was asked: method, path with its query, body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub body: String,
}

/// What is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A status and a body, whole.
    Body(u16, String),
    /// The start of a body, then the connection is gone.
    Torn(String),
    /// Nothing: the connection is closed.
    Gone,
}

/// An instance in a folder of its own, where an agent of the test's making answers, or none does.
pub struct Home {
    folder: tempfile::TempDir,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Home {
    /// Nobody answers.
    pub fn without_agent() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
            asked: Arc::default(),
        }
    }

    /// `answer` is given the question and how many came before it.
    pub fn with_agent(answer: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> Self {
        let home = Self::without_agent();
        let listener = UnixListener::bind(home.folder.path().join("divvy.sock")).expect("a socket");
        let (asked, answer) = (Arc::clone(&home.asked), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (asked, answer) = (Arc::clone(&asked), Arc::clone(&answer));
                thread::spawn(move || converse(&stream, &asked, &*answer));
            }
        });
        home
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Everything asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked
            .lock()
            .expect("no test panics while it asks")
            .clone()
    }

    /// `divvy WORDS…` in this instance.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_divvy"));
        command
            .args(words)
            .env("DIVVY_HOME", self.path())
            .stdin(Stdio::null());
        for name in ["DIVVY_SIM", "COLUMNS", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs it to its end: exit code, stdout, stderr, as text to record.
    pub fn said(&self, words: &[&str]) -> String {
        let output = self.command(words).output_bounded().expect("divvy starts");
        let text = format!("$ divvy {}\n{}", words.join(" "), told(&output));
        text.replace(self.path().to_str().expect("a readable folder"), "HOME")
    }
}

fn told(output: &Output) -> String {
    let code = output
        .status
        .code()
        .map_or_else(|| output.status.to_string(), |code| code.to_string());
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    format!("exit {code}\n--- stdout\n{stdout}--- stderr\n{stderr}")
}

fn converse(
    stream: &UnixStream,
    asked: &Mutex<Vec<Asked>>,
    answer: &dyn Fn(&Asked, usize) -> Answer,
) {
    let mut reader = BufReader::new(stream);
    while let Some(question) = read(&mut reader) {
        let before = {
            let mut asked = asked.lock().expect("no test panics while it asks");
            asked.push(question.clone());
            asked.len() - 1
        };
        let mut writer = stream;
        match answer(&question, before) {
            Answer::Body(status, body) => {
                let head = format!(
                    "HTTP/1.1 {status} Said\r\n{}: {}\r\ncontent-length: {}\r\n\r\n",
                    version::HEADER,
                    version::described(),
                    body.len()
                );
                let _ = writer.write_all((head + &body).as_bytes());
            }
            Answer::Torn(body) => {
                let head = format!(
                    "HTTP/1.1 200 Said\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n",
                    body.len()
                );
                let _ = writer.write_all(head.as_bytes());
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
            Answer::Gone => {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Asked> {
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked {
        method,
        path,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}
