//! Lookups by name, version and flag lead to the hook exactly where the driver's answer is a hooked function.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use divvy_driver::sys::symbols::{self, ProcAddress};
use divvy_testkit::{Bounded as _, join};

use crate::support::{Form, ROOM, Rig, compiled, exported_functions};

/// Asks for every line of `questions`; answers by line.
fn ask(command: &mut Command, questions: &str) -> Vec<Vec<String>> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the probe starts");
    let mut input = child.stdin.take().expect("a pipe");
    let questions = questions.to_owned();
    let writer = std::thread::spawn(move || {
        input
            .write_all(questions.as_bytes())
            .expect("the probe reads")
    });
    let output = child.output_bounded().expect("the probe ends");
    join("the writer of questions", writer);
    let answers = String::from_utf8(output.stdout).expect("text");
    answers
        .lines()
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect()
}

/// Versions that programs ask for: of CUDA 11.8 to 13.5, what comes after, and none.
const ASKED: [u32; 9] = [
    0, 11_080, 12_000, 12_040, 12_090, 13_000, 13_020, 13_050, 14_000,
];
/// No preference, legacy stream, per-thread stream, and one that is none.
const FLAGS: [u32; 4] = [0, 1, 2, 8];

/// Names, versions and flags to ask for, with the symbol that is the answer; `cuNoSuchFunction` where there is none.
fn questions() -> Vec<(String, u32, u32, &'static str)> {
    let rows: Vec<_> = symbols::proc_addresses().collect();
    let names: BTreeSet<&str> = rows.iter().map(|(name, ..)| *name).collect();
    // What has a name but not as a base name, and what has none.
    let others = [
        "-",
        "cuNoSuchFunction",
        "cuMemAlloc_v2",
        "cuMemAllocAsync_ptsz",
        "cuGetProcAddress_v2",
    ];
    let mut questions = Vec::new();
    for name in names.into_iter().chain(others) {
        let changes = rows.iter().filter(|(of, ..)| *of == name);
        let changes = changes.flat_map(|(_, version, ..)| [version - 1, *version]);
        let versions: BTreeSet<u32> = ASKED.into_iter().chain(changes).collect();
        for (version, flags) in versions
            .iter()
            .flat_map(|version| FLAGS.map(|flags| (*version, flags)))
        {
            let newest = version.min(NEWEST);
            let answer = match symbols::proc_address(name, newest, flags & 2 != 0) {
                ProcAddress::Symbol(symbol) => symbol,
                ProcAddress::NotFound | ProcAddress::VersionTooLow => "cuNoSuchFunction",
            };
            questions.push((name.to_owned(), version, flags, answer));
        }
    }
    questions
}

/// What the simulated driver is.
const NEWEST: u32 = 13_050;

#[test]
fn every_name_version_and_flag_leads_to_the_very_function_that_the_driver_means() {
    let rig = Rig::new(1, ROOM);
    let program = compiled("routes.c", "routes", &[]);
    let questions = questions();
    let lines = |(name, version, flags, symbol): &(String, u32, u32, &str)| {
        format!("{name} {version} {flags} {symbol}\n")
    };
    let lines: String = questions.iter().map(lines).collect();
    let bare = ask(&mut rig.bare(&program), &lines);
    assert_eq!(bare.len(), questions.len());
    let hooked = exported_functions();
    for form in [Form::Preload, Form::Wrapper] {
        let held = ask(&mut rig.held(&program, form), &lines);
        assert_eq!(held.len(), questions.len());
        let mut routed = BTreeSet::new();
        for ((question, bare), held) in questions.iter().zip(&bare).zip(&held) {
            let (name, version, flags, symbol) = question;
            let at = format!("{form:?}: {name}, version {version}, flags {flags}");
            // Results and status are the driver's own.
            for index in [1, 3, 4] {
                assert_eq!(held[index], bare[index], "{at}");
            }
            // Something exactly where the driver gave something: the hook of that symbol, or the driver's own function.
            for index in [2, 5] {
                let given = bare[index] != "none";
                let expected = match (given, hooked.contains(*symbol)) {
                    (false, _) => "none",
                    (true, true) => "hook",
                    (true, false) => "driver",
                };
                assert_eq!(held[index], expected, "{at}");
            }
            if flags & !3 == 0 {
                assert_eq!(
                    held[7..9],
                    ["same", "same"].map(|same| if held[5] == "none" { "none" } else { same }),
                    "{at}: not {symbol}"
                );
            }
            if held[5] == "hook" {
                routed.insert(*symbol);
            }
        }
        // Every hook of the driver can be had by address.
        let all: BTreeSet<&str> = hooked
            .iter()
            .map(String::as_str)
            .filter(|name| name.starts_with("cu"))
            .collect();
        let missing: Vec<_> = all
            .difference(&routed)
            .filter(|name| symbols::proc_addresses().any(|row| row.3 == **name))
            .collect();
        assert!(missing.is_empty(), "{form:?}: {missing:?}");
    }
}

