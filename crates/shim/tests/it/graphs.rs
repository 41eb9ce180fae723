//! Memory that graphs take: nothing when they are made, all they need when they are launched, and never beyond the limit.

use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way};

/// Every way to instantiate that takes no memory by itself.
const HOWS: [&str; 4] = ["log", "log2", "flags", "params"];
/// Graph memory is charged by segments until the driver has said how much it is.
const SEGMENT: u64 = 32 * MIB;

/// Charge and truth are the context's cost and that many bytes.
#[track_caller]
fn is_charged(rig: &Rig, bytes: u64) {
    assert_eq!(rig.truth(), CONTEXT + bytes, "what the driver took");
    assert_eq!(rig.charged(), CONTEXT + bytes, "what is charged");
}

/// A graph of one allocation, instantiated.
fn graph(probe: &mut Probe, number: u32, bytes: u64, freed: bool) {
    let freed = u8::from(freed);
    assert_eq!(probe.ask(&format!("graph {number} {bytes} 1 {freed}")), [0]);
    assert_eq!(probe.ask(&format!("instantiate {number} flags 0")), [0, 0]);
}

#[test]
fn a_graph_takes_nothing_until_it_is_launched_and_keeps_it_until_it_is_trimmed() {
    let rig = Rig::new(1, ROOM);
    for way in Way::ALL {
        let mut probe = rig.ready(way);
        for (number, how) in HOWS.into_iter().enumerate() {
            assert_eq!(probe.ask(&format!("graph {number} {} 1 1", 64 * MIB)), [0]);
            let instantiated = probe.ask(&format!("instantiate {number} {how} 0"));
            assert_eq!(instantiated, [0, 0], "{how}");
            is_charged(&rig, 0);
            let launch = ["launch", "launchptsz", "upload", "launch"][number];
            for _ in 0..3 {
                assert_eq!(probe.ask(&format!("{launch} {number} 0")), [0], "{how}");
                is_charged(&rig, 64 * MIB);
            }
            assert_eq!(probe.ask("synchronize 0"), [0]);
            assert_eq!(probe.ask("trimgraphs"), [0]);
            is_charged(&rig, 0);
            // Trimmed memory is taken again, and outlives the graph.
            assert_eq!(probe.ask(&format!("launch {number} 0")), [0]);
            is_charged(&rig, 64 * MIB);
            assert_eq!(probe.ask(&format!("endexec {number}")), [0]);
            assert_eq!(probe.ask(&format!("endgraph {number}")), [0]);
            is_charged(&rig, 64 * MIB);
            assert_eq!(probe.ask("synchronize 0"), [0]);
            assert_eq!(probe.ask("trimgraphs"), [0]);
            is_charged(&rig, 0);
        }
        probe.ends_silently();
        rig.settle_the_dead();
    }
}

#[test]
fn a_graph_that_is_uploaded_as_it_is_instantiated_is_charged_then() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::ProcAddress);
    assert_eq!(probe.ask("stream 1"), [0]);
    assert_eq!(probe.ask(&format!("graph 0 {} 1 1", 64 * MIB)), [0]);
    assert_eq!(probe.ask("instantiate 0 uploading 1"), [0, 0]);
    is_charged(&rig, 64 * MIB);
    assert_eq!(probe.ask("launch 0 1"), [0]);
    is_charged(&rig, 64 * MIB);
    assert_eq!(probe.ask(&format!("graph 1 {} 1 1", ROOM + 2 * MIB)), [0]);
    assert_eq!(
        probe.ask("instantiate 1 uploading 1"),
        [OUT_OF_MEMORY, 1],
        "nothing is written where it is refused"
    );
    probe.ends_silently();
}

#[test]
fn a_launch_is_held_to_the_limit() {
    let rig = Rig::new(1, ROOM);
    let mut watcher = rig.outside();
    assert_eq!(watcher.ask("watch 0"), [0]);
    let mut probe = rig.ready(Way::Handle);
    for (number, (bytes, fits)) in [(ROOM - 2 * MIB, true), (ROOM, true), (ROOM + 1, false)]
        .into_iter()
        .enumerate()
    {
        graph(&mut probe, number as u32, bytes, true);
        for way in ["upload", "launch"] {
            let answer = probe.ask(&format!("{way} {number} 0"));
            assert_eq!(answer, [if fits { 0 } else { OUT_OF_MEMORY }], "{bytes}");
        }
        assert_eq!(probe.ask("synchronize 0"), [0]);
        assert_eq!(probe.ask("trimgraphs"), [0]);
        is_charged(&rig, 0);
    }
    // What others hold counts.
    assert_eq!(probe.ask(&format!("take linear {}", ROOM / 2)), [0, 0]);
    graph(&mut probe, 3, ROOM / 2, true);
    graph(&mut probe, 4, ROOM / 2 + 2 * MIB, true);
    assert_eq!(probe.ask("launch 4 0"), [OUT_OF_MEMORY]);
    assert_eq!(probe.ask("launch 3 0"), [0]);
    is_charged(&rig, ROOM);
    assert!(rig.peak(&mut watcher) <= rig.limit);
    probe.ends_silently();
}

