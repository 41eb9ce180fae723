//! What holds jobs in containers, what is refused, and what survives whom: with any engine, the one that the module above names.

#[path = "guest.rs"]
mod guest;
#[path = "image.rs"]
mod image;
#[path = "inside.rs"]
mod inside;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use divvy_api::v1::{EndReason, Job, JobState, LimiterForm};
use divvy_e2e::engine::{Engine, IMAGE, MUSL_IMAGE, USERS_IMAGE};
use divvy_e2e::{GIB, Home, MIB, until, write_program};
use divvy_testkit::Bounded as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub use super::ENGINE;

/// An engine and an instance that uses it; nothing where there can be no engine, which was said.
pub fn scene(sim: &str) -> Option<(Arc<Engine>, Home)> {
    let engine = Engine::shared(ENGINE)?;
    let home = home_with(&engine, sim);
    Some((engine, home))
}

/// An instance that uses this engine, as do lines of its user's.
pub fn home_with(engine: &Engine, sim: &str) -> Home {
    let home = Home::new(sim).variable("DIVVY_FORM", "");
    let variables = engine.variables();
    variables
        .iter()
        .fold(home, |home, (name, value)| home.variable(name, value))
}

#[track_caller]
pub fn reports(text: &str) -> Vec<Value> {
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[track_caller]
pub fn got(report: &Value) -> u64 {
    report["got_bytes"]
        .as_u64()
        .unwrap_or_else(|| panic!("{report}"))
}

/// Submits a command in a container; the job's id.
#[track_caller]
pub fn submit(home: &Home, flags: &[&str], command: &[&str]) -> String {
    let flags = [&["--gpu-memory", "4G", "--docker", IMAGE], flags].concat();
    home.submit(&flags, command)
}

/// The process that a record of a job names.
pub fn pid_in(home: &Home, job: &str, what: &str) -> i32 {
    let said = home.recorded(job, what);
    said.unwrap_or_else(|| panic!("there is no {what}"))["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok())
        .expect("it names one")
}

#[track_caller]
pub fn cancel(home: &Home, job: &str) {
    let said = home.divvy(&["cancel", job]).ok();
    assert!(said.stderr.contains("is stopping"), "{}", said.stderr);
}

pub fn kill(pid: i32) {
    let pid = Pid::from_raw(pid).expect("a pid");
    kill_process(pid, Signal::KILL).expect("it is there");
}

/// What lies in a folder that [`lay_way_past`] has filled, where a container has it as `/past`: holds more than a slice of 4 GiB, past both
/// forms of the limiter.
pub const PAST: &str = "LD_LIBRARY_PATH=/past /past/loader /usr/bin/cudarc_probe hold --bytes 6442450944 --until-file /never";

/// Makes a folder with an ELF loader that reads no list of preloads, and a copy of the driver.
pub fn lay_way_past(home: &Home, folder: &Path) {
    let mut loader = fs::read("/lib64/ld-linux-x86-64.so.2").expect("this machine has glibc");
    let list = b"/etc/ld.so.preload";
    let at = loader
        .windows(list.len())
        .position(|bytes| bytes == list)
        .expect("the loader names its list");
    loader[at..at + list.len()].copy_from_slice(b"/etc/no.such.list!");
    fs::create_dir(folder).expect("the folder is new");
    fs::write(folder.join("loader"), loader).expect("the folder is ours");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.join("loader"), executable).expect("the file is ours");
    // Clients ask for both names.
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::copy(home.program("libdivvy_sim.so"), folder.join(name)).expect("the folder is ours");
    }
}

/// Attempts of a container's programs to be without a limit, in turn.
const ATTEMPTS: &str = r#"
cudarc_probe fill --route linear
env -i DIVVY_SIM=$DIVVY_SIM DIVVY_SIM_STATE=$DIVVY_SIM_STATE /usr/bin/cudarc_probe fill --route async
DIVVY_SLICE=/no/such/slice LD_PRELOAD= cudarc_probe fill --route vmm
mkdir /tmp/own; ln -s /run/divvy-job/libcuda_real.so.1 /tmp/own/libcuda.so.1
LD_LIBRARY_PATH=/tmp/own cudarc_probe fill --route linear
DIVVY_SHIM=off cudarc_probe fill --route linear
"#;

