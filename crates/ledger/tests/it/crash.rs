//! Processes killed at any instruction: what they held is charged until it has come back, and then it is gone.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use crate::common;

use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::sync::atomic::Ordering::SeqCst;

use common::{Child, Place, Referee};
use divvy_ledger::{
    DRIVER_RELEASE_TIMEOUT_NS, Listed, ProcessIdentity, ProcessState, Reaped, Slice, boot_time_ns,
};
use divvy_testkit::Rng;

const PROCESSES: usize = 8;
const ROUNDS: u64 = 200;
const LIMIT: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// Who is asked about processes that nobody lists.
fn unlisted(_: &ProcessIdentity) -> Listed {
    Listed::No
}

fn ended(_: &ProcessIdentity) -> Listed {
    Listed::Ended
}

fn unknown(_: &ProcessIdentity) -> Listed {
    Listed::Unknown
}

/// A process that runs one burst of reservations for every byte it is sent, and answers each with a byte.
struct Worker {
    child: Child,
    go: PipeWriter,
    idle: PipeReader,
}

impl Worker {
    fn start(slice: &Slice, referee: &Referee<PROCESSES>, process: usize, seed: u64) -> Self {
        let (mut wait, go) = pipe().unwrap();
        let (idle, mut tell) = pipe().unwrap();
        let child = Child::fork(|| {
            let slot = slice.join().expect("there are slots enough");
            let mut dice = Rng::new(seed);
            let mut held = Vec::new();
            while wait.read(&mut [0]).unwrap() == 1 {
                for _ in 0..300 {
                    let size = 1 + dice.below(LIMIT / 4);
                    match slot.reserve(0, size) {
                        Ok(hold) if dice.below(4) == 0 => drop(hold),
                        Ok(hold) => {
                            hold.commit();
                            held.push(size);
                            assert!(referee.granted(process, size) <= LIMIT, "over the limit");
                        }
                        Err(_) => {
                            let size = held.pop().unwrap_or(0);
                            referee.returned(process, size);
                            slot.release(0, size);
                        }
                    }
                }
                tell.write_all(&[1]).unwrap();
            }
        });
        Self { child, go, idle }
    }

    fn go(&mut self) {
        self.go.write_all(&[1]).unwrap();
    }

    fn wait_until_idle(&mut self) {
        self.idle
            .read_exact(&mut [0])
            .expect("the worker is there and found nothing wrong");
    }
}

#[test]
fn a_process_killed_in_a_race_leaves_exactly_what_the_others_hold() {
    let place = Place::with_limit(LIMIT);
    let slice = place.slice();
    let referee = Referee::new();
    let start = |process: usize, seed| Worker::start(&slice, &referee, process, seed);
    let mut workers: Vec<_> = (0..PROCESSES)
        .map(|process| start(process, process as u64 + 1))
        .collect();
    let mut dice = Rng::new(4711);
    for round in 0..ROUNDS {
        workers.iter_mut().for_each(Worker::go);
        for _ in 0..1 + dice.below(3) {
            let victim = dice.below(PROCESSES as u64) as usize;
            for _ in 0..dice.below(20_000) {
                std::hint::spin_loop();
            }
            let pid = workers[victim].child.pid();
            workers[victim].child.kill();
            // The driver has taken the dead one's memory back; only now may the ledger.
            referee.died(victim);
            let listed = |owner: &ProcessIdentity| {
                if owner.pid == pid {
                    Listed::No
                } else {
                    Listed::Unknown
                }
            };
            slice.reap(boot_time_ns(), &listed).unwrap();
            workers[victim] = start(victim, round << 8 | dice.below(256));
            workers[victim].go();
        }
        workers.iter_mut().for_each(Worker::wait_until_idle);
        slice.reap(boot_time_ns(), &unlisted).unwrap();
        let usage = slice.usage(0).unwrap();
        assert_eq!(usage.charged, referee.settled(), "round {round}");
        assert_eq!(
            slice.read().unwrap().processes().len(),
            PROCESSES,
            "round {round}"
        );
        assert_eq!(slice.read().unwrap().alarms(), 0);
    }
    drop(workers);
    let now = boot_time_ns();
    let first = slice.reap(now, &unknown).unwrap();
    let second = slice
        .reap(now + DRIVER_RELEASE_TIMEOUT_NS, &unknown)
        .unwrap();
    assert_eq!(first.freed + first.waiting, PROCESSES);
    assert_eq!((second.freed, second.waiting), (first.waiting, 0));
    assert_eq!(slice.usage(0).unwrap().charged, 0);
    assert!(slice.read().unwrap().processes().is_empty());
}

