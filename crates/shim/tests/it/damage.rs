//! A slice whose files are cut, removed or out of reach, before a program starts or under its hands: allocations fail with
//! one line that says why, and nothing else does.

use std::fs::OpenOptions;
use std::process::Command;

use divvy_testkit::Bounded as _;

use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way, preload};

/// What is wrong is looked for every 4 ms at most, in nanoseconds; what is cut short kills who uses it sooner.
const LOOKS: u64 = 20_000_000;

/// The clock by which it is looked, which moves on by ticks and now and then by none for a while.
fn coarse_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Does things that are none of the limiter's business until it is due to look, and then is refused.
fn until_refused(probe: &mut Probe) {
    let start = coarse_ns();
    while coarse_ns() - start < LOOKS {
        assert_eq!(probe.ask("init"), [0]);
    }
    assert_eq!(probe.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
}

/// Does something to a slice in use; the program must hear of it in one line that has these words, and live.
fn is_survived(spoil: impl Fn(&Rig), words: &[&str]) {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    for kind in ["linear", "managed", "vmm", "async", "linear"] {
        assert_eq!(probe.ask(&format!("take {kind} {}", 4 * MIB)), [0, 0]);
    }
    spoil(&rig);
    until_refused(&mut probe);
    for kind in ["linear", "managed", "vmm", "async", "pitch"] {
        let answer = probe.ask(&format!("take {kind} {}", 2 * MIB));
        assert_eq!(answer, [OUT_OF_MEMORY, 1], "{kind}");
    }
    let (free, total) = probe.info();
    assert_eq!(free, 0);
    assert!(total > 0);
    assert_eq!(probe.ask("nvml 0")[0], 0);
    assert_eq!(probe.ask("processes 0 3 4")[0], 0);
    assert_eq!(probe.ask("total 0")[0], 0);
    assert_eq!(probe.ask("giveall"), [0]);
    assert_eq!(probe.ask("sync"), [0]);
    assert_eq!(probe.ask("release 0"), [0]);
    assert_eq!(rig.truth(), 0, "what was freed reached the driver");
    let said = probe.last_words();
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in [&["divvy: GPU memory is refused: "], words].concat() {
        assert!(said.contains(word), "{word:?} is missing in {said:?}");
    }
}

#[test]
fn cut_short_while_in_use() {
    for name in ["slots", "control"] {
        let cut = |rig: &Rig| {
            let file = rig.slice_folder().join(name);
            let file = OpenOptions::new().write(true).open(file).expect("ours");
            file.set_len(0).expect("ours");
        };
        is_survived(cut, &[name, "was truncated while in use"]);
    }
}

/// As the daemon does at a job's end.
fn release(rig: &Rig) {
    let control = divvy_ledger::Control::open_writable(&rig.slice_folder());
    control.expect("a slice").close();
    std::fs::remove_dir_all(rig.slice_folder()).expect("ours");
}

#[test]
fn released_while_in_use() {
    is_survived(release, &["slots", "was removed while in use"]);
}

/// As logind does at a user's last logout.
#[test]
fn a_slice_whose_names_are_removed_keeps_its_limit_and_its_memory() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("take linear {}", 4 * MIB)), [0, 0]);
    let before = probe.info();
    std::fs::remove_dir_all(rig.slice_folder()).expect("ours");
    let start = coarse_ns();
    while coarse_ns() - start < LOOKS {
        assert_eq!(probe.ask(&format!("take linear {}", 4 * MIB))[0], 0);
        assert_eq!(probe.ask("giveall"), [0]);
    }
    assert_eq!(probe.ask(&format!("take linear {}", 4 * MIB))[0], 0);
    assert_eq!(probe.info(), before);
    let refused = probe.ask(&format!("take linear {}", rig.limit));
    assert_eq!(refused, [OUT_OF_MEMORY, 1]);
    assert_eq!(probe.last_words(), "");
}

#[test]
fn replaced_by_another_slice_while_in_use() {
    let replace = |rig: &Rig| {
        std::fs::remove_dir_all(rig.slice_folder()).expect("ours");
        let spec = rig.spec(&rig.uuids[..1], 2 * rig.limit);
        divvy_ledger::Control::create(&rig.slice_folder(), &spec).expect("a slice");
    };
    is_survived(replace, &["slots", "was removed while in use"]);
}

/// Whether one may have mounts of one's own here.
pub fn may_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"])
        .output_bounded();
    let may = tried.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("SKIPPED: no mount namespace may be made here");
    }
    may
}

#[test]
fn on_a_file_system_that_cannot_be_written() {
    if !may_mount() {
        return;
    }
    let rig = Rig::new(1, ROOM);
    let (folder, program) = (rig.slice_folder(), Probe::handle_program());
    let script = format!(
        "mount --bind {0} {0} && mount -o remount,bind,ro {0} && LD_PRELOAD={1} exec {2}",
        folder.display(),
        preload().display(),
        program.display()
    );
    let mut command = rig.limited(&program);
    let mut mounted = Command::new("unshare");
    mounted.args(["-rm", "sh", "-c", &script]);
    for (name, value) in command.env_remove("LD_PRELOAD").get_envs() {
        match value {
            Some(value) => mounted.env(name, value),
            None => mounted.env_remove(name),
        };
    }
    let mut probe = Probe::start(&mut mounted);
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(probe.ask("context 0"), [0]);
    assert_eq!(probe.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    let said = probe.last_words();
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in [
        "divvy: GPU memory is refused: ",
        "slots",
        "Read-only file system",
    ] {
        assert!(said.contains(word), "{word:?} is missing in {said:?}");
    }
}

#[test]
fn the_line_is_said_once_by_each_process() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    release(&rig);
    until_refused(&mut probe);
    // A child has an account of its own, and finds none.
    probe.say("fork init;context 0;take linear 512");
    assert_eq!(probe.hear().len(), 1);
    assert_eq!(probe.hear().len(), 1);
    assert_ne!(probe.hear()[0], 0);
    assert_eq!(rig.truth() % CONTEXT, 0);
    assert_eq!(probe.last_words().lines().count(), 2);
}
