//! What programs do that nobody expects of them: crowds of threads, calls after the end, closed descriptors, other allocators
//! in front, a sanitizer, a library replaced under them, drivers of other ages.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use divvy_testkit::Bounded as _;

use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way, compiled, preload};

fn crowd() -> PathBuf {
    compiled("crowd.c", "crowd", &[])
}

/// Runs a crowd and looks at the books before it ends.
#[track_caller]
fn is_withstood(rig: &Rig, mut command: Command, what: &str) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the crowd starts");
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    output.read_line(&mut said).expect("the crowd speaks");
    let (charged, truth) = (rig.charged(), rig.truth());
    child.stdin.take().expect("a pipe").write_all(b"\n").ok();
    let ended = child.output_bounded().expect("it is our child");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.success(),
        "{what}: {:?}: {errors}",
        ended.status
    );
    assert_eq!(errors, "", "{what}");
    let numbers: Vec<u64> = said
        .split_whitespace()
        .map(|word| word.parse().expect("a number"))
        .collect();
    assert_eq!(numbers.first(), Some(&0), "{what}: calls failed");
    assert_eq!(
        (charged, truth),
        (CONTEXT, CONTEXT),
        "{what}: something leaked"
    );
    rig.settle_the_dead();
}

#[test]
fn sixty_four_threads_use_everything_at_once_with_and_without_a_context() {
    let rig = Rig::new(1, 16 * ROOM);
    let mut command = rig.limited(&crowd());
    command.args(["64", "40"]);
    is_withstood(&rig, command, "with room for all");
    // The same where most of them are refused now and then.
    let rig = Rig::new(1, 96 * MIB);
    let mut command = rig.limited(&crowd());
    command.args(["64", "20"]);
    is_withstood(&rig, command, "without room for all");
}

/// A library that `cargo xtask test` unpacks from Debian's package, if that can be had.
fn unpacked(name: &str) -> Option<PathBuf> {
    let folder = preload().parent()?.parent()?.join("allocators");
    let found = std::fs::read_dir(&folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file.starts_with(name)
        });
    if found.is_none() {
        eprintln!("SKIPPED: there is no {name} in {}", folder.display());
    }
    found
}

#[test]
fn beside_other_allocators_in_front() {
    let rig = Rig::new(1, 16 * ROOM);
    for name in ["libjemalloc.so", "libmimalloc.so"] {
        let Some(allocator) = unpacked(name) else {
            continue;
        };
        let (ours, theirs) = (preload(), allocator.display().to_string());
        let ours = ours.display().to_string();
        for order in [format!("{ours}:{theirs}"), format!("{theirs}:{ours}")] {
            let mut command = rig.limited(&crowd());
            command.args(["32", "20"]).env("LD_PRELOAD", &order);
            is_withstood(&rig, command, &order);
        }
    }
}

#[test]
fn in_a_program_built_with_the_address_sanitizer() {
    let rig = Rig::new(1, 16 * ROOM);
    for (name, flags) in [
        (
            "crowd-asan-static",
            &["-fsanitize=address", "-static-libasan"][..],
        ),
        ("crowd-asan", &["-fsanitize=address"][..]),
    ] {
        let mut command = rig.limited(&compiled("crowd.c", name, flags));
        // The shared runtime wants to be the first library; in any program with a preload that has to be allowed. Leaks are
        // looked for by a tracer, which containers often forbid.
        command
            .args(["16", "10"])
            .env("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0");
        is_withstood(&rig, command, name);
    }
}

#[test]
fn calls_from_exit_handlers_and_destructors_are_answered() {
    let rig = Rig::new(1, ROOM);
    let program = compiled("ending.c", "ending", &[]);
    let bare = rig.bare(&program).output_bounded().expect("it runs");
    rig.settle_the_dead();
    let limited = rig.limited(&program).output_bounded().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&limited.stderr), "");
    assert!(limited.status.success(), "{:?}", limited.status);
    assert_eq!(text(&limited.stdout), text(&bare.stdout));
    assert_eq!(text(&limited.stdout).lines().count(), 3);
    rig.settle_the_dead();
    assert_eq!(rig.charged(), 0);
}

#[test]
fn a_program_that_closes_descriptors_it_does_not_know_stays_charged() {
    let rig = Rig::new(2, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("take vmm {}", ROOM / 2)), [0, 0]);
    assert_eq!(probe.ask("closefrom 3"), [0]);
    let mut other = rig.ready(Way::Handle);
    // The lock is gone with its descriptor, the process is not: nobody may take its slot for a dead one's.
    rig.settle_the_dead();
    assert_eq!(rig.charged(), 2 * CONTEXT + ROOM / 2);
    assert_eq!(
        other.ask(&format!("take linear {}", ROOM / 2 + 2 * MIB)),
        [OUT_OF_MEMORY, 1]
    );
    assert_eq!(other.ask(&format!("take linear {}", ROOM / 2)), [0, 0]);
    assert_eq!(probe.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    assert_eq!(other.ask("give"), [0]);
    probe.kill();
    rig.settle_the_dead();
    assert_eq!(rig.charged(), CONTEXT);
    other.ends_silently();
}

