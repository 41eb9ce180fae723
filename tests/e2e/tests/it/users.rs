//! One daemon for every user: a real program of another user is held to its slice, through the commands that this user has.

use divvy_api::v1::{BypassAction, EndReason};
use divvy_e2e::{CommandOutput, GIB, Home, until};
use divvy_testkit::{Bounded as _, can_be_users};

use crate::bypass::Evader;

/// A user that no user database has.
const UID: &str = "60104";

/// A daemon for everybody, or why there is none.
fn system() -> Option<(Home, divvy_e2e::Daemon)> {
    system_with(&[])
}

/// The same with more flags.
fn system_with(flags: &[&str]) -> Option<(Home, divvy_e2e::Daemon)> {
    if !can_be_users("nothing of the system's daemon is tested here") {
        return None;
    }
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[&["--system"], flags].concat());
    Some((home, daemon))
}

/// `divvy WORDS…` as the other user.
fn divvy(home: &Home, words: &[&str]) -> CommandOutput {
    let mut command = home.divvy_as(UID);
    let output = command.args(words).output_bounded();
    let output = output.expect("setpriv starts");
    CommandOutput::new(words.join(" "), &output)
}

#[test]
fn another_users_program_gets_its_slice_and_not_a_byte_more() {
    let Some((home, _daemon)) = system() else {
        return;
    };
    let probe = home.program("cudarc_probe");
    let run = ["run", "--gpu-memory", "4G", "--", &probe, "fill"];
    let report = divvy(&home, &run).ok().json();
    assert_eq!(report["error"], "CUDA_ERROR_OUT_OF_MEMORY", "{report}");
    let got = report["got_bytes"].as_u64().expect("a figure");
    assert!(got > 3 * GIB && got < 4 * GIB, "{report}");
    assert_eq!(report["before"]["total_bytes"], 4 * GIB, "{report}");
    let jobs = home.items(&["ps", "-a"]);
    assert_eq!(jobs[0]["uid"].to_string(), UID);
    assert!(
        jobs[0]["slices"][0]["denials"].as_u64() > Some(0),
        "{jobs:?}"
    );
}

#[test]
fn run_passes_on_what_the_program_says_and_how_it_ends() {
    let Some((home, _daemon)) = system() else {
        return;
    };
    let said = divvy(
        &home,
        &["run", "-g", "0.25", "--", "sh", "-c", "id -u; exit 7"],
    )
    .exits(7);
    assert_eq!(said.stdout.trim(), UID);
    let _ = divvy(&home, &["run", "-g", "0.25", "--", "/no/such/program"]).exits(127);
}

#[test]
fn a_user_cannot_cancel_what_root_runs() {
    let Some((home, _daemon)) = system() else {
        return;
    };
    let id = home.submit(&["-g", "0.25"], &["sleep", "1000"]);
    let said = divvy(&home, &["cancel", &id]).exits(4);
    assert!(said.stderr.contains("another user"), "{}", said.stderr);
    assert!(said.stderr.contains("hint:"), "{}", said.stderr);
    let _ = divvy(&home, &["logs", &id]).exits(4);
    let shown = divvy(&home, &["describe", &id]).ok();
    assert!(!shown.stdout.contains("1000"), "{}", shown.stdout);
}

#[test]
fn the_switch_lifts_no_limit_that_its_user_cannot_change() {
    let Some((home, _daemon)) = system() else {
        return;
    };
    let probe = home.program("cudarc_probe");
    let run = ["run", "--gpu-memory", "4G", "--"];
    let off = ["env", "DIVVY_SHIM=off", &probe, "fill"];
    let said = divvy(&home, &[&run[..], &off].concat()).ok();
    // `run` passes the log on: what the program says on both outputs.
    let (notice, report) = said.stdout.split_once('\n').expect("two lines");
    assert_eq!(
        notice,
        "divvy: DIVVY_SHIM=off is ignored: this user may not change the limits of the slice"
    );
    let report: serde_json::Value = serde_json::from_str(report).expect("a report");
    let got = report["got_bytes"].as_u64().expect("a figure");
    assert!((3 * GIB..4 * GIB).contains(&got), "{report}");
    let job = home.items(&["ps", "-a"]).remove(0);
    assert_eq!(job["bypasses"], serde_json::json!([]), "{job}");
}

/// Begins threads and processes in each way that glibc has.
const BEGINS_ALL: &str = "import os, subprocess, threading
thread = threading.Thread(target=print, args=['thread'], kwargs={'flush': True})
thread.start(); thread.join()
subprocess.run(['sh', '-c', '(echo subshell) | cat'], check=True)
pid = os.posix_spawnp('echo', ['echo', 'spawned'], os.environ)
assert os.waitpid(pid, 0)[1] == 0
";

#[test]
fn an_administrator_may_refuse_user_namespaces_to_jobs_and_nothing_else_changes() {
    let namespace = ["unshare", "--user", "--map-root-user", "id", "-u"];
    let others = ["/usr/bin/python3", "-c", BEGINS_ALL];
    for (flags, code, text) in [
        (&[][..], 0, "0"),
        (
            &["--set", "refuse-user-namespaces=true"],
            1,
            "unshare: unshare failed: Operation not permitted",
        ),
    ] {
        let Some((home, _daemon)) = system_with(flags) else {
            return;
        };
        let run = |words: &[&str]| divvy(&home, &[&["run", "-g", "0.25", "--"], words].concat());
        let said = run(&namespace).exits(code);
        assert_eq!(said.stdout.trim(), text, "{flags:?}: {}", said.stderr);
        let said = run(&others).ok();
        assert_eq!(said.stdout, "thread\nsubshell\nspawned\n", "{flags:?}");
        // Through the supervisor's other way of starting a program: a guest's.
        let id = divvy(
            &home,
            &["submit", "-g", "0.25", "--parsable", "--", "sleep", "1000"],
        )
        .ok();
        let id = id.stdout.trim().to_owned();
        home.running(&id);
        let exec = [&["exec", &id, "--"], &namespace[..]].concat();
        let said = divvy(&home, &exec).exits(code);
        let both = format!("{}{}", said.stdout, said.stderr);
        assert!(both.contains(text), "{flags:?}: {both}");
    }
}

