//! Configuration that is missing or broken closes; the switch opens what its user could open anyway; either says so once, and a shell
//! hears nothing.

use std::path::Path;
use std::process::Command;

use divvy_ledger::MOUNTED;
use divvy_testkit::Bounded as _;

use crate::damage::may_mount;
use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way, preload};

/// Runs a probe whose environment `change` spoils; allocations must fail, with one line that says all of `words`.
fn is_refused(rig: &Rig, change: impl Fn(&mut Command) -> &mut Command, words: &[&str]) {
    let mut command = rig.limited(&Probe::handle_program());
    change(&mut command);
    let mut probe = Probe::start(&mut command);
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(probe.ask("context 0"), [0]);
    let (free, total) = probe.info();
    assert_eq!(free, 0);
    assert!(total > 0);
    for kind in ["linear", "managed", "vmm", "async", "pitch"] {
        assert_eq!(
            probe.ask(&format!("take {kind} {}", 2 * MIB)),
            [OUT_OF_MEMORY, 1],
            "{kind}"
        );
    }
    let said = probe.last_words();
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in [&["divvy: GPU memory is refused: ", "divvy run"], words].concat() {
        assert!(said.contains(word), "{word:?} is missing in {said:?}");
    }
}

#[test]
fn without_a_slice_nothing_is_given_and_one_line_says_so() {
    let rig = Rig::new(1, ROOM);
    is_refused(
        &rig,
        |command| command.env_remove("DIVVY_SLICE"),
        &["DIVVY_SLICE is not set"],
    );
    is_refused(
        &rig,
        |command| command.env("DIVVY_SLICE", ""),
        &["DIVVY_SLICE is not set"],
    );
}

#[test]
fn the_switch_opens_nothing_where_there_is_no_sound_slice() {
    let rig = Rig::new(1, ROOM);
    let ignored = "DIVVY_SHIM=off is ignored without a valid slice";
    is_refused(
        &rig,
        |command| command.env("DIVVY_SHIM", "off").env_remove("DIVVY_SLICE"),
        &["DIVVY_SLICE is not set", ignored],
    );
    std::fs::remove_file(rig.slice_folder().join("slots")).unwrap();
    is_refused(
        &rig,
        |command| command.env("DIVVY_SHIM", "off"),
        &["slots", ignored],
    );
}

/// Runs a probe with `DIVVY_SHIM=off` after `script`, as root of mounts of its own; it must be limited, and say that the switch is ignored.
fn is_held_although_switched_off(rig: &Rig, script: &str) {
    let program = Probe::handle_program();
    let script = format!("{script} && exec {}", program.display());
    let mut command = rig.limited(Path::new("unshare"));
    command
        .args(["-rm", "sh", "-c", &script])
        .env("DIVVY_SHIM", "off");
    let mut probe = Probe::start(&mut command);
    assert_eq!(probe.ask("init"), [0], "{script}");
    assert_eq!(probe.ask("context 0"), [0], "{script}");
    assert_eq!(
        probe.ask(&format!("take linear {}", 4 * ROOM)),
        [OUT_OF_MEMORY, 1],
        "{script}"
    );
    assert_eq!(
        probe.ask(&format!("take linear {}", 2 * MIB)),
        [0, 0],
        "{script}"
    );
    let said = probe.last_words();
    assert_eq!(
        said,
        "divvy: DIVVY_SHIM=off is ignored: this user may not change the limits of the slice\n",
        "{script}"
    );
}

