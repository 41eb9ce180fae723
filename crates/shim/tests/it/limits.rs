//! Not a byte more, not a byte less, by every way of allocating.

use divvy_ledger::{Control, Slice};

use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way};

/// Asks for just less than is left, for what is left, and for more; gives back in between.
fn is_held_to_the_limit(kind: &str, way: Way, unit: u64) {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(way);
    if kind.starts_with("pool") {
        assert_eq!(probe.ask("pool 0 1"), [0]);
    }
    for (bytes, fits) in [
        (ROOM - unit, true),
        (ROOM, true),
        (ROOM + unit, false),
        (ROOM, true),
    ] {
        let answer = probe.ask(&format!("take {kind} {bytes}"));
        if fits {
            assert_eq!(
                answer,
                [0, 0],
                "{kind} {way:?}: {bytes} of {ROOM} bytes were refused"
            );
            let taken = bytes.next_multiple_of(if kind.contains('l') {
                2 * MIB
            } else {
                32 * MIB
            });
            assert!(
                rig.charged() <= CONTEXT + taken.next_multiple_of(32 * MIB),
                "{kind}: charged too much"
            );
            assert!(
                rig.charged() >= rig.truth(),
                "{kind}: charged less than the driver took"
            );
            assert_eq!(probe.ask("give"), [0]);
            assert_eq!(probe.ask("sync"), [0]);
            let _ = probe.info();
        } else {
            assert_eq!(
                answer,
                [OUT_OF_MEMORY, 1],
                "{kind} {way:?}: {bytes} of {ROOM} bytes"
            );
        }
        assert_eq!(
            rig.charged(),
            CONTEXT,
            "{kind} {way:?}: {bytes} bytes left a trace"
        );
        assert_eq!(
            rig.truth(),
            CONTEXT,
            "{kind} {way:?}: the driver still has some of {bytes} bytes"
        );
    }
    // What exceeds the GPU the driver refuses, with a code of its own (`oversize`).
    let answer = probe.ask(&format!("take {kind} {}", u64::MAX));
    assert!(
        matches!(answer[..], [1..=OUT_OF_MEMORY, 1]),
        "{kind}: {answer:?}"
    );
    assert_eq!(rig.charged(), CONTEXT);
    probe.ends_silently();
}

#[test]
fn linear_memory_is_held_to_the_limit() {
    for way in Way::ALL {
        is_held_to_the_limit("linear", way, 1);
    }
}

#[test]
fn managed_memory_is_held_to_the_limit() {
    for way in Way::ALL {
        is_held_to_the_limit("managed", way, 1);
    }
}

#[test]
fn pitched_memory_is_held_to_the_limit() {
    let rig = Rig::new(1, ROOM);
    for way in Way::ALL {
        let mut probe = rig.ready(way);
        for (height, answer) in [(511, vec![0, 0, MIB]), (512, vec![0, 0, MIB])] {
            assert_eq!(
                probe.ask(&format!("pitch {MIB} {height}")),
                answer,
                "{way:?}"
            );
            assert_eq!(probe.ask("give"), [0]);
        }
        // Rows are padded, so 513 fewer bytes a row are no bytes saved at all.
        for (width, height) in [
            (MIB, 513),
            (MIB - 511, 513),
            (u64::MAX, 2),
            (u64::MAX / 2, 3),
            (2, u64::MAX),
        ] {
            assert_eq!(
                probe.ask(&format!("pitch {width} {height}")),
                [OUT_OF_MEMORY, 1, 0],
                "{width} x {height} {way:?}"
            );
        }
        assert_eq!(rig.charged(), CONTEXT, "{way:?}");
        drop(probe);
        rig.settle_the_dead();
    }
}

#[test]
fn memory_by_handle_is_held_to_the_limit() {
    for way in Way::ALL {
        is_held_to_the_limit("vmm", way, 2 * MIB);
    }
}

#[test]
fn stream_ordered_memory_is_held_to_the_limit() {
    for way in Way::ALL {
        for kind in ["async", "ptsz", "pool", "poolptsz"] {
            is_held_to_the_limit(kind, way, 1);
        }
    }
}

