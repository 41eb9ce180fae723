//! What is written down when a program gets OUT_OF_MEMORY.

use divvy_ledger::{AllocationKind, Denial, DenialCause};

use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, Way};

fn denials(rig: &Rig) -> Vec<Denial> {
    rig.slice().denials().expect("a sound slice").0
}

/// The only record there is.
fn record(rig: &Rig) -> Denial {
    let mut all = denials(rig);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn sizes(denial: &Denial) -> Vec<(u64, u32, AllocationKind)> {
    let named = denial.largest.iter();
    named
        .map(|live| (live.bytes, live.count, live.kind))
        .collect()
}

#[test]
fn a_refusal_names_the_process_the_request_and_the_free_memory() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    for size in [100, 40, 40, 40] {
        assert_eq!(probe.ask(&format!("take linear {}", size * MIB)), [0, 0]);
    }
    assert_eq!(probe.ask(&format!("take managed {}", 90 * MIB)), [0, 0]);
    assert_eq!(
        probe.ask(&format!("take linear {}", ROOM)),
        [OUT_OF_MEMORY, 1]
    );
    let denial = record(&rig);
    assert_eq!(
        (denial.api.as_str(), denial.cause),
        ("cuMemAlloc_v2", DenialCause::SliceFull)
    );
    assert_eq!(
        (denial.gpu, u64::from(denial.owner.pid)),
        (Some(0), probe.pid())
    );
    assert_eq!(denial.program.as_str(), "probe-handle");
    let used = CONTEXT + 310 * MIB;
    assert_eq!((denial.requested, denial.limit), (ROOM, rig.limit));
    assert_eq!(
        (denial.used, denial.own, denial.peer_count),
        (used, used, 0)
    );
    let expected = [
        (CONTEXT, 1, AllocationKind::Context),
        (40 * MIB, 3, AllocationKind::Linear),
        (100 * MIB, 1, AllocationKind::Linear),
        (90 * MIB, 1, AllocationKind::Managed),
    ];
    assert_eq!(sizes(&denial), expected);
    assert_eq!(denial.allocations, 6);
    // The GPU itself had room, and says so.
    assert!(
        denial.gpu_free > 70 << 30 && denial.gpu_total > denial.gpu_free,
        "{denial:?}"
    );
    assert_eq!(rig.usage().denied, 1);
}

#[test]
fn every_kind_of_allocation_is_named_by_the_function_that_was_called() {
    for (kind, api, found) in [
        ("linear", "cuMemAlloc_v2", AllocationKind::Linear),
        ("managed", "cuMemAllocManaged", AllocationKind::Managed),
        ("vmm", "cuMemCreate", AllocationKind::Handle),
        ("async", "cuMemAllocAsync", AllocationKind::Pool),
    ] {
        let rig = Rig::new(1, ROOM);
        let mut probe = rig.ready(Way::Handle);
        assert_eq!(
            probe.ask(&format!("take {kind} {}", 64 * MIB)),
            [0, 0],
            "{kind}"
        );
        assert_eq!(
            probe.ask(&format!("take {kind} {ROOM}")),
            [OUT_OF_MEMORY, 1],
            "{kind}"
        );
        let denial = record(&rig);
        assert_eq!(
            (denial.api.as_str(), denial.cause),
            (api, DenialCause::SliceFull)
        );
        assert!(
            sizes(&denial).contains(&(64 * MIB, 1, found)),
            "{kind}: {denial:?}"
        );
        assert!(
            denial.used + denial.requested > denial.limit,
            "{kind}: {denial:?}"
        );
    }
}

#[test]
fn the_others_in_the_slice_are_named_with_what_they_use() {
    let rig = Rig::new(2, ROOM);
    let mut other = rig.ready(Way::Handle);
    assert_eq!(other.ask(&format!("take linear {}", 300 * MIB)), [0, 0]);
    let mut probe = rig.ready(Way::Next);
    assert_eq!(
        probe.ask(&format!("take linear {}", 300 * MIB)),
        [OUT_OF_MEMORY, 1]
    );
    let denial = record(&rig);
    assert_eq!(denial.own, CONTEXT);
    let peers: Vec<_> = denial
        .peers
        .iter()
        .map(|peer| (peer.pid.into(), peer.used))
        .collect();
    assert_eq!(peers, [(other.pid(), CONTEXT + 300 * MIB)]);
    assert_eq!(denial.peer_count, 1);
}

#[test]
fn a_context_that_does_not_fit_is_written_down_too() {
    let rig = Rig::new(1, ROOM);
    let mut first = rig.ready(Way::Handle);
    let mut second = rig.inside(Way::Handle);
    assert_eq!(second.ask("init"), [0]);
    assert_eq!(first.ask(&format!("take linear {ROOM}")), [0, 0]);
    assert_eq!(second.ask("context 0"), [OUT_OF_MEMORY]);
    let denial = record(&rig);
    assert_eq!(denial.api.as_str(), "cuDevicePrimaryCtxRetain");
    assert_eq!(
        (denial.requested, denial.cause, denial.own),
        (CONTEXT, DenialCause::SliceFull, 0)
    );
}

