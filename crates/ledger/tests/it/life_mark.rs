//! Life marks: a view shows nothing of a process that has ended, at the first call after its end, and everything of one
//! that lives, whatever its threads do.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use crate::common;

use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use common::{Arena, Barrier, Child, Place};
use divvy_ledger::{ProcessSlot, Slice};
use divvy_testkit::{Rng, join, until};

/// A slot of this process that stays, marked by the calling thread.
fn joined(slice: &Slice) -> &'static ProcessSlot {
    let slot: &ProcessSlot = Box::leak(Box::new(slice.join().unwrap()));
    slot.mark_life();
    slot
}

/// A process that holds 60 bytes, and does something before the barrier and after it.
fn holder(place: &Place, barrier: &Barrier, then: impl FnOnce(&'static ProcessSlot)) -> Child {
    let slice = place.slice();
    Child::fork(|| {
        let slot = joined(&slice);
        slot.reserve(0, 60).unwrap().commit();
        then(slot);
        barrier.wait();
        loop {
            thread::park();
        }
    })
}

#[test]
fn memory_of_a_killed_process_is_not_shown_at_the_next_call() {
    let place = Place::with_limit(100);
    let own = joined(&place.slice());
    for round in 0..50 {
        let barrier = Barrier::new(2);
        let mut other = holder(&place, &barrier, |_| {});
        barrier.wait();
        for _ in 0..3 {
            assert_eq!(own.used_by_living(0), 60, "round {round}");
        }
        other.kill();
        assert_eq!(own.used_by_living(0), 0, "round {round}");
        // In a test two seconds would pass until its slot is free.
        let late = divvy_ledger::boot_time_ns() + 2 * divvy_ledger::DRIVER_RELEASE_TIMEOUT_NS;
        assert_eq!(own.reap(late).unwrap().freed, 1);
    }
}

#[test]
fn memory_of_a_process_is_shown_after_the_end_of_the_thread_that_marked_it() {
    let place = Place::with_limit(100);
    let own = joined(&place.slice());
    let barrier = Barrier::new(2);
    let slice = place.slice();
    let mut other = Child::fork(|| {
        let slot = join("its first thread", thread::spawn(move || joined(&slice)));
        slot.reserve(0, 60).unwrap().commit();
        barrier.wait();
        barrier.wait();
        slot.mark_life();
        barrier.wait();
        loop {
            thread::park();
        }
    });
    barrier.wait();
    assert_eq!(
        own.used_by_living(0),
        60,
        "its mark says that a thread ended"
    );
    barrier.wait();
    barrier.wait();
    assert_eq!(own.used_by_living(0), 60, "marked anew by another thread");
    other.kill();
    assert_eq!(own.used_by_living(0), 0);
}

/// As a program does that calls set_robust_list(2) itself.
#[test]
fn a_killed_process_without_its_robust_list_is_found_by_its_life_lock() {
    let place = Place::with_limit(100);
    let own = joined(&place.slice());
    let barrier = Barrier::new(2);
    let mut other = holder(&place, &barrier, |_| {
        let head: &[AtomicU64; 3] = Box::leak(Box::default());
        head[0].store(head.as_ptr().expose_provenance() as u64, SeqCst);
        // SAFETY: an empty list, which stays.
        let set = unsafe { libc::syscall(libc::SYS_set_robust_list, head.as_ptr(), 24) };
        assert_eq!(set, 0);
    });
    barrier.wait();
    assert_eq!(own.used_by_living(0), 60);
    other.kill();
    until("the view asks for the life locks again", || {
        own.check().unwrap();
        (own.used_by_living(0) == 0).then_some(())
    });
}

#[test]
fn a_child_of_a_marked_process_ends_without_its_parents_memory() {
    let place = Place::with_limit(100);
    let own = joined(&place.slice());
    let barrier = Barrier::new(2);
    let _other = holder(&place, &barrier, |_| Child::fork(|| {}).finish());
    barrier.wait();
    assert_eq!(own.used_by_living(0), 60);
}

/// Robust mutexes of the program, in memory that it shares.
struct Mutexes(Arena<[UnsafeCell<libc::pthread_mutex_t>; 4]>);

impl Mutexes {
    fn new() -> Self {
        // SAFETY: plain bytes for the C library; initialised below, before use.
        let unused = || unsafe { std::mem::zeroed() };
        let arena = Arena::new(std::array::from_fn(|_| UnsafeCell::new(unused())));
        for mutex in arena.iter() {
            // SAFETY: valid places, in memory that stays.
            unsafe {
                let mut attributes = std::mem::zeroed();
                libc::pthread_mutexattr_init(&mut attributes);
                libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
                libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST);
                libc::pthread_mutex_init(mutex.get(), &attributes);
            }
        }
        Self(arena)
    }

    /// Locks or unlocks them at random; one bit for each that is locked in the end.
    fn use_at_random(&self, mut held: usize, dice: &mut Rng) -> usize {
        for _ in 0..dice.below(20) {
            let which = dice.below(4) as usize;
            // SAFETY: initialised; unlocked by the thread that has locked it.
            let result = unsafe {
                match held >> which & 1 {
                    0 => libc::pthread_mutex_lock(self.0[which].get()),
                    _ => libc::pthread_mutex_unlock(self.0[which].get()),
                }
            };
            assert_eq!(result, 0);
            held ^= 1 << which;
        }
        held
    }

    fn lock(&self, which: usize) -> i32 {
        // SAFETY: initialised.
        unsafe { libc::pthread_mutex_lock(self.0[which].get()) }
    }
}

#[test]
fn robust_mutexes_of_the_program_and_the_mark_of_its_slot_do_not_harm_each_other() {
    let place = Place::with_limit(100);
    let own = joined(&place.slice());
    for seed in 0..40 {
        let (mutexes, held) = (Mutexes::new(), Arena::new(AtomicU64::new(0)));
        let barrier = Barrier::new(2);
        let slice = place.slice();
        let mut other = Child::fork(|| {
            let mut dice = Rng::new(seed);
            let before = mutexes.use_at_random(0, &mut dice);
            let slot = joined(&slice);
            slot.reserve(0, 60).unwrap().commit();
            held.store(mutexes.use_at_random(before, &mut dice) as u64, SeqCst);
            barrier.wait();
            loop {
                thread::park();
            }
        });
        barrier.wait();
        assert_eq!(own.used_by_living(0), 60, "seed {seed}");
        assert_eq!(own.used_by_living(0), 60, "seed {seed}");
        other.kill();
        assert_eq!(own.used_by_living(0), 0, "seed {seed}");
        for which in 0..4 {
            let expected = match held.load(SeqCst) >> which & 1 {
                0 => 0,
                _ => libc::EOWNERDEAD,
            };
            assert_eq!(mutexes.lock(which), expected, "seed {seed}, mutex {which}");
        }
        let late = divvy_ledger::boot_time_ns() + 2 * divvy_ledger::DRIVER_RELEASE_TIMEOUT_NS;
        assert_eq!(own.reap(late).unwrap().freed, 1);
    }
}
