//! The API server through `kubectl proxy`, for what a process of kubectl per request would be too slow.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::until;
use crate::stage::{Process, Stage};

/// What one request may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// `kubectl proxy`.
pub struct Proxy {
    pub port: u16,
    _process: Process,
}

impl Proxy {
    pub fn start(stage: &Stage) -> Result<Self> {
        let mut command = Command::new(stage.cluster.kubectl());
        command
            .arg("--kubeconfig")
            .arg(stage.cluster.config())
            .args(["proxy", "--port=0"]);
        let mut process = Process::start(&mut command, stage.scratch.path().join("proxy.log"))?;
        let port = until("kubectl proxy serves", || {
            process.lives()?;
            // Starting to serve on 127.0.0.1:45731
            let said = process.said();
            let port = said.trim().rsplit_once("127.0.0.1:");
            Ok(port.and_then(|(_, port)| port.parse().ok()))
        })?;
        Ok(Self {
            port,
            _process: process,
        })
    }

    /// Removes all objects of a collection at once.
    pub fn delete_all(&self, path: &str) -> Result<()> {
        let path = format!("{path}?gracePeriodSeconds=0&propagationPolicy=Background");
        until(&format!("{path} is deleted"), || {
            let answer = ask(self.port, "DELETE", &path, "")?;
            // A thousand objects may take a busy API server longer than it allows a request. The rest is asked for again.
            let is_late = answer.status == 504;
            ensure!(is_late || answer.status == 200, "{path}: {}", answer.body);
            Ok((!is_late).then_some(()))
        })
    }

    /// Whether a collection has no object.
    pub fn is_empty(&self, path: &str) -> Result<bool> {
        let answer = ask(self.port, "GET", &format!("{path}?limit=1"), "")?;
        ensure!(answer.status == 200, "{path}: {}", answer.body);
        let list: Value = serde_json::from_str(&answer.body)?;
        Ok(list["items"].as_array().is_none_or(Vec::is_empty))
    }
}

/// An answer of the API server.
#[derive(Clone, Debug)]
pub struct Answered {
    pub status: u16,
    pub body: String,
}

/// Asks the API server through the proxy at this port.
pub fn ask(port: u16, method: &str, path: &str, body: &str) -> Result<Answered> {
    let mut stream = send(port, method, path, body)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .with_context(|| format!("{method} {path}"))?;
    let (head, body) = text
        .split_once("\r\n\r\n")
        .with_context(|| format!("{method} {path}: no answer"))?;
    Ok(Answered {
        status: status(head)?,
        body: body.to_owned(),
    })
}

/// HTTP/1.0: the answer ends with the connection and comes without chunks.
fn send(port: u16, method: &str, path: &str, body: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).context("connect to kubectl proxy")?;
    stream.set_nodelay(true)?;
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

fn status(head: &str) -> Result<u16> {
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.with_context(|| format!("no status: {head}"))
}

/// When a pod was seen first, and when it had a node.
#[derive(Clone, Copy, Debug)]
pub struct Sighting {
    pub made: Instant,
    pub bound: Option<Instant>,
}

/// The pods of a namespace, as the API server reports them.
#[derive(Clone, Default)]
pub struct Watch {
    seen: Arc<Mutex<BTreeMap<String, Sighting>>>,
}

#[derive(Deserialize)]
struct Event {
    object: Pod,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
}

impl Watch {
    /// Watches the pods whose names begin so, until the proxy ends.
    pub fn start(proxy: &Proxy, namespace: &str, prefix: &'static str) -> Result<Self> {
        let port = proxy.port;
        let path = format!("/api/v1/namespaces/{namespace}/pods?watch=true&timeoutSeconds=3600");
        let mut lines = events(port, &path)?;
        let watch = Self::default();
        let seen = Arc::clone(&watch.seen);
        thread::spawn(move || {
            loop {
                follow(lines, prefix, &seen);
                // The API server ends a watch that lags behind. A new one begins with all pods as they are.
                match events(port, &path) {
                    Ok(again) => lines = again,
                    Err(_) => return,
                }
            }
        });
        Ok(watch)
    }

    /// What was seen so far.
    pub fn seen(&self) -> BTreeMap<String, Sighting> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The events of a watch, one a line.
fn events(port: u16, path: &str) -> Result<BufReader<TcpStream>> {
    let mut lines = BufReader::new(send(port, "GET", path, "")?);
    let mut head = String::new();
    lines.read_line(&mut head)?;
    if status(&head)? != 200 {
        bail!("{path}: {head}");
    }
    while head != "\r\n" {
        head.clear();
        ensure!(lines.read_line(&mut head)? > 0, "{path}: it ended");
    }
    Ok(lines)
}

/// Notes what the events say, until they end or one is an error.
fn follow(lines: BufReader<TcpStream>, prefix: &str, seen: &Mutex<BTreeMap<String, Sighting>>) {
    for line in lines.lines() {
        let Ok(line) = line else { return };
        let Ok(Event { object }) = serde_json::from_str(&line) else {
            return;
        };
        if !object.metadata.name.starts_with(prefix) {
            continue;
        }
        let now = Instant::now();
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let sighting = seen.entry(object.metadata.name).or_insert(Sighting {
            made: now,
            bound: None,
        });
        if object.spec.node_name.is_some() {
            sighting.bound.get_or_insert(now);
        }
    }
}