#[test]
fn a_container_is_held_to_its_slice_and_sees_nothing_else_whatever_its_environment_says() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let run = ["docker", "run", "--gpu-memory", "4G", "--rm", IMAGE];
    let said = home.divvy(&run).ok();
    let report = &reports(&said.stdout)[0];
    assert!((3 * GIB..4 * GIB).contains(&got(report)), "{report}");
    assert_eq!(report["before"]["total_bytes"], 4 * GIB);

    let said = home
        .divvy(&[&run[..], &["sh", "-c", ATTEMPTS]].concat())
        .ok();
    let all = reports(&said.stdout);
    assert_eq!(all.len(), 5, "{} {}", said.stdout, said.stderr);
    for report in &all {
        assert!((3 * GIB..4 * GIB).contains(&got(report)), "{report}");
    }
    let job = home.ended("last");
    assert_eq!(
        job.limiter.expect("it was started").form,
        LimiterForm::Wrapper
    );
    assert_eq!(job.container.expect("it ran in one").image, IMAGE);

    // The limits can be read and not written, and what is mounted cannot be taken away.
    let script = "for name in control x; do (echo >/run/divvy-job/slice/$name) 2>/dev/null && echo written; done; \
                  rm -f /run/divvy-job/slice/control /etc/ld.so.preload 2>/dev/null; cat /etc/ld.so.preload; exit 7";
    let said = home
        .divvy(&[&run[..], &["sh", "-c", script]].concat())
        .exits(7);
    assert_eq!(
        said.stdout, "/run/divvy-job/libdivvy_preload.so\n",
        "{}",
        said.stderr
    );

    let containers = engine.containers_of("1", home.path());
    until("its containers are gone", || {
        engine
            .containers_of("3", home.path())
            .is_empty()
            .then_some(())
    });
    assert!(containers.is_empty(), "{containers:?}");
}

#[test]
fn containers_share_a_gpu_and_the_accounts_agree_with_the_driver() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let jobs = ["one", "two"].map(|_| {
        submit(
            &home,
            &[],
            &[
                "cudarc_probe",
                "hold",
                "--bytes",
                "1073741824",
                "--until-file",
                "/never",
            ],
        )
    });
    for job in &jobs {
        let running = home.running(job);
        let words = home.first_words(job);
        assert_eq!(words["held_bytes"], GIB);
        // The pid that the container knows is not the one that the host has.
        assert_ne!(words["pid"].as_u64(), running.pid.map(u64::from));
    }
    until("the driver's figures are the accounts'", || {
        let jobs: Vec<Job> = jobs.iter().map(|job| home.job(job)).collect();
        let agree = |job: &Job| {
            let slice = &job.slices[0];
            slice.processes == 1
                && slice.memory_driver_bytes == Some(slice.memory_used_bytes)
                && slice.memory_mismatch_bytes == Some(0)
        };
        jobs.iter().all(agree).then_some(())
    });
    let gpus = home.items(&["gpus"]);
    assert_eq!(gpus[0]["unmanaged_pids"], serde_json::json!([]), "{gpus:?}");
    assert_eq!(gpus[0]["memory_unmanaged_bytes"], 0);
    for job in &jobs {
        let bypasses = home.job(job).bypasses;
        assert!(
            bypasses.is_empty(),
            "an honest container was accused: {bypasses:?}"
        );
        cancel(&home, job);
        assert_eq!(home.ended(job).end_reason, Some(EndReason::Cancelled));
    }
}

#[test]
fn a_process_that_dies_in_a_container_gives_its_memory_back_while_the_others_live() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let gate = "/gates/die";
    let script = "cudarc_probe hold --bytes 2147483648 --until-file /never & holder=$!\n\
                  cudarc_probe hold --bytes 1048576 --until-file /never &\n\
                  until test -e /gates/die; do sleep 0.05; done; kill -9 $holder; wait";
    let mount = format!(
        "-v {}:/gates",
        Path::new(&home.gate("x")).parent().unwrap().display()
    );
    let job = submit(&home, &["--docker-args", &mount], &["sh", "-c", script]);
    until("both hold their memory", || {
        let used = home.job(&job).slices.first()?.memory_used_bytes;
        (used > 2 * GIB + MIB).then_some(())
    });
    home.open(gate.rsplit('/').next().unwrap());
    until("the dead one's memory is free again", || {
        let slice = home.job(&job).slices.remove(0);
        (slice.processes == 1 && slice.memory_used_bytes < GIB).then_some(())
    });
    cancel(&home, &job);
    home.ended(&job);
}

