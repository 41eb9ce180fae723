//! However a program finds the driver, and whoever else stands in front of it.

use std::process::Command;

use divvy_testkit::Bounded as _;

use crate::support::{
    CONTEXT, Form, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way, compiled, deep_library, preload,
};

/// The probe may have `ROOM` bytes and no more.
#[track_caller]
fn is_limited(rig: &Rig, mut command: Command, what: &str) {
    let mut probe = Probe::start(&mut command);
    assert_eq!(probe.ask("init"), [0], "{what}");
    assert_eq!(probe.ask("context 0"), [0], "{what}");
    assert_eq!(
        probe.ask(&format!("fill linear {}", 64 * MIB)),
        [ROOM / (64 * MIB), OUT_OF_MEMORY],
        "{what}"
    );
    assert_eq!(probe.info(), (0, rig.limit), "{what}");
    assert_eq!(
        rig.charged(),
        rig.limit,
        "{what}: charged twice or not at all"
    );
    assert_eq!(probe.ask("giveall"), [0], "{what}");
    assert_eq!(rig.charged(), CONTEXT, "{what}");
    probe.ends_silently();
    rig.settle_the_dead();
}

#[test]
fn beside_another_preload_that_stands_in_front_of_dlsym() {
    let rig = Rig::new(1, ROOM);
    for (name, flags) in [("tail.so", &["-DTAIL"][..]), ("call.so", &[][..])] {
        let second = compiled("second_preload.c", name, flags);
        let (ours, second) = (
            preload().display().to_string(),
            second.display().to_string(),
        );
        for way in [Way::Handle, Way::Linked] {
            let mut command = rig.limited(&way.program());
            command.env("LD_PRELOAD", format!("{ours}:{second}"));
            is_limited(&rig, command, &format!("{way:?}, before {name}"));
        }
        // Linked programs meet the other one's cuMemAlloc_v2 first, which finds ours behind it by RTLD_NEXT.
        let mut command = rig.limited(&Way::Linked.program());
        command.env("LD_PRELOAD", format!("{second}:{ours}"));
        is_limited(&rig, command, &format!("linked, behind {name}"));
    }
}

#[test]
fn where_both_forms_are_in_a_process_the_preload_stands_aside() {
    let rig = Rig::new(1, ROOM);
    for way in Way::ALL {
        let mut command = rig.held(&way.program(), Form::Wrapper);
        command.env("LD_PRELOAD", preload());
        is_limited(&rig, command, &format!("{way:?}, both forms"));
    }
    // Also for one that allocates in a child of its own.
    let mut command = rig.held(&Way::Handle.program(), Form::Wrapper);
    command.env("LD_PRELOAD", preload());
    let mut probe = Probe::start(&mut command);
    assert_eq!(probe.ask("fork init;context 0"), [0]);
    assert_eq!(probe.hear(), [0]);
    probe.ends_silently();
}

#[test]
fn a_library_opened_with_deepbind_goes_past_the_preload() {
    let rig = Rig::new(1, ROOM);
    let deep = deep_library();
    let main = compiled("deep_main.c", "deep-main", &[]);
    let fill = |deepbind: &str| {
        let output = rig
            .limited(&main)
            .arg(&deep)
            .arg(deepbind)
            .output_bounded()
            .expect("it runs");
        rig.settle_the_dead();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse::<u64>()
            .expect("a figure")
    };
    assert_eq!(fill("0"), ROOM);
    // Known and documented: such a library's references are bound past every preload.
    assert!(
        fill("1") > ROOM,
        "if this is limited now, docs/enforcement.md says too little"
    );
}

#[test]
fn sixty_four_threads_look_up_and_allocate_at_once() {
    let rig = Rig::new(1, ROOM);
    for (way, kind) in [
        (Way::Handle, "linear"),
        (Way::ProcAddress, "async"),
        (Way::Linked, "vmm"),
    ] {
        let mut probe = rig.ready(way);
        assert_eq!(
            probe.ask(&format!("threads {kind} 64 50 {}", 2 * MIB)),
            [0],
            "{kind}"
        );
        let _ = probe.ask("sync");
        let _ = probe.info();
        assert_eq!(rig.charged(), CONTEXT, "{kind}: something leaked");
        assert_eq!(rig.truth(), CONTEXT, "{kind}");
        probe.ends_silently();
        rig.settle_the_dead();
    }
}

#[test]
fn a_driver_that_is_closed_and_opened_again_is_still_the_same() {
    let rig = Rig::new(1, ROOM);
    let program = compiled("reopen.c", "reopen", &[]);
    let output = rig.limited(&program).output_bounded().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "5\n");
    rig.settle_the_dead();
    assert_eq!(rig.charged(), 0);
}

/// Another namespace has its own driver and no preload; known and documented.
#[test]
fn a_driver_in_a_namespace_of_its_own_is_left_alone() {
    let rig = Rig::new(1, ROOM);
    let program = compiled("namespace.c", "namespace", &[]);
    let output = rig.limited(&program).output_bounded().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "own driver\n");
}
