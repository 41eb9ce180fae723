//! Allocations that several processes hold: counted once, whoever lets go, dies or is stopped.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use crate::common;

use std::fs::OpenOptions;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use common::{Arena, Child, Place};
use divvy_ledger::{
    Listed, ProcessIdentity, ProcessSlot, ProcessState, SHARED, Slice, boot_time_ns,
};
use divvy_testkit::Rng;

const MIB: u64 = 1 << 20;

/// A process that shares one allocation of 60 bytes under key 7, or holds the one that is shared, and does nothing more.
fn holder(slice: &Slice) -> Child {
    let (mut ready, mut tell) = pipe().unwrap();
    let child = Child::fork(|| {
        let slot = slice.join().expect("there are slots enough");
        if slot.import(0, 7).is_none() {
            slot.reserve(0, 60).expect("it fits").commit();
            slot.export(0, 7, 60).expect("the table has room");
        }
        tell.write_all(&[1]).unwrap();
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    });
    ready.read_exact(&mut [0]).unwrap();
    child
}

fn reap(slice: &Slice) {
    slice.reap(boot_time_ns(), &|_| Listed::No).unwrap();
}

fn charged(slice: &Slice) -> u64 {
    slice.usage(0).unwrap().charged
}

/// In any state of a slice, views show no more with its living processes than they show as used, and that is no more
/// than reservations count.
fn views_agree(slice: &Slice) {
    let read = slice.read().unwrap();
    let usage = read.usage(0);
    let processes = read.processes().into_iter();
    let living = processes.filter(|process| process.state == ProcessState::Live);
    let shown = living.map(|process| process.gpus[0].charged + process.gpus[0].overhead);
    let shown = shown.fold(0, u64::saturating_add);
    let living = usage.used_by_living();
    assert!(
        shown <= living && living <= usage.used(),
        "{shown}: {usage:?}"
    );
    assert!(usage.free <= usage.limit, "{usage:?}");
}

/// What is shown with the process of that pid.
fn shown_with(slice: &Slice, pid: u32) -> u64 {
    let read = slice.read().unwrap();
    let process = read
        .processes()
        .into_iter()
        .find(|process| process.owner.pid == pid);
    process.unwrap().gpus[0].charged
}

fn me() -> u32 {
    ProcessIdentity::current().pid
}

#[test]
fn what_is_shared_is_counted_once_until_the_last_holder_lets_go() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let (first, second) = (slice.join().unwrap(), slice.join().unwrap());
    first.reserve(0, 60).unwrap().commit();
    let exported = first.export(0, 7, 60).unwrap();
    let imported = second.import(0, 7).unwrap();
    for usage in [first.usage(0), slice.usage(0).unwrap()] {
        assert_eq!((usage.charged, usage.shared, usage.free), (60, 60, 40));
    }
    assert_eq!(second.reserve(0, 41).unwrap_err().used, 60);
    first.release_shared(exported);
    assert_eq!(charged(&slice), 60);
    assert!(first.reserve(0, 41).is_err());
    second.release_shared(imported);
    assert_eq!((charged(&slice), slice.usage(0).unwrap().shared), (0, 0));
    first.reserve(0, 100).unwrap().commit();
    assert_eq!(slice.read().unwrap().alarms(), 0);
}

#[test]
fn no_process_finds_memory_that_is_not_shared() {
    let place = Place::new(&[100, 100]);
    let slice = place.slice();
    let (first, second) = (slice.join().unwrap(), slice.join().unwrap());
    first.reserve(0, 60).unwrap().commit();
    let shared = first.export(0, 7, 60).unwrap();
    assert!(second.import(0, 8).is_none(), "another key");
    assert!(second.import(1, 7).is_none(), "another GPU");
    assert!(second.import(2, 7).is_none(), "no GPU of the slice");
    first.release_shared(shared);
    assert!(second.import(0, 7).is_none(), "no more");
    assert_eq!(second.usage(1).charged, 0);
}

#[test]
fn a_process_that_shares_under_a_known_key_becomes_one_more_holder() {
    let place = Place::with_limit(200);
    let slice = place.slice();
    let (first, second) = (slice.join().unwrap(), slice.join().unwrap());
    // Both opened another slice's memory before either had shared it.
    first.reserve(0, 60).unwrap().commit();
    second.reserve(0, 60).unwrap().commit();
    let one = first.export(0, 7, 60).unwrap();
    let other = second.export(0, 7, 60).unwrap();
    assert_eq!(charged(&slice), 60);
    first.release_shared(one);
    assert_eq!(charged(&slice), 60);
    second.release_shared(other);
    assert_eq!(charged(&slice), 0);
}

