//! Compute time: what may be launched, who stands at the gate, and what the agent gets to see of it.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use common::{Barrier, Child, Place};
use divvy_ledger::{
    Demand, DemandReader, Grant, ProcessSlot, SCHEDULER_TIMEOUT_NS, Waker, boot_time_ns,
    wait_for_demand,
};

const FOREVER: Duration = Duration::from_secs(60);
const HOUR: u64 = 3_600_000_000_000;

fn demand(lookout: &mut DemandReader) -> Demand {
    lookout.demand(boot_time_ns()).expect("a sound slice")
}

/// Waits for demand until there is some that will do.
fn await_demand(lookout: &mut DemandReader, will_do: impl Fn(&Demand) -> bool) -> Demand {
    let bell = Waker::default();
    loop {
        let now = demand(lookout);
        if will_do(&now) {
            return now;
        }
        wait_for_demand(&bell, bell.epoch(), [&*lookout].into_iter(), FOREVER);
    }
}

fn passes(slot: &ProcessSlot) -> bool {
    slot.may_launch(0, boot_time_ns())
}

/// Grants something that the keeper stands by for as long as a test may take.
fn grant(place: &Place, grant: Grant) {
    place.control.grant(grant, boot_time_ns() + HOUR);
}

#[test]
fn a_slice_without_a_compute_scheduler_has_an_open_gate() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    assert!(slot.is_ungated() && passes(&slot));
    slot.wait_for_turn(0, || unreachable!("nobody waits"));
}

#[test]
fn grants_are_seen_at_once() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    let now = boot_time_ns();
    grant(&place, Grant::Closed);
    assert!(!slot.is_ungated() && !passes(&slot));
    grant(&place, Grant::Until(now + 10));
    assert!(slot.may_launch(0, now + 9) && !slot.may_launch(0, now + 10));
    grant(&place, Grant::Open);
    assert!(slot.is_ungated());
    assert_eq!(place.control.granted(), Grant::Open);
}

#[test]
fn grants_of_a_silent_compute_scheduler_count_for_nothing() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    let now = boot_time_ns();
    place.control.grant(Grant::Closed, now);
    assert!(!slot.may_launch(0, now + SCHEDULER_TIMEOUT_NS));
    assert!(slot.may_launch(0, now + SCHEDULER_TIMEOUT_NS + 1));
    place.control.refresh_grant(now + SCHEDULER_TIMEOUT_NS);
    assert!(!slot.may_launch(0, now + SCHEDULER_TIMEOUT_NS + 1));
}

#[test]
fn peers_are_let_in_only_where_they_have_nothing_and_stood_before() {
    let place = Place::new(&[100, 100]);
    let slot = place.slice().join().unwrap();
    let now = boot_time_ns();
    let soon = now + HOUR;
    grant(&place, Grant::Peers(soon));
    assert!(!slot.may_launch(0, now), "who comes now came too late");
    grant(&place, Grant::Closed);
    thread::scope(|scope| {
        let at_the_gate = scope.spawn(|| slot.wait_for_turn(0, || true));
        await_demand(&mut DemandReader::new(&place.slice()).unwrap(), |demand| {
            demand.waiting
        });
        grant(&place, Grant::Peers(soon));
        at_the_gate.join().unwrap();
    });
    assert!(slot.may_launch(0, now), "and goes on while it lasts");
    assert!(!slot.may_launch(1, now), "nobody stood there");
    slot.submit_work(0, 50, now);
    assert!(!slot.may_launch(0, now), "it has something there");
    slot.work_done(0);
    assert!(slot.may_launch(0, now));
    place.control.refresh_grant(soon);
    assert!(!slot.may_launch(0, soon));
}

#[test]
fn a_process_at_the_gate_wakes_the_keeper_and_is_woken_by_its_grant() {
    let place = Place::with_limit(100);
    grant(&place, Grant::Closed);
    let slice = place.slice();
    let mut lookout = DemandReader::new(&slice).unwrap();
    assert_eq!(demand(&mut lookout), Demand::default());
    let child = Child::fork(|| {
        let slot = slice.join().unwrap();
        assert!(slot.wait_for_turn(0, || true) > 0);
    });
    // It stands there first, and asks then.
    let asked = await_demand(&mut lookout, |demand| {
        demand.waiting && demand.requests >= 1
    });
    assert!(!asked.busy);
    grant(&place, Grant::Open);
    child.finish();
    let after = demand(&mut lookout);
    assert!(after.throttled_ns > 0 && !after.waiting);
}

#[test]
fn a_process_at_the_gate_without_an_answer_asks_again() {
    let place = Place::with_limit(100);
    grant(&place, Grant::Closed);
    let slice = place.slice();
    let mut lookout = DemandReader::new(&slice).unwrap();
    let child = Child::fork(|| {
        slice.join().unwrap().wait_for_turn(0, || true);
    });
    let first = await_demand(&mut lookout, |demand| demand.waiting).requests;
    await_demand(&mut lookout, |demand| demand.requests > first + 1);
    grant(&place, Grant::Open);
    child.finish();
}

#[test]
fn work_is_reckoned_in_a_chain_over_all_processes() {
    let place = Place::with_limit(100);
    let [one, other] = [0, 1].map(|_| place.slice().join().unwrap());
    let now = boot_time_ns();
    assert_eq!(one.submit_work(0, 1000, now), now + 1000);
    assert_eq!(other.submit_work(0, 500, now), now + 1500);
    assert_eq!(one.submit_work(0, 1, now + 5000), now + 5001);
}