#[test]
fn the_switch_opens_no_slice_that_is_mounted_or_that_its_user_may_not_write() {
    if !may_mount() {
        return;
    }
    let rig = Rig::new(1, ROOM);
    let folder = rig.slice_folder();
    let folder = folder.display();
    // As in a wrapper's mount namespace, of a user who may write the limits.
    is_held_although_switched_off(
        &rig,
        &format!(
            "mount -t tmpfs none /run && mkdir -p {MOUNTED} && mount --bind {folder} {MOUNTED}"
        ),
    );
    // As in a container whose root has renamed the folder of the mounts.
    is_held_although_switched_off(
        &rig,
        &format!(
            "mount --bind {folder}/control {folder}/control && mount -o remount,bind,ro {folder}/control"
        ),
    );
    // As a system daemon's. Only root may give a file to another user.
    let owner = |uid| std::os::unix::fs::chown(rig.slice_folder().join("control"), Some(uid), None);
    if owner(1).is_ok() {
        is_held_although_switched_off(&rig, "true");
    } else {
        eprintln!("SKIPPED: only root can give a slice to another user");
    }
}

#[test]
fn a_slice_that_cannot_be_trusted_gives_nothing_and_one_line_says_why() {
    let rig = Rig::new(1, ROOM);
    let missing = rig.path("nowhere");
    let name = missing.to_str().unwrap().to_owned();
    is_refused(
        &rig,
        |command| command.env("DIVVY_SLICE", &missing),
        &[&name],
    );

    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, &str, Damage); 5] = [
        ("control", "truncated", |bytes| bytes.truncate(100)),
        ("slots", "truncated", |bytes| bytes.truncate(4096)),
        ("control", "of another kind", |bytes| bytes[0] ^= 1),
        ("control", "of another version", |bytes| bytes[8] ^= 1),
        ("slots", "of another slice", |bytes| bytes[24] ^= 1),
    ];
    for (file, what, damage) in damages {
        let path = rig.slice_folder().join(file);
        let sound = std::fs::read(&path).unwrap();
        let mut bytes = sound.clone();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        is_refused(&rig, |command| command, &[file]);
        println!("{file} {what} was refused");
        std::fs::write(&path, sound).unwrap();
    }
    std::fs::remove_file(rig.slice_folder().join("slots")).unwrap();
    is_refused(&rig, |command| command, &["slots"]);
}

#[test]
fn switched_off_it_changes_nothing_and_says_so_once() {
    let rig = Rig::new(1, ROOM);
    let mut outside = rig.outside();
    let mut command = rig.limited(&Probe::handle_program());
    let mut probe = Probe::start(command.env("DIVVY_SHIM", "off"));
    for line in ["init", "context 0", "total 0", "nvml 0", "info"] {
        let (inside, outside) = (probe.ask(line), outside.ask(line));
        assert_eq!(inside.len(), outside.len());
        if line == "total 0" {
            assert_eq!(inside, outside);
        }
    }
    let beyond = 4 * ROOM;
    for _ in 0..2 {
        assert_eq!(probe.ask(&format!("take linear {beyond}")), [0, 0]);
        assert_eq!(probe.ask("give"), [0]);
    }
    assert_eq!(rig.charged(), 0);
    let said = probe.last_words();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("divvy: DIVVY_SHIM=off: "), "{said}");
}

#[test]
fn a_program_that_allocates_nothing_hears_nothing() {
    let run = |script: &str| {
        Command::new("sh")
            .args(["-c", script])
            .env("LD_PRELOAD", preload())
            .env_remove("DIVVY_SLICE")
            .output_bounded()
            .unwrap()
    };
    let output = run("echo hello; ls / > /dev/null; (echo child)");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "hello\nchild\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");

    let rig = Rig::new(1, ROOM);
    let mut probe = Probe::start(
        rig.limited(&Probe::handle_program())
            .env_remove("DIVVY_SLICE"),
    );
    for line in [
        "init",
        "context 0",
        "info",
        "total 0",
        "nvml 0",
        "processes 0 3 4",
    ] {
        assert_eq!(probe.ask(line)[0], 0, "{line}");
    }
    probe.ends_silently();
}

#[test]
fn the_limit_itself_is_reached_without_a_word() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    for _ in 0..100 {
        assert_eq!(
            probe.ask(&format!("take linear {}", ROOM + 1)),
            [OUT_OF_MEMORY, 1]
        );
    }
    assert_eq!(rig.usage().denied, 100);
    assert_eq!(rig.charged(), CONTEXT);
    probe.ends_silently();
}