/// A process that holds 60 bytes and does nothing more.
fn holder(slice: &Slice) -> Child {
    let (mut joined, mut tell) = pipe().unwrap();
    let child = Child::fork(|| {
        let slot = slice.join().expect("there are slots enough");
        slot.reserve(0, 60).expect("it fits").commit();
        tell.write_all(&[1]).unwrap();
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    });
    joined.read_exact(&mut [0]).unwrap();
    child
}

#[test]
fn the_bytes_of_the_dead_stay_charged_for_two_seconds_from_when_they_were_seen_dead() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let mut child = holder(&slice);
    let slot = slice.join().unwrap();
    let t = boot_time_ns() + 100 * SECOND;
    assert_eq!(slot.reap(t).unwrap(), Reaped::default());
    child.kill();
    assert_eq!(
        slot.reap(t).unwrap(),
        Reaped {
            freed: 0,
            waiting: 1,
            ..Reaped::default()
        }
    );
    assert_eq!(
        slot.reap(t + 2 * SECOND - 1).unwrap(),
        Reaped {
            freed: 0,
            waiting: 1,
            ..Reaped::default()
        }
    );
    assert_eq!(slot.usage(0).charged, 60);
    assert!(slot.reserve(0, 41).is_err());
    assert_eq!(
        slot.reap(t + 2 * SECOND).unwrap(),
        Reaped {
            freed: 1,
            waiting: 0,
            ..Reaped::default()
        }
    );
    slot.reserve(0, 100).unwrap().commit();
}

#[test]
fn the_bytes_of_the_dead_come_back_at_once_when_the_driver_does_not_list_them() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let mut child = holder(&slice);
    let pid = child.pid();
    child.kill();
    let now = boot_time_ns();
    assert_eq!(
        slice.reap(now, &|_| Listed::Yes).unwrap(),
        Reaped {
            freed: 0,
            waiting: 1,
            ..Reaped::default()
        }
    );
    let asked = |owner: &ProcessIdentity| {
        if owner.pid == pid {
            Listed::No
        } else {
            Listed::Yes
        }
    };
    assert_eq!(
        slice.reap(now, &asked).unwrap(),
        Reaped {
            freed: 1,
            waiting: 0,
            ..Reaped::default()
        }
    );
    assert_eq!(slice.usage(0).unwrap().free, 100);
}

#[test]
fn the_slot_of_a_dead_process_that_held_nothing_is_free_at_once() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    Child::fork(|| std::mem::forget(slice.join().unwrap())).finish();
    assert_eq!(slice.read().unwrap().processes().len(), 1);
    assert_eq!(slice.reap(boot_time_ns(), &unknown).unwrap().freed, 1);
    assert!(slice.read().unwrap().processes().is_empty());
}

#[test]
fn a_living_process_is_never_reaped_whatever_the_caller_says() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let mut child = holder(&slice);
    let late = boot_time_ns() + 1000 * SECOND;
    assert_eq!(slice.reap(late, &unlisted).unwrap(), Reaped::default());
    assert_eq!(slice.usage(0).unwrap().charged, 60);
    child.kill();
}

#[test]
fn a_refused_reservation_looks_for_the_dead_itself() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let mut child = holder(&slice);
    let slot = slice.join().unwrap();
    assert!(slot.reserve(0, 100).is_err());
    child.kill();
    // Seen dead two seconds ago, as far as the ledger knows.
    let past = boot_time_ns() - DRIVER_RELEASE_TIMEOUT_NS;
    assert_eq!(
        slot.reap(past).unwrap(),
        Reaped {
            freed: 0,
            waiting: 1,
            ..Reaped::default()
        }
    );
    // The refusal above may have been the look of this moment already.
    while slot.reserve(0, 100).map(|hold| hold.commit()).is_err() {
        assert!(
            boot_time_ns() < past + 10 * SECOND,
            "nobody looked for the dead"
        );
    }
    assert_eq!(slot.usage(0).charged, 100);
}

