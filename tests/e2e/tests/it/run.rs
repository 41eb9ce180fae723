//! `divvy run` is the program it runs: its exit code, its signals, its stdin and stdout. And the life of a job from
//! `submit` to `wait`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use divvy_api::v1::{EndReason, JobState};
use divvy_e2e::{Dialog, Home, Programs, until};
use divvy_testkit::Bounded as _;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};

/// Runs the body with a daemon and without one, each in a home of its own; `flags` is what `run` needs there.
fn with_and_without_a_daemon(body: impl Fn(&Home, &[&str])) {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    body(&home, &["-g", "0.5"]);
    body(&Home::new("a100-80gb:1"), &["-g", "0.5", "--no-daemon"]);
}

#[test]
fn the_programs_exit_code_is_passed_on() {
    with_and_without_a_daemon(|home, flags| {
        for code in [0, 3, 255] {
            let script = format!("exit {code}");
            let _ = home
                .divvy(&[&["run"], flags, &["--", "sh", "-c", &script]].concat())
                .exits(code);
        }
    });
}

#[test]
fn a_run_that_has_ended_leaves_no_mark_in_the_registry() {
    let home = Home::new("a100-80gb:1");
    let registry = home.scratch().join("registry");
    fs::create_dir(&registry).unwrap();
    // As /run/lock is: no other user removes a file there.
    fs::set_permissions(&registry, fs::Permissions::from_mode(0o1777)).unwrap();
    let home = home.variable("DIVVY_REGISTRY", registry.to_str().unwrap());
    let _daemon = home.daemon(&[]);
    let marks = || fs::read_dir(&registry).unwrap().count();
    let before = marks();
    assert!(before > 0, "the daemon has an entry");
    let _ = home.divvy(&["run", "-g", "0.5", "--", "true"]).exits(0);
    assert_eq!(marks(), before);
}

#[test]
fn exit_codes_and_what_they_mean_are_recorded() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    for (script, code, reason) in [
        ("exit 0", 0, EndReason::Completed),
        ("exit 3", 3, EndReason::Failed),
        ("kill -TERM $$", 143, EndReason::Failed),
    ] {
        let _ = home
            .divvy(&["run", "-g", "0.5", "--", "sh", "-c", script])
            .exits(code);
        let submitted = home.submit(&["-g", "0.5"], &["sh", "-c", script]);
        for job in [
            home.ended(&submitted),
            home.ended(&(submitted.parse::<u64>().unwrap() - 1).to_string()),
        ] {
            assert_eq!(
                (job.exit_code, job.end_reason),
                (Some(code), Some(reason)),
                "{job:?}"
            );
        }
    }
    // One of the jobs before it might have made the program.
    let missing = home.submit(&["-g", "0.5", "--after", "last"], &["/no/such/program"]);
    let job = home.ended(&missing);
    assert_eq!(job.end_reason, Some(EndReason::LaunchFailed), "{job:?}");
    assert!(
        job.reason
            .as_ref()
            .is_some_and(|text| text.contains("/no/such/program")),
        "{job:?}"
    );
}

#[test]
fn a_run_that_divvy_ends_says_when_and_why_also_when_the_daemon_is_gone() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let gate = home.gate("go");
    let ready = home.scratch().join("ready");
    let script = format!(
        "trap 'until [ -e {gate} ]; do sleep 0.05; done; exit 0' TERM; : > {}; while :; do sleep 0.05; done",
        ready.display()
    );
    let mut run = home.divvy_command(&["run", "-g", "0.5", "--", "sh", "-c", &script]);
    let mut run = run.stderr(Stdio::piped()).spawn().unwrap();
    until("the program has set its trap", || {
        ready.exists().then_some(())
    });
    let _ = home.divvy(&["cancel", "1"]).ok();
    let job = home.job("1");
    let who = job.end_detail.clone().unwrap_or_default();
    assert!(
        who.starts_with("cancelled by ") && who.contains("(uid "),
        "{job:?}"
    );
    assert_eq!(job.ended_by.map(|by| by.uid), job.uid);
    drop(daemon);
    home.open("go");
    let output = run.output_bounded().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("divvy: stopped job 1 at "), "{said}");
    assert!(said.contains(&format!("(local time): {who}")), "{said}");
}

