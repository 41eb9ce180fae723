//! `divvy slice`: slices for programs that another engine starts, through the command line.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use divvy_e2e::{CommandOutput, GIB, Home, until};
use divvy_testkit::{Bounded as _, can_be_users, cgroup2_root};
use serde_json::Value;

/// Users that no user database has.
const ANA: &str = "60131";
const LEE: &str = "60132";

/// A home whose CDI files lie in it.
fn home(gpus: &str) -> Home {
    Home::new(gpus).variable("DIVVY_FORM", "")
}

fn daemon(home: &Home, words: &[&str]) -> divvy_e2e::Daemon {
    let cdi = format!("containers.cdi-dir={}", home.path().join("cdi").display());
    home.daemon(&[&["--set", &cdi], words].concat())
}

fn slices(home: &Home) -> Vec<Value> {
    home.items(&["slice", "ls"])
}

fn names(home: &Home) -> Vec<String> {
    let names = slices(home).into_iter();
    names
        .map(|slice| slice["uid"].as_str().expect("a name").to_owned())
        .collect()
}

/// What `cudarc_probe fill` could allocate.
#[track_caller]
fn got(said: &CommandOutput) -> u64 {
    let report = said.json();
    assert_eq!(report["error"], "CUDA_ERROR_OUT_OF_MEMORY", "{report}");
    report["got_bytes"].as_u64().expect("a figure")
}

#[track_caller]
fn holds_four_gib(said: &CommandOutput) {
    let got = got(said);
    assert!(got > 3 * GIB && got < 4 * GIB, "{got}");
}

fn as_user(home: &Home, uid: &str, words: &[&str]) -> CommandOutput {
    let output = home.divvy_as(uid).args(words).output_bounded();
    CommandOutput::new(words.join(" "), &output.expect("setpriv starts"))
}

/// A process that an engine would end its slice with.
struct Engine(Child);

impl Engine {
    fn start() -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg("1000").spawn().expect("sleep starts"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn end(&mut self) {
        self.0.kill().expect("it is this process's child");
        self.0.wait_bounded().expect("it is this process's child");
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait_bounded();
    }
}

/// A control group of this test, where the machine has version 2 and lets this process make one.
struct Group(PathBuf);

impl Group {
    fn name(name: &str) -> Option<PathBuf> {
        let Some(root) = cgroup2_root() else {
            eprintln!("SKIPPED: this machine has no cgroup v2");
            return None;
        };
        let folder = root.join(format!("divvy-e2e-{name}-{}", std::process::id()));
        let can = fs::create_dir(&folder).is_ok();
        let _ = fs::remove_dir(&folder);
        if !can {
            eprintln!(
                "SKIPPED: this process may make no control group in {}",
                root.display()
            );
        }
        can.then_some(folder)
    }

    fn make(folder: PathBuf) -> Self {
        fs::create_dir(&folder).expect("it could be made before");
        Self(folder)
    }