#[test]
fn what_an_exporter_leaves_behind_is_its_importers() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let mut exporter = holder(&slice);
    let slot = slice.join().unwrap();
    let shared = slot.import(0, 7).unwrap();
    assert_eq!(
        (shown_with(&slice, exporter.pid()), shown_with(&slice, me())),
        (60, 0)
    );
    assert_eq!(slot.process(me()).unwrap().gpus[0].charged, 0);
    exporter.kill();
    reap(&slice);
    assert_eq!((charged(&slice), shown_with(&slice, me())), (60, 60));
    assert_eq!(slot.process(me()).unwrap().gpus[0].charged, 60);
    assert!(slot.reserve(0, 41).is_err());
    slot.release_shared(shared);
    assert_eq!(charged(&slice), 0);
    slot.reserve(0, 100).unwrap().commit();
}

#[test]
fn a_dead_holder_holds_until_the_driver_has_its_memory_back() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let (mut exporter, mut importer) = (holder(&slice), holder(&slice));
    let slot = slice.join().unwrap();
    exporter.kill();
    importer.kill();
    slice.reap(boot_time_ns(), &|_| Listed::Yes).unwrap();
    assert_eq!(charged(&slice), 60, "the driver still lists them");
    reap(&slice);
    assert_eq!(charged(&slice), 0);
    assert!(slot.import(0, 7).is_none());
    slot.reserve(0, 100).unwrap().commit();
}

#[test]
fn a_slot_that_another_process_is_changing_is_called_so() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let mut exporter = holder(&slice);
    let slot = slice.join().unwrap();
    exporter.kill();
    // A daemon that releases the slot: where version 2 locks the first slot for a change.
    let mut daemon = stopped_holding(&place, 1 << 20);
    let reaped = slot.reap(boot_time_ns()).unwrap();
    assert_eq!((reaped.freed, reaped.waiting, reaped.contended), (0, 0, 1));
    daemon.kill();
    let reaped = slot.reap(boot_time_ns()).unwrap();
    assert_eq!((reaped.freed, reaped.waiting, reaped.contended), (0, 1, 0));
}

#[test]
fn a_shared_allocation_without_a_holder_is_waited_for_while_the_table_is_locked() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let mut exporter = holder(&slice);
    let slot = slice.join().unwrap();
    exporter.kill();
    // Another process, such as a daemon that releases the exporter's slot, is at the table.
    let mut other = stopped_inside(&place);
    reap(&slice);
    let reaped = slot.reap(boot_time_ns()).unwrap();
    assert_eq!((reaped.freed, reaped.waiting), (0, 1));
    let usage = slot.usage(0);
    assert_eq!((usage.charged, usage.ended), (60, 60));
    other.kill();
    let reaped = slot.reap(boot_time_ns()).unwrap();
    assert_eq!((reaped.freed, reaped.waiting), (0, 0));
    slot.reserve(0, 100).unwrap().commit();
}

#[test]
fn the_next_owner_of_a_slot_holds_nothing_of_the_last_ones() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let mut exporter = holder(&slice);
    let other = slice.join().unwrap();
    let shared = other.import(0, 7).unwrap();
    exporter.kill();
    reap(&slice);
    let heir = slice.join().unwrap();
    assert_eq!(heir.index(), 0, "the exporter's slot");
    other.release_shared(shared);
    assert_eq!(charged(&slice), 0);
    assert!(heir.import(0, 7).is_none());
}

#[test]
fn a_slot_that_holds_something_shared_stays_until_its_process_is_gone() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    slot.reserve(0, 60).unwrap().commit();
    slot.export(0, 7, 60).unwrap();
    drop(slot);
    assert_eq!(
        (charged(&slice), slice.read().unwrap().processes().len()),
        (60, 1)
    );
}

#[test]
fn a_full_table_leaves_an_allocation_with_its_process() {
    let place = Place::with_limit(1 << 20);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    let share = |key| {
        slot.reserve(0, 10).unwrap().commit();
        slot.export(0, key, 10)
    };
    let mut all: Vec<_> = (1..=SHARED as u64).map(|key| share(key).unwrap()).collect();
    assert_eq!(share(1 << 40), None);
    assert_eq!(charged(&slice), 10 * (SHARED as u64 + 1));
    slot.release(0, 10);
    slot.release_shared(all.pop().unwrap());
    assert!(slot.export(0, 1 << 41, 0).is_some(), "a line is free again");
    assert_eq!(charged(&slice), 10 * (SHARED as u64 - 1));
}

