//! Programs that fork without exec, or close descriptors that are not theirs.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use crate::common;

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use common::{Arena, Child, Place, adopt_orphans};
use divvy_ledger::{Listed, Reaped, Slice, boot_time_ns};

/// Says "here" and waits for ever.
fn stay(tell: &mut PipeWriter) {
    tell.write_all(&[1]).unwrap();
    loop {
        // SAFETY: no preconditions.
        unsafe { libc::pause() };
    }
}

fn here(told: &mut PipeReader) {
    told.read_exact(&mut [0])
        .expect("the child came to the point");
}

/// Whether the slot of a dead process is free to be reaped; one that was seen dead two seconds ago is by that.
fn is_reapable(slice: &Slice) -> bool {
    let reaped = slice.reap(boot_time_ns(), &|_| Listed::Unknown).unwrap();
    reaped.waiting + reaped.freed == 1
}

#[test]
fn a_fork_child_can_do_nothing_with_its_parents_slot_and_joins_itself() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    // The one who forks has one thread, unlike a test.
    Child::fork(|| {
        let slot = slice.join().unwrap();
        slot.reserve(0, 60).unwrap().commit();
        let body = || {
            assert!(slot.is_inherited() && !slot.is_mine());
            assert!(slot.reserve(0, 10).is_err() && slot.charge_overhead(0).is_err());
            slot.release(0, 60);
            slot.force(0, 60);
            slot.note_host(0, 1);
            let own = slice.join().unwrap();
            assert!(!own.is_inherited() && own.is_mine() && slot.is_inherited());
            assert_ne!(own.index(), slot.index());
            own.reserve(0, 40).unwrap().commit();
            assert!(own.reserve(0, 1).is_err());
            own.release(0, 40);
        };
        Child::fork(body).finish();
        Child::raw_fork(body).finish();
        assert!(!slot.is_inherited() && slot.is_mine());
        assert_eq!((slot.usage(0).charged, slot.usage(0).host), (60, 0));
    })
    .finish();
}

#[test]
fn a_fork_child_dropping_its_parents_slot_leaves_it_alone() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    for raw in [false, true] {
        Child::fork(|| {
            let mut slot = Some(slice.join().unwrap());
            let index = slot.as_ref().unwrap().index();
            let body = || {
                let own = slice.join().unwrap();
                drop(slot.take());
                assert!(own.is_mine());
                own.reserve(0, 1).unwrap().commit();
                own.release(0, 1);
                let reaped = slice.reap(boot_time_ns(), &|_| Listed::No).unwrap();
                assert_eq!(reaped, Reaped::default());
            };
            if raw {
                Child::raw_fork(body)
            } else {
                Child::fork(body)
            }
            .finish();
            let slot = slot.expect("dropped in the child only");
            slot.reserve(0, 1).unwrap().commit();
            slot.release(0, 1);
            let processes = slice.read().unwrap().processes();
            assert_eq!(
                processes
                    .iter()
                    .map(|process| process.slot)
                    .collect::<Vec<_>>(),
                [index]
            );
        })
        .finish();
    }
}

/// Starts a process that holds 60 bytes, and forks a child of its own that runs `grandchild`.
fn with_grandchild(slice: &Slice, raw: bool, grandchild: impl FnOnce()) -> (Child, Child) {
    adopt_orphans();
    let pid = Arena::new(AtomicU64::new(0));
    let (mut told, mut tell) = pipe().unwrap();
    let parent = Child::fork(|| {
        let slot = slice.join().unwrap();
        slot.reserve(0, 60).unwrap().commit();
        let child = if raw {
            Child::raw_fork(grandchild)
        } else {
            Child::fork(grandchild)
        };
        pid.store(u64::from(child.pid()), SeqCst);
        std::mem::forget(child);
        stay(&mut tell);
    });
    drop(tell);
    here(&mut told);
    (parent, Child::orphan(pid.load(SeqCst)))
}

#[test]
fn a_fork_child_does_not_keep_its_dead_parent_alive() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let (mut told, mut tell) = pipe().unwrap();
    let (mut parent, _grandchild) = with_grandchild(&slice, false, || stay(&mut tell));
    drop(tell);
    here(&mut told);
    assert!(!is_reapable(&slice));
    parent.kill();
    assert!(is_reapable(&slice));
}

/// How many open files of this process lock something of the slice's. (What other tests had open when it was forked comes and goes
/// with them.)
fn locks(place: &Place) -> usize {
    let slots = place.dir.path().join("slots");
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let of_slice = descriptors
        .map(|entry| entry.unwrap())
        .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|file| file == slots));
    let texts = of_slice.filter_map(|entry| {
        let told = std::path::Path::new("/proc/self/fdinfo").join(entry.file_name());
        std::fs::read_to_string(told).ok()
    });
    texts.filter(|text| text.contains("OFDLCK")).count()
}

