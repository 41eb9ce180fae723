//! Attributes that a process keeps over fork and exec: the rows of the table in docs/reference.md, each in both forms of
//! the limiter, with and without a daemon, and in a daemon that a shell with unusual attributes has started.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use divvy_e2e::{Home, client_script, python, until};
use divvy_testkit::{Bounded as _, Daemon, compiled};
use serde_json::{Map, Value};

/// Prints all attributes. The shell asks for the signals: Python ignores two by itself.
const SHOWS: &str = "SIGNALS=\"$(grep -E '^Sig(Blk|Ign)' /proc/self/status)\" exec \"$0\" \"$@\"";

/// The rows: what the program of `run` has, and what a job of a daemon has.
fn rows() -> BTreeMap<&'static str, (&'static str, &'static str)> {
    let page = include_str!("../../../../docs/reference.md");
    let (_, section) = page.split_once("## Inherited attributes").unwrap();
    let table = section.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = table.skip(1).take_while(|line| line.starts_with('|'));
    let cells = |line: &'static str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, run, job] = cells[..] else {
            panic!("{line}")
        };
        (name, (run, job))
    };
    rows.map(cells).collect()
}

fn shows() -> Vec<String> {
    let script = client_script("attributes.py");
    let python = python().to_str().unwrap().to_owned();
    [SHOWS, &python, "-S", &script, "show"]
        .map(str::to_owned)
        .into()
}

/// The command that becomes `words`, with an unusual value of each attribute.
fn oddly(home: &Home, words: &[&str]) -> Command {
    let mut command = home.command(python());
    command.current_dir("/");
    command.args(["-S", &client_script("attributes.py"), "odd"]);
    command.args(words);
    command
}

/// The forms of the limiter that this test may have: only root mounts the wrapper.
fn forms() -> impl Iterator<Item = &'static str> {
    let is_root = rustix::process::geteuid().is_root();
    is_root.then_some("wrapper").into_iter().chain(["preload"])
}

