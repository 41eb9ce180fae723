//! The denial log: what processes wrote about their refusals, read by somebody who does not trust them.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use crate::common;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use common::{Barrier, Child, Place};
use divvy_ledger::{
    AllocationGroup, AllocationKind, DENIALS, DenialCause, DenialReport, ProcessSlot,
};
use divvy_testkit::Rng;

fn refused(slot: &ProcessSlot, asked: u64) {
    slot.record(&DenialReport {
        api: b"cuMemAlloc_v2",
        gpu: Some(0),
        requested: asked,
        cause: DenialCause::SliceFull,
        largest: &[AllocationGroup {
            bytes: 30,
            count: 2,
            kind: AllocationKind::Linear,
        }],
        allocations: 2,
        ..DenialReport::default()
    });
}

#[test]
fn a_record_tells_what_the_slice_looked_like_and_outlives_its_process() {
    let place = Place::with_limit(1000);
    let slice = place.slice();
    let other = slice.join().unwrap();
    other.reserve(0, 300).unwrap().commit();
    place.control.set_unseen(0, 7);
    let child = Child::fork(|| {
        let slot = slice.join().expect("there are slots enough");
        slot.reserve(0, 60).expect("it fits").commit();
        refused(&slot, 900);
        slot.release(0, 60);
    });
    let pid = child.pid();
    child.finish();
    let (denials, recorded) = slice.denials().unwrap();
    assert_eq!((denials.len(), recorded), (1, 1));
    let denial = &denials[0];
    assert_eq!(
        (denial.owner.pid, denial.api.as_str()),
        (pid, "cuMemAlloc_v2")
    );
    let figures = (
        denial.requested,
        denial.limit,
        denial.used,
        denial.own,
        denial.unseen,
    );
    assert_eq!(figures, (900, 1000, 367, 60, 7));
    assert_eq!((denial.peers[0].used, denial.peer_count), (300, 1));
    assert_eq!((denial.largest[0].count, denial.allocations), (2, 2));
    assert!(denial.at > 0);
}

#[test]
fn the_first_refusals_and_the_last_ones_are_kept() {
    let place = Place::with_limit(1000);
    let slot = place.slice().join().unwrap();
    (0..100).for_each(|asked| refused(&slot, asked));
    let (denials, recorded) = place.slice().denials().unwrap();
    let asked: Vec<u64> = denials.iter().map(|denial| denial.requested).collect();
    let half = DENIALS as u64 / 2;
    let expected: Vec<u64> = (0..half).chain(100 - half..100).collect();
    assert_eq!((asked, recorded), (expected, 100));
}

#[test]
fn writers_at_once_never_leave_a_record_of_two() {
    const WRITERS: u64 = 6;
    let place = Place::with_limit(1 << 30);
    let slice = place.slice();
    let barrier = Barrier::new(WRITERS as u32);
    let children: Vec<_> = (1..=WRITERS)
        .map(|writer| {
            Child::fork(|| {
                let slot = slice.join().expect("there are slots enough");
                slot.reserve(0, writer).expect("it fits").commit();
                barrier.wait();
                // Who asked for how much, and has how much, must come from one and the same.
                (0..2000).for_each(|_| refused(&slot, 1000 * writer));
            })
        })
        .collect();
    for _ in 0..500 {
        for denial in slice.denials().unwrap().0 {
            assert_eq!(denial.requested, 1000 * denial.own);
        }
    }
    children.into_iter().for_each(Child::finish);
    let (denials, recorded) = slice.denials().unwrap();
    assert_eq!(recorded, 2000 * WRITERS);
    assert!(
        denials
            .iter()
            .all(|denial| denial.requested == 1000 * denial.own)
    );
}

#[test]
fn a_log_of_any_bytes_is_read_without_a_word_of_it_believed() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    refused(&slot, 5);
    let path = place.dir.path().join("slots");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut dice = Rng::new(7);
    for _ in 0..100 {
        let mut bytes = vec![0; 64 + 512 * DENIALS];
        bytes.fill_with(|| dice.below(256) as u8);
        // Where version 2 keeps the log.
        file.write_all_at(&bytes, 1_380_352).unwrap();
        assert!(place.slice().denials().unwrap().0.is_empty());
        refused(&slot, 6);
    }
}