#[test]
fn what_cannot_be_started_is_126_or_127_as_in_a_shell() {
    with_and_without_a_daemon(|home, flags| {
        let text = home.scratch().join("text");
        fs::write(&text, "not a program\n").unwrap();
        let missing = home
            .divvy(&[&["run"], flags, &["--", "/no/such/program"]].concat())
            .exits(127);
        assert!(
            missing.stderr.contains("/no/such/program"),
            "{}",
            missing.stderr
        );
        let _ = home
            .divvy(&[&["run"], flags, &["--", text.to_str().unwrap()]].concat())
            .exits(126);
    });
}

#[test]
fn a_signal_shows_as_128_and_its_number() {
    with_and_without_a_daemon(|home, flags| {
        for (name, number) in [("TERM", 15), ("KILL", 9)] {
            let script = format!("kill -{name} $$");
            let _ = home
                .divvy(&[&["run"], flags, &["--", "sh", "-c", &script]].concat())
                .exits(128 + number);
        }
    });
}

#[test]
fn stdin_stdout_and_stderr_are_the_programs_own() {
    with_and_without_a_daemon(|home, flags| {
        let mut command = home
            .divvy_command(&[&["run"], flags, &["--", "sh", "-c", "cat; echo talk >&2"]].concat());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(b"data\0\xff\n")
            .unwrap();
        let output = child.output_bounded().unwrap();
        assert_eq!(
            output.stdout,
            b"data\0\xff\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(String::from_utf8_lossy(&output.stderr), "talk\n");
    });
}

#[test]
fn the_program_gets_its_folder_its_variables_and_its_slice() {
    let home = Home::new("a100-80gb:2").variable("DIVVY_FORM", "preload");
    let _daemon = home.daemon(&["--dynamic-gpus", "--queue", "half=0.5"]);
    let folder = home.scratch().join("work");
    fs::create_dir(&folder).unwrap();
    let script = r#"pwd; echo "$MINE|$LD_PRELOAD|$DIVVY_JOB_ID|$DIVVY_QUEUE|$CUDA_VISIBLE_DEVICES|$NVIDIA_VISIBLE_DEVICES""#;
    let mut command = home.divvy_command(&[
        "submit",
        "--parsable",
        "-q",
        "half",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let output = command
        .current_dir(&folder)
        .env("MINE", "a b")
        .output_bounded()
        .unwrap();
    let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert_eq!(home.ended(&id).exit_code, Some(0));
    let log = home.log(&id);
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[0], folder.to_str().unwrap());
    let uuid = home.items(&["gpus"])[0]["uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    let preload = home.path().join("limiters/1/libdivvy_preload.so");
    let preload = preload.display();
    assert_eq!(lines[1], format!("a b|{preload}|{id}|half|0|{uuid}"));
}

#[test]
fn control_c_reaches_the_program_and_what_it_answers_counts() {
    with_and_without_a_daemon(|home, flags| {
        let script = "trap 'exit 44' INT; echo '{}'; while :; do sleep 0.05; done";
        let mut command =
            home.divvy_command(&[&["run"], flags, &["--", "sh", "-c", script]].concat());
        let mut dialog = Dialog::start(command.process_group(0));
        dialog.listen();
        kill_process_group(
            Pid::from_raw(dialog.pid().cast_signed()).unwrap(),
            Signal::INT,
        )
        .unwrap();
        assert_eq!(dialog.finish(), 44);
    });
}

#[test]
fn a_signal_to_divvy_run_alone_is_passed_to_the_program() {
    with_and_without_a_daemon(|home, flags| {
        let script = r#"echo "{\"pid\":$$}"; exec sleep 600"#;
        let mut dialog = Dialog::start(
            &mut home.divvy_command(&[&["run"], flags, &["--", "sh", "-c", script]].concat()),
        );
        let program =
            Pid::from_raw(i32::try_from(dialog.listen()["pid"].as_u64().unwrap()).unwrap())
                .unwrap();
        kill_process(
            Pid::from_raw(dialog.pid().cast_signed()).unwrap(),
            Signal::TERM,
        )
        .unwrap();
        assert_eq!(dialog.finish(), 143);
        assert!(
            test_kill_process(program).is_err(),
            "the program was left behind"
        );
    });
}

/// `divvy WORDS…`, started with these signals ignored, as by `nohup` or by a script's `&`.
fn ignoring(home: &Home, signals: &str, words: &[&str]) -> Command {
    let mut command = home.command("env");
    command
        .arg(format!("--ignore-signal={signals}"))
        .arg(home.program("divvy"))
        .args(words);
    command
}

#[test]
fn signals_that_the_caller_ignores_stay_ignored() {
    with_and_without_a_daemon(|home, flags| {
        let script = "echo '{}'; read line; exit 5";
        let words = [&["run"], flags, &["--", "sh", "-c", script]].concat();
        let mut dialog = Dialog::start(ignoring(home, "HUP,INT", &words).process_group(0));
        dialog.listen();
        let group = Pid::from_raw(dialog.pid().cast_signed()).unwrap();
        for signal in [Signal::HUP, Signal::INT] {
            kill_process_group(group, signal).unwrap();
        }
        dialog.say("go on");
        assert_eq!(dialog.finish(), 5);
    });
}

#[test]
fn a_waiting_run_outlives_its_terminal_where_the_caller_ignores_the_hangup() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let holder = home.submit(&["-g", "1"], &["sleep", "600"]);
    let _ = home.running(&holder);
    let run = ["run", "-g", "1", "--", "true"];
    let mut waiting = ignoring(&home, "HUP", &run).spawn().unwrap();
    let is_queued = || {
        let jobs = home.items(&["ps"]);
        jobs.iter()
            .any(|job| job["state"] == "queued")
            .then_some(())
    };
    until("the second job waits", is_queued);
    kill_process(Pid::from_child(&waiting), Signal::HUP).unwrap();
    let _ = home.divvy(&["cancel", &holder]).ok();
    assert!(waiting.wait_bounded().unwrap().success());
}

#[test]
fn a_daemons_jobs_have_default_signals_whatever_the_daemon_ignores() {
    let home = Home::new("a100-80gb:1");
    let mut daemon = ignoring(&home, "HUP,INT,QUIT", &["daemon"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the daemon answers", || {
        home.call(home.client().node()).ok()
    });
    let script = "kill -INT $$; exit 9";
    let id = home.submit(&["-g", "0.5"], &["sh", "-c", script]);
    assert_eq!(home.ended(&id).exit_code, Some(130));
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(daemon.wait_bounded().unwrap().success());
}

#[test]
fn control_c_while_waiting_takes_the_job_out_of_its_queue() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let whole = home.submit_holder(&["-g", "1"], 0, "whole");
    home.running(&whole);
    let mut waiting = home.divvy_command(&["run", "-g", "0.5", "--", "true"]);
    let mut child = waiting
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let id = until("the job waits", || {
        home.items(&["ps"])
            .into_iter()
            .find(|job| job["state"] == "queued")
    })
    .clone()["id"]
        .clone();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.output_bounded().unwrap();
    let code = output
        .status
        .code()
        .unwrap_or_else(|| 128 + output.status.signal().unwrap());
    assert_eq!(code, 130, "{}", String::from_utf8_lossy(&output.stderr));
    let job = home.ended(id.as_str().unwrap());
    assert_eq!(
        (job.end_reason, job.exit_code),
        (Some(EndReason::Cancelled), None)
    );
}

#[test]
fn run_starts_a_daemon_when_there_is_none() {
    let home = Home::new("a100-80gb:1");
    let _ = home.divvy(&["ps"]).exits(7);
    let said = home
        .divvy(&["run", "-g", "0.5", "--", "echo", "hello"])
        .ok();
    assert_eq!(said.stdout, "hello\n");
    // The program's exit is on disk when `run` returns; the daemon reads it a moment later.
    assert_eq!(home.ended("last").exit_code, Some(0));
    assert_eq!(home.items(&["ps", "--all"]).len(), 1);
    let node = home.call(home.client().node()).unwrap();
    assert_eq!(node.simulated.as_deref(), Some("a100-80gb:1"));
}

#[test]
fn without_a_driver_run_names_the_gpus_that_were_simulated_before() {
    let home = Home::with(Programs::of_this_test(), None);
    // The loader takes the first file of that name, and this one is no library, whatever else the machine has.
    let broken = home.scratch().join("broken");
    std::fs::create_dir(&broken).unwrap();
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        std::fs::write(broken.join(name), "not a library").unwrap();
    }
    let home = home.variable("LD_LIBRARY_PATH", broken.to_str().unwrap());
    let said = home.divvy(&["run", "-g", "0.5", "--", "true"]).exits(7);
    assert!(said.stderr.contains("--sim a100-80gb:3"), "{}", said.stderr);
    let sim = ["run", "--sim", "l4-24gb:2", "-g", "0.5", "--", "true"];
    let _ = home.divvy(&sim).ok();
    let _ = home.divvy(&["daemon", "--stop"]).ok();
    let said = home.divvy(&["run", "-g", "0.5", "--", "true"]).exits(7);
    assert!(said.stderr.contains("--sim l4-24gb:2"), "{}", said.stderr);
}