/// Writes a line before and after the gate; a second start would write a third.
const ONCE: &str = "echo begun >>/gates/begun; echo before; until test -e /gates/go; do sleep 0.05; done; echo after; exit 5";

#[test]
fn a_container_outlives_supervisor_and_daemon_and_runs_once() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let daemon = home.daemon(&[]);
    let gates = Path::new(&home.gate("x")).parent().unwrap().to_owned();
    let mount = format!("-v {}:/gates", gates.display());
    let job = submit(&home, &["--docker-args", &mount], &["sh", "-c", ONCE]);
    let first = home.running(&job);
    until("its first line is in the log", || {
        home.log(&job).contains("before\n").then_some(())
    });

    // The supervisor dies; the daemon gives the container another.
    let old = pid_in(&home, &job, "launch");
    kill(old);
    until("another supervisor has it", || {
        (pid_in(&home, &job, "launch") != old).then_some(())
    });
    assert_eq!(home.job(&job).state, JobState::Running);

    // Both die, and a new daemon finds the container.
    let second = pid_in(&home, &job, "launch");
    daemon.crash();
    kill(second);
    let _daemon = home.daemon(&[]);
    until("a supervisor of the new daemon has it", || {
        (pid_in(&home, &job, "launch") != second).then_some(())
    });
    let now = home.job(&job);
    assert_eq!((now.state, now.pid), (JobState::Running, first.pid));
    assert_eq!(engine.containers_of(&job, home.path()).len(), 1);

    home.open("go");
    let ended = home.ended(&job);
    assert_eq!(
        (ended.end_reason, ended.exit_code),
        (Some(EndReason::Failed), Some(5))
    );
    assert_eq!(fs::read_to_string(gates.join("begun")).unwrap(), "begun\n");
    assert_eq!(home.log(&job), "before\nafter\n");
    engine.is_rid_of(&job, home.path());
}

#[test]
fn a_container_that_ends_without_a_daemon_is_recorded_by_the_next_daemon() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let daemon = home.daemon(&[]);
    let gates = Path::new(&home.gate("x")).parent().unwrap().to_owned();
    let mount = format!("-v {}:/gates", gates.display());
    let job = submit(&home, &["--docker-args", &mount], &["sh", "-c", ONCE]);
    home.running(&job);
    until("it has begun", || {
        gates.join("begun").exists().then_some(())
    });
    let supervisor = pid_in(&home, &job, "launch");
    let inside = pid_in(&home, &job, "started");
    daemon.crash();
    kill(supervisor);
    home.open("go");
    until("the container has ended", || {
        (!Path::new(&format!("/proc/{inside}")).exists()).then_some(())
    });
    let _daemon = home.daemon(&[]);
    let ended = home.ended(&job);
    assert_eq!(ended.exit_code, Some(5), "{ended:?}");
    assert_eq!(home.log(&job), "before\nafter\n");
    assert_eq!(fs::read_to_string(gates.join("begun")).unwrap(), "begun\n");
}

#[test]
fn what_is_left_of_a_journal_that_is_no_more_is_taken_away() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let daemon = home.daemon(&[]);
    let gates = Path::new(&home.gate("x")).parent().unwrap().to_owned();
    let mount = format!("-v {}:/gates", gates.display());
    let flags = ["--docker-args", &mount];
    let job = submit(&home, &flags, &["sh", "-c", ONCE]);
    home.running(&job);
    until("it has begun", || {
        gates.join("begun").exists().then_some(())
    });
    let left = engine.containers_of(&job, home.path());
    daemon.crash();
    kill(pid_in(&home, &job, "launch"));
    fs::remove_dir_all(home.path()).unwrap();
    home.open("go");
    until("the container has ended", || {
        let state = engine.ask(&["inspect", "--format", "{{.State.Status}}", &left[0]]);
        (state == "exited").then_some(())
    });
    // The engine and the journal keep seconds: what both were made in one second could be another daemon's.
    let second = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    let ended = second();
    until("the next second", || (second() > ended).then_some(()));
    let _daemon = home.daemon(&[]);
    until("it is gone", || {
        engine
            .containers_of(&job, home.path())
            .is_empty()
            .then_some(())
    });
    // Its number is another job's now, and its name another container's.
    assert_eq!(submit(&home, &flags, &["sh", "-c", ONCE]), job);
    assert_eq!(home.ended(&job).exit_code, Some(5));
}