#[test]
fn nulls_are_the_drivers_to_judge_and_the_lookup_may_look_itself_up() {
    let rig = Rig::new(1, ROOM);
    let program = compiled("routes.c", "routes", &[]);
    let corners = |mut command: Command| {
        let output = command.arg("corners").output_bounded().expect("it runs");
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8(output.stdout).expect("text")
    };
    let bare = corners(rig.bare(&program));
    for form in [Form::Preload, Form::Wrapper] {
        let held = corners(rig.held(&program, form));
        // All the same, but that the functions given are hooks.
        assert_eq!(held.replace("hook", "driver"), bare, "{form:?}");
        assert_eq!(held.matches("hook").count(), 3, "{form:?}: {held}");
    }
}

/// It binds its own references to itself, as the real one does.
fn inner_driver() -> std::path::PathBuf {
    let flags = ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"];
    compiled("inner_driver.c", "inner_driver.so", &flags)
}

#[test]
fn inner_functions_are_routed_by_what_was_asked_for_and_unknown_versions_are_not() {
    let rig = Rig::new(1, ROOM);
    let driver = inner_driver();
    let folder = rig.path("inner");
    std::fs::create_dir(&folder).expect("a folder");
    std::os::unix::fs::symlink(driver, folder.join("libcuda.so.1")).expect("a link");
    let questions = "cuMemAlloc 13000 0 cuMemAlloc_v2\n\
                     cuMemAlloc 14000 0 cuMemAlloc_v3\n\
                     cuLaunchKernel 13000 0 cuDriverGetVersion\n\
                     cuNothing 13000 0 cuDriverGetVersion\n";
    let mut command = rig.limited(&compiled("routes.c", "routes", &[]));
    let answers = ask(command.env("LD_LIBRARY_PATH", &folder), questions);
    let found: Vec<_> = answers
        .iter()
        .map(|answer| (&*answer[2], &*answer[5], &*answer[6]))
        .collect();
    let expected = [
        ("hook", "hook", "hook"),
        ("driver", "driver", "driver"),
        ("driver", "driver", "driver"),
        ("none", "none", "driver"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_revision_that_is_newer_than_the_limiter_is_passed_and_counted() {
    let rig = Rig::new(1, ROOM);
    let driver = inner_driver();
    let folder = rig.path("newer");
    std::fs::create_dir(&folder).expect("a folder");
    std::os::unix::fs::symlink(driver, folder.join("libcuda.so.1")).expect("a link");
    let uuid: String = rig.uuids[0]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let alarms = || rig.slice().read().expect("a sound slice").alarms();
    let allocate = |questions: &str| {
        let mut command = rig.held(&compiled("routes.c", "routes", &[]), Form::Preload);
        command
            .env("LD_LIBRARY_PATH", &folder)
            .env("INNER_UUID", &uuid);
        ask(command.arg("allocate"), questions)
    };
    allocate("cuMemAlloc 13000 0 cuMemAlloc_v2\ncuNothing 14000 0 cuDriverGetVersion_v2\n");
    assert_eq!(alarms(), 0, "there is nothing new in that");
    // By both forms of cuGetProcAddress, and by name.
    let answers = allocate("cuMemAlloc 14000 0 cuMemAlloc_v3\n");
    assert_eq!(answers[0][5..7], ["driver", "driver"]);
    assert_eq!(alarms(), 3);
}