#[test]
fn arrays_are_held_to_the_limit() {
    for way in Way::ALL {
        // Rows of 1 MiB in groups of eight, slices of 1 MiB, rows of half a MiB.
        for (kind, unit) in [
            ("array", 8 * MIB),
            ("arrayv1", 8 * MIB),
            ("array3d", MIB),
            ("array3dv1", MIB),
            ("mipmapped", 4 * MIB),
        ] {
            is_held_to_the_limit(kind, way, unit);
        }
    }
}

#[test]
fn arrays_of_a_driver_that_cannot_be_asked_are_charged_at_least_what_they_take() {
    let fault = "[[fault]]\nfunction = 'cu*ArrayGetMemoryRequirements'\ntimes = 0\ncode = 801\n";
    let rig = Rig::on(fault, 1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    for kind in ["array", "arrayv1", "array3d", "array3dv1", "mipmapped"] {
        assert_eq!(probe.ask(&format!("take {kind} {}", 64 * MIB)), [0, 0]);
        assert_eq!(rig.charged(), rig.truth(), "{kind}");
        assert_eq!(
            probe.ask(&format!("take {kind} {ROOM}")),
            [OUT_OF_MEMORY, 1]
        );
        assert_eq!(probe.ask("give"), [0]);
        assert_eq!(rig.charged(), CONTEXT, "{kind}");
    }
    probe.ends_silently();
}

#[test]
fn limits_of_a_context_are_charged_until_the_context_ends() {
    const STACK: u64 = 0;
    const PRINTF: u64 = 1;
    const HEAP: u64 = 2;
    for way in Way::ALL {
        let rig = Rig::new(1, ROOM);
        let mut probe = rig.ready(way);
        // An A100 has 108 processors for 2048 threads each.
        let threads = 108 * 2048;
        assert_eq!(probe.ask(&format!("limitof {STACK} {}", 2048)), [0]);
        assert_eq!(rig.charged(), CONTEXT + 1024 * threads);
        assert_eq!(rig.charged(), rig.truth());
        for (limit, value) in [
            (STACK, 8192),
            (HEAP, ROOM),
            (PRINTF, ROOM),
            (HEAP, u64::MAX),
        ] {
            assert_eq!(
                probe.ask(&format!("limitof {limit} {value}")),
                [OUT_OF_MEMORY],
                "{limit} {value}"
            );
            assert_eq!(rig.charged(), rig.truth());
        }
        // Lowered, it is believed to be kept; raised again to what it was, it costs nothing.
        assert_eq!(probe.ask(&format!("limitof {STACK} 1024")), [0]);
        assert_eq!(rig.charged(), CONTEXT + 1024 * threads);
        assert_eq!(probe.ask(&format!("limitof {STACK} 2048")), [0]);
        assert_eq!(rig.charged(), rig.truth());
        let left = rig.limit - rig.charged();
        assert_eq!(
            probe.ask(&format!("limitof {HEAP} {}", left + 10 * MIB)),
            [OUT_OF_MEMORY]
        );
        assert_eq!(
            probe.ask(&format!("limitof {HEAP} {}", left + 8 * MIB)),
            [0]
        );
        assert_eq!(rig.charged(), rig.limit);
        assert_eq!(rig.charged(), rig.truth());
        assert_eq!(probe.ask("reset 0"), [0]);
        assert_eq!(rig.charged(), 0, "{way:?}");
        probe.ends_silently();
    }
}

#[test]
fn pinned_host_memory_is_counted_beside_the_limit_or_within_it_where_there_is_no_other() {
    for (config, charge) in [("", 0), ("integrated = true\n", 64 * MIB)] {
        let rig = Rig::on(config, 1, ROOM);
        let mut probe = rig.ready(Way::Handle);
        assert_eq!(probe.ask(&format!("pin {}", 64 * MIB)), [0]);
        assert_eq!(rig.usage().host, 64 * MIB);
        assert_eq!(rig.charged(), CONTEXT + charge, "{config}");
        assert_eq!(probe.ask("unpin"), [0]);
        assert_eq!(rig.usage().host, 0);
        assert_eq!(rig.charged(), CONTEXT);
        let too_much = probe.ask(&format!("pin {}", ROOM + MIB));
        assert_eq!(too_much == [OUT_OF_MEMORY], charge > 0, "{config}");
    }
}

#[test]
fn small_allocations_add_up_to_the_limit() {
    let rig = Rig::new(1, 4 * MIB);
    let mut probe = rig.ready(Way::Handle);
    // 512 bytes each, as the driver divides its pages.
    assert_eq!(probe.ask("fill linear 1"), [4 * MIB / 512, OUT_OF_MEMORY]);
    assert_eq!(rig.charged(), rig.limit);
    assert_eq!(probe.ask("giveall"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    probe.ends_silently();
}

#[test]
fn a_pool_gives_what_it_has_when_the_slice_has_nothing_left() {
    let rig = Rig::new(1, 64 * MIB);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("fill async {MIB}")), [64, OUT_OF_MEMORY]);
    assert_eq!(rig.charged(), rig.limit);
    assert_eq!(rig.truth(), rig.limit);
    assert_eq!(probe.ask("giveall"), [0]);
    assert_eq!(probe.ask("sync"), [0]);
    assert_eq!(probe.info(), (64 * MIB, rig.limit));
    assert_eq!(rig.charged(), CONTEXT);
    probe.ends_silently();
}

#[test]
fn a_pool_of_managed_memory_is_charged_wherever_its_pages_are() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask("pool 0 3"), [0]);
    assert_eq!(probe.ask(&format!("take pool {ROOM}")), [0, 0]);
    assert_eq!(rig.charged(), rig.limit);
    assert_eq!(rig.truth(), rig.limit);
    assert_eq!(probe.ask("take pool 1"), [OUT_OF_MEMORY, 1]);
    assert_eq!(probe.ask("give"), [0]);
    assert_eq!(probe.ask("endpool"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    probe.ends_silently();
}

#[test]
fn memory_that_a_pool_keeps_is_charged_and_given_up_when_it_is_needed() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask("pool 0 1"), [0]);
    assert_eq!(probe.ask(&format!("threshold {}", u64::MAX)), [0]);
    assert_eq!(probe.ask(&format!("take async {ROOM}")), [0, 0]);
    assert_eq!(probe.ask("give"), [0]);
    assert_eq!(probe.ask("sync"), [0]);
    assert_eq!(probe.ask("reserved"), [0, ROOM]);
    assert_eq!(
        rig.charged(),
        rig.limit,
        "what the pool keeps is still the slice's"
    );
    assert_eq!(rig.truth(), rig.limit);
    // Another kind of allocation needs it: the pool is trimmed.
    assert_eq!(probe.ask(&format!("take linear {ROOM}")), [0, 0]);
    assert_eq!(probe.ask("reserved"), [0, 0]);
    assert_eq!(rig.charged(), rig.limit);
    assert_eq!(rig.truth(), rig.limit);
    assert_eq!(probe.ask("take async 1"), [OUT_OF_MEMORY, 1]);
    assert_eq!(probe.ask("give"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    probe.ends_silently();
}

#[test]
fn memory_of_a_pool_is_given_back_at_the_next_synchronising_call() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    for _ in 0..2 {
        assert_eq!(probe.ask(&format!("take async {}", 64 * MIB)), [0, 0]);
        assert_eq!(rig.charged(), CONTEXT + 64 * MIB);
        assert_eq!(probe.ask("give"), [0]);
        assert_eq!(probe.ask("sync"), [0]);
        assert_eq!((rig.truth(), rig.charged()), (CONTEXT, CONTEXT));
    }
    probe.ends_silently();
}

