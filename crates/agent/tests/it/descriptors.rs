//! Files that a shell left open when it started the daemon: none of them reaches a job.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use divvy_api::client::Client;
use divvy_api::frame::Frame;
use divvy_api::v1::{Array, Exec, JobState, Submit, Terminal};
use divvy_testkit::{Bounded as _, Home, divvy, ended, in_state, log, quarter};

/// Starts a program with a file as descriptor 9, another as 8, and a pipe as 7.
const OPENS: &str = "exec 9<>\"$0\" 8</etc/hostname 7<&0 </dev/null; exec \"$@\"";

/// The numbers of a shell's own descriptors. The shell has closed the listed folder by then, so `test` sees no fourth.
const LISTS: &str = "for fd in /proc/$$/fd/*; do if test -e $fd; then echo ${fd##*/}; fi; done";

const DAEMON: [&str; 3] = ["daemon", "--sim", "a100-80gb:1"];

fn lists(and_then: &str) -> Submit {
    quarter(&["sh", "-c", &format!("{LISTS}; {and_then}")])
}

/// `divvy WORDS…` with descriptors of its starter.
fn with_descriptors(home: &Home, words: &[&str]) -> Command {
    let mut command = home.command("sh");
    command.args(["-c", OPENS]).arg(home.path().join("secret"));
    command.arg(divvy()).args(words).stdin(Stdio::piped());
    command
}

async fn guest(client: &Client, job: &str, terminal: Option<Terminal>) -> String {
    let command = ["sh", "-c", LISTS].map(str::to_owned).to_vec();
    let exec = Exec { command, terminal };
    let (mut output, _input) = client.exec(job, &exec).await.unwrap();
    let mut said = Vec::new();
    loop {
        match output.next().await.unwrap() {
            Frame::Output(bytes) => said.extend(bytes),
            Frame::End(end) if end.exit_code == 0 => return String::from_utf8(said).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

/// What the descriptors of a process lead to.
fn files(pid: u32) -> Vec<PathBuf> {
    let listed = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let read = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.unwrap().path()).ok();
    listed.filter_map(read).collect()
}

fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A job, a member of an array, guests, the supervisor and its fork server.
async fn nothing_came_along(home: &Home) {
    const STANDARD: [&str; 3] = ["0", "1", "2"];
    let client = home.connect();
    let numbers = |said: &str| -> Vec<String> { said.lines().map(str::to_owned).collect() };
    let array = Array {
        indices: vec![0, 1],
        max_running: None,
    };
    let array = Submit {
        array: Some(array),
        ..lists("true")
    };
    let member = client.submit(&array).await.unwrap().reference();
    ended(&client, &member).await;
    assert_eq!(numbers(&log(&client, &member).await), STANDARD, "an array");
    let id = client.submit(&lists("exec sleep 1000")).await.unwrap().id;
    let program = in_state(&client, &id, JobState::Running).await.pid;
    let mut said = client.log(&id, 0, true).await.unwrap();
    let mut text = String::new();
    while !text.contains("2\n") {
        text.push_str(std::str::from_utf8(&said.next().await.unwrap().unwrap()).unwrap());
    }
    assert_eq!(numbers(&text), STANDARD, "a job");
    let guest_of = async |terminal| guest(&client, &id, terminal).await;
    assert_eq!(numbers(&guest_of(None).await), STANDARD, "a guest");
    let terminal = Terminal {
        rows: 24,
        columns: 80,
        kind: None,
    };
    let on_terminal = guest_of(Some(terminal)).await.replace('\r', "");
    assert_eq!(numbers(&on_terminal), STANDARD, "a guest on a terminal");
    let supervisor = home.pid(&id, "launch");
    for pid in [supervisor, parent(supervisor), program.unwrap()] {
        let files = files(pid);
        let came = |path: &PathBuf| path.ends_with("secret") || path == Path::new("/etc/hostname");
        assert!(!files.iter().any(came), "{pid}: {files:?}");
    }
    client.cancel(&id).await.unwrap();
    ended(&client, &id).await;
}

#[tokio::test]
async fn what_its_starter_left_open_stays_with_the_daemon() {
    let mut home = Home::empty();
    let mut command = with_descriptors(&home, &DAEMON);
    home.start_by(&mut command);
    nothing_came_along(&home).await;
}

#[tokio::test]
async fn what_its_starter_left_open_is_closed_in_a_detached_daemon() {
    let home = Home::empty();
    let detached = [&DAEMON[..], &["--detached"]].concat();
    let started = with_descriptors(&home, &detached).wait_bounded();
    assert!(started.unwrap().success());
    let _stops = Detached(&home);
    nothing_came_along(&home).await;
}

/// A daemon in the background, which ends with the test however that ends.
struct Detached<'a>(&'a Home);

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        drop(self.0.run(&["daemon", "--stop"]));
    }
}