#[test]
fn cancelling_asks_first_and_kills_after_the_grace() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let polite = "trap 'echo bye; exit 0' TERM; echo ready; while true; do sleep 0.05; done";
    let deaf = "trap '' TERM; echo ready; while true; do sleep 0.05; done";
    // Who answers is given all the time that it may take here, and who does not is not waited for long.
    for (grace, script, code, last) in [("1m", polite, 0, "bye\n"), ("1s", deaf, 137, "ready\n")] {
        let _daemon = home.daemon(&["--set", &format!("grace={grace}")]);
        let job = submit(&home, &[], &["sh", "-c", script]);
        until("it can be stopped", || {
            home.log(&job).contains("ready").then_some(())
        });
        cancel(&home, &job);
        let ended = home.ended(&job);
        assert_eq!(ended.end_reason, Some(EndReason::Cancelled), "{ended:?}");
        assert_eq!(ended.exit_code, Some(code), "{script}");
        assert!(home.log(&job).ends_with(last), "{}", home.log(&job));
        engine.is_rid_of(&job, home.path());
    }
}

#[test]
fn what_would_leave_the_slice_is_refused_by_name_before_anything_is_made() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let socket = format!("{}:/s", engine.socket().display());
    let files = format!("{}:/s", home.path().display());
    for (words, named) in [
        (&["--gpus", "2"][..], "--gpus"),
        (&["--privileged"], "--privileged"),
        (&["--pid=host"], "--pid"),
        (&["--ipc=host"], "--ipc"),
        (&["--device", "/dev/null"], "--device"),
        (&["--runtime=runc"], "--runtime"),
        (&["--cap-add", "SYS_ADMIN"], "--cap-add"),
        (&["--security-opt", "seccomp=unconfined"], "--security-opt"),
        (&["-v", "/x:/etc/ld.so.preload"], "/etc/ld.so.preload"),
        (&["-v", "/var/run/docker.sock:/s"], "docker.sock"),
        (&["-e", "LD_PRELOAD=/x.so"], "LD_PRELOAD"),
        (&["-e", "DIVVY_SHIM=off"], "DIVVY_SHIM"),
    ] {
        let run = [&["docker", "run", "-g", "0.5"], words, &[IMAGE, "true"]].concat();
        let said = home.divvy(&run).exits(4);
        assert!(said.stderr.contains(named), "{words:?}: {}", said.stderr);
        assert!(said.stderr.contains("hint: "), "{words:?}: {}", said.stderr);
        let flags = words.join(" ");
        let submit = [
            "submit",
            "-g",
            "0.5",
            "--docker",
            IMAGE,
            "--docker-args",
            &flags,
            "--",
            "true",
        ];
        let said = home.divvy(&submit).exits(4);
        assert!(said.stderr.contains(named), "{words:?}: {}", said.stderr);
    }
    assert!(
        home.items(&["ps", "--all"]).is_empty(),
        "a refused job was stored"
    );
    // Only the agent knows where its own files and this engine are; and links lead where they lead.
    let link = home.scratch().join("link");
    std::os::unix::fs::symlink(engine.socket().parent().unwrap(), &link).unwrap();
    let link = format!("{}:/s", link.display());
    let storage = engine.ask(&["info", "--format", "{{.DockerRootDir}}"]);
    let storage = format!("{storage}:/s");
    for mount in [&socket, &files, &link, &storage] {
        let run = ["docker", "run", "-g", "0.5", "-v", mount, IMAGE, "true"];
        let said = home.divvy(&run).exits(125);
        assert!(
            said.stderr.contains("may not be mounted"),
            "{mount}: {}",
            said.stderr
        );
    }
}