#[test]
fn graph_memory_that_no_graph_uses_is_given_up_when_it_is_needed() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    graph(&mut probe, 0, ROOM, true);
    assert_eq!(probe.ask("launch 0 0"), [0]);
    is_charged(&rig, ROOM);
    assert_eq!(probe.ask("synchronize 0"), [0]);
    for kind in ["linear", "async", "vmm"] {
        assert_eq!(probe.ask(&format!("take {kind} {ROOM}")), [0, 0], "{kind}");
        is_charged(&rig, ROOM);
        // Now the graph has to go without.
        assert_eq!(probe.ask("launch 0 0"), [OUT_OF_MEMORY], "{kind}");
        assert_eq!(probe.ask("give"), [0]);
        assert_eq!(probe.ask("sync"), [0]);
        assert_eq!(probe.ask("launch 0 0"), [0], "{kind}");
        is_charged(&rig, ROOM);
        assert_eq!(probe.ask("synchronize 0"), [0]);
    }
    probe.ends_silently();
}

#[test]
fn a_graph_may_use_again_what_another_had_before_it_at_the_very_limit() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    for number in 0..2 {
        graph(&mut probe, number, ROOM, true);
    }
    for round in 0..6 {
        assert_eq!(
            probe.ask(&format!("launch {} 0", round % 2)),
            [0],
            "{round}"
        );
        assert!(rig.charged() <= rig.limit);
        assert_eq!(rig.charged(), rig.truth());
    }
    probe.ends_silently();
}

#[test]
fn a_graph_waits_for_the_one_before_it_in_its_stream_and_for_no_other() {
    let rig = Rig::new(1, ROOM);
    let mut watcher = rig.outside();
    assert_eq!(watcher.ask("watch 0"), [0]);
    let mut probe = rig.ready(Way::Handle);
    let prepare = |probe: &mut Probe| {
        for number in 0..2 {
            graph(probe, number, ROOM, true);
        }
        for stream in 1..3 {
            assert_eq!(probe.ask(&format!("stream {stream}")), [0]);
        }
    };
    prepare(&mut probe);
    // What runs elsewhere keeps its memory. It runs for an hour: until the process is killed.
    assert_eq!(probe.ask("busy 1 3600000"), [0]);
    assert_eq!(probe.ask("launch 0 1"), [0]);
    assert_eq!(probe.ask("launch 1 2"), [OUT_OF_MEMORY]);
    is_charged(&rig, ROOM);
    probe.kill();
    rig.settle_the_dead();
    let mut probe = rig.ready(Way::Handle);
    prepare(&mut probe);
    assert_eq!(probe.ask("busy 1 200"), [0]);
    assert_eq!(probe.ask("launch 0 1"), [0]);
    assert_eq!(probe.ask("launch 1 1"), [0]);
    is_charged(&rig, ROOM);
    assert!(rig.peak(&mut watcher) <= rig.limit);
    probe.ends_silently();
}

#[test]
fn allocations_of_one_graph_that_follow_each_other_are_charged_once() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("graph 0 {} 10 1", ROOM / 4)), [0]);
    assert_eq!(probe.ask("instantiate 0 flags 0"), [0, 0]);
    assert_eq!(probe.ask("launch 0 0"), [0]);
    is_charged(&rig, ROOM / 4);
    probe.ends_silently();
}

#[test]
fn what_a_graph_leaves_behind_is_charged_until_it_is_freed_and_trimmed() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    graph(&mut probe, 0, 64 * MIB, false);
    for _ in 0..3 {
        assert_eq!(probe.ask("launch 0 0"), [0]);
        is_charged(&rig, 64 * MIB);
        // It cannot be launched again while its allocation lives: the driver's to say.
        assert_ne!(probe.ask("launch 0 0"), [0]);
        assert_eq!(probe.ask("synchronize 0"), [0]);
        assert_eq!(probe.ask("trimgraphs"), [0]);
        is_charged(&rig, 64 * MIB);
        assert_eq!(probe.ask("freeleft 0 0"), [0]);
        is_charged(&rig, 64 * MIB);
        assert_eq!(probe.ask("synchronize 0"), [0]);
        assert_eq!(probe.ask("trimgraphs"), [0]);
        is_charged(&rig, 0);
    }
    // Another graph that shared its memory needs its own, now that this one's lives.
    graph(&mut probe, 1, ROOM - 64 * MIB, true);
    assert_eq!(probe.ask("launch 1 0"), [0]);
    assert_eq!(probe.ask("launch 0 0"), [0]);
    assert_eq!(probe.ask("launch 1 0"), [0]);
    is_charged(&rig, ROOM);
    graph(&mut probe, 2, 64 * MIB, false);
    assert_eq!(probe.ask("launch 2 0"), [0], "trimmed, it fits");
    assert_eq!(probe.ask("launch 1 0"), [OUT_OF_MEMORY]);
    assert!(rig.charged() <= rig.limit);
    assert!(rig.charged() >= rig.truth());
    probe.ends_silently();
}

