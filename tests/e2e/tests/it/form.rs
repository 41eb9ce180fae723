//! In which form a job gets its limiter, what that form holds, and that nothing of it is seen outside the job.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use divvy_api::v1::LimiterForm;
use divvy_e2e::{GIB, Home, can_unshare, until};
use divvy_testkit::Bounded as _;
use serde_json::Value;

/// Whether jobs started by this process can have the wrapper; without that these tests say so and check nothing.
pub fn may_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["--mount", "mount", "--make-rslave", "/"])
        .stderr(Stdio::null())
        .wait_bounded();
    let may = rustix::process::geteuid().is_root() && tried.is_ok_and(|status| status.success());
    if !may {
        eprintln!("skipped: this machine lets nobody mount, so no job can have the wrapper");
    }
    may
}

/// An instance whose jobs get the best form there is, whatever this run of the tests asks for.
fn home() -> Home {
    Home::new("a100-80gb:1").variable("DIVVY_FORM", "")
}

/// How much a program could allocate, by the report of `cudarc_probe fill`.
#[track_caller]
fn got(report: &str) -> u64 {
    let report: Value =
        serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}: {report}"));
    report["got_bytes"]
        .as_u64()
        .unwrap_or_else(|| panic!("{report}"))
}

/// What is seen from here of the mounts of a home's jobs. Whatever else the machine has mounted comes and goes by itself.
fn seen_outside(home: &Home) -> Vec<String> {
    let all = fs::read_to_string("/proc/self/mountinfo").expect("the kernel lists mounts");
    let folder = home.scratch().to_str().expect("a readable name");
    // The place itself, and not that below the root of another test's container, which the engine mounts there.
    let place = format!(" {JOBS_OWN}");
    let of_a_job = |line: &&str| line.contains(folder) || line.contains(&place);
    all.lines().filter(of_a_job).map(str::to_owned).collect()
}

/// Where a job finds its limiter and its slice.
const JOBS_OWN: &str = "/run/divvy-job";