#[test]
fn two_first_runs_at_once_start_one_daemon() {
    let home = Home::new("a100-80gb:1");
    let children: Vec<_> = (0..4)
        .map(|_| {
            home.divvy_command(&["run", "-g", "0.25", "--", "true"])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        let output = child.output_bounded().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(home.items(&["ps", "--all"]).len(), 4);
}

#[test]
fn a_submitted_job_can_be_followed_waited_for_and_cancelled() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let gate = home.gate("go");
    let script =
        format!("echo first; while [ ! -e {gate} ]; do sleep 0.05; done; echo second; exit 7");
    let id = home.submit(&["-g", "0.5", "--name", "talker"], &["sh", "-c", &script]);
    let mut follower = Dialog::start(&mut home.divvy_command(&["logs", "-f", "talker"]));
    assert_eq!(follower.line(), "first\n");
    let _ = home.divvy(&["wait", &id, "--timeout", "100ms"]).exits(9);
    home.open("go");
    assert_eq!(follower.line(), "second\n");
    assert_eq!(follower.finish(), 0);
    let _ = home.divvy(&["wait", &id]).exits(7);
    assert_eq!(home.divvy(&["logs", &id]).ok().stdout, "first\nsecond\n");
    // Of several jobs the first that failed decides, wherever it stands.
    let well = home.submit(&["-g", "0.5"], &["true"]);
    let worse = home.submit(&["-g", "0.5"], &["sh", "-c", "exit 8"]);
    for (jobs, code) in [
        ([&id, &well, &well], 7),
        ([&well, &id, &well], 7),
        ([&well, &worse, &id], 8),
    ] {
        let words = [&["wait"], &jobs.map(String::as_str)[..]].concat();
        let _ = home.divvy(&words).exits(code);
    }

    let endless = home.submit(&["-g", "0.5"], &["sh", "-c", "echo up; exec sleep 600"]);
    let pid = home.running(&endless).pid.unwrap();
    let _ = home.divvy(&["cancel", &endless]).ok();
    let job = home.ended(&endless);
    assert_eq!(job.end_reason, Some(EndReason::Cancelled));
    assert!(
        test_kill_process(Pid::from_raw(pid.cast_signed()).unwrap()).is_err(),
        "the program runs on"
    );
    assert_eq!(home.items(&["gpus"])[0]["share_allocated"], 0);
    // Cancelling what has ended changes nothing.
    let _ = home.divvy(&["cancel", &id]);
    assert_eq!(home.job(&id).end_reason, Some(EndReason::Failed));
}

#[test]
fn a_queued_job_can_be_cancelled_before_it_ever_runs() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let whole = home.submit_holder(&["-g", "1"], 0, "whole");
    home.running(&whole);
    let marker = home.scratch().join("ran");
    let id = home.submit(&["-g", "0.5"], &["touch", marker.to_str().unwrap()]);
    assert_eq!(home.job(&id).state, JobState::Queued);
    let _ = home.divvy(&["cancel", &id]).ok();
    assert_eq!(home.ended(&id).end_reason, Some(EndReason::Cancelled));
    home.open("whole");
    home.ended(&whole);
    let after = home.submit(&["-g", "1"], &["true"]);
    assert_eq!(home.ended(&after).exit_code, Some(0));
    assert!(!marker.exists(), "a cancelled job ran");
}