/// Where version 2 keeps what a slot uses of GPU 0; its last byte counts undecided reservations.
fn used_at(slot: usize) -> u64 {
    4096 + 1344 * slot as u64 + 320
}

/// Makes it look as if the owner of a slot stood in the very middle of a reservation.
fn leave_undecided(place: &Place, slot: usize) {
    let slots = OpenOptions::new()
        .write(true)
        .open(place.dir.path().join("slots"))
        .unwrap();
    let last = if cfg!(target_endian = "little") { 7 } else { 0 };
    slots.write_all_at(&[1], used_at(slot) + last).unwrap();
}

fn undecided(place: &Place, slot: usize) -> u64 {
    let slots = File::open(place.dir.path().join("slots")).unwrap();
    let mut word = [0; 8];
    slots.read_exact_at(&mut word, used_at(slot)).unwrap();
    u64::from_ne_bytes(word) >> 56
}

#[test]
fn a_process_killed_in_the_middle_of_a_reservation_delays_no_other() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let child = holder(&slice);
    let slot = slice.join().unwrap();
    leave_undecided(&place, 0);
    drop(child);
    assert_eq!(slot.reserve(0, 41).unwrap_err().used, 60);
    assert_eq!(undecided(&place, 0), 0, "found dead, so its bytes are firm");
    assert_eq!(slice.usage(0).unwrap().charged, 60);
    slot.reserve(0, 40).unwrap().commit();
}

#[test]
fn a_process_stopped_in_the_middle_of_a_reservation_costs_the_others_a_refusal_and_no_hang() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let _child = holder(&slice);
    let slot = slice.join().unwrap();
    leave_undecided(&place, 0);
    assert_eq!(slot.reserve(0, 41).unwrap_err().used, 60);
    slot.reserve(0, 40).unwrap().commit();
    assert_eq!(undecided(&place, 0), 1);
}

#[test]
fn a_process_of_another_pid_namespace_is_dead_only_when_its_lock_is_free_and_the_caller_says_so() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let mut child = holder(&slice);
    // Where version 2 keeps a slot's namespace: what the slot of a container's process looks like from outside.
    let elsewhere = (ProcessIdentity::current().pid_namespace + 1).to_ne_bytes();
    let slots = OpenOptions::new()
        .write(true)
        .open(place.dir.path().join("slots"))
        .unwrap();
    slots.write_all_at(&elsewhere, 4096 + 24).unwrap();
    let now = boot_time_ns();
    assert_eq!(slice.reap(now, &ended).unwrap(), Reaped::default());
    child.kill();
    assert_eq!(
        slice.reap(now, &|_| Listed::Yes).unwrap(),
        Reaped::default()
    );
    for listed in [unlisted, unknown] {
        assert_eq!(slice.reap(now, &listed).unwrap(), WAITING);
        let usage = slice.usage(0).unwrap();
        assert_eq!((usage.charged, usage.used_by_living()), (60, 0));
    }
    // After two seconds without proof the process counts as alive, and no allocation waits for it.
    let later = now + DRIVER_RELEASE_TIMEOUT_NS;
    assert_eq!(slice.reap(later, &unknown).unwrap(), Reaped::default());
    assert_eq!(slice.reap(later, &ended).unwrap().freed, 1);
}

const WAITING: Reaped = Reaped {
    freed: 0,
    waiting: 1,
    contended: 0,
};

