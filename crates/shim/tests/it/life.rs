//! Processes and contexts come and go: forks, execs, deaths, resets.

use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way, deep_library};

#[test]
fn a_child_forked_before_the_first_call_has_an_account_of_its_own() {
    let rig = Rig::new(2, ROOM);
    let mut other = rig.ready(Way::Handle);
    assert_eq!(other.ask(&format!("take linear {}", ROOM / 2)), [0, 0]);
    // The parent has looked at its slice, and never called CUDA; its child does everything from the beginning.
    let mut probe = rig.inside(Way::Handle);
    assert_eq!(probe.ask("nvml 0")[1], rig.limit);
    for _ in 0..2 {
        probe.say(&format!(
            "fork init;context 0;take linear {};take linear 512;info;processes 0 3 8",
            ROOM / 2
        ));
        assert_eq!(probe.hear(), [0]);
        assert_eq!(probe.hear(), [0]);
        assert_eq!(probe.hear(), [0, 0]);
        assert_eq!(probe.hear(), [OUT_OF_MEMORY, 1]);
        assert_eq!(probe.hear(), [0, 0, rig.limit]);
        assert_eq!(probe.hear()[..2], [0, 2]);
    }
    probe.ends_silently();
}

#[test]
fn a_child_forked_after_the_first_call_leaves_its_parents_account_alone() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("take linear {}", ROOM / 2)), [0, 0]);
    // CUDA is of no use in such a child; the limiter must neither hang nor touch what is its parent's.
    let in_child = probe.ask("fork take linear 512");
    assert_ne!(in_child[0], 0);
    let _ = probe.ask("fork give");
    assert_eq!(rig.charged(), CONTEXT + ROOM / 2);
    assert_eq!(probe.ask("vfork"), [0]);
    assert_eq!(probe.ask(&format!("take linear {}", ROOM / 2)), [0, 0]);
    assert_eq!(probe.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    assert_eq!(probe.ask("giveall"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    probe.ends_silently();
}

#[test]
fn a_child_that_outlives_its_parent_does_not_keep_its_account() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("take linear {ROOM}")), [0, 0]);
    let child = probe.ask("spawn child")[0] as i32;
    probe.kill();
    rig.settle_the_dead();
    let charged = rig.charged();
    // SAFETY: the child that the probe has just left behind.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert_eq!(charged, 0);
}

#[test]
fn the_next_process_gets_what_a_dead_one_held_without_an_agent() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("take linear {ROOM}")), [0, 0]);
    probe.kill();
    // Nobody has told the ledger; the context alone does not fit beside what the dead one held.
    let mut next = rig.ready(Way::Handle);
    assert_eq!(next.ask(&format!("take linear {ROOM}")), [0, 0]);
    assert_eq!(rig.charged(), rig.limit);
    next.ends_silently();
}

#[test]
fn a_process_that_ends_well_leaves_its_place_to_the_next_at_once() {
    let rig = Rig::new(1, ROOM);
    for _ in 0..3 {
        let mut probe = rig.ready(Way::Linked);
        assert_eq!(probe.ask(&format!("take linear {ROOM}")), [0, 0]);
        probe.ends_silently();
    }
}

#[test]
fn the_context_is_charged_while_it_lives_and_takes_its_memory_with_it() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.inside(Way::Handle);
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(rig.charged(), 0);
    for end in ["release 0", "reset 0"] {
        assert_eq!(probe.ask("context 0"), [0]);
        assert_eq!(rig.charged(), CONTEXT);
        assert_eq!(probe.ask("take linear 512"), [0, 0]);
        assert_eq!(probe.ask(&format!("take managed {}", 4 * MIB)), [0, 0]);
        assert_eq!(rig.charged(), rig.truth());
        assert_eq!(probe.ask("forget"), [0]);
        assert_eq!(probe.ask(end), [0], "{end}");
        assert_eq!(rig.charged(), rig.truth(), "{end}");
        assert_eq!(rig.charged(), 0, "{end}");
        assert_eq!(rig.usage().managed, 0, "{end}");
    }
    probe.ends_silently();
}