#[test]
fn a_stream_ordered_allocation_makes_two_more_calls_of_the_driver_and_its_free_none() {
    const PAIRS: usize = 10;
    let rig = Rig::new(1, ROOM);
    let mut command = rig.limited(&Probe::handle_program());
    let mut probe = Probe::start(command.env("DIVVY_SIM_LOG", rig.path("log")));
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(probe.ask("context 0"), [0]);
    let mut pair = || {
        assert_eq!(probe.ask(&format!("take async {MIB}")), [0, 0]);
        assert_eq!(probe.ask("give"), [0]);
    };
    // The first one finds the pool.
    pair();
    let before = rig.driver_calls().lines().count();
    (0..PAIRS).for_each(|_| pair());
    let calls = rig.driver_calls();
    let calls: Vec<&str> = calls.lines().skip(before).collect();
    let count = |name| calls.iter().filter(|line| line.contains(name)).count();
    // The current device is not asked for where there is one GPU.
    let names = [
        "cuCtxGetDevice",
        "cuMemAllocAsync",
        "cuMemPoolGetAttribute",
        "cuMemFreeAsync",
    ];
    let counts = names.map(count);
    assert_eq!((counts, calls.len()), ([PAIRS; 4], 4 * PAIRS), "{calls:?}");
    probe.ends_silently();
}

