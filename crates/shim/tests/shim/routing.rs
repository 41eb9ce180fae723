//! Lookups by name, version and flag lead to the hook exactly where the driver's answer is a hooked function.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};

use divvy_driver::sys::symbols;

use crate::support::{ROOM, Rig, compiled, documented_hooks};

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
    let output = child.wait_with_output().expect("the probe ends");
    writer.join().expect("all was written");
    let answers = String::from_utf8(output.stdout).expect("text");
    answers
        .lines()
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect()
}

#[test]
fn every_symbol_of_every_version_and_flag_leads_where_the_driver_says() {
    let rig = Rig::new(1, ROOM);
    let program = compiled("routes.c", "routes", &[]);
    let mut questions = String::new();
    let mut asked = 0;
    let mut put = |name: &str, version: u32, flags: u32, symbol: &str| {
        questions += &format!("{name} {version} {flags} {symbol}\n");
        asked += 1;
    };
    for (name, version, per_thread, symbol) in symbols::proc_addresses() {
        let flags = if per_thread { 2 } else { 0 };
        for version in [version - 1, version, version + 1, 13_050] {
            put(name, version, flags, symbol);
        }
    }
    for name in [
        "-",
        "cuNoSuchFunction",
        "cuMemAlloc_v2",
        "cuGetProcAddress_v2",
    ] {
        for flags in 0..4 {
            put(name, 13_000, flags, "cuNoSuchFunction");
        }
    }
    let bare = ask(&mut rig.bare(&program), &questions);
    let routed = ask(&mut rig.limited(&program), &questions);
    assert_eq!((bare.len(), routed.len()), (asked, asked));

    let hooked = documented_hooks();
    let mut hooks: HashMap<String, usize> = HashMap::new();
    for (question, (bare, routed)) in questions.lines().zip(bare.iter().zip(&routed)) {
        let at = |answer: &[String], index: usize| answer[index].clone();
        // Results and status are the driver's own.
        for index in [1, 3, 4] {
            assert_eq!(at(bare, index), at(routed, index), "{question}");
        }
        // By name: the hook where there is one.
        let expected = if hooked.contains(&bare[0]) {
            "hook"
        } else {
            &bare[6]
        };
        assert_eq!(routed[6], expected, "dlsym: {question}");
        // By version: something exactly where the driver gave something.
        for index in [2, 5] {
            assert_eq!(bare[index] == "none", routed[index] == "none", "{question}");
        }
        if question.split(' ').nth(1) == Some("13050") && routed[5] == "hook" {
            *hooks
                .entry(question.split(' ').next().unwrap().to_owned())
                .or_default() += 1;
        }
    }
    for name in [
        "cuMemAlloc",
        "cuMemFree",
        "cuMemCreate",
        "cuMemGetInfo",
        "cuGetProcAddress",
        "cuCtxCreate",
    ] {
        assert!(hooks.contains_key(name), "{name} is not routed");
    }
    for name in [
        "cuInit",
        "cuLaunchKernel",
        "cuMemcpyHtoD",
        "cuCtxGetDevice",
        "cuMemHostAlloc",
    ] {
        assert!(
            !hooks.contains_key(name),
            "{name} is not the driver's own any more"
        );
    }
}

#[test]
fn each_version_leads_to_its_own_hook() {
    let rig = Rig::new(1, ROOM);
    let program = compiled("routes.c", "routes", &[]);
    let cases = [
        ("cuMemAlloc", 3010, 0, true),
        ("cuMemAlloc", 3020, 0, true),
        ("cuMemAllocAsync", 13_000, 0, true),
        ("cuMemAllocAsync", 13_000, 2, true),
        ("cuCtxCreate", 11_040, 0, true),
        ("cuCtxCreate", 12_050, 0, true),
        ("cuGetProcAddress", 11_030, 0, true),
        ("cuGetProcAddress", 12_000, 0, true),
        ("cuCtxSynchronize", 13_000, 0, false),
        ("cuMemcpyAsync", 13_000, 2, false),
    ];
    let questions: String = cases
        .iter()
        .map(|(name, version, flags, _)| format!("{name} {version} {flags} x\n"))
        .collect();
    for ((name, version, flags, is_hooked), answer) in cases
        .iter()
        .zip(ask(&mut rig.limited(&program), &questions))
    {
        let expected = if *is_hooked { "hook" } else { "driver" };
        assert_eq!(answer[5], expected, "{name} {version} {flags}");
    }
}

#[test]
fn inner_functions_are_routed_by_what_was_asked_for_and_unknown_versions_are_not() {
    let rig = Rig::new(1, ROOM);
    let driver = compiled(
        "inner_driver.c",
        "inner_driver.so",
        &["-Wl,-soname,libcuda.so.1"],
    );
    let folder = rig.path("inner");
    std::fs::create_dir(&folder).expect("a folder");
    std::os::unix::fs::symlink(driver, folder.join("libcuda.so.1")).expect("a link");
    let questions = "cuMemAlloc 13000 0 cuMemAlloc_v2\n\
                     cuMemAlloc 14000 0 cuMemAlloc_v3\n\
                     cuLaunchKernel 13000 0 cuInit\n\
                     cuNothing 13000 0 cuInit\n";
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