#[test]
fn a_child_forked_while_another_thread_joins_does_not_keep_that_slot_locked() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let slice = &slice;
    // In a process of its own, away from the slots of other tests.
    Child::fork(|| {
        let slot = slice.join().unwrap();
        assert_eq!(locks(&place), 1);
        drop(slot);
        assert_eq!(locks(&place), 0);
        for round in 0..300 {
            let (mut gate, mut open) = pipe().unwrap();
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let joiner = scope.spawn(|| {
                    start.wait();
                    slice.join().unwrap()
                });
                start.wait();
                for _ in 0..round * 10 {
                    std::hint::spin_loop();
                }
                let child = Child::fork(|| {
                    gate.read_exact(&mut [0]).unwrap();
                    assert_eq!(locks(&place), 0);
                });
                let _slot = joiner.join().unwrap();
                open.write_all(&[1]).unwrap();
                child.finish();
            });
        }
    })
    .finish();
}

#[test]
fn a_child_forked_behind_the_c_librarys_back_lets_go_when_it_joins_itself() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let (mut gate, mut open) = pipe().unwrap();
    let (mut told, mut tell) = pipe().unwrap();
    let join = || {
        gate.read_exact(&mut [0]).unwrap();
        let _own = slice.join().unwrap();
        stay(&mut tell);
    };
    let (mut parent, _grandchild) = with_grandchild(&slice, true, join);
    drop(tell);
    parent.kill();
    assert!(
        !is_reapable(&slice),
        "the grandchild still holds the descriptor, and perhaps the device's"
    );
    open.write_all(&[1]).unwrap();
    here(&mut told);
    assert!(is_reapable(&slice));
}

#[test]
fn closing_all_descriptors_costs_a_living_process_nothing() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    let (mut told, tell) = pipe().unwrap();
    let mut child = Child::fork(|| {
        use std::os::fd::{AsRawFd, FromRawFd};
        let slot = slice.join().unwrap();
        slot.reserve(0, 60).unwrap().commit();
        // SAFETY: what a program with closefrom(3) does, keeping only the pipe, as descriptor 0.
        let mut tell = unsafe {
            assert_eq!(libc::dup2(tell.as_raw_fd(), 0), 0);
            assert_eq!(libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0), 0);
            PipeWriter::from(std::os::fd::OwnedFd::from_raw_fd(0))
        };
        slot.reserve(0, 40).unwrap().commit();
        assert!(slot.reserve(0, 1).is_err());
        slot.release(0, 40);
        stay(&mut tell);
    });
    here(&mut told);
    let now = boot_time_ns();
    assert_eq!(
        slice.reap(now, &|_| Listed::No).unwrap(),
        Default::default()
    );
    assert_eq!(slice.usage(0).unwrap().charged, 60);
    child.kill();
    assert_eq!(slice.reap(now, &|_| Listed::No).unwrap().freed, 1);
}

#[test]
fn leaving_closes_no_descriptor_of_the_programs() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    Child::fork(|| {
        let slot = slice.join().unwrap();
        // SAFETY: descriptors of this process alone; what a program may do that believes them to be its own.
        let opened: Vec<i32> = unsafe {
            assert_eq!(libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0), 0);
            (0..400)
                .map(|_| libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY))
                .collect()
        };
        drop(slot);
        for descriptor in opened {
            // SAFETY: only asks.
            assert!(descriptor > 0 && unsafe { libc::fcntl(descriptor, libc::F_GETFD) } >= 0);
        }
    })
    .finish();
}

#[test]
fn the_lock_descriptor_is_high_and_closed_on_exec() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    Child::fork(|| {
        let ours = |path: &std::path::Path| {
            let name = std::fs::read_link(path).unwrap_or_default();
            name == place.dir.path().join("slots")
        };
        let _slot = slice.join().unwrap();
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let open: Vec<_> = descriptors
            .map(|entry| entry.unwrap().path())
            .filter(|path| ours(path))
            .collect();
        assert_eq!(open.len(), 1);
        let descriptor: i32 = open[0]
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        // SAFETY: only asks.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        assert!(descriptor >= 200);
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    })
    .finish();
}

#[test]
fn a_process_that_may_not_have_high_descriptors_joins_all_the_same() {
    let place = Place::with_limit(100);
    let slice = place.slice();
    Child::fork(|| {
        let few = libc::rlimit {
            rlim_cur: 64,
            rlim_max: 64,
        };
        // SAFETY: a valid limit, for this child alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
        let slot = slice.join().unwrap();
        slot.reserve(0, 1).unwrap().commit();
        slot.release(0, 1);
    })
    .finish();
    assert!(slice.read().unwrap().processes().is_empty());
}