#[test]
fn the_same_key_submits_once_and_another_body_under_it_is_a_conflict() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let submit = |command: &[&str]| {
        home.divvy(
            &[
                &[
                    "submit",
                    "--parsable",
                    "-g",
                    "0.5",
                    "--idempotency-key",
                    "k1",
                    "--",
                ],
                command,
            ]
            .concat(),
        )
    };
    let first = submit(&["true"]).ok().stdout;
    assert_eq!(submit(&["true"]).ok().stdout, first);
    assert_eq!(home.items(&["ps", "--all"]).len(), 1);
    let _ = submit(&["false"]).exits(8);
    assert_eq!(home.items(&["ps", "--all"]).len(), 1);
}

#[test]
fn a_dry_run_says_what_would_happen_and_changes_nothing() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let _ = home
        .divvy(&["submit", "--dry-run", "-g", "0.5", "--", "true"])
        .ok();
    assert_eq!(home.items(&["ps", "--all"]).len(), 0);
    let _ = home
        .divvy(&["submit", "--dry-run", "-g", "2", "--", "true"])
        .exits(5);
}

#[test]
fn every_read_verb_prints_its_documented_json() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&["--dynamic-gpus", "--queue", "half=0.5", "whole=1"]);
    let id = home.submit_holder(&["-q", "half"], 0, "gate");
    home.running(&id);
    let keys = [
        (
            &["gpus"][..],
            "GpuList",
            &[
                "uuid",
                "index",
                "model",
                "mode",
                "memory_total_bytes",
                "memory_usable_bytes",
                "memory_allocated_bytes",
                "share_allocated",
                "slices",
            ][..],
        ),
        (
            &["ps"],
            "JobList",
            &[
                "id",
                "name",
                "user",
                "project",
                "queue",
                "state",
                "end_reason",
                "exit_code",
                "request",
                "slices",
                "reason",
            ],
        ),
        (
            &["queues"],
            "QueueList",
            &["name", "priority", "amount", "waiting", "running"],
        ),
        (
            &["describe", &id],
            "JobList",
            &["id", "command", "cwd", "slice_directory"],
        ),
        (
            &["why", &id],
            "Why",
            &["job", "state", "queue", "summary", "gpus"],
        ),
        (&["events"], "EventList", &["seq", "at", "kind", "text"]),
    ];
    for (words, kind, keys) in keys {
        let document = home.divvy(&[words, &["-o", "json"]].concat()).ok().json();
        assert_eq!(
            (&document["schema"], &document["kind"]),
            (&"divvy/v1".into(), &kind.into()),
            "{document}"
        );
        let item = document["items"][0]
            .as_object()
            .unwrap_or_else(|| panic!("{words:?} lists nothing: {document}"));
        for key in keys {
            assert!(
                item.contains_key(*key),
                "{words:?} has no {key}: {document}"
            );
        }
    }
}