#[test]
fn an_allocation_that_is_captured_is_charged_when_its_graph_is_launched() {
    let rig = Rig::new(1, ROOM);
    for way in [Way::Handle, Way::ProcAddress] {
        let mut probe = rig.ready(way);
        assert_eq!(probe.ask("stream 1"), [0]);
        // More than there is may be captured: nothing is taken.
        for (number, bytes) in [(0, 64 * MIB), (1, 2 * ROOM)] {
            let captured = probe.ask(&format!("capture {number} 1 {bytes} 1"));
            assert_eq!(captured, [0, 0, 0, 0], "{bytes}");
            let instantiated = probe.ask(&format!("instantiate {number} flags 1"));
            assert_eq!(instantiated, [0, 0], "{bytes}");
            is_charged(&rig, 0);
        }
        assert_eq!(probe.ask("launch 0 1"), [0]);
        is_charged(&rig, 64 * MIB);
        assert_eq!(probe.ask("launch 1 1"), [OUT_OF_MEMORY]);
        assert_eq!(probe.ask("synchronize 1"), [0]);
        assert_eq!(probe.ask("trimgraphs"), [0]);
        is_charged(&rig, 0);
        // The limiter asked nothing during the captures that the driver holds against the program.
        assert_eq!(probe.ask(&format!("take async {}", 32 * MIB)), [0, 0]);
        assert_eq!(probe.ask("giveall"), [0]);
        probe.ends_silently();
        rig.settle_the_dead();
    }
}

#[test]
fn what_the_limiter_asks_the_driver_ends_no_capture() {
    let rig = Rig::new(1, ROOM);
    for mode in 0..3 {
        let mut probe = rig.ready(Way::Handle);
        for stream in 1..3 {
            assert_eq!(probe.ask(&format!("stream {stream}")), [0]);
        }
        // The default pool keeps all there is, and so do graphs.
        assert_eq!(probe.ask("pool 0 1"), [0]);
        assert_eq!(probe.ask(&format!("threshold {}", u64::MAX)), [0]);
        assert_eq!(probe.ask(&format!("take async {}", ROOM / 2)), [0, 0]);
        assert_eq!(probe.ask("give"), [0]);
        graph(&mut probe, 0, ROOM / 2, true);
        assert_eq!(probe.ask("launch 0 2"), [0]);
        assert_eq!(probe.ask("synchronize 2"), [0]);
        is_charged(&rig, ROOM);
        assert_eq!(probe.ask("pool 0 0"), [0]);
        assert_eq!(probe.ask(&format!("begin 1 {mode}")), [0]);
        // For this it has to take all of that back, and is then asked for more than there is.
        assert_eq!(probe.ask(&format!("takeon 2 {ROOM} 1")), [0, 0], "{mode}");
        assert_eq!(probe.ask("takeon 2 512 0"), [OUT_OF_MEMORY, 1], "{mode}");
        assert_eq!(probe.ask("launch 0 2"), [OUT_OF_MEMORY], "{mode}");
        assert_eq!(probe.ask(&format!("takeon 1 {ROOM} 0")), [0, 0], "{mode}");
        assert_eq!(probe.ask("end 1 1"), [0], "{mode}");
        assert_eq!(probe.ask("instantiate 1 flags 1"), [0, 0], "{mode}");
        is_charged(&rig, ROOM);
        probe.ends_silently();
        rig.settle_the_dead();
    }
}

#[test]
fn a_graph_on_a_gpu_outside_the_slice_is_not_instantiated() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask("graphon 0 512 1"), [0]);
    for how in ["log", "log2", "flags", "params", "uploading"] {
        let answer = probe.ask(&format!("instantiate 0 {how} 0"));
        assert_eq!(answer, [OUT_OF_MEMORY, 1], "{how}");
    }
    is_charged(&rig, 0);
    probe.ends_silently();
}

#[test]
fn a_graph_without_memory_is_nobodys_business() {
    let rig = Rig::new(0, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask("graph 0 0 0 0"), [0]);
    for (number, how) in HOWS.into_iter().enumerate() {
        assert_eq!(
            probe.ask(&format!("instantiate 0 {how} 0")),
            [0, 0],
            "{how}"
        );
        assert_eq!(probe.ask("launch 0 0"), [0], "{number}");
        assert_eq!(probe.ask("endexec 0"), [0]);
    }
    is_charged(&rig, 0);
    probe.ends_silently();
}

#[test]
fn graph_memory_dies_with_its_process() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    graph(&mut probe, 0, ROOM, false);
    assert_eq!(probe.ask("launch 0 0"), [0]);
    is_charged(&rig, ROOM);
    probe.kill();
    let mut next = rig.ready(Way::Handle);
    graph(&mut next, 0, ROOM, true);
    assert_eq!(next.ask("launch 0 0"), [0]);
    is_charged(&rig, ROOM);
    next.ends_silently();
}

#[test]
fn free_memory_is_what_a_graph_would_be_granted() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    graph(&mut probe, 0, SEGMENT, true);
    assert_eq!(probe.ask("launch 0 0"), [0]);
    assert_eq!(probe.info(), (ROOM - SEGMENT, rig.limit));
    assert_eq!(probe.ask("graphmemory")[2], SEGMENT);
    probe.ends_silently();
}