#[test]
fn lines_that_were_left_half_way_are_used_again() {
    let place = Place::with_limit(1 << 20);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    // Each line as a process leaves it that is killed while it begins or ends one: bytes, but neither key nor GPU.
    let slots = OpenOptions::new()
        .write(true)
        .open(place.dir.path().join("slots"))
        .unwrap();
    const LINES: u64 = 1_388_608;
    for line in 0..SHARED as u64 {
        let used = LINES + line * 192 + 8;
        slots.write_all_at(&77u64.to_ne_bytes(), used).unwrap();
    }
    assert_eq!(charged(&slice), 0);
    for key in 1..=SHARED as u64 {
        slot.reserve(0, 10).unwrap().commit();
        assert!(slot.export(0, key, 10).is_some(), "line {key}");
    }
    assert_eq!(charged(&slice), 10 * SHARED as u64);
}

#[test]
fn what_is_shared_is_found_by_its_key_alone() {
    let place = Place::new(&[100, 100]);
    let slice = place.slice();
    let (first, second) = (slice.join().unwrap(), slice.join().unwrap());
    assert_eq!(second.gpu_of_shared(7), None);
    first.reserve(1, 60).unwrap().commit();
    let shared = first.export(1, 7, 60).unwrap();
    assert_eq!(second.gpu_of_shared(7), Some(1));
    first.release_shared(shared);
    assert_eq!(second.gpu_of_shared(7), None);
}

#[test]
fn letting_go_twice_takes_nothing_from_others() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    slot.reserve(0, 60).unwrap().commit();
    let old = slot.export(0, 7, 60).unwrap();
    slot.release_shared(old);
    slot.reserve(0, 50).unwrap().commit();
    let new = slot.export(0, 8, 50).unwrap();
    slot.release_shared(old);
    assert_eq!((charged(&slice), slice.read().unwrap().alarms()), (50, 1));
    slot.release_shared(new);
    assert_eq!(charged(&slice), 0);
}

/// A process that was stopped while it changed the table: it has the byte locked that guards it.
fn stopped_inside(place: &Place) -> Child {
    stopped_holding(place, 2 << 20)
}

/// A process that was stopped with a byte of the slots file locked.
fn stopped_holding(place: &Place, byte: i64) -> Child {
    let path = place.dir.path().join("slots");
    let (mut locked, mut tell) = pipe().unwrap();
    let child = Child::fork(|| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        // SAFETY: all zeros is a valid flock.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as libc::c_short;
        lock.l_start = byte;
        lock.l_len = 1;
        // SAFETY: a descriptor and a lock of our own.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
        assert_eq!(answer, 0);
        tell.write_all(&[1]).unwrap();
        loop {
            // SAFETY: no preconditions.
            unsafe { libc::pause() };
        }
    });
    locked.read_exact(&mut [0]).unwrap();
    child
}

#[test]
fn a_process_stopped_inside_the_table_costs_others_memory_counted_twice_and_no_hang() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let (first, second) = (slice.join().unwrap(), slice.join().unwrap());
    first.reserve(0, 30).unwrap().commit();
    let shared = first.export(0, 7, 30).unwrap();
    let mut stopped = stopped_inside(&place);
    assert_eq!(second.import(0, 7), None);
    second.reserve(0, 30).unwrap().commit();
    assert_eq!(second.export(0, 7, 30), None);
    assert_eq!(charged(&slice), 60);
    first.release_shared(shared);
    reap(&slice);
    assert_eq!(charged(&slice), 60, "not while the table changes");
    stopped.kill();
    reap(&slice);
    assert_eq!(charged(&slice), 30);
}

const WORKERS: usize = 6;
const KEYS: u64 = 12;
const LIMIT: u64 = 64 * MIB;

fn bytes_of(key: u64) -> u64 {
    key * MIB
}

/// What each worker holds: bytes of its own, and one bit a key.
struct Claims([[AtomicU64; 2]; WORKERS]);

/// Exports, imports and lets go at random, one burst for every byte it is sent, and answers each with a byte.
struct Worker {
    child: Child,
    go: PipeWriter,
    idle: PipeReader,
}