#[test]
fn a_pool_of_the_programs_own_is_charged_until_its_last_allocation_is_freed() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask("pool 0 0"), [0]);
    assert_eq!(probe.ask(&format!("take pool {}", 64 * MIB)), [0, 0]);
    assert_eq!(rig.charged(), CONTEXT + 64 * MIB);
    assert_eq!(probe.ask("endpool"), [0]);
    assert_eq!(
        rig.charged(),
        CONTEXT + 64 * MIB,
        "the allocation outlives its pool"
    );
    assert_eq!(probe.ask("give"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    assert_eq!(probe.ask("sync"), [0]);
    assert_eq!(rig.truth(), CONTEXT);
    // Empty ones are given back at once, and trimming is seen.
    assert_eq!(probe.ask("pool 0 0"), [0]);
    assert_eq!(probe.ask(&format!("threshold {}", u64::MAX)), [0]);
    for end in ["trim", "endpool"] {
        assert_eq!(probe.ask(&format!("take pool {}", 64 * MIB)), [0, 0]);
        assert_eq!(probe.ask("give"), [0]);
        assert_eq!(rig.charged(), CONTEXT + 64 * MIB);
        assert_eq!(probe.ask(end), [0]);
        assert_eq!(rig.charged(), CONTEXT, "after {end}");
    }
    probe.ends_silently();
}

#[test]
fn handles_are_charged_until_neither_a_reference_nor_a_mapping_is_left() {
    let rig = Rig::new(1, ROOM);
    let bytes = 64 * MIB;
    let mut probe = rig.ready(Way::ProcAddress);
    let charged = CONTEXT + bytes;
    assert_eq!(probe.ask(&format!("take vmm {bytes}")), [0, 0]);
    assert_eq!(probe.ask(&format!("vmm map {bytes}")), [0]);
    assert_eq!(rig.charged(), charged);
    assert_eq!(probe.ask("give"), [0]);
    assert_eq!(rig.charged(), charged, "released, still mapped");
    assert_eq!(probe.ask("vmm retain 0"), [0]);
    assert_eq!(probe.ask("vmm unmap 0"), [0]);
    assert_eq!(rig.charged(), charged, "unmapped, still referenced");
    assert_eq!(rig.truth(), charged);
    assert_eq!(probe.ask("give"), [0]);
    assert_eq!(rig.charged(), CONTEXT);
    assert_eq!(rig.truth(), CONTEXT);
    probe.ends_silently();
}

#[test]
fn handles_need_no_context_and_host_memory_is_not_charged() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.inside(Way::Handle);
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(probe.ask(&format!("take vmm {}", 64 * MIB)), [0, 0]);
    assert_eq!(rig.charged(), 64 * MIB);
    assert_eq!(probe.ask("give"), [0]);
    assert_eq!(rig.charged(), 0);
    let _ = probe.ask(&format!("vmm host {}", 64 * MIB));
    assert_eq!(rig.charged(), 0);
}

