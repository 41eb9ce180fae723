//! Containers that somebody else's `docker run` starts, in a slice: `divvy docker slice`.

use std::fs;
use std::path::Path;

use divvy_api::v1::{EndReason, JobState, LimiterForm};
use divvy_e2e::engine::{Engine, IMAGE, MUSL_IMAGE};
use divvy_e2e::{GIB, Home, until};
use divvy_testkit::Bounded as _;

use super::{ENGINE, cancel, got, kill, pid_in, reports, scene};

/// `divvy docker slice … -- docker run …` of this image.
fn guest<'a>(slice: &[&'a str], container: &[&'a str]) -> Vec<&'a str> {
    let line = ["--", ENGINE.program(), "run", "--rm"];
    [&["docker", "slice"], slice, &line, container].concat()
}

/// Once somebody's line has made the job, and its container runs.
fn come(home: &Home) {
    until("the job is there", || {
        let jobs = home.items(&["ps"]);
        jobs.iter().any(|job| job["name"] == "guest").then_some(())
    });
    home.running("guest");
}

/// The container that somebody's line has started in a slice of this instance.
#[track_caller]
fn found(engine: &Engine, home: &Home) -> String {
    let label = "label=divvy.joins";
    let all = engine.ask(&["ps", "--quiet", "--no-trunc", "--filter", label]);
    let its = |id: &&str| {
        let mounts = engine.ask(&["inspect", "--format", "{{.Mounts}}", id]);
        mounts.contains(home.path().to_str().expect("a plain path"))
    };
    all.lines().find(its).expect("it runs").to_owned()
}

const HOLD: [&str; 6] = [
    "cudarc_probe",
    "hold",
    "--bytes",
    "1073741824",
    "--until-file",
    "/never",
];

#[test]
fn another_programs_docker_run_is_held_to_a_slice_and_its_code_is_the_jobs() {
    let Some((_engine, home)) = scene("a100-80gb:2") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let slice = ["--gpu-memory", "4G", "--gpus-on", "1", "--name", "guest"];
    let said = home.divvy(&guest(&slice, &[IMAGE])).ok();
    let report = &reports(&said.stdout)[0];
    assert!((3 * GIB..4 * GIB).contains(&got(report)), "{report}");
    let job = home.ended("guest");
    assert_eq!(job.end_reason, Some(EndReason::Completed), "{job:?}");
    assert_eq!(job.slices[0].gpu_index, 1);

    let _ = home
        .divvy(&guest(&["-g", "0.5"], &[IMAGE, "sh", "-c", "exit 7"]))
        .exits(7);
    let job = home.ended("last");
    assert_eq!(
        (job.end_reason, job.exit_code),
        (Some(EndReason::Failed), Some(7))
    );

    // Judged as our own: nothing is started, and nothing stored.
    let said = home
        .divvy(&guest(&["-g", "0.5"], &["--gpus", "all", IMAGE]))
        .exits(4);
    assert!(said.stderr.contains("outside the slice"), "{}", said.stderr);
    assert_eq!(home.job("last").id, job.id);
}

#[test]
fn a_slice_lives_as_long_as_the_container_whatever_becomes_of_its_starter() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let daemon = home.daemon(&[]);
    let words = guest(
        &["-g", "0.75", "--name", "guest"],
        &[&[IMAGE][..], &HOLD].concat(),
    );
    let mut starter = home.divvy_command(&words).spawn().expect("divvy starts");
    come(&home);
    until("it holds its memory, and is nobody's but the job's", || {
        let slice = home.job("guest").slices.remove(0);
        (slice.memory_used_bytes > GIB && slice.memory_mismatch_bytes == Some(0)).then_some(())
    });
    let limiter = home.job("guest").limiter;
    let limiter = limiter.expect("its container was looked into");
    assert_eq!(limiter.form, LimiterForm::Wrapper);

    // Its starter, its supervisor and the daemon die; the next daemon has it as before.
    starter.kill().expect("it is our child");
    starter.wait_bounded().expect("a child can be waited for");
    let old = pid_in(&home, "1", "launch");
    daemon.crash();
    kill(old);
    let _daemon = home.daemon(&[]);
    until("another supervisor has it", || {
        (pid_in(&home, "1", "launch") != old).then_some(())
    });
    assert_eq!(home.job("guest").state, JobState::Running);
    let _ = home
        .divvy(&guest(&["-g", "0.5", "--no-wait"], &[IMAGE]))
        .exits(6);

    let id = found(&engine, &home);
    let _ = engine.ask(&["kill", &id]);
    let ended = home.ended("guest");
    assert_eq!(ended.exit_code, Some(137), "{ended:?}");
    assert!(home.job("guest").slice_directory.is_none());
}

