//! One daemon for every user: a real program of another user is held to its slice, through the commands that this user has.

use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use divvy_api::v1::{BypassAction, EndReason};
use divvy_e2e::{CommandOutput, GIB, Home, until};
use divvy_testkit::{Bounded as _, Rng, can_be_users};

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

/// Submits a job of the other user, and says its number.
fn submit(home: &Home, memory: &str, command: &[&str]) -> String {
    let submit = ["submit", "--parsable", "--gpu-memory", memory, "--"];
    let said = divvy(home, &[&submit[..], command].concat()).ok();
    said.stdout.trim().to_owned()
}

/// What a neighbour with a slice of 70 GiB gets.
fn neighbour(home: &Home) -> u64 {
    let probe = home.program("cudarc_probe");
    let run = ["run", "--gpu-memory", "70G", "--", &probe, "fill"];
    let report = divvy(home, &run).ok().json();
    report["got_bytes"].as_u64().expect("a figure")
}

#[test]
fn a_users_untagged_imports_stay_in_their_slice() {
    let Some((home, _daemon)) = system() else {
        return;
    };
    let evader = Evader::build(&home);
    let words = [&evader.program, "hoard", "20", &home.gate("hoard")];
    let job = submit(&home, "4G", &words);
    let said = home.first_words(&job);
    assert_eq!(said["result"], 2, "OUT_OF_MEMORY: {said}");
    let gpu = home.items(&["gpus"]).remove(0);
    let used = gpu["memory_used_bytes"].as_u64().expect("a figure");
    let got = neighbour(&home);
    println!("the job holds {used} bytes, its neighbour gets {got} of 70 GiB");
    assert_eq!(gpu["memory_unmanaged_bytes"], 0, "{gpu}");
    assert!(used < 5 * GIB && got > 69 * GIB, "{used}, {got}");
    home.open("hoard");
    assert_eq!(home.ended(&job).bypasses, []);
}

#[test]
fn the_job_of_a_user_is_named_for_memory_behind_its_descriptors() {
    let Some((home, _daemon)) = system() else {
        return;
    };
    let evader = Evader::build(&home);
    let (gate, copy) = (home.gate("hoard"), evader.copy_of_the_driver());
    let words = [&evader.program, "hoard", "20", &gate, &copy];
    let job = submit(&home, "2G", &words);
    let said = home.first_words(&job);
    assert_eq!(said["result"], 0, "{said}");
    let begin = Instant::now();
    let waiting = until("the memory is shown", || {
        let gpu = home.items(&["gpus"]).remove(0);
        (gpu["memory_unlisted_bytes"].as_u64()? > 17 * GIB).then_some(gpu)
    });
    let shown = begin.elapsed();
    until("its holder is named", || {
        let gpu = home.items(&["gpus"]).remove(0);
        (gpu["memory_unlisted_holder"]["job"] == job.as_str()).then_some(())
    });
    let named = begin.elapsed();
    println!("shown after {shown:?}, named after {named:?}: {waiting}");
    // A neighbour gets all of what it is given; a larger one waits.
    let probe = home.program("cudarc_probe");
    let run = ["run", "--gpu-memory", "40G", "--", &probe, "fill"];
    let report = divvy(&home, &run).ok().json();
    assert!(report["got_bytes"].as_u64() > Some(39 * GIB), "{report}");
    let waits = submit(&home, "70G", &["true"]);
    let why = divvy(&home, &["why", &waits]).ok().stdout;
    assert!(why.contains(&format!("(#{job} may hold it)")), "{why}");
    home.open("hoard");
    assert_eq!(home.ended(&job).bypasses, []);
    assert_eq!(home.ended(&waits).exit_code, Some(0));
    assert!(neighbour(&home) > 69 * GIB);
}

