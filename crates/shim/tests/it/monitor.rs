//! What monitors are shown of processes, and what they may set: a slice's own, over an NVML that lists strangers too.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use divvy_ledger::ProcessSlot;
use divvy_testkit::Bounded as _;

use divvy_testkit::written;

use crate::support::{Form, MIB, Rig, compiled, wrappers};

/// A pid that no process of the slice has: that of the machine's first program.
const STRANGER: u32 = 1;
const BOTH: [Form; 2] = [Form::Preload, Form::Wrapper];

/// Functions of the row that says so on the reference page.
fn refused_functions() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/enforcement.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let row = page
        .lines()
        .find(|line| line.ends_with("| Refused: NVML_ERROR_NO_PERMISSION. |"));
    let names = row.expect("the row").split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

/// A header with a line for each of them.
fn setters() -> PathBuf {
    let lines: String = refused_functions()
        .iter()
        .map(|name| format!("S({name})\n"))
        .collect();
    written("setters.h", &lines)
}

/// A machine with the fake NVML, and a slice of which this very process is a member that holds 10 MiB.
struct Scene {
    rig: Rig,
    slot: ProcessSlot,
    folders: [PathBuf; 2],
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::new(1, 512 * MIB);
        let define = format!("-DSETTERS=\"{}\"", setters().display());
        let fake = compiled(
            "fake_nvml.c",
            "fake_nvml.so",
            &["-Wl,-soname,libnvidia-ml.so.1", &define],
        );
        let folders = ["fake", "fake-wrapped"].map(|name| rig.path(name));
        let [_, wrapper] = wrappers();
        for (folder, name, file) in [
            (&folders[0], "libnvidia-ml.so.1", &fake),
            (&folders[1], "libnvidia-ml.so.1", &wrapper),
            (&folders[1], "libnvidia-ml_real.so.1", &fake),
        ] {
            std::fs::create_dir_all(folder).expect("a folder");
            std::os::unix::fs::symlink(file, folder.join(name)).expect("a link");
        }
        let slot = rig.slice().join().expect("a slot");
        slot.reserve(0, 10 * MIB).expect("it fits").commit();
        Scene { rig, slot, folders }
    }

    fn me(&self) -> u32 {
        std::process::id()
    }

    /// The monitor in the slice, over the fake.
    fn inside(&self, form: Form) -> Command {
        let mut command = self.rig.held(&compiled("monitor.c", "monitor", &[]), form);
        let folder = &self.folders[usize::from(form == Form::Wrapper)];
        command.env("LD_LIBRARY_PATH", folder);
        self.tell(&mut command);
        command
    }

    fn outside(&self) -> Command {
        let mut command = self.rig.bare(&compiled("monitor.c", "monitor", &[]));
        command.env("LD_LIBRARY_PATH", &self.folders[0]);
        self.tell(&mut command);
        command
    }

    fn tell(&self, command: &mut Command) {
        let hex: String = self.rig.uuids[0]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        command.env("FAKE_UUID", format!("GPU-{hex}"));
        command.env("FAKE_PIDS", format!("{STRANGER},{}", self.me()));
    }
}

/// What the monitor says to each line, and what it says on stderr.
#[track_caller]
fn ask(mut command: Command, lines: &[&str]) -> (Vec<String>, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the monitor starts");
    let mut input = child.stdin.take().expect("a pipe");
    writeln!(input, "{}", lines.join("\n")).expect("the monitor listens");
    drop(input);
    let output = child.output_bounded().expect("the monitor ends");
    let errors = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{}: {errors}", output.status);
    let said = String::from_utf8(output.stdout).expect("text");
    (said.lines().map(str::to_owned).collect(), errors)
}

/// Every function that lists processes: how to ask for it, and the size of its entries where it tells of memory.
const LISTS: &[&str] = &[
    "list nvmlDeviceGetComputeRunningProcesses 8 16",
    "list nvmlDeviceGetComputeRunningProcesses_v2 8 24",
    "list nvmlDeviceGetComputeRunningProcesses_v3 8 24",
    "list nvmlDeviceGetGraphicsRunningProcesses 8 16",
    "list nvmlDeviceGetGraphicsRunningProcesses_v2 8 24",
    "list nvmlDeviceGetGraphicsRunningProcesses_v3 8 24",
    "list nvmlDeviceGetMPSComputeRunningProcesses 8 16",
    "list nvmlDeviceGetMPSComputeRunningProcesses_v2 8 24",
    "list nvmlDeviceGetMPSComputeRunningProcesses_v3 8 24",
    "details 0 8",
    "details 1 8",
    "details 2 8",
];
/// The same for those that say nothing about memory.
const OTHERS: &[&str] = &[
    "list nvmlDeviceGetAccountingPids 8 4",
    "sessions nvmlDeviceGetEncoderSessions 8 32",
    "sessions nvmlDeviceGetFBCSessions 8 48",
    "utilization 8",
    "utilization-info 8",
];

