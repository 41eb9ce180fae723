//! A Prometheus of the test's own, asked over HTTP; and small pages of other programs for it to read.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use divvy_e2e::until;
use divvy_testkit::{Bounded as _, CommandOutput, PATIENCE};
use serde_json::Value;

/// The folder that `DIVVY_TEST_PROMETHEUS` names, or the programs of `PATH`; `None` without Prometheus.
#[derive(Clone, Debug)]
pub struct Programs(Option<PathBuf>);

impl Programs {
    /// Prints why tests are skipped, where the programs are missing.
    pub fn find() -> Option<Self> {
        let programs = Self(std::env::var_os("DIVVY_TEST_PROMETHEUS").map(PathBuf::from));
        for name in ["prometheus", "promtool"] {
            let mut command = Command::new(programs.path(name));
            if command.arg("--version").output_bounded().is_err() {
                eprintln!(
                    "skipped: there is no {name}: apt-get install --no-install-recommends prometheus, \
                     or name a folder with it in DIVVY_TEST_PROMETHEUS"
                );
                return None;
            }
        }
        Some(programs)
    }

    fn path(&self, name: &str) -> OsString {
        let folder = self.0.as_deref().unwrap_or(Path::new(""));
        folder.join(name).into_os_string()
    }

    /// Whether there is such a program beside Prometheus.
    pub fn has(&self, name: &str) -> bool {
        let mut command = Command::new(self.path(name));
        command.arg("--version").output_bounded().is_ok()
    }

    /// `promtool WORDS…` with this input, in a folder.
    pub fn promtool(&self, folder: &Path, words: &[&str], input: &str) -> CommandOutput {
        let mut child = Command::new(self.path("promtool"))
            .args(words)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        // promtool may end before it has read everything.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.output_bounded().expect("promtool ends");
        CommandOutput::new(words.join(" "), &output)
    }

    /// Starts a program that listens on this address, with its output in a file.
    pub fn start(&self, name: &str, words: &[String], log: &Path) -> Server {
        let log = File::create(log).expect("the folder can be written");
        let child = Command::new(self.path(name))
            .args(words)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be cloned"))
            .stderr(log)
            .spawn();
        Server(child.expect("it starts"))
    }
}

/// A program that runs until it is dropped.
pub struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait_bounded();
    }
}

/// A port that is free at the moment.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}

/// The body of an answer with status 200 of a server on this machine.
pub fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("it is not zero");
    let head = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.split(' ').nth(1) == Some("200")).then(|| body.to_owned())
}

/// A running Prometheus.
pub struct Prometheus {
    port: u16,
    _server: Server,
}

impl Prometheus {
    /// Starts one with the configuration `prometheus.yml` of a folder, and waits until it is ready.
    pub fn start(programs: &Programs, folder: &Path) -> Self {
        let port = free_port();
        let words = [
            format!("--config.file={}", folder.join("prometheus.yml").display()),
            format!("--storage.tsdb.path={}", folder.join("data").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
            "--storage.tsdb.retention.size=64MB".to_owned(),
        ];
        let log = folder.join("prometheus.log");
        let server = programs.start("prometheus", &words, &log);
        until("Prometheus is ready", || get(port, "/-/ready"));
        Self {
            port,
            _server: server,
        }
    }

    fn data(&self, path: &str) -> Value {
        let body = get(self.port, path).unwrap_or_else(|| panic!("no answer to {path}"));
        let mut answer: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].take()
    }

    /// The series that an expression gives now, with numbers only.
    pub fn query(&self, expression: &str) -> Vec<Value> {
        let encoded: String = expression
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let data = self.data(&format!("/api/v1/query?query={encoded}"));
        let result = data["result"].as_array().expect("a vector");
        let is_number = |series: &&Value| {
            let value = series["value"][1].as_str();
            value.is_some_and(|value| value.parse().is_ok_and(f64::is_finite))
        };
        result.iter().filter(is_number).cloned().collect()
    }

    /// The alerts that are pending or firing.
    pub fn alerts(&self) -> Vec<Value> {
        let data = self.data("/api/v1/alerts");
        data["alerts"].as_array().expect("a list").clone()
    }
}

/// Serves one page to every reader, until the test ends.
pub fn serve_page(page: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n\
                 content-length: {}\r\nconnection: close\r\n\r\n{page}",
                page.len()
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port
}
