//! The out-of-memory report (OOM report): the function, the size, the reason and the usage behind an OUT_OF_MEMORY
//! answer.
//!
//! ```text
//! enter ── handler: GpuAccount::reserve ──► a note in this thread: which GPU, how much, granted or not
//!   │                                                     │
//! leave ◄── answer OUT_OF_MEMORY? ── yes ─────────────────┴──► slice's denial log (`divvy_ledger::Denial`)
//! ```
//! Handlers need to do nothing: this module knows the result of the call's last reservation, and every hook passes through
//! [`watched`]. A program that retries in a loop must not pay for its records, so a process writes four at once and ten a
//! second from then on; the other refusals are only counted.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use divvy_driver::sys::cuda::CUresult;
use divvy_driver::sys::nvml::nvmlReturn_t;
use divvy_ledger::{DenialCause, DenialReport, Denied, ProcessSlot, boot_time_ns};

use crate::account::{GpuAccount, ProcessAccount};
use crate::charge::breakdown::Breakdown;
use crate::charge::driver_cache::relaxed;
use crate::charge::oversize;
use crate::device::{self, DeviceMembership};
use crate::process;
use crate::table::real;

/// Between two records of a process that is refused again and again. Ten records in a second show a loop; more would
/// only push other processes' records out of the log.
const INTERVAL_NS: u64 = 100_000_000;
/// How many it may write at once. A program that falls back to smaller sizes tries a few times: all of these stand in
/// the report, and leave room in its 16 lines.
const AT_ONCE: u64 = 4;

/// The reservation attempt of the call that runs in this thread.
#[derive(Clone, Copy)]
struct AllocationAttempt {
    /// Its place in the slice; `None` for a GPU that is not in it.
    gpu: Option<usize>,
    bytes: u64,
    cause: DenialCause,
}

thread_local! {
    static NOTE: Cell<Option<AllocationAttempt>> = const { Cell::new(None) };
}

/// How many threads have a note: most calls find that none has, and need not look for this thread's. A thread that ends with a note
/// stays counted, which costs the others a look.
static NOTES: AtomicUsize = AtomicUsize::new(0);

fn note(note: AllocationAttempt) {
    if NOTE.replace(Some(note)).is_none() {
        NOTES.fetch_add(1, Relaxed);
    }
}

/// Takes this thread's note.
fn taken() -> Option<AllocationAttempt> {
    if NOTES.load(Relaxed) == 0 {
        return None;
    }
    NOTE.take().inspect(|_| _ = NOTES.fetch_sub(1, Relaxed))
}

/// A result that may tell the program that there is no memory.
pub trait Answer: Copy {
    /// Whether functions of this kind are watched at all.
    const WATCHED: bool;
    fn is_out_of_memory(self) -> bool;
}

impl Answer for CUresult {
    const WATCHED: bool = true;
    fn is_out_of_memory(self) -> bool {
        self == CUresult::OUT_OF_MEMORY
    }
}

impl Answer for nvmlReturn_t {
    const WATCHED: bool = false;
    fn is_out_of_memory(self) -> bool {
        false
    }
}

/// Runs the hook of that name, and writes down a refusal.
pub fn watched<R: Answer>(name: &'static CStr, hook: impl FnOnce() -> R) -> R {
    if !R::WATCHED {
        return hook();
    }
    clear_attempt();
    let answer = hook();
    if answer.is_out_of_memory() {
        report(name);
    }
    answer
}

/// Bytes of a GPU are asked for, or were, and the driver has failed. If the call fails all the same, it was the driver that had none.
pub fn record_request(place: &GpuAccount, bytes: u64) {
    note(AllocationAttempt {
        gpu: Some(place.gpu),
        bytes,
        cause: DenialCause::GpuFull,
    });
}

/// The account has no room for them. What exceeds the GPU no limit could grant: the driver refuses it.
pub fn record_denial(place: &GpuAccount, denied: &Denied) {
    let exceeds_gpu =
        denied.requested > denied.limit && oversize::exceeds_gpu(place, denied.requested);
    note(AllocationAttempt {
        gpu: Some(place.gpu),
        bytes: denied.requested,
        cause: if exceeds_gpu {
            DenialCause::GpuFull
        } else {
            DenialCause::SliceFull
        },
    });
}

