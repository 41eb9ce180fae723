//! An orderly restart of the daemon (SIGTERM, as `systemctl restart` and each upgrade send it): what follows the daemon
//! goes on under the next one, and loses and doubles nothing.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use divvy_e2e::page::{Page, connect};
use divvy_e2e::{Home, until};
use divvy_testkit::{Bounded as _, can_be_users, join, let_pass};
use serde_json::Value;

/// What follows the daemon over its restart.
struct Stream {
    name: &'static str,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Stream {
    fn start(home: &Home, name: &'static str, words: &[&str]) -> Self {
        let file = |kind: &str| home.scratch().join(format!("{name}.{kind}"));
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let made = |path: &PathBuf| File::create(path).expect("the folder can be written");
        let mut command = home.divvy_command(words);
        command.stdin(Stdio::null());
        command.stdout(made(&stdout)).stderr(made(&stderr));
        let child = command.spawn().expect("divvy starts");
        Self {
            name,
            child,
            stdout,
            stderr,
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stdout).expect("the file is there")
    }

    fn has_said(&self, lines: usize) {
        until(format!("{} has said {lines} lines", self.name), || {
            self.said().lines().count() >= lines
        });
    }

    fn told(&self) -> String {
        fs::read_to_string(&self.stderr).expect("the file is there")
    }

    /// Its stdout, once it has ended with this code.
    #[track_caller]
    fn ended(mut self, code: i32) -> String {
        let status = self.child.wait_bounded().expect("it is our child");
        assert_eq!(status.code(), Some(code), "{}: {}", self.name, self.told());
        self.said()
    }

    fn killed(mut self) -> String {
        self.child.kill().expect("it is our child");
        self.child.wait_bounded().expect("it is our child");
        self.said()
    }
}

/// Four lines before the restart, four while no daemon runs, and four after it.
fn program(home: &Home) -> String {
    let lines = |from: u32| {
        (from..from + 4).fold(String::new(), |all, n| all + &format!("echo line {n}; "))
    };
    let wait = |gate: &str| format!("until test -e {}; do sleep 0.02; done; ", home.gate(gate));
    lines(1) + &wait("away") + &lines(5) + &wait("back") + &lines(9) + "exit 6"
}

fn all_lines(prefix: &str) -> String {
    (1..=12).fold(String::new(), |mut all, n| {
        let _ = writeln!(all, "{prefix}line {n}");
        all
    })
}

/// A log as the page reads it: from the last byte on, until an answer ends in order. Gives the log and the number of
/// answers that were broken off.
fn log_of_page(page: &Page, job: &str) -> (String, u32) {
    let (mut log, mut broken) = (String::new(), 0);
    loop {
        let mut stream = connect(&page.address);
        let (host, token, offset) = (&page.address, &page.token, log.len());
        let request = format!(
            "GET /v1/jobs/{job}/log?offset={offset}&follow=true HTTP/1.1\r\nhost: {host}\r\n\
             authorization: Bearer {token}\r\nsec-fetch-site: same-origin\r\nconnection: close\r\n\r\n"
        );
        stream
            .write_all(request.as_bytes())
            .expect("divvy web reads");
        let mut answer = String::new();
        // A connection that is reset is broken off, too.
        let _ = stream.read_to_string(&mut answer);
        let (head, mut body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        if head.starts_with("HTTP/1.1 200 ") {
            while let Some((size, rest)) = body.split_once("\r\n") {
                let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
                if size == 0 {
                    return (log, broken);
                }
                log += &rest[..size];
                body = &rest[size + 2..];
            }
        }
        broken += 1;
        let_pass(Duration::from_millis(50));
    }
}

/// The sequence numbers of events.
fn numbers(events: &str) -> Vec<u64> {
    let number = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("a line of JSON");
        event["seq"].as_u64().expect("a number")
    };
    events.lines().map(number).collect()
}

/// The daemon of one user and the system's: they show the output of `run` in different ways.
fn daemons() -> Vec<&'static [&'static str]> {
    let can = can_be_users("an orderly restart of the system's daemon is not tested here");
    let all: [&[&str]; 2] = [&["--system"], &[]];
    all.into_iter().skip(usize::from(!can)).collect()
}

