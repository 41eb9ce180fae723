//! The gate of a parked job: a call that the driver's checkpoint lock would hold asks for the job's memory first.
//!
//! ```text
//! program ──► hook ─────── parked? ── no ──► handler
//!         └─► touch stub ─ parked? ── no ──► the driver's function (`route::touch`)
//!                              └─ yes: wait_for_wake, then the same
//! ```
//! `coverage.toml` says of every function whether it wakes the job, is answered from the ledger, or passes.

use std::ffi::CStr;
use std::ptr::{self, null_mut};
use std::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use divvy_driver::sys::symbols::begins_with_any;
use divvy_ledger::ProcessSlot;

/// Beginnings of the names of CUDA functions that do not wake a parked job: `coverage.toml` has the reasons.
const PASSING: [&str; 11] = [
    "cuInit",
    "cuGet",
    "cuDriverGet",
    "cuDeviceGet",
    "cuDeviceTotalMem",
    "cuMemGetInfo",
    "cuCtxGet",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCheckpoint",
];

/// The gate of a process that has none.
static ALWAYS_OPEN: AtomicU64 = AtomicU64::new(0);
/// This process's slot, once the process has joined its slice.
static SLOT: AtomicPtr<ProcessSlot> = AtomicPtr::new(null_mut());
/// The word at the gate of that slot's slice.
pub static GATE: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const ALWAYS_OPEN).cast_mut());

/// Whether a call of this function wakes a parked job. NVML's functions are another library's, which the lock does not
/// concern.
pub const fn wakes(name: &str) -> bool {
    begins_with_any(name, &["cu"]) && !begins_with_any(name, &PASSING)
}

/// Remembers the slot of this process, which has joined its slice.
#[inline]
pub fn watch(slot: &'static ProcessSlot) {
    if SLOT.load(Relaxed).is_null() {
        SLOT.store(ptr::from_ref(slot).cast_mut(), Release);
        GATE.store(ptr::from_ref(slot.gate()).cast_mut(), Release);
    }
}

/// A fork child has a slot of its own to find.
pub fn forget() {
    GATE.store((&raw const ALWAYS_OPEN).cast_mut(), Release);
    SLOT.store(null_mut(), Release);
}

/// This process's slot while its job is parked. Looks at the slot's files before it reads the gate, as a charge does; a
/// stub and a launch read the gate alone.
#[inline(always)]
pub fn parked() -> Option<&'static ProcessSlot> {
    // SAFETY: a slot stays where it is for good.
    let slot: &'static ProcessSlot = unsafe { SLOT.load(Acquire).as_ref() }?;
    (slot.check().is_ok() && slot.is_parked()).then_some(slot)
}

/// Asks for the memory of the parked job on behalf of this call, and waits for it.
#[inline(always)]
pub fn hold(call: &CStr) {
    if let Some(slot) = parked() {
        slot.wait_for_wake(call);
    }
}