#[test]
fn a_gpu_outside_the_slice_gives_nothing() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask("vmm on 1"), [OUT_OF_MEMORY]);
    for own in [1, 0] {
        assert_eq!(probe.ask(&format!("pool 1 {own}")), [0]);
        assert_eq!(probe.ask("take pool 512"), [OUT_OF_MEMORY, 1]);
    }
    assert_eq!(probe.ask("context 1"), [0]);
    for kind in ["linear", "managed", "async"] {
        assert_eq!(
            probe.ask(&format!("take {kind} 512")),
            [OUT_OF_MEMORY, 1],
            "{kind}"
        );
    }
    assert_eq!(probe.info().0, 0);
    assert_eq!(rig.charged(), CONTEXT);
    probe.ends_silently();
}

#[test]
fn a_device_that_does_not_exist_is_the_drivers_to_refuse() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    let mut outside = rig.outside();
    assert_eq!(outside.ask("init"), [0]);
    assert_eq!(probe.ask("vmm on 9"), outside.ask("vmm on 9"));
}

#[test]
fn what_has_no_place_for_the_answer_is_the_drivers_to_refuse() {
    let rig = Rig::new(1, ROOM);
    let mut outside = rig.outside();
    assert_eq!(outside.ask("init"), [0]);
    assert_eq!(outside.ask("context 0"), [0]);
    let (nulls, nothing) = (outside.ask("nulls"), outside.ask("take linear 0"));
    drop(outside);
    for way in Way::ALL {
        let mut probe = rig.ready(way);
        assert_eq!(probe.ask("nulls"), nulls, "{way:?}");
        assert_eq!(probe.ask("take linear 0"), nothing, "{way:?}");
        assert_eq!(rig.charged(), CONTEXT);
        drop(probe);
        rig.settle_the_dead();
    }
}

#[test]
fn calls_without_a_context_get_the_drivers_own_answers() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.inside(Way::Handle);
    let mut outside = rig.outside();
    for line in [
        "take linear 512",
        "take async 512",
        "info",
        "init",
        "take linear 512",
        "take async 512",
        "info",
    ] {
        assert_eq!(probe.ask(line), outside.ask(line), "{line}");
    }
    assert_eq!(rig.charged(), 0);
}

#[test]
fn an_unknown_address_reaches_the_driver_once() {
    let rig = Rig::new(1, ROOM);
    let mut command = rig.limited(&Probe::handle_program());
    let mut probe = Probe::start(command.env("DIVVY_SIM_LOG", rig.path("log")));
    assert_eq!(probe.ask("init"), [0]);
    assert_eq!(probe.ask("context 0"), [0]);
    assert_ne!(probe.ask("freeaddress 4096"), [0]);
    assert_eq!(probe.ask("freeaddress 0"), [0]);
    assert_eq!(probe.ask("take linear 512"), [0, 0]);
    assert_eq!(probe.ask("give"), [0]);
    probe.ends_silently();
    let calls = rig.driver_calls();
    assert_eq!(calls.matches("cuMemFree_v2").count(), 3, "{calls}");
    assert_eq!(rig.charged(), CONTEXT);
}

#[test]
fn a_failed_driver_call_costs_nothing() {
    let faults = [
        "cuMemAlloc_v2",
        "cuMemCreate",
        "cuMemAllocAsync",
        "cuMemAllocManaged",
        "cuMemAllocPitch_v2",
    ];
    let mut config = String::new();
    for function in faults
        .into_iter()
        .chain(["cuMemFree_v2", "cuMemRelease", "cuCtxCreate_v2"])
    {
        config += &format!("[[fault]]\nfunction = '{function}'\ncode = 700\n");
    }
    let rig = Rig::on(&config, 2, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask("create 0"), [700]);
    assert_eq!(rig.charged(), CONTEXT);
    for kind in ["linear", "vmm", "async", "managed", "pitch"] {
        assert_eq!(
            probe.ask(&format!("take {kind} {}", 2 * MIB))[0],
            700,
            "{kind}"
        );
        assert_eq!(rig.charged(), CONTEXT, "{kind}");
    }
    // What could not be freed is still there.
    for kind in ["linear", "vmm"] {
        assert_eq!(probe.ask(&format!("take {kind} {}", 2 * MIB)), [0, 0]);
        assert_eq!(probe.ask("give"), [700]);
        assert_eq!(rig.charged(), rig.truth(), "{kind}");
    }
    assert_eq!(rig.charged(), CONTEXT + 4 * MIB);
}