impl Worker {
    fn start(slice: &Slice, claims: &Claims, worker: usize, seed: u64) -> Self {
        let (mut wait, go) = pipe().unwrap();
        let (idle, mut tell) = pipe().unwrap();
        let child = Child::fork(|| {
            let slot = slice.join().expect("there are slots enough");
            let (mut dice, mut held, mut own) = (Rng::new(seed), Vec::new(), 0);
            while wait.read(&mut [0]).unwrap() == 1 {
                for _ in 0..100 {
                    own += burst(&slot, &mut dice, &mut held);
                }
                let keys = held.iter().fold(0, |bits, (key, _)| bits | 1 << key);
                claims.0[worker][0].store(own, SeqCst);
                claims.0[worker][1].store(keys, SeqCst);
                tell.write_all(&[1]).unwrap();
            }
        });
        Self { child, go, idle }
    }
}

/// Opens or closes one allocation. Returns bytes that could not be shared and stay the process's own.
fn burst(
    slot: &ProcessSlot,
    dice: &mut Rng,
    held: &mut Vec<(u64, divvy_ledger::SharedAllocation)>,
) -> u64 {
    let key = 1 + dice.below(KEYS);
    if let Some(at) = held.iter().position(|(of, _)| *of == key) {
        slot.release_shared(held.swap_remove(at).1);
    } else if let Some(shared) = slot.import(0, key) {
        held.push((key, shared));
    } else if let Ok(hold) = slot.reserve(0, bytes_of(key)) {
        hold.commit();
        match slot.export(0, key, bytes_of(key)) {
            Some(shared) => held.push((key, shared)),
            None => return bytes_of(key),
        }
    }
    0
}

#[test]
fn a_process_killed_while_sharing_leaves_exactly_what_the_others_hold() {
    let place = Place::with_limit(LIMIT);
    let slice = place.slice();
    let claims = Arena::new(Claims(Default::default()));
    let start = |worker, seed| Worker::start(&slice, &claims, worker, seed);
    let mut workers: Vec<_> = (0..WORKERS).map(|at| start(at, at as u64 + 1)).collect();
    let mut dice = Rng::new(815);
    for round in 0..100 {
        workers
            .iter_mut()
            .for_each(|worker| worker.go.write_all(&[1]).unwrap());
        for _ in 0..1 + dice.below(3) {
            let victim = dice.below(WORKERS as u64) as usize;
            for _ in 0..dice.below(100_000) {
                std::hint::spin_loop();
            }
            let pid = workers[victim].child.pid();
            workers[victim].child.kill();
            let listed = |owner: &ProcessIdentity| {
                if owner.pid == pid {
                    Listed::No
                } else {
                    Listed::Unknown
                }
            };
            views_agree(&slice);
            slice.reap(boot_time_ns(), &listed).unwrap();
            views_agree(&slice);
            workers[victim] = start(victim, round << 8 | dice.below(256));
            workers[victim].go.write_all(&[1]).unwrap();
        }
        for worker in &mut workers {
            worker
                .idle
                .read_exact(&mut [0])
                .expect("it found nothing wrong");
        }
        // A slot whose reaper met a joiner, and lines that were being changed, are left to the next look.
        reap(&slice);
        let read = |at: usize| claims.0.iter().map(move |claim| claim[at].load(SeqCst));
        let keys = read(1).fold(0, |all, keys| all | keys);
        let shared: u64 = (1..=KEYS)
            .filter(|key| keys >> key & 1 == 1)
            .map(bytes_of)
            .sum();
        let usage = slice.usage(0).unwrap();
        assert_eq!(usage.shared, shared, "round {round}");
        assert_eq!(
            usage.charged,
            shared + read(0).sum::<u64>(),
            "round {round}"
        );
        assert_eq!(slice.read().unwrap().alarms(), 0);
    }
    drop(workers);
    reap(&slice);
    assert_eq!(charged(&slice), 0);
}

#[test]
fn a_table_of_any_bytes_is_read_and_swept() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let slot = slice.join().unwrap();
    let path = place.dir.path().join("slots");
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let mut dice = Rng::new(99);
    for _ in 0..50 {
        let mut bytes = vec![0; 192 * SHARED];
        bytes.fill_with(|| dice.below(256) as u8);
        // Where version 2 keeps the table, and the bits that say what of it counts.
        file.write_all_at(&bytes, 1_388_608).unwrap();
        file.write_all_at(&bytes[..512], 2048).unwrap();
        views_agree(&slice);
        let _ = (slot.usage(0), slot.import(0, 7), slot.process(me()));
        assert!(slot.reserve(0, 101).is_err());
        reap(&slice);
    }
}
