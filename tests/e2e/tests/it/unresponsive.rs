//! A daemon that hangs: each command says so, gives up or waits on, and `daemon --stop` ends it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use divvy_e2e::{CommandOutput, Daemon, Home, until};
use divvy_testkit::{Bounded as _, join};
use rustix::process::{Pid, Signal, kill_process};

fn signal(daemon: &Daemon, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).expect("a pid")).expect("not zero");
    kill_process(pid, signal).expect("the daemon is our child");
}

/// The command, its output and how long it took.
fn timed(
    home: &Home,
    words: &'static [&'static str],
) -> thread::JoinHandle<(CommandOutput, Duration)> {
    let mut command = home.divvy_command(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().expect("divvy starts");
    thread::spawn(move || {
        let output = child.output_bounded().expect("a child can be waited for");
        (
            CommandOutput::new(words.join(" "), &output),
            begun.elapsed(),
        )
    })
}

/// What a command says that followed a daemon while it hung.
const BACK: &str = "waiting for it\ndivvy: the daemon responds again\n";

/// A command that goes on, with its stdout in a file.
struct Followed {
    child: Child,
    stdout: PathBuf,
}

impl Followed {
    fn start(home: &Home, words: &[&str]) -> Self {
        let stdout = home.scratch().join(words[0]);
        let file = File::create(&stdout).expect("the folder can be written");
        let mut command = home.divvy_command(words);
        command.stdout(file).stderr(Stdio::piped());
        let child = command.spawn().expect("divvy starts");
        Self { child, stdout }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stdout).expect("the file is there")
    }

    /// Its stdout, once it has ended with this code and said that the daemon hung.
    #[track_caller]
    fn ended(mut self, code: i32) -> String {
        let output = self
            .child
            .output_bounded()
            .expect("a child can be waited for");
        let said = CommandOutput::new(self.stdout.display().to_string(), &output).exits(code);
        assert!(said.stderr.contains(BACK), "{}", said.stderr);
        self.said()
    }

    /// Its stderr, at an end from outside.
    fn killed(mut self) -> String {
        self.child.kill().expect("it is our child");
        let output = self
            .child
            .output_bounded()
            .expect("a child can be waited for");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Commands that ask, change, start and look at the daemon itself.
const GIVE_UP: &[&[&str]] = &[
    &["ps"],
    &["ps", "-a", "-o", "json"],
    &["submit", "-g", "0.25", "--", "true"],
    &["run", "-g", "0.25", "--", "true"],
    &["logs", "1"],
    // Of no job: the daemon acts on what it finds in its sockets once it continues.
    &["cancel", "9"],
    &["daemon", "--status"],
    &["doctor"],
];

#[test]
fn every_command_names_a_daemon_that_hangs_and_long_ones_go_on_once_it_continues() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let gate = home.gate("open");
    let program =
        format!("echo before; until [ -e {gate} ]; do sleep 0.1; done; echo after; exit 3");
    let job = home.submit(&["-g", "0.25"], &["sh", "-c", &program]);
    home.running(&job);
    let long = [
        &["logs", "-f", "1"][..],
        &["attach", "1", "--from-start"],
        &["events", "-f"],
    ];
    let long = long.map(|words| Followed::start(&home, words));
    for followed in &long {
        until("it has said something, and follows", || {
            (!followed.said().is_empty()).then_some(())
        });
    }
    signal(&daemon, Signal::STOP);
    let short: Vec<_> = GIVE_UP.iter().map(|words| timed(&home, words)).collect();
    let pid = daemon.pid();
    for command in short {
        let (said, took) = join("a command", command);
        if said.words == "doctor" {
            assert!(said.stdout.contains("does not respond"), "{}", said.stdout);
            continue;
        }
        let said = said.exits(7);
        let (first, last) = said.stderr.trim().split_once('\n').expect("two lines");
        let silence = format!("the daemon does not respond (pid {pid} is stopped, no answer for");
        assert_eq!(
            first,
            format!("divvy: {silence} 2 s); waiting up to 10 s"),
            "{}",
            said.words
        );
        assert!(
            last.contains(&format!("{silence} 10 s)")),
            "{}: {last}",
            said.words
        );
        if said.words.ends_with("json") {
            assert!(
                last.starts_with(r#"{"error":{"code":"unresponsive""#),
                "{last}"
            )
        } else {
            assert!(
                last.ends_with(&format!(
                    "hint: continue it: kill -CONT {pid}; its jobs keep running"
                )),
                "{last}"
            )
        }
        assert!(took >= Duration::from_secs(9), "{}: {took:?}", said.words);
    }
    signal(&daemon, Signal::CONT);
    home.open("open");
    let [logs, attach, events] = long;
    until("the events go on", || {
        events.said().contains(" ended ").then_some(())
    });
    for (followed, code) in [(logs, 0), (attach, 3)] {
        assert_eq!(followed.ended(code), "before\nafter\n");
    }
    assert!(events.killed().contains(BACK));
}

#[test]
fn stop_ends_a_daemon_that_hangs_and_its_jobs_run_on() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let job = home.submit_holder(&["-g", "0.25"], 1 << 20, "open");
    home.running(&job);
    signal(&daemon, Signal::STOP);
    let said = home.divvy(&["daemon", "--stop"]).ok();
    let how = format!(
        "the daemon (pid {}) did not respond and was ended with SIGTERM; jobs keep running, and the next daemon adopts them",
        daemon.pid()
    );
    assert!(said.stderr.contains(&how), "{}", said.stderr);
    drop(daemon);
    let _next = home.daemon(&[]);
    home.end(&job, "open");
}