#[test]
fn a_process_that_runs_a_program_without_the_slice_is_doubtful_and_dead_once_the_caller_says_so() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let (stdin, open) = pipe().unwrap();
    let child = Child::fork(|| {
        let slot = slice.join().expect("there are slots enough");
        slot.reserve(0, 60).expect("it fits").commit();
        let stdin = stdin.try_clone().expect("descriptors are left");
        panic!("{}", std::process::Command::new("cat").stdin(stdin).exec());
    });
    let slot = slice.join().unwrap();
    let states = || {
        let read = slice.read().unwrap().processes();
        read.iter().map(|process| process.state).collect::<Vec<_>>()
    };
    let begun = boot_time_ns();
    divvy_testkit::until("the child runs `cat`", || {
        slot.reap(begun).unwrap() == WAITING
    });
    assert!(states().contains(&ProcessState::Doubtful));
    assert_eq!((slot.used(0), slot.used_by_living(0)), (60, 0));
    assert!(slot.reserve(0, 41).is_err(), "the driver may still hold it");
    // The daemon sees more; without its word the process lives.
    assert_eq!(slice.reap(begun, &unlisted).unwrap(), Reaped::default());
    let later = begun + DRIVER_RELEASE_TIMEOUT_NS;
    assert_eq!(slot.reap(later).unwrap(), Reaped::default());
    assert_eq!(slice.reap(later, &ended).unwrap().freed, 1);
    slot.reserve(0, 100).unwrap().commit();
    drop((child, open));
}

#[test]
fn joining_starts_the_clock_of_a_dead_predecessor() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    drop(holder(&slice));
    let before = boot_time_ns();
    let slot = slice.join().unwrap();
    let after = boot_time_ns();
    assert_eq!(
        slot.reap(before + DRIVER_RELEASE_TIMEOUT_NS - 1)
            .unwrap()
            .waiting,
        1
    );
    assert_eq!(
        slot.reap(after + DRIVER_RELEASE_TIMEOUT_NS).unwrap().freed,
        1
    );
}

#[test]
fn several_reapers_and_joiners_at_once_free_every_dead_slot_once() {
    let place = Place::with_limit(1 << 30);
    let slice = place.slice();
    for _ in 0..20 {
        let dead: Vec<_> = (0..16).map(|_| holder(&slice)).collect();
        let victims: Vec<_> = dead.iter().map(Child::pid).collect();
        drop(dead);
        let barrier = common::Barrier::new(PROCESSES as u32);
        let freed = common::Arena::new(std::sync::atomic::AtomicU64::new(0));
        let body = |process: usize| {
            let (slice, barrier, freed, victims) = (&slice, &barrier, &freed, &victims);
            move || {
                let listed = |owner: &ProcessIdentity| {
                    if victims.contains(&owner.pid) {
                        Listed::No
                    } else {
                        Listed::Yes
                    }
                };
                barrier.wait();
                if process.is_multiple_of(2) {
                    let reaped = slice.reap(boot_time_ns(), &listed).unwrap();
                    freed.fetch_add(reaped.freed as u64, SeqCst);
                } else {
                    let slot = slice.join().unwrap();
                    slot.reserve(0, 1000).unwrap().commit();
                    barrier.wait();
                    barrier.wait();
                    slot.release(0, 1000);
                    return;
                }
                barrier.wait();
                let reaped = slice.reap(boot_time_ns(), &listed).unwrap();
                freed.fetch_add(reaped.freed as u64, SeqCst);
                if process == 0 {
                    // Half of the processes hold a thousand bytes each, whatever slots they got.
                    assert!(slice.usage(0).unwrap().charged >= 4000);
                }
                barrier.wait();
            }
        };
        let children: Vec<_> = (0..PROCESSES)
            .map(|process| Child::fork(body(process)))
            .collect();
        children.into_iter().for_each(Child::finish);
        let rest = slice.reap(boot_time_ns(), &unlisted).unwrap().freed as u64;
        assert_eq!(freed.load(SeqCst) + rest, 16);
        assert_eq!(slice.usage(0).unwrap().charged, 0);
        assert!(slice.read().unwrap().processes().is_empty());
    }
}

/// Names the slice to the second program of a process.
const SECOND_PROGRAM: &str = "LEDGER_TEST_SECOND_PROGRAM";

