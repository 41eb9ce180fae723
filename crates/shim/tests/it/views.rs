//! CUDA and NVML show the slice, and agree.

use divvy_testkit::Bounded as _;

use crate::support::{CONTEXT, Form, MIB, ROOM, Rig, Way, compiled, documented_hooks};

const INSUFFICIENT_SIZE: u64 = 7;

#[test]
fn every_view_shows_the_same_total_and_free() {
    let rig = Rig::new(1, ROOM);
    for way in Way::ALL {
        let mut probe = rig.ready(way);
        for held in [0, 64 * MIB, ROOM] {
            if held > 0 {
                assert_eq!(probe.ask(&format!("take linear {held}")), [0, 0]);
            }
            let free = ROOM - held;
            assert_eq!(probe.info(), (free, rig.limit), "{way:?}");
            let total = rig.limit;
            let used = total - free;
            assert_eq!(probe.ask("total 0"), [0, total], "{way:?}");
            assert_eq!(
                probe.ask("nvml 0"),
                [0, total, free, used, 0, total, free, used, 0],
                "{way:?}"
            );
            if held > 0 {
                assert_eq!(probe.ask("give"), [0]);
            }
        }
        probe.ends_silently();
        rig.settle_the_dead();
    }
}

#[test]
fn what_is_free_is_what_an_allocation_gets() {
    let rig = Rig::new(2, ROOM);
    let mut other = rig.ready(Way::Handle);
    assert_eq!(other.ask(&format!("take linear {}", 100 * MIB)), [0, 0]);
    let mut probe = rig.ready(Way::Handle);
    let (free, _) = probe.info();
    assert_eq!(free, ROOM - 100 * MIB);
    assert_eq!(probe.ask(&format!("take linear {}", free + 1)), [2, 1]);
    assert_eq!(probe.ask(&format!("take linear {free}")), [0, 0]);
    assert_eq!(probe.info(), (0, rig.limit));
}

#[test]
fn memory_of_a_process_that_has_ended_is_free_in_every_view_at_once() {
    let rig = Rig::new(3, ROOM);
    let whole = (rig.limit - CONTEXT, rig.limit);
    let (mut probe, mut monitor) = (rig.ready(Way::Handle), rig.inside(Way::Handle));
    for killed in [false, true] {
        let mut other = rig.ready(Way::Handle);
        assert_eq!(other.ask(&format!("take linear {ROOM}")), [0, 0]);
        let left = rig.limit - 2 * CONTEXT - ROOM;
        assert_eq!(probe.info(), (left, rig.limit));
        if killed {
            other.kill();
        }
        drop(other);
        assert_eq!(probe.info(), whole, "killed: {killed}");
        assert_eq!(probe.ask("nvml 0")[2], whole.0, "killed: {killed}");
        assert_eq!(monitor.ask("nvml 0")[2], whole.0, "without a slot");
        assert_eq!(rig.charged(), 2 * CONTEXT + ROOM, "reservations count it");
        rig.settle_the_dead();
    }
    let mut other = rig.ready(Way::Handle);
    assert_eq!(other.ask(&format!("take linear {ROOM}")), [0, 0]);
    drop(other);
    assert_eq!(monitor.ask("nvml 0")[2], whole.0, "the monitor looks first");
    assert_eq!(probe.info(), whole);
    // An allocation waits until the driver has the memory back, which is not known here before two seconds have passed.
    let most = rig.limit - CONTEXT;
    assert_eq!(probe.ask(&format!("take linear {most}")), [0, 0]);
    assert_eq!(probe.info(), (0, rig.limit));
}

#[test]
fn memory_that_a_living_process_shares_stays_in_view_when_its_maker_has_ended() {
    let rig = Rig::new(2, ROOM);
    let (mut maker, mut user) = (rig.ready(Way::Handle), rig.ready(Way::Handle));
    assert_eq!(maker.ask(&format!("take linear {}", 64 * MIB)), [0, 0]);
    let said = maker.ask("ipcget");
    let words: Vec<String> = said[1..]
        .iter()
        .map(|word| (*word as i64).to_string())
        .collect();
    assert_eq!(user.ask(&format!("ipcopen {}", words.join(" "))), [0, 0]);
    let shared = rig.limit - CONTEXT - 64 * MIB;
    assert_eq!(user.info(), (shared - CONTEXT, rig.limit));
    maker.kill();
    assert_eq!(user.info(), (shared, rig.limit));
    assert_eq!(user.ask("ipcclose"), [0]);
    assert_eq!(user.info(), (rig.limit - CONTEXT, rig.limit));
}

#[test]
fn a_gpu_with_less_left_than_the_slice_shows_what_is_left() {
    let rig = Rig::new(1, 1 << 40);
    let mut outside = rig.outside();
    assert_eq!(outside.ask("init"), [0]);
    assert_eq!(outside.ask("context 0"), [0]);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.info(), outside.info(), "the limit is beyond the GPU");
    assert_eq!(probe.ask("nvml 0")[1], outside.ask("nvml 0")[1]);
}

