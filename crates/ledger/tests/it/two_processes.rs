//! Several real processes and one limit: never one byte over, nothing refused that fits, nothing leaked.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use crate::common;

use std::sync::atomic::Ordering::SeqCst;

use common::{Arena, Barrier, Child, Place, Referee};
use divvy_ledger::ProcessSlot;
use divvy_testkit::Rng;

const PROCESSES: usize = 8;
const ROUNDS: u64 = 1000;
const LIMIT: u64 = 1 << 30;
const SMALLEST: u64 = LIMIT / 64;

/// What one process holds, known to the referee.
struct Holder<'a> {
    slot: &'a ProcessSlot,
    referee: &'a Referee<PROCESSES>,
    process: usize,
    held: Vec<u64>,
}

impl Holder<'_> {
    /// Takes what it can get until not even the smallest piece fits; some pieces it gives back uncommitted.
    fn fill(&mut self, limit: u64, dice: &mut Rng) {
        let mut size = SMALLEST << dice.below(5);
        loop {
            match self.slot.reserve(0, size) {
                Ok(hold) if dice.below(4) == 0 => drop(hold),
                Ok(hold) => {
                    hold.commit();
                    self.held.push(size);
                    let all = self.referee.granted(self.process, size);
                    assert!(all <= limit, "over the limit");
                }
                Err(denied) if size == SMALLEST => {
                    assert!(denied.used + size > limit, "refused what fits: {denied}");
                    return;
                }
                Err(_) => size /= 2,
            }
        }
    }

    fn give_back(&mut self, pieces: usize) {
        for _ in 0..pieces.min(self.held.len()) {
            let size = self.held.pop().unwrap_or_default();
            self.referee.returned(self.process, size);
            self.slot.release(0, size);
        }
    }
}

fn race(body: impl Fn(&mut Holder<'_>, &Barrier, &mut Rng, &Place)) {
    let place = Place::with_limit(LIMIT);
    let slice = place.slice();
    let barrier = Barrier::new(PROCESSES as u32);
    let referee = Referee::new();
    let children: Vec<_> = (0..PROCESSES)
        .map(|process| {
            Child::fork(|| {
                let slot = slice.join().expect("there are slots enough");
                let mut dice = Rng::new(process as u64 + 1);
                let mut holder = Holder {
                    slot: &slot,
                    referee: &referee,
                    process,
                    held: Vec::new(),
                };
                body(&mut holder, &barrier, &mut dice, &place);
            })
        })
        .collect();
    children.into_iter().for_each(Child::finish);
    let usage = slice.usage(0).unwrap();
    assert_eq!(
        (
            usage.charged,
            referee.settled(),
            slice.read().unwrap().alarms()
        ),
        (0, 0, 0)
    );
    assert!(slice.read().unwrap().processes().is_empty());
}

#[test]
fn eight_processes_racing_to_the_limit_reach_it_to_the_byte_and_never_pass_it() {
    race(|holder, barrier, dice, _| {
        for _ in 0..ROUNDS {
            barrier.wait();
            holder.fill(LIMIT, dice);
            barrier.wait();
            assert_eq!(
                (holder.referee.settled(), holder.slot.usage(0).free),
                (LIMIT, 0)
            );
            barrier.wait();
            holder.give_back(usize::MAX);
            barrier.wait();
            assert_eq!(
                (holder.slot.usage(0).charged, holder.slot.usage(0).peak),
                (0, LIMIT)
            );
        }
    });
}

#[test]
fn of_eight_that_want_a_quarter_each_exactly_four_get_it() {
    race(|holder, barrier, _, _| {
        for _ in 0..ROUNDS {
            barrier.wait();
            if let Ok(hold) = holder.slot.reserve(0, LIMIT / 4) {
                hold.commit();
                holder.held.push(LIMIT / 4);
                let all = holder.referee.granted(holder.process, LIMIT / 4);
                assert!(all <= LIMIT, "over the limit");
            }
            barrier.wait();
            assert_eq!(
                (holder.referee.settled(), holder.slot.usage(0).free),
                (LIMIT, 0)
            );
            barrier.wait();
            holder.give_back(1);
        }
    });
}

#[test]
fn two_that_want_it_all_never_refuse_each_other() {
    let place = Place::with_limit(LIMIT);
    let slice = place.slice();
    let turns = Arena::new([const { std::sync::atomic::AtomicU64::new(0) }; 2]);
    let granted = Arena::new(std::sync::atomic::AtomicU64::new(0));
    let body = |process: usize| {
        let (slice, turns, granted) = (&slice, &turns, &granted);
        move || {
            let slot = slice.join().expect("there are slots enough");
            // Each waits for the other to come to the same point: closer together than a barrier lets them start.
            let meet = |turn| {
                turns[process].store(turn, SeqCst);
                for spins in 0.. {
                    if turns[1 - process].load(SeqCst) >= turn {
                        break;
                    }
                    if spins % 1000 == 999 {
                        std::thread::yield_now();
                    }
                }
            };
            for round in 0..ROUNDS * 20 {
                meet(round * 3 + 1);
                let got = slot.reserve(0, LIMIT).map(|hold| hold.commit());
                granted.fetch_add(u64::from(got.is_ok()), SeqCst);
                meet(round * 3 + 2);
                assert_eq!(granted.load(SeqCst), round + 1);
                meet(round * 3 + 3);
                if got.is_ok() {
                    slot.release(0, LIMIT);
                }
            }
        }
    };
    let children = [Child::fork(body(0)), Child::fork(body(1))];
    children.into_iter().for_each(Child::finish);
}

#[test]
fn what_is_given_back_can_be_taken_at_once() {
    race(|holder, barrier, dice, _| {
        for _ in 0..ROUNDS {
            holder.fill(LIMIT, dice);
            holder.give_back(dice.below(4) as usize);
        }
        barrier.wait();
        holder.fill(LIMIT, dice);
        barrier.wait();
        assert_eq!(
            (holder.referee.settled(), holder.slot.usage(0).free),
            (LIMIT, 0)
        );
        barrier.wait();
        holder.give_back(usize::MAX);
    });
}

#[test]
fn a_limit_changed_while_processes_run_holds_for_all_of_them() {
    race(|holder, barrier, dice, place| {
        for round in 0..100 {
            let half = LIMIT / 2;
            holder.fill(LIMIT, dice);
            barrier.wait();
            if holder.process as u64 == round % PROCESSES as u64 {
                place.control.set_limit(0, half);
            }
            barrier.wait();
            assert_eq!(holder.slot.usage(0).limit, half);
            assert_eq!(holder.slot.reserve(0, 1).unwrap_err().limit, half);
            barrier.wait();
            holder.give_back(usize::MAX);
            barrier.wait();
            holder.fill(half, dice);
            barrier.wait();
            assert_eq!(holder.referee.settled(), half);
            barrier.wait();
            if holder.process == 0 {
                place.control.set_limit(0, LIMIT);
            }
            barrier.wait();
        }
        holder.give_back(usize::MAX);
    });
}

#[test]
fn threads_of_two_processes_share_the_limit_as_processes_do() {
    let place = Place::with_limit(LIMIT);
    let slice = place.slice();
    let barrier = Barrier::new(8);
    let referee = Referee::new();
    let child = |process: usize| {
        let (slice, barrier, referee) = (&slice, &barrier, &referee);
        move || {
            let slot = slice.join().expect("there are slots enough");
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let process = process * 4 + thread;
                    let slot = &slot;
                    scope.spawn(move || {
                        let mut dice = Rng::new(process as u64 + 1);
                        let mut holder = Holder {
                            slot,
                            referee,
                            process,
                            held: Vec::new(),
                        };
                        for _ in 0..ROUNDS / 2 {
                            barrier.wait();
                            holder.fill(LIMIT, &mut dice);
                            barrier.wait();
                            assert_eq!((referee.settled(), slot.usage(0).free), (LIMIT, 0));
                            barrier.wait();
                            holder.give_back(usize::MAX);
                        }
                    });
                }
            });
        }
    };
    let children = [Child::fork(child(0)), Child::fork(child(1))];
    children.into_iter().for_each(Child::finish);
    assert_eq!(slice.usage(0).unwrap().charged, 0);
}