fn parsed(text: &str) -> Map<String, Value> {
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn attributes(command: &mut Command) -> Map<String, Value> {
    let output = command.stdin(Stdio::null()).output_bounded().unwrap();
    parsed(&String::from_utf8_lossy(&output.stdout))
}

/// Of a program without Divvy: with unusual attributes, and with those of this test.
fn without_divvy(home: &Home) -> [Map<String, Value>; 2] {
    let shows = shows();
    let words: Vec<&str> = ["sh", "-c"]
        .into_iter()
        .chain(shows.iter().map(String::as_str))
        .collect();
    let odd = attributes(&mut oddly(home, &words));
    let plain = attributes(home.command("sh").arg("-c").args(&shows));
    let rows = rows();
    for (name, value) in &odd {
        assert!(
            rows.contains_key(name.as_str()),
            "{name} is not in the table"
        );
        // The last two need a second processor and root.
        let may_be_plain = [
            "working directory",
            "root, namespaces",
            "CPU affinity",
            "bounding set, secure bits",
        ];
        assert!(
            may_be_plain.contains(&name.as_str()) || *value != plain[name],
            "{name} is as it was: {value}"
        );
    }
    let unread: Vec<_> = rows
        .keys()
        .filter(|name| !odd.contains_key(**name))
        .collect();
    assert!(unread.is_empty(), "{unread:?} are not read");
    [odd, plain]
}

#[test]
fn the_program_of_run_has_the_attributes_of_its_caller() {
    let shows = shows();
    for form in forms() {
        let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", form);
        let alone = Home::new("a100-80gb:1").variable("DIVVY_FORM", form);
        let _daemon = home.daemon(&[]);
        let slice = [
            "slice",
            "create",
            "s",
            "--gpu-memory",
            "1G",
            "--gpus-on",
            "0",
        ];
        let _ = home.divvy(&slice).ok();
        let bare = attributes(oddly(&home, &["sh", "-c"]).args(&shows));
        for (home, words) in [
            (&home, &["run", "-g", "0.5"][..]),
            (&alone, &["run", "-g", "0.5", "--no-daemon"]),
            (&home, &["slice", "enter", "s"]),
        ] {
            let divvy = home.program("divvy");
            let words = [&[divvy.as_str()], words, &["--", "sh", "-c"]].concat();
            let has = attributes(oddly(home, &words).args(&shows));
            for (name, (kept, _)) in rows() {
                assert_eq!(kept, "kept", "{name}");
                assert_eq!(has[name], bare[name], "{name}, {form} {words:?}");
            }
        }
    }
}

#[test]
fn a_daemon_of_an_unusual_shell_serves_and_its_jobs_have_what_the_table_says() {
    let home = Home::new("a100-80gb:1");
    let [odd, plain] = without_divvy(&home);
    let divvy = home.program("divvy");
    let words = [divvy.as_str(), "daemon", "--set", "grace=1s"];
    let mut daemon: Daemon = home.spawn(&mut oddly(&home, &words));
    home.is_served_by(&mut daemon);
    let shows = shows();
    let words: Vec<&str> = ["sh", "-c"]
        .into_iter()
        .chain(shows.iter().map(String::as_str))
        .collect();
    let id = home.submit(&["-g", "0.5"], &words);
    let _ = home.ended(&id);
    let has = parsed(&home.log(&id));
    for (name, (_, of_a_job)) in rows() {
        let expected = match of_a_job {
            "default" | "submitter's" => &plain[name],
            "default under root" if rustix::process::geteuid().is_root() => &plain[name],
            "daemon's" | "default under root" => &odd[name],
            other => panic!("{name}: {other}"),
        };
        assert_eq!(has[name], *expected, "{name}");
    }
    let id = home.submit(&["-g", "0.5"], &["sleep", "600"]);
    // Its supervisor and its program have SIGTERM blocked.
    let words = [divvy.as_str(), "run", "-g", "0.5", "--", "sleep", "600"];
    let mut run = oddly(&home, &words).stderr(Stdio::null()).spawn().unwrap();
    let run_id = until("the run has started", || {
        let jobs = home.items(&["ps"]);
        let other = jobs.iter().find(|job| job["id"] != id.as_str());
        other.and_then(|job| Some(job["id"].as_str()?.to_owned()))
    });
    for id in [&id, &run_id] {
        let _ = home.running(id);
        let _ = home.divvy(&["cancel", id]).ok();
        let _ = home.ended(id);
    }
    assert!(!run.wait_bounded().unwrap().success());
    assert_eq!(daemon.stop(), 0);
}

#[test]
fn a_daemon_that_may_write_no_file_names_the_limit() {
    let home = Home::new("a100-80gb:1");
    let script = "ulimit -f 0; exec \"$0\" submit -g 0.5 -- true";
    let mut command = home.command("sh");
    command.args(["-c", script]).arg(home.program("divvy"));
    let output = command.output_bounded().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    let line = "files may have at most 0 B (RLIMIT_FSIZE), but the daemon's journal needs 16.0 MiB";
    assert!(
        said.contains(line) && said.contains("hint: start it in a shell"),
        "{said}"
    );
}

/// Without a daemon a process that finds the slice full of what a killed one held waits two seconds for it.
#[test]
fn a_frozen_clock_and_a_file_size_limit_change_nothing_in_the_limiter() {
    let clock = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/c/frozen_clock.c");
    let clock = compiled(Path::new(clock), "frozen_clock.so", &[]);
    let after_a_killed_one = |home: &Home, flags: &[&str], then: &str| {
        let script = format!(
            "\"$0\" hold --bytes 3G --seconds 600 | {{ read line; kill -9 $(pgrep -P $$ -f hold); }}; {then} \"$0\" fill",
        );
        let words = [
            &["run", "--gpu-memory", "4G"],
            flags,
            &["--", "sh", "-c", &script],
        ]
        .concat();
        let mut command = home.divvy_command(&words);
        let output = command
            .arg(home.program("cudarc_probe"))
            .output_bounded()
            .unwrap();
        let said = parsed(&String::from_utf8_lossy(&output.stdout));
        said["got_bytes"].as_u64().unwrap() >> 20
    };
    let frozen = format!("LD_PRELOAD=\"{}:$LD_PRELOAD\"", clock.display());
    std::thread::scope(|scope| {
        for form in forms() {
            for (then, flags) in [
                (frozen.as_str(), &["--no-daemon"][..]),
                ("ulimit -f 0;", &["--no-daemon"]),
                ("ulimit -f 0;", &[]),
            ] {
                scope.spawn(move || {
                    let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", form);
                    let _daemon = flags.is_empty().then(|| home.daemon(&[]));
                    let got = after_a_killed_one(&home, flags, then);
                    assert_eq!(got, 3680, "MiB: {form} {flags:?} {then}");
                });
            }
        }
    });
}