#[test]
fn over_an_orderly_restart_of_the_daemon_each_stream_has_each_line_once_and_its_exit_code() {
    for words in daemons() {
        let home = Home::new("a100-80gb:1");
        let daemon = home.daemon(words);
        let script = program(&home);
        let start = |name, words: &[&str]| Stream::start(&home, name, words);
        let array = ["-g", "0.2", "--array", "0-1"];
        let job = home.submit(&array[..2], &["sh", "-c", &script]);
        let tasks = home.submit(&array, &["sh", "-c", &script]);
        let until_away = format!("until test -e {}; do sleep 0.02; done", home.gate("away"));
        let ends = home.submit(&array[..2], &["sh", "-c", &until_away]);
        let run = ["run", "-g", "0.2", "--", "sh", "-c", &script];
        let runs = start("run", &run);
        runs.has_said(4);
        // The GPU is full now.
        let waits = start("waiting run", &run);
        until("it waits", || {
            let is_queued = |one: &Value| one["state"] == "queued";
            home.items(&["ps"]).iter().any(is_queued)
        });
        let events_of = |words: &[&str]| {
            let words = [&["events", "-o", "ndjson"], words].concat();
            numbers(&home.divvy(&words).ok().stdout)
        };
        home.running(&ends);
        // A stream that has printed the last event has its place among them.
        let before = events_of(&[&ends]).len() - 1;
        let follow = ["events", "-o", "ndjson", "-f", "-n"];
        let quiet = start("events of a job", &[&follow[..], &["1", &ends]].concat());
        let events = start("events", &[&follow[..], &["1"]].concat());
        let page = Arc::new(Page::open(&home, &[]));
        let shown = {
            let (page, job) = (Arc::clone(&page), job.clone());
            thread::spawn(move || log_of_page(&page, &job))
        };
        let log = start("logs -f", &["logs", "-f", &job]);
        let tail = start("logs -f -n 1", &["logs", "-f", "-n", "1", &job]);
        let logs = start("logs -f of an array", &["logs", "-f", &tasks]);
        let attached = start("attach", &["attach", "--from-start", &job]);
        let wait = start("wait", &["wait", &job]);
        let exec = ["exec", &job, "--", "sh", "-c", "echo in; sleep 600"];
        let exec = start("exec", &exec);
        for (stream, lines) in [
            (&log, 4),
            (&tail, 1),
            (&logs, 8),
            (&attached, 4),
            (&events, 1),
            (&quiet, 1),
            (&exec, 1),
        ] {
            stream.has_said(lines);
        }

        assert_eq!(daemon.stop(), 0);
        home.open("away");
        let away =
            "divvy: the daemon is away; waiting up to 30 s for its return; jobs keep running\n";
        for stream in [&log, &logs, &attached, &wait, &events] {
            until(format!("{} says that it waits", stream.name), || {
                stream.told().contains(away)
            });
        }
        let _daemon = home.daemon(words);
        home.open("back");

        let all = all_lines("");
        let last = &all[all.find("line 4").expect("a line")..];
        for (stream, code, said) in [
            (runs, 6, &*all),
            (waits, 6, &*all),
            (log, 0, &*all),
            (tail, 0, last),
            (attached, 6, &*all),
            (wait, 6, ""),
            (exec, 7, "in\n"),
        ] {
            let told = stream.told();
            let name = stream.name;
            assert_eq!(stream.ended(code), said, "{name}: {told}");
            assert!(told.matches(away).count() <= 1, "{name}: {told}");
        }
        let told = logs.told();
        let said = logs.ended(0);
        for index in 0..2 {
            let prefix = format!("{tasks}_{index} | ");
            let lines = said.split_inclusive('\n');
            let lines: String = lines.filter(|line| line.starts_with(&prefix)).collect();
            assert_eq!(lines, all_lines(&prefix), "{told}");
        }
        assert_eq!(told, away, "two logs, and one line");
        let (shown, broken) = join("the page", shown);
        assert_eq!(shown, all);
        assert!(broken > 0, "the restart broke off the page's answer");

        for (stream, all) in [
            (quiet, &events_of(&[&ends])[before..]),
            (events, &events_of(&[])[..]),
        ] {
            let name = stream.name;
            let first = numbers(&stream.said()).first().copied();
            let from = match name {
                "events" => first.unwrap_or(0),
                _ => 0,
            };
            let expected = all.iter().filter(|number| **number >= from);
            let expected: Vec<u64> = expected.copied().collect();
            stream.has_said(expected.len());
            assert_eq!(numbers(&stream.killed()), expected, "{name}");
        }
    }
}