    fn remove(&self) {
        until("the group is empty", || {
            fs::remove_dir(&self.0).is_ok().then_some(())
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn any_process_that_enters_is_held_to_the_slice_and_all_of_them_together() {
    let home = home("a100-80gb:2");
    let _daemon = daemon(&home, &[]);
    let probe = home.program("cudarc_probe");
    let create = [
        "slice",
        "create",
        "eval",
        "--gpus-on",
        "1",
        "--gpu-memory",
        "4G",
    ];
    let said = home.divvy(&create).ok();
    assert!(
        said.stderr.contains("gpu1:0.05a: 4.0 GiB"),
        "{}",
        said.stderr
    );
    // A repeated call changes nothing, and another request is refused.
    let _ = home.divvy(&create).ok();
    let other = [
        "slice",
        "create",
        "eval",
        "--gpus-on",
        "0",
        "--gpu-memory",
        "4G",
    ];
    let said = home.divvy(&[&other[..], &["-o", "json"]].concat()).exits(8);
    assert_eq!(said.error()["code"], "conflict");
    assert_eq!(names(&home), ["eval"]);

    let enter = ["slice", "enter", "eval", "--", &probe, "fill"];
    holds_four_gib(&home.divvy(&enter).ok());
    // A child of a child, by a shell.
    let script = format!("exec sh -c '{probe} fill'");
    let nested = ["slice", "enter", "eval", "--", "sh", "-c", &script];
    holds_four_gib(&home.divvy(&nested).ok());
    // By variables alone.
    let script = format!(
        "eval \"$('{}' slice env eval)\"; exec {probe} fill",
        home.program("divvy")
    );
    holds_four_gib(&home.look("sh", &["-c", &script]).ok());

    // Two processes share one limit, and every view has the slice by its name.
    let gate = home.gate("first");
    let bytes = (3 * GIB).to_string();
    let hold = [
        "slice", "enter", "eval", "--", &probe, "hold", "--bytes", &bytes,
    ];
    let mut first = home
        .divvy_command(&[&hold[..], &["--until-file", &gate]].concat())
        .stdout(Stdio::null())
        .spawn()
        .expect("divvy starts");
    until("the slice is in use", || {
        let used = slices(&home)[0]["slices"][0]["memory_used_bytes"].as_u64();
        (used > Some(3 * GIB)).then_some(())
    });
    assert!(got(&home.divvy(&enter).ok()) < GIB);
    until(
        "the daemon sees that only the first process is left",
        || slices(&home)[0]["processes"] == 1,
    );
    let jobs = home.items(&["ps"]);
    assert_eq!(
        (&jobs[0]["name"], &jobs[0]["runner"]),
        (&"eval".into(), &"claim".into())
    );
    assert_eq!(
        jobs[0]["bypasses"].as_array().map_or(0, Vec::len),
        0,
        "{}",
        jobs[0]
    );
    let why = home.divvy(&["why", "eval"]).ok();
    assert!(why.stdout.contains("gpu1:0.05a"), "{}", why.stdout);
    home.open("first");
    first.wait_bounded().expect("it is this process's child");

    // What is not for slices says what to do instead; ending one twice is fine.
    for words in [["cancel", "eval"], ["suspend", "eval"]] {
        let said = home.divvy(&words).exits(8);
        assert!(
            said.stderr.contains("divvy slice rm eval"),
            "{}",
            said.stderr
        );
    }
    let said = home.divvy(&["slice", "rm", "eval"]).ok();
    assert!(said.stderr.contains("was released"), "{}", said.stderr);
    let said = home.divvy(&["slice", "rm", "eval", "other"]).ok();
    assert!(
        said.stderr.contains("there is no slice eval"),
        "{}",
        said.stderr
    );
    let said = home.divvy(&enter).exits(3);
    assert!(said.stderr.contains("it has ended"), "{}", said.stderr);
    assert!(
        said.stderr.contains("hint: list the slices"),
        "{}",
        said.stderr
    );
    let usage = home.items(&["usage", "--by", "user", "--since", "1d"]);
    let of_jobs = usage.iter().filter(|row| row["idle"] != true);
    assert_eq!(of_jobs.count(), 1, "{usage:?}");
}

#[test]
fn a_program_in_a_slice_ends_as_it_would_without_one() {
    let home = home("a100-80gb:1");
    let _daemon = daemon(&home, &[]);
    let _ = home
        .divvy(&["slice", "create", "a", "--gpus-on", "0", "-g", "0.5"])
        .ok();
    let enter = |words: &[&str]| home.divvy(&[&["slice", "enter", "a", "--"], words].concat());
    let _ = enter(&["sh", "-c", "exit 7"]).exits(7);
    let _ = enter(&["/no/such/program"]).exits(127);
    let _ = enter(&["/etc/passwd"]).exits(126);
    let said = enter(&[
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES; pwd; kill -TERM $$",
    ]);
    let said = said.stdout.lines().map(str::to_owned).collect::<Vec<_>>();
    let uuid = home.items(&["gpus"])[0]["uuid"].clone();
    assert_eq!(said[0], format!("0 {}", uuid.as_str().expect("a UUID")));
}

#[test]
fn a_slice_outlives_its_daemon_and_ends_with_its_process_also_while_there_is_none() {
    let mut home = home("a100-80gb:2");
    let first = daemon(&home, &[]);
    let probe = home.program("cudarc_probe");
    let (mut stays, mut goes) = (Engine::start(), Engine::start());
    for (name, engine) in [("stays", &stays), ("goes", &goes)] {
        let create = [
            "slice",
            "create",
            name,
            "--gpus-on",
            "0",
            "--gpu-memory",
            "4G",
            "--pid",
        ];
        let _ = home.divvy(&[&create[..], &[&engine.pid()]].concat()).ok();
    }
    first.crash();
    // Nothing but files is needed to enter.
    let enter = ["slice", "enter", "stays", "--", &probe, "fill"];
    holds_four_gib(&home.divvy(&enter).ok());
    let said = home
        .divvy(&["slice", "enter", "none", "--", "true"])
        .exits(7);
    assert!(said.stderr.contains("no daemon serves"), "{}", said.stderr);
    goes.end();
    home.keep(daemon(&home, &[]));
    until("the slice has ended", || {
        (names(&home) == ["stays"]).then_some(())
    });
    let ended = home.items(&["ps", "-a", "--name", "goes"]);
    assert_eq!(ended[0]["end_reason"], "released", "{ended:?}");
    assert!(
        ended[0]["end_detail"].to_string().contains("has ended"),
        "{ended:?}"
    );
    holds_four_gib(&home.divvy(&enter).ok());

    let began = Instant::now();
    stays.end();
    until("the slice has ended", || {
        names(&home).is_empty().then_some(())
    });
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    let _ = home.divvy(&enter).exits(3);
    // Without such a process there is no slice.
    let pid = stays.pid();
    let create = [
        "slice",
        "create",
        "late",
        "--gpus-on",
        "0",
        "-g",
        "0.5",
        "--pid",
        &pid,
    ];
    let said = home.divvy(&create).exits(3);
    assert!(
        said.stderr.contains("there is no process"),
        "{}",
        said.stderr
    );
}

#[test]
fn a_killed_process_cancels_its_slice_and_a_create_that_waits_gets_its_room() {
    let home = home("a100-80gb:1");
    let _daemon = daemon(&home, &[]);
    let (killed, mut done) = (Engine::start(), Engine::start());
    for (name, engine) in [("killed", &killed), ("done", &done)] {
        let pid = engine.pid();
        let create = format!("slice create {name} --gpus-on 0 -g 0.5 --cancel-on-exit --pid {pid}");
        let words: Vec<_> = create.split(' ').collect();
        let _ = home.divvy(&words).ok();
    }
    let next = ["slice", "create", "next", "--gpus-on", "0", "-g", "0.5"];
    let _ = home.divvy(&next).exits(6);
    let said = home
        .divvy(&[&next[..], &["--wait", "1s"]].concat())
        .exits(6);
    assert!(said.stderr.contains("(waited 1 s)"), "{}", said.stderr);
    let patient = [&next[..], &["--wait", "1m"]].concat();
    let mut waiting = home.command(home.program("divvy"));
    let mut waiting = waiting.args(&patient).spawn().expect("divvy starts");
    // Its task ends by itself: the engine releases, and then its process ends.
    let _ = home.divvy(&["slice", "rm", "done"]).ok();
    done.end();
    let code = waiting.wait_bounded().expect("the slice has room");
    assert!(code.success(), "{code}");
    drop(killed);
    until("the slice has ended", || {
        (names(&home) == ["next"]).then_some(())
    });
    let ended = |name: &str| {
        let job = home.items(&["ps", "-a", "--name", name]).remove(0);
        let detail = job["end_detail"].as_str().unwrap_or_default().to_owned();
        (job["end_reason"].clone(), detail)
    };
    assert_eq!(ended("done").0, "released");
    let (reason, detail) = ended("killed");
    assert_eq!(reason, "cancelled", "{detail}");
    assert!(detail.contains("ended before `divvy slice rm`"), "{detail}");
}

#[test]
fn a_slice_ends_with_its_control_group_and_a_bypass_in_it_is_killed() {
    let Some(folder) = Group::name("ends") else {
        return;
    };
    let home = home("a100-80gb:1");
    let daemon = daemon(&home, &["--set", "on-bypass=kill"]);
    let shown = folder.display().to_string();
    let create = [
        "slice",
        "create",
        "job",
        "--gpus-on",
        "0",
        "--gpu-memory",
        "4G",
        "--cgroup",
    ];
    // Slurm's Prolog runs before the group is there.
    let _ = home.divvy(&[&create[..], &[&shown]].concat()).ok();
    let group = Group::make(folder);
    let other = [
        "slice",
        "create",
        "two",
        "--gpus-on",
        "0",
        "-g",
        "0.25",
        "--cgroup",
        &shown,
    ];
    let said = home.divvy(&other).exits(8);
    assert!(
        said.stderr.contains("belongs to the slice job"),
        "{}",
        said.stderr
    );

    // A program of the group that does not enter the slice is one of the slice, and a bypass.
    let probe = home.program("cudarc_probe");
    let gate = home.gate("never");
    let script = format!(
        "echo $$ > '{shown}/cgroup.procs' && exec {probe} hold --bytes 1G --until-file {gate}"
    );
    let mut stranger = home.outside("sh");
    let mut stranger = stranger
        .args(["-c", &script])
        .stdout(Stdio::null())
        .spawn()
        .expect("sh starts");
    until("the bypass is killed", || {
        stranger.try_wait().ok().flatten()
    });
    let job = &home.items(&["ps"])[0];
    assert_eq!(job["bypasses"][0]["action"], "killed", "{job}");
    let events = home.items(&["events"]);
    let mut texts = events.iter().filter_map(|event| event["text"].as_str());
    assert!(texts.any(|text| text.ends_with("the daemon kills this process alone")));

    assert_eq!(daemon.stop(), 0);
    let _daemon = self::daemon(&home, &[]);
    assert_eq!(names(&home), ["job"]);
    group.remove();
    until("the slice has ended", || {
        names(&home).is_empty().then_some(())
    });
    let ended = &home.items(&["ps", "-a", "--name", "job"])[0];
    assert!(
        ended["end_detail"].to_string().contains("was removed"),
        "{ended}"
    );
    let outside = [
        "slice",
        "create",
        "x",
        "--gpus-on",
        "0",
        "-g",
        "0.5",
        "--cgroup",
        "/tmp/x",
    ];
    let said = home.divvy(&outside).exits(2);
    assert!(
        said.stderr.contains("not a control group"),
        "{}",
        said.stderr
    );
}

#[test]
fn a_user_enters_and_sees_own_slices_alone_and_removes_none_that_root_created() {
    if !can_be_users("nothing of the slices of several users is tested here") {
        return;
    }
    let home = home("a100-80gb:2");
    let _daemon = daemon(&home, &["--system"]);
    let probe = home.program("cudarc_probe");
    for (name, user) in [("ana-1", ANA), ("lee-1", LEE)] {
        let create = [
            "slice",
            "create",
            name,
            "--gpus-on",
            "0",
            "--gpu-memory",
            "4G",
        ];
        let _ = home.divvy(&[&create[..], &["--user", user]].concat()).ok();
    }
    assert_eq!(names(&home), ["ana-1", "lee-1"]);
    let owners: Vec<Value> = slices(&home)
        .iter()
        .map(|slice| slice["owner"].clone())
        .collect();
    assert_eq!(owners, [ANA, LEE]);
    let own = as_user(&home, ANA, &["slice", "ls", "-o", "name"]).ok();
    assert_eq!(own.stdout, "ana-1\n");
    // The user by LD_PRELOAD, and root, which starts a step of the user, by mounts.
    holds_four_gib(
        &as_user(
            &home,
            ANA,
            &["slice", "enter", "ana-1", "--", &probe, "fill"],
        )
        .ok(),
    );
    let become_ana = [
        "setpriv",
        "--reuid",
        ANA,
        "--regid",
        ANA,
        "--clear-groups",
        &probe,
        "fill",
    ];
    let step = [&["slice", "enter", "ana-1", "--"][..], &become_ana].concat();
    holds_four_gib(&home.divvy(&step).ok());
    // Any user that root starts in root's own slice gets its memory; no other process reaches the slice.
    let create = [
        "slice",
        "create",
        "root-1",
        "--gpus-on",
        "1",
        "--gpu-memory",
        "4G",
    ];
    let _ = home.divvy(&create).ok();
    let step = [&["slice", "enter", "root-1", "--"][..], &become_ana].concat();
    holds_four_gib(&home.divvy(&step).ok());
    let _ = as_user(&home, ANA, &["slice", "enter", "root-1", "--", "true"]).exits(3);
    let _ = home.divvy(&["slice", "rm", "root-1"]).ok();
    for words in [
        &["slice", "enter", "lee-1", "--", "true"][..],
        &["slice", "env", "lee-1"],
    ] {
        let _ = as_user(&home, ANA, words).exits(3);
    }
    let said = as_user(&home, ANA, &["slice", "rm", "lee-1", "ana-1"]).exits(4);
    for refused in ["another user", "ana-1 was created by root"] {
        assert!(said.stderr.contains(refused), "{}", said.stderr);
    }
    let _ = home.divvy(&["slice", "rm", "ana-1"]).ok();
    // On the system's daemon, whose queues a slice passes by, an admin alone makes one.
    let create = ["slice", "create", "mine", "--gpus-on", "0", "-g", "0.25"];
    let said = as_user(&home, ANA, &create).exits(4);
    assert!(said.stderr.contains("admin"), "{}", said.stderr);
    assert_eq!(names(&home), ["lee-1"]);
    let usage = home.items(&["usage", "--by", "user", "--since", "1d"]);
    let users: Vec<&Value> = usage.iter().map(|row| &row["user"]).collect();
    assert!(
        users.contains(&&ANA.into()) && users.contains(&&LEE.into()),
        "{usage:?}"
    );
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason_and_nothing_is_held() {
    let home = home("a100-80gb:2");
    let _daemon = daemon(&home, &[]);
    let create = |words: &[&str]| home.divvy(&[&["slice", "create"][..], words].concat());
    let _ = create(&["half", "--gpus-on", "0", "-g", "0.5"]).ok();
    let said = create(&["all", "--gpus-on", "0,1", "-g", "0.75", "-o", "json"]).exits(6);
    assert_eq!(said.error()["code"], "would_wait");
    assert!(said.stderr.contains("needed"), "{}", said.stderr);
    let _ = create(&["big", "--gpus-on", "1", "--gpu-memory", "400G"]).exits(5);
    let said = create(&["mig", "--gpus-on", "1", "--profile", "1g.10gb"]).exits(5);
    assert!(said.stderr.contains("MIG"), "{}", said.stderr);
    for (words, code) in [
        (&["a", "--gpus-on", "9", "-g", "0.5"][..], 3),
        (&["a", "--gpus-on", "x", "-g", "0.5"], 2),
        (&["a", "--gpus-on", "0", "-g", "2"], 2),
        (&["a", "-g", "0.5"], 2),
        (&["a", "--gpus-on", "0"], 2),
        (&["a/b", "--gpus-on", "0", "-g", "0.5"], 2),
        (&["a b", "--gpus-on", "0", "-g", "0.5"], 2),
        (&["a\n", "--gpus-on", "0", "-g", "0.5"], 2),
        (&["\u{1b}[31m", "--gpus-on", "0", "-g", "0.5"], 2),
        (&["größe", "--gpus-on", "0", "-g", "0.5"], 2),
        (&["a", "--gpus-on", "0", "-g", "0.5", "--pid", "0"], 2),
        (
            &["a", "--gpus-on", "0", "-g", "0.5", "--user", "no such user"],
            4,
        ),
    ] {
        let said = create(words).exits(code);
        assert!(!said.stderr.contains('\u{1b}'), "{}", said.stderr);
    }
    assert_eq!(names(&home), ["half"]);
    // Both GPUs, whole, once there is room.
    let _ = home.divvy(&["slice", "rm", "half"]).ok();
    let _ = create(&["both", "--gpus-on", "0", "--gpus-on", "1", "-g", "1"]).ok();
    let held = &slices(&home)[0];
    assert_eq!(held["slices"].as_array().map(Vec::len), Some(2), "{held}");
}