#[test]
fn a_cancelled_guest_is_stopped_and_one_that_never_came_gives_its_slice_back() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&["--set", "grace=1s"]);
    let words = guest(
        &["-g", "0.5", "--name", "guest"],
        &[&[IMAGE][..], &HOLD].concat(),
    );
    let mut starter = home.divvy_command(&words).spawn().expect("divvy starts");
    come(&home);
    cancel(&home, "guest");
    assert_eq!(home.ended("guest").end_reason, Some(EndReason::Cancelled));
    assert!(!starter.wait_bounded().expect("a child").success());

    // The engine's program refuses the line by itself, so there is never a container.
    let there = home.scratch().join("there");
    fs::write(&there, "").expect("the folder is ours");
    let there = there.to_str().expect("a plain path");
    let line = ["--cidfile", there, IMAGE, "sh", "-c", "true"];
    let _ = home.divvy(&guest(&["-g", "0.5"], &line)).exits(125);
    let job = home.ended("last");
    assert!(
        job.reason
            .as_deref()
            .is_some_and(|why| why.contains("ended without starting it")),
        "{job:?}"
    );
}

#[test]
fn a_container_that_bears_a_guests_mark_is_not_the_guest() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let gates = Path::new(&home.gate("x")).parent().unwrap().to_owned();
    let mount = format!("{}:/gates", gates.display());
    let script = "until test -e /gates/go; do sleep 0.05; done; exit 5";
    let words = guest(
        &["-g", "0.5", "--name", "guest"],
        &["-v", &mount, IMAGE, "sh", "-c", script],
    );
    let mut starter = home.divvy_command(&words).spawn().expect("divvy starts");
    come(&home);
    // Others get into it.
    let said = home.divvy(&["exec", "guest", "--", "echo", "inside"]).ok();
    assert_eq!(said.stdout, "inside\n");

    let label = "{{index .Config.Labels \"divvy.joins\"}}";
    let label = engine.ask(&["inspect", "--format", label, &found(&engine, &home)]);
    let label = format!("divvy.joins={label}");
    // As of an image that was made of it.
    let _ = engine.ask(&[
        "run", "--rm", "--label", &label, IMAGE, "sh", "-c", "exit 0",
    ]);
    home.open("go");
    assert_eq!(starter.wait_bounded().expect("a child").code(), Some(5));
    let job = home.ended("guest");
    let ended = (job.end_reason, job.exit_code);
    assert_eq!(ended, (Some(EndReason::Failed), Some(5)), "{job:?}");
}

#[test]
fn a_guest_that_cannot_be_started_ends_with_its_starter() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    // Its container stays, as nobody said otherwise.
    let line = [ENGINE.program(), "run", IMAGE, "/no/such/program"];
    let slice = ["docker", "slice", "-g", "0.5"];
    let words = [&slice[..], &["--no-daemon", "--"], &line].concat();
    let code = home.divvy(&words).exits(127).code;
    let _daemon = home.daemon(&[]);
    let words = [&slice[..], &["--"], &line].concat();
    assert_eq!(home.divvy(&words).code, code);
    let job = home.ended("last");
    let why = job.reason.as_deref().unwrap_or_default();
    assert!(why.contains("ended without starting it"), "{job:?}");
}

#[test]
fn without_a_daemon_a_guest_is_held_too_and_several_add_up() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let gates = Path::new(&home.gate("x")).parent().unwrap().to_owned();
    let mount = format!("{}:/gates", gates.display());
    let wait = "touch /gates/here; exec cudarc_probe hold --bytes 1048576 --until-file /gates/go";
    let words = guest(
        &["--no-daemon", "-g", "0.75"],
        &["-v", &mount, IMAGE, "sh", "-c", wait],
    );
    let mut first = home.divvy_command(&words).spawn().expect("divvy starts");
    until("the first has its slice", || {
        gates.join("here").exists().then_some(())
    });
    let said = home
        .divvy(&guest(&["--no-daemon", "-g", "0.5"], &[IMAGE]))
        .exits(6);
    assert!(
        said.stderr.contains("the job cannot start now"),
        "{}",
        said.stderr
    );
    let said = home
        .divvy(&guest(&["--no-daemon", "--gpu-memory", "4G"], &[IMAGE]))
        .ok();
    let report = &reports(&said.stdout)[0];
    assert!((3 * GIB..4 * GIB).contains(&got(report)), "{report}");
    home.open("go");
    assert!(first.wait_bounded().expect("a child").success());
    // Each has its own code, also where the container of an earlier one still lies there, and its number is given again.
    for code in [3, 5, 0] {
        let line = format!("exit {code}");
        let slice = ["docker", "slice", "--no-daemon", "-g", "0.5", "--"];
        let container = [ENGINE.program(), "run", IMAGE, "sh", "-c", &line];
        let _ = home.divvy(&[&slice[..], &container].concat()).exits(code);
    }
}

#[test]
fn an_image_that_cannot_be_held_is_found_out_before_its_line_runs() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    for slice in [&["--no-daemon", "-g", "0.5"][..], &["-g", "0.5"]] {
        let line = ["--name", "musl", MUSL_IMAGE, "x"];
        let said = home.divvy(&guest(slice, &line)).exits(125);
        assert!(said.stderr.contains("does not work in"), "{}", said.stderr);
        let filter = ["ps", "--all", "--quiet", "--filter", "name=^musl$"];
        assert_eq!(engine.ask(&filter), "", "it was started");
    }
}