/// The driver has given what was asked for and more, beyond the limit: it has to be given back.
pub fn record_over_limit() {
    if let Some(asked) = taken() {
        note(AllocationAttempt {
            cause: DenialCause::SliceFull,
            ..asked
        });
    }
}

/// The GPU is not one of the slice's.
pub fn record_foreign_gpu() {
    note(AllocationAttempt {
        gpu: None,
        bytes: 0,
        cause: DenialCause::NotInSlice,
    });
}

/// Clears the attempt, because the refused bytes are not needed after all.
pub fn clear_attempt() {
    taken();
}

/// When this process may write its next record, and what it has not written since the last one.
#[derive(Default)]
pub struct ReportLimiter {
    due: AtomicU64,
    skipped: AtomicU64,
}

impl ReportLimiter {
    /// Whether this refusal is to be written down; then, how many were not since the last one.
    fn admit(&self, now: u64) -> Option<u64> {
        let next = |due: u64| {
            let due = due.max(now);
            (due - now <= (AT_ONCE - 1) * INTERVAL_NS).then_some(due + INTERVAL_NS)
        };
        if self.due.fetch_update(Relaxed, Relaxed, next).is_ok() {
            return Some(self.skipped.swap(0, Relaxed));
        }
        self.skipped.fetch_add(1, Relaxed);
        None
    }
}

#[cold]
fn report(name: &CStr) {
    let Some(account) = process::account() else {
        return;
    };
    let Some(slot) = account.joined() else {
        return;
    };
    let note = taken().unwrap_or(AllocationAttempt {
        gpu: device::current().and_then(|device| match account.belongs(device) {
            DeviceMembership::InSlice(place) => Some(place.gpu),
            DeviceMembership::OutsideSlice | DeviceMembership::Unknown => None,
        }),
        bytes: 0,
        cause: DenialCause::Other,
    });
    if let (Some(gpu), DenialCause::SliceFull) = (note.gpu, note.cause) {
        slot.count_denial(gpu, note.bytes);
    }
    if let Some(skipped) = account.refusals.admit(boot_time_ns()) {
        record(account, slot, name, &note, skipped);
    }
}

fn record(
    account: &'static ProcessAccount,
    slot: &ProcessSlot,
    name: &CStr,
    note: &AllocationAttempt,
    skipped: u64,
) {
    let mut tally = Breakdown::default();
    let (mut gpu_free, mut gpu_total) = (0, 0);
    if let Some(gpu) = note.gpu {
        account.add_to_breakdown(gpu, &mut tally);
        let is_current = |device| match account.belongs(device) {
            DeviceMembership::InSlice(place) => place.gpu == gpu,
            DeviceMembership::OutsideSlice | DeviceMembership::Unknown => false,
        };
        if device::current().is_some_and(is_current) {
            (gpu_free, gpu_total) = memory_of_current().unwrap_or_default();
        }
    }
    slot.record(&DenialReport {
        api: name.to_bytes(),
        gpu: note.gpu,
        requested: note.bytes,
        cause: note.cause,
        gpu_free,
        gpu_total,
        allocations: tally.count(),
        largest: &tally.largest(),
        skipped,
    });
}

/// Free and total memory of the current device by the driver, in bytes.
fn memory_of_current() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    let ask = real::cuMemGetInfo_v2.get()?;
    // SAFETY: the driver's function, with places for its answers.
    let result = relaxed(|| unsafe { ask(&mut free, &mut total) });
    (result == CUresult::SUCCESS).then_some((free as u64, total as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_of_refusals_is_written_down_four_times_and_then_ten_times_a_second() {
        let refusals = ReportLimiter::default();
        let start = 1_000 * INTERVAL_NS;
        let written = (0..100).filter(|_| refusals.admit(start).is_some()).count();
        assert_eq!(written, 4);
        assert_eq!(refusals.admit(start + INTERVAL_NS - 1), None);
        assert_eq!(refusals.admit(start + INTERVAL_NS), Some(97));
        let second = (0..1000).map(|step| start + INTERVAL_NS + step * 1_000_000);
        assert_eq!(
            second.filter(|now| refusals.admit(*now).is_some()).count(),
            9
        );
    }

    #[test]
    fn after_a_pause_four_are_written_again() {
        let refusals = ReportLimiter::default();
        for start in [INTERVAL_NS, 50 * INTERVAL_NS] {
            let written = (0..10).filter(|_| refusals.admit(start).is_some()).count();
            assert_eq!(written, 4);
        }
    }
}