#[test]
fn a_full_gpu_is_told_from_a_full_slice() {
    let rig = Rig::new(1, ROOM);
    let mut outside = rig.outside();
    for line in ["init", "context 0"] {
        assert_eq!(outside.ask(line), [0]);
    }
    let mut probe = rig.ready(Way::Handle);
    let (free, _) = outside.info();
    let taken = (free - 64 * MIB) / (2 * MIB) * (2 * MIB);
    assert_eq!(outside.ask(&format!("take linear {taken}")), [0, 0]);
    assert_eq!(
        probe.ask(&format!("take linear {}", 200 * MIB)),
        [OUT_OF_MEMORY, 1]
    );
    let denial = record(&rig);
    assert_eq!(
        (denial.cause, denial.requested),
        (DenialCause::GpuFull, 200 * MIB)
    );
    assert!(denial.used + denial.requested <= denial.limit, "{denial:?}");
    assert!(
        denial.gpu_free < 200 * MIB && denial.gpu_total > 70 << 30,
        "{denial:?}"
    );
    assert_eq!(rig.usage().denied, 0, "the limit refused nothing");
    assert_eq!(rig.charged(), CONTEXT);
}

#[test]
fn the_free_memory_of_a_gpu_is_known_only_where_the_threads_context_is_on_it() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("take vmm {ROOM}")), [0, 0]);
    assert_eq!(probe.ask("vmm on 0"), [OUT_OF_MEMORY]);
    assert_eq!(probe.ask("context 1"), [0]);
    assert_eq!(probe.ask("vmm on 0"), [OUT_OF_MEMORY]);
    let denials = denials(&rig);
    let told = denials.iter().map(|denial| {
        let is_known = denial.gpu_free > 0 && denial.gpu_total > 0;
        (denial.gpu, denial.cause, is_known)
    });
    let expected = [true, false].map(|is_known| (Some(0), DenialCause::SliceFull, is_known));
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

#[test]
fn a_gpu_outside_the_slice_is_called_so() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.inside(Way::Handle);
    for line in ["init", "context 1"] {
        assert_eq!(probe.ask(line), [0]);
    }
    assert_eq!(probe.ask("take linear 4096"), [OUT_OF_MEMORY, 1]);
    let denial = record(&rig);
    assert_eq!((denial.cause, denial.gpu), (DenialCause::NotInSlice, None));
}

#[test]
fn a_driver_without_memory_of_another_kind_is_told_from_both() {
    let rig = Rig::on("[[fault]]\nfunction = 'cuMemMap'\ncode = 2\n", 1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    assert_eq!(probe.ask(&format!("take vmm {}", 2 * MIB)), [0, 0]);
    assert_eq!(probe.ask(&format!("vmm map {}", 2 * MIB)), [OUT_OF_MEMORY]);
    let denial = record(&rig);
    assert_eq!(
        (denial.api.as_str(), denial.cause, denial.requested),
        ("cuMemMap", DenialCause::Other, 0)
    );
    assert_eq!(rig.usage().denied, 0);
}

#[test]
fn a_program_that_tries_again_and_again_is_counted_and_pays_for_few_records() {
    let rig = Rig::new(1, ROOM);
    let mut probe = rig.ready(Way::Handle);
    for _ in 0..200 {
        assert_eq!(
            probe.ask(&format!("take linear {}", ROOM + 1)),
            [OUT_OF_MEMORY, 1]
        );
    }
    assert_eq!(rig.usage().denied, 200);
    let (kept, recorded) = rig.slice().denials().unwrap();
    assert!(recorded >= 4 && kept.len() >= 4, "{recorded}");
    let told: u64 = kept.iter().map(|denial| denial.skipped + 1).sum();
    assert!(told <= 200);
    // Two hundred refusals in a tenth of a second are four records; a slow machine may write one more for each tenth.
    let spent = kept.last().unwrap().at - kept[0].at;
    assert!(
        recorded <= 5 + spent / 100_000_000,
        "{recorded} records in {spent} ns"
    );
}

#[test]
fn the_record_outlives_the_process() {
    let rig = Rig::new(1, ROOM);
    let pid = {
        let mut probe: Probe = rig.ready(Way::Handle);
        assert_eq!(
            probe.ask(&format!("take linear {}", ROOM + 1)),
            [OUT_OF_MEMORY, 1]
        );
        probe.kill();
        probe.pid()
    };
    rig.settle_the_dead();
    assert!(rig.slice().read().unwrap().processes().is_empty());
    assert_eq!(u64::from(record(&rig).owner.pid), pid);
}
