//! A slice with one process: what is granted, refused, shown and kept.

use crate::common;

use common::{Place, uuid};
use divvy_ledger::{
    ContextCounts, Denied, Listed, ProcessIdentity, Reaped, Slice, Usage, boot_time_ns,
};

const GIB: u64 = 1 << 30;

#[test]
fn the_limit_is_granted_to_the_byte_and_not_beyond() {
    let place = Place::with_limit(4 * GIB);
    let slot = place.slice().join().unwrap();
    slot.reserve(0, 4 * GIB - 1).unwrap().commit();
    assert_eq!(
        slot.reserve(0, 2).unwrap_err(),
        Denied {
            requested: 2,
            limit: 4 * GIB,
            used: 4 * GIB - 1
        }
    );
    slot.reserve(0, 1).unwrap().commit();
    assert_eq!(
        slot.reserve(0, 1).unwrap_err(),
        Denied {
            requested: 1,
            limit: 4 * GIB,
            used: 4 * GIB
        }
    );
    slot.release(0, 4 * GIB);
    slot.reserve(0, 4 * GIB).unwrap().commit();
}

/// Of a process in a container nothing is known but its lock, until the driver lists it.
#[test]
fn a_process_is_alive_as_long_as_it_locks_its_slot() {
    let place = Place::with_limit(100);
    let mut elsewhere = ProcessIdentity::current();
    elsewhere.pid_namespace += 1;
    let slot = place.slice().join_as(elsewhere).unwrap();
    slot.reserve(0, 60).unwrap().commit();
    let reap = || place.slice().reap(boot_time_ns(), &|_| Listed::No).unwrap();
    assert_eq!(reap(), Reaped::default());
    assert_eq!(slot.usage(0).charged, 60);
    assert!(slot.reserve(0, 41).is_err(), "60 of 100 are held");
}

#[test]
fn a_dropped_hold_gives_its_bytes_back() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    let hold = slot.reserve(0, 100).unwrap();
    assert_eq!(slot.usage(0).free, 0);
    drop(hold);
    assert_eq!(slot.usage(0).free, 100);
    assert_eq!(slot.usage(0).peak, 0);
}

#[test]
fn a_hold_can_be_committed_as_another_size() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    slot.reserve(0, 50).unwrap().commit_as(30);
    assert_eq!(slot.usage(0).charged, 30);
    slot.reserve(0, 50).unwrap().commit_as(90);
    assert_eq!(
        slot.usage(0),
        Usage {
            limit: 100,
            charged: 120,
            peak: 120,
            recent_peak: 120,
            ..Usage::default()
        }
    );
}

#[test]
fn every_size_there_is_has_an_answer() {
    let place = Place::with_limit(u64::MAX);
    let slot = place.slice().join().unwrap();
    slot.reserve(0, 0).unwrap().commit();
    let most = (1 << 48) - 1;
    for bytes in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 48] {
        assert_eq!(slot.reserve(0, bytes).unwrap_err().requested, bytes);
    }
    slot.reserve(0, most).unwrap().commit();
    assert_eq!(slot.reserve(0, 1).unwrap_err().requested, 1);
    slot.force(0, u64::MAX);
    assert_eq!(slot.usage(0).charged, most);
    slot.release(0, u64::MAX);
    assert_eq!(slot.usage(0).charged, 0);
}

#[test]
fn inside_and_outside_see_the_same_usage() {
    let place = Place::with_limit(10 * GIB);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    assert!(slot.charge_overhead(0).unwrap());
    slot.reserve(0, 3 * GIB).unwrap().commit();
    slot.note_managed(0, 2 << 20);
    slot.note_host(0, 7);
    slot.release(0, GIB);
    assert!(slot.reserve(0, 9 * GIB).is_err());
    slot.count_denial(0, 9 * GIB);
    let usage = slot.usage(0);
    assert_eq!(usage, slice.usage(0).unwrap());
    assert_eq!((slot.used(0), slot.free(0)), (usage.used(), usage.free));
    assert_eq!((slot.used(1), slot.free(1)), (0, 0), "there is no such GPU");
    assert_eq!(
        (usage.charged, usage.overhead, usage.managed, usage.host),
        (2 * GIB, 256 << 20, 2 << 20, 7)
    );
    assert_eq!(
        (usage.peak, usage.denied, usage.last_denied_size),
        (3 * GIB + (256 << 20), 1, 9 * GIB)
    );
    assert!(usage.last_denied_at > 0);
    slot.reserve(0, usage.free).unwrap().commit();
    assert!(slot.reserve(0, 1).is_err());
}

#[test]
fn a_context_is_charged_once() {
    let place = Place::with_limit(GIB);
    let slot = place.slice().join().unwrap();
    assert_eq!(slot.charge_overhead(0), Ok(true));
    assert_eq!(slot.charge_overhead(0), Ok(false));
    assert!(!slot.force_overhead(0));
    assert_eq!(slot.usage(0).overhead, 256 << 20);
    slot.release_overhead(0);
    slot.release_overhead(0);
    assert_eq!(slot.usage(0).free, GIB);
    assert!(slot.force_overhead(0));
    assert_eq!(slot.usage(0).overhead, 256 << 20);
}