/// Lays the driver over the wrapper in a user namespace of its own, and takes more than its slice of 4 GiB.
fn mount_over(home: &Home) -> String {
    let driver = home.path().join("sim/lib/libcuda.so.1");
    format!(
        "unshare --user --map-root-user --mount sh -c \
         'mount --bind /run/divvy-job/libcuda_real.so.1 {} && exec {} hold --bytes {} --until-file /never'",
        driver.display(),
        home.program("cudarc_probe"),
        6 * GIB,
    )
}

#[test]
fn a_job_that_mounts_over_the_wrapper_is_killed_unless_the_administrator_says_otherwise() {
    for (flags, action) in [
        (&[][..], BypassAction::Killed),
        (&["--set", "on-bypass=warn"], BypassAction::Warned),
    ] {
        let Some((home, _daemon)) = system_with(flags) else {
            return;
        };
        let script = mount_over(&home);
        let words = ["submit", "--gpu-memory", "4G", "--", "sh", "-c", &script];
        let _ = divvy(&home, &words).ok();
        let bypass = until("the bypass is told", || {
            home.job("1").bypasses.first().cloned()
        });
        assert_eq!(bypass.action, action, "{bypass:?}");
        let after = bypass.detected_at.duration_since(bypass.first_seen_at);
        println!(
            "{action:?} {} ms after it was first seen",
            after.as_millis()
        );
        if action == BypassAction::Killed {
            let ended = home.ended("1");
            assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
        }
    }
}

#[test]
fn a_users_process_whose_first_thread_has_ended_is_its_jobs() {
    let Some((home, _daemon)) = system() else {
        return;
    };
    let evader = Evader::build(&home);
    let copy = evader.copy_of_the_driver();
    let words = [&evader.program, "leader", "6", &home.gate("held"), &copy];
    let submit = ["submit", "--gpu-memory", "4G", "--"];
    let _ = divvy(&home, &[&submit[..], &words].concat()).ok();
    let ended = home.ended("1");
    assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
    let bypass = &ended.bypasses[0];
    let after = bypass.detected_at.duration_since(bypass.first_seen_at);
    println!("told {} ms after it was first seen", after.as_millis());
}

/// A daemon of the system on a machine where the other user's group has a blank in its name, as groups of a directory
/// service have. `None` where this process may not mount.
fn with_domain_users(home: &Home, flags: &[&str]) -> Option<divvy_e2e::Daemon> {
    let groups = home.scratch().join("group");
    let known = std::fs::read_to_string("/etc/group").expect("the machine has groups");
    std::fs::write(&groups, format!("{known}domain users:x:{UID}:\n")).expect("written");
    let mounted = "mount --bind \"$0\" /etc/group && exec \"$@\"";
    let unshared = |words: &[&str]| {
        let mut command = home.command("unshare");
        command.args(["--mount", "sh", "-c", mounted]).arg(&groups);
        command.args(words);
        command
    };
    let mounts = unshared(&["true"]).output_bounded();
    if !mounts.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: it takes the right to mount; no group with a blank is tested here");
        return None;
    }
    let divvy = home.program("divvy");
    let words = [&[&divvy, "daemon", "--system"], flags].concat();
    let mut daemon = home.spawn(&mut unshared(&words));
    home.is_served_by(&mut daemon);
    Some(daemon)
}

#[test]
fn a_group_with_a_blank_in_its_name_has_its_role() {
    if !can_be_users("nothing of the system's daemon is tested here") {
        return;
    }
    let home = Home::new("a100-80gb:1");
    let access = home.scratch().join("access.toml");
    std::fs::write(&access, "operator = [\"@domain users\"]").expect("written");
    let Some(_daemon) = with_domain_users(
        &home,
        &["--set", &format!("listen.access={}", access.display())],
    ) else {
        return;
    };
    let roots = home.submit(&["-g", "0.25"], &["sleep", "1000"]);
    // A user without the role may not: `a_user_cannot_cancel_what_root_runs`.
    let _ = divvy(&home, &["cancel", &roots]).ok();
}

#[test]
fn the_first_configuration_takes_a_group_with_a_blank_in_its_name() {
    if !can_be_users("nothing of the system's daemon is tested here") {
        return;
    }
    let home = Home::new("a100-80gb:1");
    let file = home.scratch().join("config.toml").display().to_string();
    let project = "vision=1:lee,@domain users";
    let init = ["admin", "init", "--yes", "--no-start", "--config", &file];
    let flags = ["--admin", "@domain users", "--project", project];
    let _ = home.divvy(&[&init[..], &flags].concat()).ok();
    let _ = home.divvy(&["config", "check", "--system", &file]).ok();
    let Some(_daemon) = with_domain_users(&home, &["--config", &file]) else {
        return;
    };
    let shown = home.divvy(&["config", "show"]).ok().stdout;
    assert_eq!(shown.matches("\"@domain users\"").count(), 2, "{shown}");
    let roots = home.submit(&["-g", "0.25"], &["sleep", "1000"]);
    let theirs = ["submit", "--parsable", "-g", "0.25", "-p", "vision", "--"];
    let _ = divvy(&home, &[&theirs[..], &["sleep", "1000"]].concat()).ok();
    let _ = divvy(&home, &["cancel", &roots]).ok();
}