#[test]
fn a_child_that_closes_everything_before_it_starts_has_an_account_of_its_own() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.inside(Way::Handle);
    probe.say(&format!(
        "fork closefrom 3;init;context 0;take linear {ROOM};take linear 512"
    ));
    assert_eq!(probe.hear(), [0]);
    assert_eq!(probe.hear(), [0]);
    assert_eq!(probe.hear(), [0]);
    assert_eq!(probe.hear(), [0, 0]);
    assert_eq!(probe.hear(), [OUT_OF_MEMORY, 1]);
    // The probe answers again when its child has ended.
    assert_eq!(probe.ask("init"), [0]);
    rig.settle_the_dead();
    assert_eq!(rig.charged(), 0);
    probe.ends_silently();
}

#[test]
fn a_new_library_in_the_place_of_the_old_one_is_for_new_programs() {
    let rig = Rig::new(2, ROOM);
    let installed = rig.path("installed.so");
    let install = || {
        let fresh = rig.path("fresh.so");
        std::fs::copy(preload(), &fresh).expect("room for a copy");
        std::fs::rename(&fresh, &installed).expect("the same folder");
    };
    install();
    let start = || {
        let mut command = rig.limited(&Probe::handle_program());
        let mut probe = Probe::start(command.env("LD_PRELOAD", &installed));
        assert_eq!(probe.ask("init"), [0]);
        assert_eq!(probe.ask("context 0"), [0]);
        probe
    };
    let mut old = start();
    assert_eq!(old.ask(&format!("take linear {}", ROOM / 2)), [0, 0]);
    install();
    let mut new = start();
    // What the old one had not touched yet is still its own.
    assert_eq!(old.ask("nvml 0")[1], rig.limit);
    assert_eq!(old.ask("vfork"), [0]);
    assert_eq!(old.ask(&format!("take async {}", ROOM / 4)), [0, 0]);
    assert_eq!(new.ask(&format!("take linear {}", ROOM / 4)), [0, 0]);
    assert_eq!(new.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    assert_eq!(old.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    old.ends_silently();
    new.ends_silently();
}

/// What `old_client` is answered over a driver compiled with these flags, and how often the limiter raised its alarm.
fn over_old_driver(rig: &Rig, name: &str, flags: &[&str]) -> (String, u64) {
    let flags = [&["-Wl,-soname,libcuda.so.1"], flags].concat();
    let driver = compiled("old_driver.c", name, &flags);
    let folder = rig.path(name.trim_end_matches(".so"));
    std::fs::create_dir(&folder).expect("a folder");
    std::os::unix::fs::symlink(driver, folder.join("libcuda.so.1")).expect("a link");
    let client = compiled("old_client.c", "old-client", &[]);
    let run = |command: &mut Command| {
        let output = command
            .env("LD_LIBRARY_PATH", &folder)
            .output_bounded()
            .expect("it runs");
        assert!(output.status.success(), "{name}: {:?}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let before = rig.slice().read().expect("a sound slice").alarms();
    let limited = run(&mut rig.limited(&client));
    let bare = run(&mut rig.bare(&client));
    // A function that the driver lacks is lacking behind the limiter too.
    let lacking = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.ends_with(" -"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(lacking(&limited), lacking(&bare), "{name}");
    let after = rig.slice().read().expect("a sound slice").alarms();
    rig.settle_the_dead();
    (limited, after - before)
}

#[test]
fn a_driver_that_cannot_be_asked_is_passed_by_and_the_agent_hears_of_it() {
    let rig = Rig::new(1, ROOM);
    let (said, alarms) = over_old_driver(&rig, "old.so", &[]);
    assert!(
        said.contains("cuMemAlloc_v2 0\ncuMemFree_v2 0\ncuMemAlloc_v2 0\n"),
        "{said}"
    );
    assert!(said.contains("cuMemAllocAsync -\n"), "{said}");
    assert!(alarms > 0);
}

#[test]
fn what_a_driver_can_be_asked_it_is_held_to() {
    let rig = Rig::new(1, ROOM);
    let hex: String = rig.uuids[0]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let uuid = format!("-DUUID=\"{hex}\"");
    let (said, alarms) = over_old_driver(&rig, "contexts.so", &["-DCONTEXTS", &uuid]);
    assert!(
        said.contains("cuMemAlloc_v2 0\ncuMemFree_v2 0\ncuMemAlloc_v2 2\n"),
        "{said}"
    );
    assert_eq!(alarms, 0, "{said}");
    let (said, alarms) = over_old_driver(&rig, "streams.so", &["-DCONTEXTS", "-DSTREAMS", &uuid]);
    for answer in ["cuMemAllocAsync 0", "cuGraphLaunch 0", "cuMemAlloc_v2 2"] {
        assert!(said.contains(&format!("{answer}\n")), "{answer}: {said}");
    }
    assert!(
        alarms > 0,
        "memory from pools that cannot be asked is not counted"
    );
}

#[test]
fn opened_and_closed_as_a_plugin_it_stays() {
    let rig = Rig::new(1, ROOM);
    let program = compiled("plugin.c", "plugin", &[]);
    let mut command = rig.limited(&program);
    let output = command
        .env_remove("LD_PRELOAD")
        .arg(preload())
        .output_bounded()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "0 2\nchild 0\n0 2\n"
    );
}