#[test]
fn a_context_that_does_not_fit_is_refused_and_one_that_exists_is_charged_all_the_same() {
    let place = Place::with_limit(100 << 20);
    let slot = place.slice().join().unwrap();
    assert!(slot.charge_overhead(0).is_err());
    assert_eq!(slot.usage(0).overhead, 0);
    assert!(slot.force_overhead(0));
    assert_eq!(slot.usage(0).free, 0);
    assert!(slot.reserve(0, 1).is_err());
}

#[test]
fn the_recent_peak_begins_anew_and_the_peak_of_the_slice_stays() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    slot.reserve(0, 80).unwrap().commit();
    slot.release(0, 60);
    place.slice().restart_peaks().unwrap();
    let peaks = |usage: Usage| (usage.peak, usage.recent_peak);
    assert_eq!(peaks(slot.usage(0)), (80, 0));
    slot.reserve(0, 10).unwrap().commit();
    slot.release(0, 10);
    assert_eq!(peaks(slot.usage(0)), (80, 30));
    assert_eq!(peaks(place.slice().read().unwrap().usage(0)), (80, 30));
    slot.reserve(0, 70).unwrap().commit();
    assert_eq!(peaks(place.slice().read().unwrap().usage(0)), (90, 90));
}

#[test]
fn a_limit_below_what_is_used_refuses_and_breaks_nothing() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    slot.reserve(0, 80).unwrap().commit();
    place.control.set_limit(0, 50);
    assert_eq!(
        slot.usage(0),
        Usage {
            limit: 50,
            charged: 80,
            peak: 80,
            recent_peak: 80,
            ..Usage::default()
        }
    );
    assert_eq!(
        slot.reserve(0, 1).unwrap_err(),
        Denied {
            requested: 1,
            limit: 50,
            used: 80
        }
    );
    slot.reserve(0, 0).unwrap().commit();
    slot.release(0, 40);
    slot.reserve(0, 10).unwrap().commit();
    assert!(slot.reserve(0, 1).is_err());
    place.control.set_limit(0, 51);
    slot.reserve(0, 1).unwrap().commit();
}

#[test]
fn gpus_are_told_apart_by_uuid_and_accounted_apart() {
    let place = Place::new(&[100, 200]);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    assert_eq!(slice.gpu_by_uuid(&uuid(1)), Some(1));
    assert_eq!(slice.gpu_by_uuid(&uuid(2)), None);
    slot.reserve(1, 200).unwrap().commit();
    slot.reserve(0, 100).unwrap().commit();
    for gpu in [2, 15, 16, usize::MAX] {
        assert_eq!(
            slot.reserve(gpu, 1).unwrap_err(),
            Denied {
                requested: 1,
                limit: 0,
                used: 0
            }
        );
        assert_eq!(slot.usage(gpu), Usage::default());
        slot.release(gpu, 1);
    }
}

#[test]
fn a_process_is_listed_with_what_it_uses() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    slot.reserve(0, 60).unwrap().commit();
    let me = std::process::id();
    let listed = slice.read().unwrap().processes();
    assert_eq!(listed.len(), 1);
    assert_eq!(slot.process(me), Some(listed[0]));
    assert_eq!((listed[0].owner.pid, listed[0].gpus[0].charged), (me, 60));
    assert!(slot.is_member(me) && slice.read().unwrap().is_member(me));
    assert!(!slot.is_member(1) && !slice.read().unwrap().is_member(1));
}

#[test]
fn an_empty_slot_is_free_when_dropped_and_a_charged_one_is_not() {
    let place = Place::with_limit(100);
    let slice: Slice = place.slice();
    let first = slice.join().unwrap();
    let second = slice.join().unwrap();
    assert_eq!((first.index(), second.index()), (0, 1));
    second.reserve(0, 60).unwrap().commit();
    drop((first, second));
    assert_eq!(slice.read().unwrap().processes().len(), 1);
    let third = slice.join().unwrap();
    assert_eq!(third.index(), 0);
    assert_eq!(third.usage(0).free, 40);
}

#[test]
fn too_much_given_back_leaves_zero_and_raises_an_alarm() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    slot.reserve(0, 10).unwrap().commit();
    slot.release(0, 11);
    assert_eq!(slot.usage(0).free, 100);
    assert_eq!(slice.read().unwrap().alarms(), 1);
}

#[test]
fn contexts_are_counted_for_the_slice_and_outlast_the_process() {
    let place = Place::with_limit(GIB);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    slot.note_context(0);
    slot.note_context_failure(0, 214);
    slot.note_context_failure(0, 999);
    // A GPU that the slice does not have.
    slot.note_context(1);
    slot.note_context_failure(1, 214);
    drop(slot);
    let snapshot = slice.read().unwrap();
    let counts = ContextCounts {
        made: 1,
        failed: 2,
        last_code: 999,
    };
    assert_eq!(snapshot.contexts(0), counts);
    assert_eq!(snapshot.contexts(1), ContextCounts::default());
}