#[test]
fn what_a_process_held_before_it_ran_another_program_comes_back() {
    if let Some(folder) = std::env::var_os(SECOND_PROGRAM) {
        let slot = Slice::open(folder.as_ref()).unwrap().join().unwrap();
        let now = boot_time_ns();
        // Seen when it joined; charged until the driver has surely given it back.
        assert_eq!((slot.index(), slot.usage(0).charged), (1, 60));
        assert_eq!(slot.reap(now + DRIVER_RELEASE_TIMEOUT_NS).unwrap().freed, 1);
        return slot.reserve(0, 100).unwrap().commit();
    }
    let place = Place::with_limit(100);
    let slice = place.slice();
    let name = "what_a_process_held_before_it_ran_another_program_comes_back";
    let child = Child::fork(|| {
        let slot = slice.join().expect("there are slots enough");
        slot.reserve(0, 60).expect("it fits").commit();
        let program = std::env::current_exe().expect("a test has a path");
        let mut second = std::process::Command::new(program);
        second
            .args(["--exact", &format!("crash::{name}"), "--quiet"])
            .env(SECOND_PROGRAM, place.dir.path());
        panic!("{}", second.exec());
    });
    child.finish();
    slice.reap(boot_time_ns(), &unlisted).unwrap();
    assert_eq!(slice.usage(0).unwrap().charged, 0);
}

#[test]
fn another_slot_of_the_same_program_is_no_earlier_one() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let (first, second) = (slice.join().unwrap(), slice.join().unwrap());
    first.reserve(0, 60).unwrap().commit();
    let late = boot_time_ns() + 1000 * SECOND;
    assert_eq!(second.reap(late).unwrap(), Reaped::default());
    assert_eq!(second.usage(0).charged, 60);
    first.release(0, 60);
}

#[test]
fn what_only_ended_processes_held_is_counted_apart() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    slot.reserve(0, 10).unwrap().commit();
    let (mut ready, mut tell) = pipe().unwrap();
    let mut child = Child::fork(|| {
        let slot = slice.join().unwrap();
        slot.reserve(0, 50).unwrap().commit();
        tell.write_all(&[1]).unwrap();
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    });
    ready.read_exact(&mut [0]).unwrap();
    assert_eq!(slot.used_by_living(0), 60);
    child.kill();
    assert_eq!(slice.usage(0).unwrap().ended, 0, "no process has looked");
    slice.note_ended().unwrap();
    for usage in [slot.usage(0), slice.usage(0).unwrap()] {
        assert_eq!((usage.used(), usage.ended, usage.free), (60, 50, 40));
        assert_eq!(usage.used_by_living(), 10);
    }
    assert_eq!(slot.used_by_living(0), 10);
    assert_eq!(
        slot.reserve(0, 41).unwrap_err().used,
        60,
        "not yet returned"
    );
    slice.reap(boot_time_ns(), &unlisted).unwrap();
    assert_eq!(slice.usage(0).unwrap().used(), 10);
}

/// `ulimit -f 0`: a write to any file ends the process by SIGXFSZ.
fn forbid_writes() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel reads the limit.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none) };
    assert_eq!(set, 0);
}

#[test]
fn a_process_that_may_write_no_file_gets_what_a_dead_one_held() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let (mut held, mut tell) = pipe().unwrap();
    let mut holder = Child::fork(|| {
        let slot = slice.join().unwrap();
        slot.reserve(0, 60).unwrap().commit();
        slot.export(0, 7, 40).unwrap();
        // Undecided for ever: it is killed between the two.
        let _hold = std::mem::ManuallyDrop::new(slot.reserve(0, 40).unwrap());
        tell.write_all(&[1]).unwrap();
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    });
    held.read_exact(&mut [0]).unwrap();
    holder.kill();
    Child::fork(|| {
        forbid_writes();
        let slot = slice.join().unwrap();
        let _ = slot
            .reap(boot_time_ns() + DRIVER_RELEASE_TIMEOUT_NS)
            .unwrap();
        assert_eq!(slot.usage(0).charged, 0);
        slot.reserve(0, 100).unwrap().commit();
    })
    .finish();
}