#[test]
fn on_the_hosts_network_a_container_reaches_the_machines_abstract_sockets() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let name = format!("divvy-{}-{}", ENGINE.program(), std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a short name");
    let _listener = UnixListener::bind_addr(&address).expect("the name is new");
    let sees = |network: &[&str]| {
        let image = [IMAGE, "cat", "/proc/net/unix"];
        let run = [&["docker", "run", "-g", "0.5"], network, &image].concat();
        home.divvy(&run).ok().stdout.contains(&name)
    };
    assert!(sees(&["--network", "host"]));
    assert!(!sees(&["--network", "none"]));
}

#[test]
fn the_engine_shows_a_containers_secrets_to_each_of_its_users() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let home = home.variable("TOKEN", "hush");
    let _daemon = home.daemon(&[]);
    let gates = Path::new(&home.gate("x")).parent().unwrap().to_owned();
    let mount = format!("-v {}:/gates", gates.display());
    let flags = ["--secret", "TOKEN", "--docker-args", &mount];
    let job = submit(&home, &flags, &["sh", "-c", ONCE]);
    home.running(&job);
    let container = &engine.containers_of(&job, home.path())[0];
    let variables = engine.ask(&["inspect", "--format", "{{.Config.Env}}", container]);
    assert!(variables.contains("TOKEN=hush"), "{variables}");
    home.open("go");
    home.ended(&job);
}

#[test]
fn in_a_container_the_simulated_nvml_shows_every_gpu() {
    let Some((_engine, home)) = scene("a100-80gb:2") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let show = [IMAGE, "nvml_probe", "show"];
    let run = [&["docker", "run", "-g", "0.5"][..], &show].concat();
    let said = home.divvy(&run).ok();
    let gpus = &reports(&said.stdout)[0]["gpus"];
    assert_eq!(gpus.as_array().map(Vec::len), Some(2), "{gpus}");
}

/// A program that needs no loader and exits with 3: a header, one segment, three instructions.
fn static_program() -> Vec<u8> {
    let code = b"\xb8\x3c\x00\x00\x00\xbf\x03\x00\x00\x00\x0f\x05";
    let (base, start) = (0x40_0000_u64, 120_u64);
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    file.extend((base + start).to_le_bytes());
    file.extend(64_u64.to_le_bytes());
    file.extend([0; 12]);
    for number in [64_u16, 56, 1, 0, 0, 0] {
        file.extend(number.to_le_bytes());
    }
    file.extend(b"\x01\0\0\0\x05\0\0\0");
    let size = start + code.len() as u64;
    for number in [0, base, base, size, size, 0x1000] {
        file.extend(number.to_le_bytes());
    }
    file.extend(code);
    file
}

#[test]
fn an_image_that_the_limiter_cannot_hold_is_found_out_and_handled_by_policy() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let folder = home.scratch().join("programs");
    fs::create_dir(&folder).unwrap();
    let program = folder.join("tool");
    write_program(&program, static_program());
    let mount = format!("{}:/p", folder.display());
    let tool = ["docker", "run", "-g", "0.5", "-v", &mount, IMAGE, "/p/tool"];
    let musl = ["docker", "run", "-g", "0.5", MUSL_IMAGE, "/tool"];

    let daemon = home.daemon(&[]);
    for (run, named) in [
        (&tool[..], "/p/tool is statically linked"),
        (&musl, "built for musl"),
    ] {
        let said = home.divvy(run).exits(125);
        assert!(said.stderr.contains(named), "{}", said.stderr);
        assert!(
            said.stderr.contains("containers.deny-unlimited = false"),
            "{}",
            said.stderr
        );
        let job = home.ended("last");
        assert_eq!(job.end_reason, Some(EndReason::LaunchFailed), "{job:?}");
        assert!(engine.containers_of(&job.id, home.path()).is_empty());
    }
    assert_eq!(daemon.stop(), 0);

    let _daemon = home.daemon(&["--set", "containers.deny-unlimited=false"]);
    let said = home.divvy(&tool).exits(3);
    assert!(
        said.stderr.contains("its GPU memory is not limited"),
        "{}",
        said.stderr
    );
    let job = home.ended("last");
    let reason = job.limiter.and_then(|limiter| limiter.reason);
    assert!(
        reason.is_some_and(|reason| reason.contains("statically")),
        "describe does not say so"
    );
}

