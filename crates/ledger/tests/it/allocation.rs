//! Reserving, committing, releasing and being refused take no memory from the program that does it.

use crate::common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::Place;
use divvy_ledger::boot_time_ns;

struct Counting;

thread_local! {
    /// Of this thread alone: the test harness has one of its own, which goes on while a test runs.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's own promise, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_reservation_allocates_whether_granted_or_refused() {
    let place = Place::with_limit(1 << 30);
    let slice = place.slice();
    let (slot, other) = (slice.join().unwrap(), slice.join().unwrap());
    other.reserve(0, 1 << 20).unwrap().commit();
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        slot.reserve(0, 1 << 20).unwrap().commit();
        drop(slot.reserve(0, 1 << 20).unwrap());
        slot.reserve(0, 1 << 20).unwrap().commit_as(1 << 21);
        assert!(slot.reserve(0, 1 << 30).is_err());
        slot.release(0, 3 << 20);
        slot.charge_overhead(0).unwrap();
        slot.release_overhead(0);
        slot.note_managed(0, 1);
        slot.usage(0);
        slot.is_member(1);
    }
    slot.reap(boot_time_ns()).unwrap();
    assert_eq!(ALLOCATIONS.get(), before);
}