#[test]
fn a_limit_lowered_below_what_is_used_refuses_and_breaks_nothing() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("take linear {ROOM}")), [0, 0]);
    Control::open_writable(&rig.slice_folder())
        .unwrap()
        .set_limit(0, CONTEXT + ROOM / 2);
    assert_eq!(probe.info(), (0, CONTEXT + ROOM / 2));
    assert_eq!(probe.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    assert_eq!(probe.ask("give"), [0]);
    assert_eq!(probe.ask(&format!("take linear {}", ROOM / 2)), [0, 0]);
    assert_eq!(probe.ask("take linear 512"), [OUT_OF_MEMORY, 1]);
    probe.ends_silently();
}

#[test]
fn each_gpu_of_a_slice_is_charged_by_its_uuid_whatever_its_number() {
    let rig = Rig::new(1, ROOM);
    let both = rig.path("both");
    let mut spec = rig.spec(&rig.uuids, 0);
    spec.gpus[0].limit = CONTEXT + ROOM;
    spec.gpus[1].limit = CONTEXT + ROOM / 2;
    Control::create(&both, &spec).expect("a slice of two GPUs");
    let charged = |gpu| {
        let usage = Slice::open(&both)
            .and_then(|slice| slice.usage(gpu))
            .expect("a sound slice");
        usage.charged + usage.overhead
    };
    let name = |uuid: &[u8; 16]| {
        let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    };
    let turned = format!("{},{}", name(&rig.uuids[1]), name(&rig.uuids[0]));
    let mut command = rig.limited(&Probe::handle_program());
    let mut probe = Probe::start(
        command
            .env("DIVVY_SLICE", &both)
            .env("CUDA_VISIBLE_DEVICES", turned),
    );
    assert_eq!(probe.ask("init"), [0]);
    // The program's GPU 0 is the slice's second.
    assert_eq!(probe.ask("total 0"), [0, CONTEXT + ROOM / 2]);
    assert_eq!(probe.ask("total 1"), [0, CONTEXT + ROOM]);
    assert_eq!(probe.ask("context 0"), [0]);
    assert_eq!((charged(0), charged(1)), (0, CONTEXT));
    assert_eq!(
        probe.ask(&format!("take linear {}", ROOM / 2 + 1)),
        [OUT_OF_MEMORY, 1]
    );
    assert_eq!(probe.ask(&format!("take linear {}", ROOM / 2)), [0, 0]);
    assert_eq!((charged(0), charged(1)), (0, CONTEXT + ROOM / 2));
    // By location and by pool, the named GPU is charged and not the current one.
    assert_eq!(probe.ask("vmm on 1"), [0]);
    assert_eq!(charged(0), 2 * MIB);
    assert_eq!(probe.ask("pool 1 1"), [0]);
    assert_eq!(probe.ask(&format!("take pool {}", 32 * MIB)), [0, 0]);
    assert_eq!((charged(0), charged(1)), (34 * MIB, CONTEXT + ROOM / 2));
    // NVML counts as the machine does, and its views are turned accordingly.
    assert_eq!(
        probe.ask("nvml 0")[1..4],
        [CONTEXT + ROOM, CONTEXT + ROOM - 34 * MIB, 34 * MIB]
    );
    assert_eq!(
        probe.ask("nvml 1")[1..4],
        [CONTEXT + ROOM / 2, 0, CONTEXT + ROOM / 2]
    );
    probe.ends_silently();
}