#[test]
fn unwatched_work_of_a_process_is_done_when_it_should_be_and_watched_work_is_not() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    let mut lookout = DemandReader::new(&place.slice()).unwrap();
    let now = boot_time_ns();
    let end = slot.submit_work(0, 1_000_000, now);
    let mut at = |time| {
        let demand = lookout.demand(time).unwrap();
        (demand.busy, demand.overdue)
    };
    assert_eq!(at(end), (true, false));
    assert_eq!(at(end + 10_000_000), (false, false));
    let watching = slot.watch_work();
    assert_eq!(at(end + 10_000_000), (true, true));
    drop(watching);
    slot.work_done(0);
    assert_eq!(at(end), (false, false));
}

/// Who says that it waits for its work, or stands at the gate with it, and is stopped then, or killed, never takes that back.
#[test]
fn what_a_stopped_or_killed_process_watches_is_done_when_it_should_be() {
    for at_gate in [false, true] {
        let place = Place::with_limit(100);
        grant(&place, Grant::Closed);
        let (slice, ready) = (place.slice(), Barrier::new(2));
        let mut lookout = DemandReader::new(&slice).unwrap();
        let start = boot_time_ns();
        let mut child = Child::fork(|| {
            let slot = slice.join().unwrap();
            slot.submit_work(0, 1_000_000, boot_time_ns());
            let watching = slot.watch_work();
            ready.wait();
            if at_gate {
                drop(watching);
                slot.wait_for_turn(0, || false);
            }
            loop {
                // SAFETY: no preconditions.
                unsafe { libc::pause() };
            }
        });
        ready.wait();
        if at_gate {
            await_demand(&mut lookout, |demand| demand.waiting);
        }
        let late = boot_time_ns() + 1_000_000_000;
        let mut at = |time| {
            let demand = lookout.demand(time).unwrap();
            (demand.busy, demand.overdue)
        };
        assert_eq!(at(late), (true, true));
        child.stop();
        assert_eq!(at(late), (false, false), "stopped, at the gate: {at_gate}");
        assert_eq!(at(start), (true, false), "its work goes on without it");
        child.go_on();
        assert_eq!(at(late), (true, true));
        child.kill();
        assert_eq!(at(late), (false, false), "killed, at the gate: {at_gate}");
    }
}

#[test]
fn a_process_at_the_gate_asks_again_with_work_on_the_gpu_too() {
    let place = Place::with_limit(100);
    grant(&place, Grant::Closed);
    let slice = place.slice();
    let mut lookout = DemandReader::new(&slice).unwrap();
    let child = Child::fork(|| {
        let slot = slice.join().unwrap();
        slot.submit_work(0, 1_000_000, boot_time_ns());
        slot.wait_for_turn(0, || false);
    });
    let asked = await_demand(&mut lookout, |demand| demand.waiting).requests;
    for more in 1..5 {
        let seen = await_demand(&mut lookout, |demand| demand.requests >= asked + more);
        assert!(seen.waiting);
    }
    grant(&place, Grant::Open);
    child.finish();
}

#[test]
fn what_is_left_on_the_gpu_is_looked_at_while_waiting() {
    let place = Place::with_limit(100);
    grant(&place, Grant::Closed);
    let slice = place.slice();
    let mut lookout = DemandReader::new(&slice).unwrap();
    let child = Child::fork(|| {
        let slot = slice.join().unwrap();
        slot.submit_work(0, 1_000_000_000, boot_time_ns());
        let mut looks = 0;
        slot.wait_for_turn(0, || {
            looks += 1;
            looks == 5
        });
        assert_eq!(looks, 5);
    });
    await_demand(&mut lookout, |demand| demand.waiting && !demand.busy);
    grant(&place, Grant::Open);
    child.finish();
}

#[test]
fn the_next_owner_of_a_slot_does_not_stand_where_a_killed_one_stood() {
    let place = Place::with_limit(100);
    grant(&place, Grant::Closed);
    let slice = place.slice();
    let mut lookout = DemandReader::new(&slice).unwrap();
    let mut child = Child::fork(|| {
        slice.join().unwrap().wait_for_turn(0, || true);
    });
    await_demand(&mut lookout, |demand| demand.waiting);
    child.kill();
    let slot = slice.join().unwrap();
    slice
        .reap(boot_time_ns(), &|_| divvy_ledger::Listed::No)
        .unwrap();
    assert!(!demand(&mut lookout).waiting);
    drop(slot);
}

#[test]
fn a_ringing_bell_ends_the_waiting() {
    let bell = Waker::default();
    let seen = bell.epoch();
    let rung = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rung.store(true, SeqCst);
            bell.wake();
        });
        while !rung.load(SeqCst) {
            wait_for_demand(&bell, seen, std::iter::empty(), FOREVER);
        }
    });
}

#[test]
fn a_slots_file_that_is_cut_short_is_an_error_and_no_crash() {
    let place = Place::with_limit(100);
    let mut lookout = DemandReader::new(&place.slice()).unwrap();
    std::fs::File::options()
        .write(true)
        .open(place.dir.path().join("slots"))
        .unwrap()
        .set_len(0)
        .unwrap();
    assert!(lookout.demand(boot_time_ns()).is_err());
    let bell = Waker::default();
    wait_for_demand(
        &bell,
        bell.epoch(),
        [&lookout].into_iter(),
        Duration::from_millis(1),
    );
}

#[test]
fn work_that_was_put_and_done_between_two_looks_is_not_overlooked() {
    let place = Place::with_limit(100);
    let slot = place.slice().join().unwrap();
    let mut lookout = DemandReader::new(&place.slice()).unwrap();
    let before = demand(&mut lookout);
    slot.submit_work(0, 1, boot_time_ns());
    slot.work_done(0);
    let after = demand(&mut lookout);
    assert!(!before.busy && !after.busy);
    assert_ne!(before.submitted, after.submitted);
}