#[test]
fn contexts_are_charged_once_in_each_process_and_only_while_they_fit() {
    let place = Place::with_limit(1 << 30);
    let slice = place.slice();
    let barrier = Barrier::new(PROCESSES as u32);
    let granted = Arena::new(std::sync::atomic::AtomicU64::new(0));
    let body = || {
        let slot = slice.join().expect("there are slots enough");
        barrier.wait();
        if slot.charge_overhead(0) == Ok(true) {
            granted.fetch_add(1, SeqCst);
            assert_eq!(slot.charge_overhead(0), Ok(false));
        }
        barrier.wait();
    };
    let children: Vec<_> = (0..PROCESSES).map(|_| Child::fork(body)).collect();
    children.into_iter().for_each(Child::finish);
    // A context costs 256 MiB here.
    assert_eq!(granted.load(SeqCst), 4);
    assert_eq!(slice.usage(0).unwrap().overhead, 1 << 30);
}

#[test]
fn three_hundred_processes_join_at_once_and_each_is_listed() {
    let place = Place::with_limit(LIMIT);
    let slice = place.slice();
    let (joined, all_in) = (Barrier::new(301), Barrier::new(301));
    let body = || {
        let slot = slice.join().expect("there are slots enough");
        slot.reserve(0, 1 << 20).expect("it fits").commit();
        joined.wait();
        all_in.wait();
    };
    let children: Vec<_> = (0..300).map(|_| Child::fork(body)).collect();
    joined.wait();
    assert_eq!(slice.usage(0).unwrap().charged, 300 << 20);
    let processes = slice.read().unwrap().processes();
    let listed: std::collections::BTreeSet<_> =
        processes.iter().map(|process| process.owner.pid).collect();
    assert_eq!(listed, children.iter().map(Child::pid).collect());
    all_in.wait();
    children.into_iter().for_each(Child::finish);
}