#[test]
fn a_users_own_daemon_reports_a_leader_that_has_ended_and_descriptors_that_hold_memory() {
    if !can_be_users("nothing of a user's own daemon is tested here") {
        return;
    }
    let home = Home::new("a100-80gb:1");
    let open = std::fs::Permissions::from_mode(0o777);
    for folder in ["", "gates"] {
        let folder = home.scratch().join(folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::set_permissions(&folder, open.clone()).expect("our folder");
    }
    // The first command starts the daemon.
    let _ = divvy(&home, &["run", "-g", "0.125", "--", "true"]).ok();
    let evader = Evader::build(&home);
    let copy = evader.copy_of_the_driver();
    let is_told = |way: &str, kind: &str| {
        let gate = home.gate(way);
        let words = [&evader.program, way, "6", &gate, &copy];
        let job = submit(&home, "4G", &words);
        let text = until(format!("the daemon reports {kind}"), || {
            let events = divvy(&home, &["events", &job, "-o", "json"]).ok().items();
            let told = events.into_iter().find(|event| event["kind"] == kind)?;
            Some(told["text"].as_str()?.to_owned())
        });
        home.open(way);
        let _ = divvy(&home, &["wait", &job]).ok();
        text
    };
    let text = is_told("leader", "bypass");
    assert!(text.contains("evade"), "{text}");
    let text = is_told("hoard", "unlisted_memory");
    assert!(text.contains("descriptors that can hold it"), "{text}");
}

#[test]
fn set_user_id_programs_run_as_the_jobs_user_and_are_held_in_both_forms() {
    if !can_be_users("nothing of the system's daemon is tested here") {
        return;
    }
    for form in ["wrapper", "preload"] {
        let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", form);
        let _daemon = home.daemon(&["--system"]);
        let evader = Evader::build(&home);
        // Root's, and another user's.
        for owner in [0, 60105] {
            let name = format!("evade-{owner}");
            let program = home.scratch().join(&name);
            std::fs::copy(&evader.program, &program).expect("the folder can be written");
            std::os::unix::fs::chown(&program, Some(owner), None).expect("root gives files away");
            let mode = std::fs::Permissions::from_mode(0o4755);
            std::fs::set_permissions(&program, mode).expect("our file");
            let gate = home.gate(&name);
            let words = [&program.display().to_string(), "plain", "6", &gate];
            let job = submit(&home, "4G", &words);
            let said = home.first_words(&job);
            assert_eq!(said["result"], 2, "{form}, {owner}: OUT_OF_MEMORY: {said}");
            let status = std::fs::read_to_string(format!("/proc/{}/status", said["pid"]));
            let uids = format!("Uid:\t{UID}\t{UID}\t{UID}\t{UID}\n");
            assert!(
                status.expect("it runs").contains(&uids),
                "{form}, {owner}: the bit has no effect"
            );
            home.open(&name);
            assert_eq!(home.ended(&job).bypasses, [], "{form}, {owner}");
        }
    }
}

mod exhaustive {
    use super::*;

    /// Programs that take 6 GiB in a slice of 2 GiB and give them back, with a pattern of this seed each: how long they hold
    /// them and how long they pause, by the daemon's heartbeat or blindly.
    const PROGRAMS: u64 = 200;
    /// Programs that run at one time: two for each GPU.
    const AT_ONCE: u64 = 16;

    #[test]
    fn flickering_programs_of_a_user_are_killed_with_any_pattern() {
        if !can_be_users("no flickering program of a user is tested here") {
            return;
        }
        let home = Home::new("h200-141gb:8");
        let _daemon = home.daemon(&["--system"]);
        let evader = Evader::build(&home);
        let (gate, copy) = (home.gate("never"), evader.copy_of_the_driver());
        let mut took = Vec::new();
        let seeds: Vec<u64> = (0..PROGRAMS).collect();
        for seeds in seeds.chunks(AT_ONCE as usize) {
            let jobs: Vec<String> = seeds
                .iter()
                .map(|seed| {
                    let mut rng = Rng::new(*seed);
                    let hold = (50 + rng.below(251)).to_string();
                    let pause = (5 + rng.below(496)).to_string();
                    let way = ["beat", "blind"][(seed % 2) as usize];
                    let program = evader.program.as_str();
                    let words = [program, "flicker", "6", &gate, &copy, &hold, &pause, way];
                    submit(&home, "2G", &words)
                })
                .collect();
            for job in jobs {
                let ended = home.ended(&job);
                assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
                let detected = ended.bypasses[0].detected_at;
                let started = ended.started_at.expect("it ran");
                took.push(detected.duration_since(started).as_millis());
            }
        }
        took.sort_unstable();
        println!(
            "{} of {PROGRAMS} found; ms after the start: median {}, 95 % {}, worst {}",
            took.len(),
            took[took.len() / 2],
            took[took.len() * 95 / 100],
            took[took.len() - 1]
        );
    }
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