#[test]
fn as_root_a_job_gets_the_wrapper_and_its_own_preloads_stay() {
    if !may_mount() {
        return;
    }
    let home = home();
    let _daemon = home.daemon(&[]);
    let probe = home.program("cudarc_probe");
    // A library that is there and does nothing.
    let own = "/lib/x86_64-linux-gnu/libm.so.6";
    let script = format!(
        "echo \"$LD_PRELOAD\"; grep -c {JOBS_OWN} /proc/self/mountinfo; {probe} fill --route linear"
    );
    let submit = [
        "submit",
        "--parsable",
        "--gpu-memory",
        "4G",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let output = home
        .divvy_command(&submit)
        .env("LD_PRELOAD", own)
        .output_bounded()
        .unwrap();
    let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let job = home.ended(&id);
    let limiter = job.limiter.expect("it was started");
    assert_eq!((limiter.form, limiter.reason), (LimiterForm::Wrapper, None));
    let log = home.log(&id);
    let mut lines = log.lines();
    assert_eq!(lines.next(), Some(own));
    let inside = lines.next().and_then(|count| count.parse::<u32>().ok());
    assert!(inside > Some(0), "the job has mounts of its own: {log}");
    let bytes = got(lines.next().expect("a report"));
    assert!((3 * GIB..4 * GIB).contains(&bytes), "{bytes}");
    assert_eq!(
        seen_outside(&home),
        [""; 0],
        "something of the job's mounts is seen outside"
    );
    let said = home.divvy(&["describe", &id]).ok().stdout;
    assert!(said.contains("\nlimiter:     wrapper\n"), "{said}");
    let json = home.divvy(&["describe", &id, "-o", "json"]).ok().items();
    assert_eq!(json[0]["limiter"]["form"], "wrapper", "{json:?}");
}

/// The programs of one job that try to be without a limit, in turn.
const ATTEMPTS: &str = r#"
hardware="DIVVY_SIM=$DIVVY_SIM DIVVY_SIM_STATE=$DIVVY_SIM_STATE LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
env -i $hardware "$1" fill --route linear
env -i $hardware DIVVY_SLICE=/no/such/slice "$1" fill --route async
LD_PRELOAD= "$1" fill --route vmm
"#;

#[test]
fn with_the_wrapper_a_program_cannot_leave_its_slice_by_its_environment() {
    if !may_mount() {
        return;
    }
    let home = home();
    let probe = home.program("cudarc_probe");
    for flags in [&["--no-daemon"][..], &[]] {
        let script = [
            "--gpu-memory",
            "4G",
            "--",
            "sh",
            "-c",
            ATTEMPTS,
            "sh",
            &probe,
        ];
        let said = home.divvy(&[&["run"], flags, &script].concat()).ok();
        let reports: Vec<u64> = said.stdout.lines().map(got).collect();
        assert_eq!(reports.len(), 3, "{}", said.stderr);
        for bytes in reports {
            assert!((3 * GIB..4 * GIB).contains(&bytes), "{bytes}");
        }
    }
    // The preload is lost with the environment: that is what the wrapper is for.
    let home = self::home().variable("DIVVY_FORM", "preload");
    let script = [
        "run",
        "--no-daemon",
        "--gpu-memory",
        "4G",
        "--",
        "sh",
        "-c",
        ATTEMPTS,
        "sh",
        &probe,
    ];
    let said = home.divvy(&script).ok();
    assert!(
        said.stdout.lines().map(got).all(|bytes| bytes > 4 * GIB),
        "{}",
        said.stdout
    );
}

#[test]
fn a_form_can_be_asked_for_and_words_that_mean_none_are_refused() {
    let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", "preload");
    let _daemon = home.daemon(&[]);
    let job = home.ended(&home.submit(&["-g", "0.5"], &["true"]));
    let limiter = job.limiter.expect("it was started");
    assert_eq!(limiter.form, LimiterForm::Preload);
    assert_eq!(limiter.reason.as_deref(), Some("DIVVY_FORM=preload"));

    let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", "strong");
    let said = home
        .divvy(&["run", "--no-daemon", "-g", "0.5", "true"])
        .exits(2);
    assert!(said.stderr.contains("DIVVY_FORM=strong"), "{}", said.stderr);
}

/// Root, but without the right to mount.
fn without_the_right_to_mount(home: &Home, words: &[&str]) -> Command {
    let divvy = home.program("divvy");
    let mut command = home.command("setpriv");
    command
        .args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", &divvy])
        .args(words);
    command
}

#[test]
fn where_the_mounts_fail_a_job_gets_the_preload_and_that_is_told() {
    if !may_mount() {
        return;
    }
    let home = home();
    let run = [
        "run",
        "--gpu-memory",
        "4G",
        "--",
        &home.program("cudarc_probe"),
        "fill",
        "--route",
        "linear",
    ];
    let output = without_the_right_to_mount(&home, &run)
        .output_bounded()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let bytes = got(&String::from_utf8(output.stdout).unwrap());
    assert!((3 * GIB..4 * GIB).contains(&bytes), "{bytes}");
    let job = home.ended("last");
    let limiter = job.limiter.expect("it was started");
    assert_eq!(limiter.form, LimiterForm::Preload);
    let reason = limiter.reason.expect("there is one");
    assert!(
        reason.contains("mount namespace") && reason.contains("not permitted"),
        "{reason}"
    );
    assert!(
        home.daemon_said().contains("easier to bypass"),
        "{}",
        home.daemon_said()
    );

    // Who insists on the wrapper is not started without.
    let home = self::home().variable("DIVVY_FORM", "wrapper");
    let run = ["run", "--no-daemon", "-g", "0.5", "--", "echo", "started"];
    let output = without_the_right_to_mount(&home, &run)
        .output_bounded()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

#[test]
fn of_a_job_too_short_to_be_seen_it_is_told_too() {
    if !may_mount() {
        return;
    }
    let home = home();
    let daemon = home.daemon(&[]);
    // It comes and goes while the daemon cannot look.
    let script = format!("kill -STOP {}", daemon.pid());
    let run = ["run", "-g", "0.5", "--", "sh", "-c", &script];
    let mut run = without_the_right_to_mount(&home, &run).spawn().unwrap();
    until("the end of the job", || home.recorded("1", "exit"));
    let going_on = Command::new("kill")
        .args(["-CONT", &daemon.pid().to_string()])
        .wait_bounded();
    assert!(going_on.unwrap().success());
    assert!(run.wait_bounded().unwrap().success());
    home.ended("1");
    assert!(
        home.daemon_said().contains("easier to bypass"),
        "{}",
        home.daemon_said()
    );
}

#[test]
fn a_user_without_root_gets_the_preload_and_the_reason() {
    if !may_mount() {
        return;
    }
    let home = home();
    for path in [home.scratch().to_owned(), home.scratch().join("gates")] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let divvy = home.program("divvy");
    let mut command = home.command("setpriv");
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", &divvy];
    command.args(nobody);
    let reachable = home
        .command("setpriv")
        .args(nobody)
        .arg("--version")
        .output_bounded()
        .unwrap();
    if !reachable.status.success() {
        eprintln!("skipped: another user cannot run {divvy}");
        return;
    }
    let output = command
        .args(["run", "-g", "0.5", "--", "sh", "-c", "echo \"$LD_PRELOAD\""])
        .output_bounded()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        said.trim(),
        home.path()
            .join("limiters/1/libdivvy_preload.so")
            .to_string_lossy(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let describe = [
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        &divvy,
        "describe",
        "last",
    ];
    let output = home
        .command("setpriv")
        .args(describe)
        .output_bounded()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("limiter:     preload (only root may mount"),
        "{said}"
    );
}

#[test]
fn a_job_of_a_job_has_a_wrapper_of_its_own() {
    if !may_mount() {
        return;
    }
    let home = home();
    let inner = home.scratch().join("inner");
    let (divvy, probe) = (home.program("divvy"), home.program("cudarc_probe"));
    let script = format!(
        "env -u LD_LIBRARY_PATH DIVVY_HOME={} {divvy} run --no-daemon --gpu-memory 2G -- {probe} fill --route linear",
        inner.display()
    );
    let said = home
        .divvy(&[
            "run",
            "--no-daemon",
            "--gpu-memory",
            "4G",
            "--",
            "sh",
            "-c",
            &script,
        ])
        .ok();
    let bytes = got(&said.stdout);
    assert!((GIB..2 * GIB).contains(&bytes), "{bytes}");
}

/// A job that runs while something is mounted outside; in a namespace of the test's own, so that nothing stays mounted.
const MOUNT_LATER: &str = r#"
mount -t tmpfs outer "$2" && mount --make-rshared "$2" && mkdir "$2/place" && mkfifo "$2/go" "$2/said" || exit 9
"$1" run --no-daemon -g 0.5 -- sh -c 'echo ready; read go; ls "$0"' "$2/place" <"$2/go" >"$2/said" &
exec 3>"$2/go" 4<"$2/said"
read ready <&4
mount -t tmpfs later "$2/place" && touch "$2/place/seen"
echo go >&3
cat <&4
wait
"#;

#[test]
fn a_job_sees_what_is_mounted_outside_later() {
    if !may_mount() {
        return;
    }
    let home = home();
    let folder = home.scratch().join("mounts");
    fs::create_dir(&folder).unwrap();
    let mut command = home.command("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        MOUNT_LATER,
        "sh",
        &home.program("divvy"),
    ]);
    let output = command.arg(&folder).output_bounded().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (&*String::from_utf8_lossy(&output.stdout), &*errors),
        ("seen\n", "")
    );
}

#[test]
fn a_read_only_sandbox_is_told_what_to_bind() {
    let unshare = ["unshare", "--user", "--map-root-user", "--mount", "--"];
    if !can_unshare(&unshare) {
        return;
    }
    let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", "preload");
    let probe = home.program("cudarc_probe");
    let read_only =
        "mount --bind $DIVVY_SLICE $DIVVY_SLICE && mount -o remount,bind,ro $DIVVY_SLICE";
    let hidden = "mount -t tmpfs none $DIVVY_SLICE";
    for sandbox in [read_only, hidden] {
        let script = format!("{sandbox} && exec {probe} fill");
        let mut words = vec!["run", "--no-daemon", "--gpu-memory", "4G", "--"];
        words.extend(unshare);
        words.extend(["sh", "-c", &script]);
        let said = home.divvy(&words);
        let slice = home.path().join("slices").join("solo-1");
        let remedy = format!(
            "in a sandbox of job solo-1, bind {} into it, writable",
            slice.display()
        );
        assert!(said.stderr.contains(&remedy), "{sandbox}: {}", said.stderr);
        assert!(said.stdout.contains("\"got_bytes\":0,"), "{}", said.stdout);
    }
}