#[test]
fn a_primary_context_lives_until_its_last_release() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::ProcAddress);
    assert_eq!(probe.ask("context 0"), [0]);
    assert_eq!(probe.ask("release 0"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    assert_eq!(probe.ask("release 0"), [0]);
    assert_eq!(rig.charged(), 0);
    assert_eq!(rig.truth(), 0);
}

#[test]
fn every_further_context_is_charged_too() {
    let rig = Rig::new(2, ROOM);
    for create in ["create 0", "create4 0"] {
        let mut probe = rig.ready(Way::ProcAddress);
        assert_eq!(probe.ask(create), [0]);
        assert_eq!(rig.charged(), 2 * CONTEXT);
        assert_eq!(rig.truth(), 2 * CONTEXT);
        assert_eq!(probe.ask("take linear 512"), [0, 0]);
        assert_eq!(probe.ask("release 0"), [0]);
        assert_eq!(
            rig.charged(),
            CONTEXT + 512,
            "{create}: the primary one is gone"
        );
        assert_eq!(probe.ask("destroy"), [0]);
        assert_eq!(rig.charged(), 0, "{create}");
        assert_eq!(rig.truth(), 0, "{create}");
        probe.ends_silently();
        rig.settle_the_dead();
    }
}

#[test]
fn a_context_that_does_not_fit_is_refused() {
    let rig = Rig::new(0, CONTEXT - 2 * MIB);
    let mut probe = rig.inside(Way::Handle);
    assert_eq!(probe.ask("init"), [0]);
    for line in ["context 0", "create 0"] {
        assert_eq!(probe.ask(line), [OUT_OF_MEMORY], "{line}");
    }
    assert_eq!(rig.charged(), 0);
    assert_eq!(rig.truth(), 0);
    probe.ends_silently();
}

#[test]
fn a_context_made_behind_the_hooks_is_charged_at_the_first_allocation_in_it() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.inside(Way::Handle);
    assert_eq!(probe.ask("init"), [0]);
    let hidden = format!("hidden {} 0", deep_library().display());
    assert_eq!(probe.ask(&hidden), [0]);
    assert_eq!(rig.charged(), 0);
    assert_eq!(probe.ask("take linear 512"), [0, 0]);
    assert_eq!(rig.charged(), CONTEXT + 512);
    assert_eq!(probe.ask("release 0"), [0]);
    assert_eq!(rig.charged(), 0);
    assert_eq!(rig.truth(), 0);
    // Where there is no room for it, it is charged all the same, and nothing else is given.
    let mut other = rig.inside(Way::Handle);
    assert_eq!(other.ask("init"), [0]);
    assert_eq!(other.ask(&format!("take vmm {}", rig.limit)), [0, 0]);
    assert_eq!(probe.ask(&hidden), [0]);
    assert_eq!(probe.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    assert_eq!(rig.charged(), rig.limit + CONTEXT);
    assert_eq!(probe.info(), (0, rig.limit));
}

/// A probe that sees one device, of which the limiter does not ask at each allocation.
fn with_one_device(rig: &Rig) -> Probe {
    let mut command = rig.limited(&Way::Handle.program());
    let mut probe = Probe::start(command.env("CUDA_VISIBLE_DEVICES", "0"));
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(probe.ask("context 0"), [0]);
    probe
}

#[test]
fn with_one_device_each_allocation_ends_with_its_context() {
    let rig = Rig::new(2, ROOM);
    let mut probe = with_one_device(&rig);
    assert_eq!(probe.ask(&format!("take linear {}", 10 * MIB)), [0, 0]);
    assert_eq!(probe.ask("create 0"), [0]);
    for kind in ["linear", "managed", "pitch"] {
        assert_eq!(probe.ask(&format!("take {kind} {}", 20 * MIB)), [0, 0]);
    }
    assert_eq!(rig.charged(), 2 * CONTEXT + 70 * MIB);
    assert_eq!(probe.ask("destroy"), [0]);
    assert_eq!(rig.charged(), CONTEXT + 10 * MIB);
    assert_eq!(rig.truth(), rig.charged());
    assert_eq!(probe.ask("context 0"), [0]);
    assert_eq!(probe.ask(&format!("take linear {}", 30 * MIB)), [0, 0]);
    assert_eq!(probe.ask("reset 0"), [0]);
    assert_eq!((rig.charged(), rig.truth()), (0, 0));
}

#[test]
fn with_one_device_a_thread_without_a_context_gets_the_drivers_answer() {
    const INVALID_CONTEXT: u64 = 201;
    let rig = Rig::new(1, ROOM);
    let mut probe = with_one_device(&rig);
    for held in [0, ROOM] {
        if held > 0 {
            assert_eq!(probe.ask(&format!("take linear {held}")), [0, 0]);
        }
        assert_eq!(probe.ask("leave"), [0]);
        for kind in ["linear", "managed"] {
            let said = probe.ask(&format!("take {kind} {MIB}"));
            assert_eq!(said, [INVALID_CONTEXT, 1], "{kind}, {held} bytes held");
        }
        assert_eq!(
            (rig.charged(), rig.truth()),
            (CONTEXT + held, CONTEXT + held)
        );
        assert_eq!(probe.ask("context 0"), [0]);
    }
    let denied = rig.usage().denied;
    assert_eq!(denied, 0, "the limit refused nothing");
    probe.ends_silently();
}
