//! `divvy run --no-daemon`: runs without a daemon count each other, and no daemon serves beside them.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::process::{Child, Output, Stdio};

use divvy_testkit::{Bounded as _, Home, is_alive, recorded, signal, until};

const SIM: &str = "l4-24gb:1";

/// A run that says where it is and stays until its gate is opened.
struct Run {
    child: Child,
    gate: std::path::PathBuf,
    said: std::path::PathBuf,
}

impl Run {
    fn start(home: &Home, name: &str, amount: &str) -> Self {
        let (gate, said) = (
            home.path().join(format!("{name}.gate")),
            home.path().join(format!("{name}.said")),
        );
        let script = format!(
            "echo $$ $DIVVY_JOB_ID $DIVVY_SLICE > {said}.new; mv {said}.new {said}; until test -e {gate}; do sleep 0.05; done; exit 7",
            said = said.display(),
            gate = gate.display(),
        );
        let args = [
            "run",
            "--no-daemon",
            "--sim",
            SIM,
            "-g",
            amount,
            "--",
            "sh",
            "-c",
            &script,
        ];
        let child = home
            .divvy_command(&args)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        until("the program runs", || said.exists());
        Self { child, gate, said }
    }

    /// The program's pid, its job and its slice.
    fn said(&self) -> (u32, String, String) {
        let text = fs::read_to_string(&self.said).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        (
            words[0].parse().unwrap(),
            words[1].to_owned(),
            words[2].to_owned(),
        )
    }

    fn finish(mut self) -> Option<i32> {
        fs::write(&self.gate, "").unwrap();
        self.child.wait_bounded().unwrap().code()
    }
}

fn solo(home: &Home, amount: &str, command: &[&str]) -> Output {
    home.run(
        &[
            &["run", "--no-daemon", "--sim", SIM, "-g", amount, "--"],
            command,
        ]
        .concat(),
    )
}

#[test]
fn a_secret_reaches_the_program() {
    let home = Home::empty();
    let script = "test \"$TOKEN\" = hush";
    let args = ["run", "--no-daemon", "--sim", SIM, "-g", "0.25", "--secret"];
    let command = ["TOKEN", "--", "sh", "-c", script];
    let mut run = home.divvy_command(&[&args[..], &command[..]].concat());
    assert!(run.env("TOKEN", "hush").wait_bounded().unwrap().success());
}

#[test]
fn runs_share_a_gpu_and_one_too_many_is_refused() {
    let home = Home::empty();
    let first = Run::start(&home, "first", "0.5");
    let second = Run::start(&home, "second", "0.25");
    let ((_, first_job, first_slice), (_, second_job, second_slice)) =
        (first.said(), second.said());
    assert_ne!((&first_job, &first_slice), (&second_job, &second_slice));
    assert_eq!(home.slices(), [first_job, second_job]);

    let refused = solo(&home, "0.5", &["true"]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(6), "{stderr}");
    assert!(
        stderr.contains("the job cannot start now") && stderr.contains("hint: "),
        "{stderr}"
    );
    assert_eq!(
        solo(&home, "0.25", &["true"]).status.code(),
        Some(0),
        "what is left is enough for this"
    );

    assert_eq!(first.finish(), Some(7), "the program's own code");
    assert_eq!(
        solo(&home, "0.5", &["true"]).status.code(),
        Some(0),
        "given back at the end"
    );
    assert_eq!(second.finish(), Some(7));
    assert_eq!(home.slices(), [""; 0]);
    assert_eq!(
        fs::read_dir(home.path().join("solo")).unwrap().count(),
        1,
        "only the lock is left"
    );
}

#[test]
fn a_daemon_and_runs_without_one_exclude_each_other() {
    let mut home = Home::empty();
    let run = Run::start(&home, "run", "0.5");
    let daemon = home.run(&["daemon", "--sim", SIM]);
    let stderr = String::from_utf8_lossy(&daemon.stderr);
    assert_eq!(daemon.status.code(), Some(8), "{stderr}");
    assert!(stderr.contains("--no-daemon"), "{stderr}");
    assert_eq!(run.finish(), Some(7));

    home.start(&["--sim", SIM]);
    let refused = solo(&home, "0.5", &["true"]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(8), "{stderr}");
    assert!(stderr.contains("daemon"), "{stderr}");
}

#[test]
fn what_a_killed_run_leaves_running_is_counted_until_it_is_gone() {
    let home = Home::empty();
    let mut run = Run::start(&home, "run", "0.75");
    let (program, job, _) = run.said();
    // The program may speak before its supervisor has written down which one it is.
    let folder = home.path().join("solo/1");
    until("the run is on record", || {
        recorded(&folder, "started").is_some()
    });
    run.child.kill().unwrap();
    run.child.wait_bounded().unwrap();
    assert!(is_alive(program));
    assert_eq!(
        solo(&home, "0.5", &["true"]).status.code(),
        Some(6),
        "its program still holds the slice"
    );
    assert_eq!(home.slices(), [job]);
    signal(program, "KILL");
    until("the program is gone", || !is_alive(program));
    assert_eq!(solo(&home, "0.5", &["true"]).status.code(), Some(0));
    assert_eq!(home.slices(), [""; 0]);
}

#[test]
fn what_is_wrong_is_refused_before_anything_is_made() {
    let home = Home::empty();
    for (amount, code) in [("1.5", 2), ("2", 5), ("0", 2)] {
        let refused = solo(&home, amount, &["true"]);
        assert_eq!(
            refused.status.code(),
            Some(code),
            "{amount}: {}",
            String::from_utf8_lossy(&refused.stderr)
        );
    }
    let strict = home
        .divvy_command(&[
            "run",
            "--no-daemon",
            "--sim",
            SIM,
            "-g",
            "0.5",
            "--compute",
            "strict",
            "--",
            "true",
        ])
        .output_bounded()
        .unwrap();
    let said = String::from_utf8_lossy(&strict.stderr);
    assert_eq!(strict.status.code(), Some(2), "{said}");
    assert!(said.contains("requires a daemon"), "{said}");
    assert_eq!(
        solo(&home, "0.5", &["no-such-program"]).status.code(),
        Some(127)
    );
    assert_eq!(home.slices(), [""; 0]);
}