#[test]
fn a_daemon_with_an_image_runs_each_queues_jobs_in_containers() {
    let Some((engine, home)) = scene("a100-80gb:2") else {
        return;
    };
    let image = format!("{IMAGE} -e GREETING=hello --workdir /tmp");
    let words = [
        "--dynamic-gpus",
        "--gpus",
        "0-1",
        "--queue",
        "half_gpu=0.5",
        "--docker",
        &image,
    ];
    let _daemon = home.daemon(&words);
    let script = "echo $GREETING in $PWD as $HOSTNAME_OF_HOST; cudarc_probe fill --route linear; \
                  until test -e /tmp/never; do sleep 0.05; done";
    let mut submission = home.divvy_command(&[
        "submit",
        "--parsable",
        "-q",
        "half_gpu",
        "--",
        "sh",
        "-c",
        script,
    ]);
    let output = submission
        .env("HOSTNAME_OF_HOST", "secret")
        .output_bounded()
        .unwrap();
    let job = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let running = home.running(&job);
    assert_eq!(
        running
            .container
            .as_ref()
            .map(|container| container.image.as_str()),
        Some(IMAGE)
    );
    assert_eq!(running.slices[0].share, 500);
    let report = home.first_words(&job);
    let log = home.log(&job);
    // The submitter's variables are not the container's.
    assert!(log.starts_with("hello in /tmp as\n"), "{log}");
    assert!(got(&report) < 40 * GIB, "{report}");
    assert_eq!(engine.containers_of(&job, home.path()).len(), 1);
    cancel(&home, &job);
    home.ended(&job);
    // `run` is a process on this terminal, whatever the daemon's queues are.
    let said = home
        .divvy(&["run", "-g", "0.25", "--", "sh", "-c", "echo $DIVVY_JOB_ID"])
        .ok();
    assert!(!said.stdout.trim().is_empty());
    assert!(home.ended("last").container.is_none());
}

#[test]
fn an_image_of_another_user_uses_its_slice_too() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let script = "id -u; ls -ln /run/divvy-job/slice/slots";
    let said = home
        .divvy(&[
            "docker",
            "run",
            "-g",
            "0.5",
            USERS_IMAGE,
            "sh",
            "-c",
            script,
        ])
        .ok();
    let mut lines = said.stdout.lines();
    assert_eq!(lines.next(), Some("1000"));
    assert!(
        lines.next().unwrap_or_default().contains(" 1000 "),
        "{}",
        said.stdout
    );
}

#[test]
fn a_container_that_something_else_starts_can_be_brought_into_a_slice() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let job = home.submit(&["--gpu-memory", "2G"], &["sleep", "1000"]);
    home.running(&job);
    let flags = home.divvy(&["docker", "args", &job]).ok().stdout;
    let program = ENGINE.program();
    let script = format!("{program} run --rm {} {IMAGE}", flags.trim());
    let output = Command::new("sh")
        .args(["-c", &script])
        .envs(engine.variables())
        .output_bounded()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report = &reports(&text)[0];
    assert!((GIB..2 * GIB).contains(&got(report)), "{report}");
    let file = home.divvy(&["docker", "args", &job, "--cdi"]).ok().stdout;
    let file: Value = serde_json::from_str(&file).unwrap();
    assert_eq!(file["kind"], "divvy.dev/slice");
    cancel(&home, &job);
    let ended = home.ended(&job);
    let said = home.divvy(&["docker", "args", &ended.id]).exits(8);
    assert!(said.stderr.contains("holds no slice"), "{}", said.stderr);
}

#[test]
fn memory_past_the_limiter_in_a_container_ends_its_job_where_that_is_the_policy() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let folder = home.scratch().join("past");
    lay_way_past(&home, &folder);
    let past = format!("--docker-args=-v {}:/past:ro", folder.display());
    let job = submit(&home, &[&past], &["sh", "-c", PAST]);
    let ended = home.ended(&job);
    assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
    engine.is_rid_of(&job, home.path());

    // What the engine starts in it later descends from nobody of the job's, and is the job's all the same.
    let job = submit(&home, &[&past], &["sleep", "1000"]);
    home.running(&job);
    let container = engine.containers_of(&job, home.path()).remove(0);
    let _ = engine.ask(&["exec", "--detach", &container, "sh", "-c", PAST]);
    let ended = home.ended(&job);
    assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
    engine.is_rid_of(&job, home.path());
}