#[test]
fn every_list_of_processes_shows_the_slices_own() {
    let scene = Scene::new();
    let me = scene.me();
    let all = [LISTS, OTHERS].concat();
    let (bare, _) = ask(scene.outside(), &all);
    for (question, answer) in all.iter().zip(&bare) {
        assert!(
            answer.starts_with(&format!("0 2 {STRANGER}")),
            "{question}: {answer}"
        );
    }
    for form in BOTH {
        let (said, errors) = ask(scene.inside(form), &all);
        for (question, answer) in all.iter().zip(&said) {
            let used = if LISTS.contains(question) { ":10" } else { "" };
            assert_eq!(*answer, format!("0 1 {me}{used}"), "{form:?}: {question}");
        }
        assert_eq!(errors, "");
    }
}

#[test]
fn every_list_keeps_the_protocol_of_sizes() {
    let scene = Scene::new();
    let without_room = |question: &str| {
        let words: Vec<&str> = question.split(' ').collect();
        // The room is the last number of "details" and the like, else the last but one.
        let at = if words.len() > 3 { 2 } else { words.len() - 1 };
        let words = words
            .iter()
            .enumerate()
            .map(|(index, word)| if index == at { "0" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    let all: Vec<String> = [LISTS, OTHERS]
        .concat()
        .iter()
        .map(|line| without_room(line))
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for form in BOTH {
        for answer in ask(scene.inside(form), &all).0 {
            assert_eq!(
                answer, "7 1",
                "{form:?}: how many there are, and that they need room"
            );
        }
    }
}

#[test]
fn a_slice_that_does_nothing_has_no_samples() {
    let scene = Scene::new();
    for form in BOTH {
        let mut command = scene.inside(form);
        command.env("FAKE_PIDS", STRANGER.to_string());
        let (said, _) = ask(
            command,
            &["utilization 8", "utilization-info 8", "utilization 0"],
        );
        assert_eq!(said, ["6 0", "6 0", "6 0"], "{form:?}");
    }
}

#[test]
fn compute_processes_that_the_driver_does_not_list_are_listed() {
    let scene = Scene::new();
    for form in BOTH {
        let mut command = scene.inside(form);
        command.env("FAKE_PIDS", "");
        let (said, _) = ask(
            command,
            &[
                LISTS[2],
                LISTS[5],
                "details 0 8",
                "rows 213 8",
                "rows 214 8",
            ],
        );
        let mine = format!("0 1 {}:10", scene.me());
        let program = std::env::current_exe().expect("its own path");
        let row = format!("{} {mine}", program.display());
        assert_eq!(said, [&mine, "0 0", &mine, &row, "- 0 0"], "{form:?}");
    }
}

#[test]
fn processes_of_inner_pid_namespaces_are_listed_by_their_numbers_here() {
    if !Command::new("unshare")
        .args(["--pid", "--fork", "true"])
        .wait_bounded()
        .is_ok_and(|done| done.success())
    {
        eprintln!("skipped: this machine lets nobody make a PID namespace");
        return;
    }
    let rig = Rig::new(1, 64 * MIB);
    let probe = crate::support::Probe::handle_program();
    let limited = rig.held(&probe, Form::Preload);
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child"])
        .arg(&probe);
    for (name, value) in limited.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut inner = crate::support::Probe::start(&mut command);
    assert_eq!(inner.ask("init"), [0]);
    assert_eq!(inner.ask("context 0"), [0]);
    let owner = rig.slice().read().expect("a slice").processes()[0].owner;
    assert_ne!(
        owner.pid_namespace,
        divvy_ledger::ProcessIdentity::current().pid_namespace
    );
    let mut monitor = rig.inside(crate::support::Way::Handle);
    let said = monitor.ask("processes 0 3 8");
    assert_eq!(said[..2], [0, 1], "{said:?}");
    // The child of `unshare`, which is this process's child.
    let children = format!("/proc/{0}/task/{0}/children", inner.pid());
    let child = std::fs::read_to_string(children).expect("the kernel lists children");
    assert_eq!(said[2].to_string(), child.trim());
}

#[test]
fn statistics_and_names_are_given_of_the_slices_processes_alone() {
    let scene = Scene::new();
    let me = scene.me();
    let hold = scene.slot.reserve(0, 20 * MIB).expect("it fits");
    drop(hold);
    let questions = [
        format!("stats {me}"),
        format!("stats {STRANGER}"),
        format!("name {me}"),
        format!("name {STRANGER}"),
    ];
    let questions: Vec<&str> = questions.iter().map(String::as_str).collect();
    let (bare, _) = ask(scene.outside(), &questions);
    assert_eq!(
        bare,
        [
            "0 7168 0 7168",
            "0 7168 0 7168",
            &format!("0 /bin/{me}"),
            "0 /bin/1"
        ]
    );
    let peak = scene.rig.slice().read().expect("a slice").processes()[0].gpus[0].peak / MIB;
    assert!(peak >= 10);
    for form in BOTH {
        let (said, _) = ask(scene.inside(form), &questions);
        let mine = format!("0 {peak} 0 {peak}");
        assert_eq!(
            said,
            [&mine, "6 0 6 0", &format!("0 /bin/{me}"), "6 -"],
            "{form:?}"
        );
    }
}

#[test]
fn protected_memory_is_the_slices_too() {
    let scene = Scene::new();
    let limit = scene.rig.limit / MIB;
    for form in BOTH {
        let questions = [
            "memory nvmlDeviceGetConfComputeProtectedMemoryUsage",
            "memory nvmlDeviceGetMemoryInfo",
        ];
        for answer in ask(scene.inside(form), &questions).0 {
            assert_eq!(answer, format!("0 {limit} 10"), "{form:?}");
        }
    }
}

#[test]
fn what_would_change_a_gpu_for_others_is_refused_and_works_outside() {
    let scene = Scene::new();
    let names = refused_functions();
    assert!(names.len() > 60, "{}", names.len());
    let lines: Vec<String> = names.iter().map(|name| format!("set {name}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert!(
        ask(scene.outside(), &lines)
            .0
            .iter()
            .all(|answer| answer == "0")
    );
    for form in BOTH {
        let (said, errors) = ask(scene.inside(form), &lines);
        for (name, answer) in names.iter().zip(said) {
            assert_eq!(answer, "4", "{form:?}: {name}");
        }
        assert_eq!(errors, "");
        // Off is off, and a slice that is broken is no permission.
        let mut off = scene.inside(form);
        off.env("DIVVY_SHIM", "off");
        assert_eq!(ask(off, &["set nvmlDeviceSetComputeMode"]).0, ["0"]);
        let mut broken = scene.inside(form);
        broken.env("DIVVY_SLICE", "/no/such/slice");
        assert_eq!(ask(broken, &["set nvmlDeviceSetComputeMode"]).0, ["4"]);
    }
}

#[test]
fn nvidia_smis_table_stays_where_it_is_with_four_slots_replaced() {
    let scene = Scene::new();
    let me = scene.me();
    for form in BOTH {
        let (ours, own) = match form {
            Form::Preload => ("libdivvy_preload.so", "libnvidia-ml.so.1"),
            Form::Wrapper => ("libnvidia-ml.so.1", "libnvidia-ml_real.so.1"),
        };
        // Asked for twice, it is the same; its page is as protected as it was.
        let questions = [
            "table",
            "table",
            "rows 213 8",
            "rows 214 8",
            "rows 215 8",
            "rows 213 1",
            "slot 20 1",
            "slot 20 0",
            "slot 81 1",
        ];
        let (said, errors) = ask(scene.inside(form), &questions);
        let table = format!("{own} r--p 20:{ours} 213:{ours} 214:{ours} 215:{ours}");
        let row = format!("/bin/program 0 1 {me}:10");
        assert_eq!(
            said,
            [&table, &table, &row, &row, &row, &row, "4", "2", "0"],
            "{form:?}"
        );
        assert_eq!(errors, "");
    }
    let (bare, _) = ask(scene.outside(), &["table", "slot 20 1"]);
    assert_eq!(bare, ["libnvidia-ml.so.1 r--p", "0"]);
}

#[test]
fn a_table_of_another_kind_is_left_as_it_is_and_that_is_said_once() {
    let scene = Scene::new();
    for form in BOTH {
        for (kind, question) in [("short", "table"), ("foreign", "table")] {
            let mut command = scene.inside(form);
            command.env("FAKE_TABLE", kind);
            let (said, errors) = ask(command, &[question, question]);
            assert!(!said[0].contains("213:"), "{form:?} {kind}: {}", said[0]);
            assert_eq!(errors.lines().count(), 1, "{form:?} {kind}: {errors}");
            assert!(errors.contains("nvidia-smi"), "{errors}");
        }
        // Rows of another size are not read as processes.
        let mut command = scene.inside(form);
        command.env("FAKE_TABLE", "shifted");
        let (said, errors) = ask(command, &["rows 213 8", "rows 213 8"]);
        assert!(
            said[0].starts_with(&format!("/bin/program 0 2 {STRANGER}:")),
            "{form:?}: {}",
            said[0]
        );
        assert_eq!(said[0], said[1]);
        assert_eq!(errors.lines().count(), 1, "{form:?}: {errors}");
    }
}

#[test]
fn over_the_simulated_driver_the_table_leads_to_the_slices_processes() {
    let rig = Rig::new(2, 64 * MIB);
    let mut stranger = rig.outside();
    assert_eq!(stranger.ask("init"), [0]);
    assert_eq!(stranger.ask("context 0"), [0]);
    let mut member = rig.ready(crate::support::Way::Handle);
    assert_eq!(member.ask(&format!("take linear {}", 10 * MIB)), [0, 0]);
    for form in BOTH {
        let command = rig.held(&compiled("monitor.c", "monitor", &[]), form);
        let (said, errors) = ask(command, &["rows 213 8", "rows 214 8"]);
        assert!(
            said[0].ends_with(&format!(" 0 1 {}:266", member.pid())),
            "{form:?}: {}",
            said[0]
        );
        assert_eq!((&*said[1], &*errors), ("- 0 0", ""), "{form:?}");
    }
}