#[test]
fn monitors_see_the_slice_without_joining_it() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("take linear {}", 64 * MIB)), [0, 0]);
    let mut monitor = rig.inside(Way::Handle);
    let (total, free, used) = (rig.limit, ROOM - 64 * MIB, CONTEXT + 64 * MIB);
    assert_eq!(
        monitor.ask("nvml 0"),
        [0, total, free, used, 0, total, free, used, 0]
    );
    assert_eq!(rig.slice().read().unwrap().processes().len(), 1);
    monitor.ends_silently();
}

#[test]
fn a_gpu_outside_the_slice_shows_its_own_memory_and_no_other_users_processes() {
    let rig = Rig::new(1, ROOM);
    let mut stranger = rig.outside();
    assert_eq!(stranger.ask("init"), [0]);
    assert_eq!(stranger.ask("context 1"), [0]);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask("nvml 1"), stranger.ask("nvml 1"));
    assert_eq!(stranger.ask("processes 1 3 8")[..3], [0, 1, stranger.pid()]);
    assert_eq!(probe.ask("processes 1 3 8"), [0, 0, 1]);
}

#[test]
fn process_lists_show_the_slices_processes_with_what_they_are_charged() {
    let rig = Rig::new(2, ROOM);
    let mut stranger = rig.outside();
    assert_eq!(stranger.ask("init"), [0]);
    assert_eq!(stranger.ask("context 0"), [0]);
    for way in [Way::Handle, Way::Linked] {
        let mut one = rig.ready(way);
        let mut two = rig.ready(way);
        assert_eq!(one.ask(&format!("take linear {}", 10 * MIB)), [0, 0]);
        for version in [1, 2, 3] {
            let said = two.ask(&format!("processes 0 {version} 8"));
            assert_eq!(said[..2], [0, 2], "version {version}");
            let listed: Vec<_> = said[2..6]
                .chunks(2)
                .map(|pair| (pair[0], pair[1]))
                .collect();
            assert!(
                listed.contains(&(one.pid(), CONTEXT + 10 * MIB)),
                "version {version}: {listed:?}"
            );
            assert!(
                listed.contains(&(two.pid(), CONTEXT)),
                "version {version}: {listed:?}"
            );
            assert_eq!(said[6], 1, "version {version} wrote behind its entries");
        }
        assert_eq!(two.ask("processes 0 0 8"), [0, 0, 1], "nobody draws");
        one.ends_silently();
        two.ends_silently();
        rig.settle_the_dead();
    }
}

#[test]
fn process_lists_keep_the_protocol_of_sizes() {
    let rig = Rig::new(2, ROOM);
    let mut stranger = rig.outside();
    assert_eq!(stranger.ask("init"), [0]);
    assert_eq!(stranger.ask("context 0"), [0]);
    let mut one = rig.inside(Way::Handle);
    for version in [1, 2, 3] {
        assert_eq!(
            one.ask(&format!("processes 0 {version} 0")),
            [0, 0, 1],
            "none is a success"
        );
    }
    assert_eq!(one.ask("init"), [0]);
    assert_eq!(one.ask("context 0"), [0]);
    let _two = rig.ready(Way::Handle);
    for version in [1, 2, 3] {
        for room in [0, 1] {
            let said = one.ask(&format!("processes 0 {version} {room}"));
            assert_eq!(
                said,
                [INSUFFICIENT_SIZE, 2, 1],
                "version {version}, room for {room}"
            );
        }
        assert_eq!(one.ask(&format!("processes 0 {version} 2"))[..2], [0, 2]);
    }
    assert_eq!(one.ask("processes-null"), stranger.ask("processes-null"));
}

/// The CUDA runtime refuses to work where a device's identity is not what it computes itself.
#[test]
fn what_a_device_is_stays_what_the_driver_says() {
    let rig = Rig::new(1, ROOM);
    let program = compiled("identity.c", "identity", &[]);
    let said = |mut command: std::process::Command| {
        let output = command.output_bounded().expect("it runs");
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8(output.stdout).expect("text")
    };
    let bare = said(rig.bare(&program));
    assert!(bare.lines().count() > 2 * 160);
    for form in [Form::Preload, Form::Wrapper] {
        let held = said(rig.held(&program, form));
        for (held, bare) in held.lines().zip(bare.lines()) {
            assert_eq!(held, bare, "{form:?}");
        }
        assert_eq!(held.len(), bare.len());
    }
    // How busy a GPU is stays what the driver says too, and so does what has no memory and no process in it.
    for name in [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetFieldValues",
    ] {
        assert!(!documented_hooks().contains(name), "{name}");
    }
}