#[test]
fn input_and_output_are_the_terminals_and_signals_reach_the_container() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let start = |words: &[&str]| {
        let run = ["docker", "run", "-g", "0.25"];
        let mut command = home.divvy_command(&[&run[..], words].concat());
        let pipe = || std::process::Stdio::piped();
        command.stdin(pipe()).stdout(pipe()).stderr(pipe());
        command.spawn().unwrap()
    };
    // What is typed in arrives, and so does its end; the two outputs stay apart.
    let mut child = start(&["-i", IMAGE, "sh", "-c", "cat; echo problem >&2"]);
    child.stdin.take().unwrap().write_all(b"typed\n").unwrap();
    let output = child.output_bounded().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&output.stdout), "typed\n", "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "problem\n");

    let script = "trap 'echo interrupted; exit 9' INT; echo ready; while true; do sleep 0.05; done";
    let mut child = start(&[IMAGE, "sh", "-c", script]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "interrupted");
    assert_eq!(child.wait_bounded().unwrap().code(), Some(9));
}

#[test]
fn a_container_on_a_mig_instance_has_the_instance_and_no_limiter() {
    let Some((_engine, home)) = scene("a100-40gb:1") else {
        return;
    };
    let file = home.scratch().join("sim.toml");
    fs::write(&file, "[mig]\nenabled = [0]\n").unwrap();
    let home = home.variable("DIVVY_SIM_CONFIG", file.to_str().unwrap());
    let _daemon = home.daemon(&[]);
    let script = "cudarc_probe fill --route linear; echo $CUDA_VISIBLE_DEVICES; ls /run/divvy-job";
    let run = [
        "docker",
        "run",
        "--mig-profile",
        "1g.5gb",
        IMAGE,
        "sh",
        "-c",
        script,
    ];
    let said = home.divvy(&run).ok();
    let report = &reports(&said.stdout)[0];
    // What the hardware has: 4.75 GiB, less a context.
    assert!((4 * GIB..5 * GIB).contains(&got(report)), "{report}");
    let lines: Vec<&str> = said.stdout.lines().skip(1).collect();
    assert!(lines[0].starts_with("MIG-"), "{lines:?}");
    assert_eq!(lines[1..], ["sim-state"]);
    let job = home.ended("last");
    assert_eq!(job.slices[0].enforcement, "mig");
}

#[test]
fn a_container_that_failed_is_tried_again_in_a_new_one() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let gates = Path::new(&home.gate("x")).parent().unwrap().to_owned();
    let mount = format!("-v {}:/gates", gates.display());
    let script = "test -e /gates/tried && exit 0; touch /gates/tried; exit 3";
    let flags = ["--retries", "1", "--docker-args", &mount];
    let job = submit(&home, &flags, &["sh", "-c", script]);
    let ended = home.ended(&job);
    assert_eq!(
        (ended.end_reason, ended.exit_code),
        (Some(EndReason::Completed), Some(0)),
        "{ended:?}"
    );
}

#[test]
fn what_cannot_be_started_says_so_with_a_shells_code() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let daemon = home.daemon(&[]);
    let run = ["docker", "run", "-g", "0.5", "--pull", "never"];
    let said = home
        .divvy(&[&run[..], &[IMAGE, "no-such-program"]].concat())
        .exits(127);
    assert!(said.stderr.contains("no-such-program"), "{}", said.stderr);
    let said = home
        .divvy(&[&run[..], &["no-such-image"]].concat())
        .exits(125);
    assert!(said.stderr.contains("no-such-image"), "{}", said.stderr);
    // Without an engine nothing is taken in.
    let home = home.variable("DOCKER_HOST", "tcp://somewhere:2375");
    assert_eq!(daemon.stop(), 0);
    let said = home
        .divvy(&["submit", "-g", "0.5", "--docker", IMAGE])
        .exits(125);
    assert!(said.stderr.contains("DOCKER_HOST"), "{}", said.stderr);
}
