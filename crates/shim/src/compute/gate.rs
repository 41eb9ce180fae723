//! The launch gate: every launch passes here, and most pass without waiting.

use std::ptr::{self, null_mut};
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_driver::sys::cuda::{CUresult, CUstream};
use divvy_ledger::{MAX_GATE_WAIT_NS, ProcessSlot, boot_time_ns, nap};

use crate::account::ProcessAccount;
use crate::charge::stream::Flavour;
use crate::compute::flight::{InFlightWork, Lane, SPACING, StreamId, WINDOW};
use crate::compute::forecast::{Forecast, Work};
use crate::device;
use crate::device::DeviceMembership;
use crate::process::{self, LimiterState};
use crate::route::function::driver;

/// Between two looks whether there is room on the GPU.
const LOOK: Duration = Duration::from_micros(50);
/// Of launches that need not wait, at least one in so many is looked at.
const LONGEST_STRIDE: u64 = 64;
/// Work that does not end in this time may wait for what has yet to be launched, in nanoseconds. Ten times the longest
/// turn: kernels longer than that are rare, and a program whose kernels wait for its next launch hangs no longer.
const GIVE_UP: u64 = 500_000_000;

/// A process's record of its work while slices take turns.
#[derive(Default)]
pub struct Compute {
    forecast: Forecast,
    flight: Mutex<InFlightWork>,
    /// Of so many launches that need not wait, one is looked at.
    stride: AtomicU32,
    launches: AtomicU32,
}

impl Compute {
    fn flight(&self) -> MutexGuard<'_, InFlightWork> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a launch that need not wait may go unseen. Short work is looked at now and then, long work each time.
    #[inline]
    fn is_skipped(&self) -> bool {
        let launches = self.launches.fetch_add(1, Relaxed);
        !launches.is_multiple_of(self.stride.load(Relaxed).max(1))
    }

    /// Chooses the stride from here on, and returns the one up to here.
    fn set_stride(&self, cost: u64, window: u64, is_bounded: bool) -> u64 {
        let stride = if is_bounded {
            (window / SPACING / 2 / cost.max(1)).clamp(1, LONGEST_STRIDE)
        } else {
            1
        };
        u64::from(self.stride.swap(stride as u32, Relaxed).max(1))
    }

    /// Contexts are gone, and what was theirs with them.
    pub fn forget(&self, is_gone: impl Fn(usize) -> bool) {
        self.flight().forget(is_gone);
    }

    /// After a call that waited for work: tells what is done.
    pub fn synchronised(&self, slot: &ProcessSlot, of: impl Fn(&Lane) -> bool) {
        let mut flight = self.flight();
        flight.collect_finished(&self.forecast, boot_time_ns());
        flight.synchronised(of);
        for gpu in flight.gpus().iter().filter(|gpu| flight.is_done(**gpu)) {
            slot.work_done(*gpu);
        }
    }
}

/// The word at the gate of this process's slice, once a launch has found it; null before, and in a fork child.
static GATE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The gate of a process that has none.
static ALWAYS_OPEN: AtomicU64 = AtomicU64::new(0);

/// Whether a launch may go straight on, as nearly all do: two loads.
#[inline(always)]
pub fn is_open() -> bool {
    // SAFETY: `gated` stores the address of a word that stays where it is for good.
    unsafe { GATE.load(Acquire).as_ref() }.is_some_and(|gate| gate.load(Relaxed) == 0)
}

/// A fork child has a slot of its own to find.
pub fn forget_slot() {
    GATE.store(null_mut(), Release);
}

/// This process's account and slot, if turns are taken.
#[inline]
pub fn gated() -> Option<(&'static ProcessAccount, &'static ProcessSlot)> {
    let remember = |gate: &'static AtomicU64| GATE.store(ptr::from_ref(gate).cast_mut(), Release);
    let LimiterState::Limited(account) = process::limiter_state() else {
        remember(&ALWAYS_OPEN);
        return None;
    };
    let slot: &'static ProcessSlot = account.slot_unchecked()?;
    remember(slot.gate());
    (!slot.is_ungated()).then_some((account, slot))
}

/// Lets a launch into a stream through, sooner or later.
#[inline]
pub fn pass(
    stream: CUstream,
    flavour: &Flavour,
    work: impl FnOnce() -> Work,
    launch: impl FnOnce() -> CUresult,
) -> CUresult {
    match gated() {
        None => launch(),
        Some((account, slot)) if slot.is_bounded() && account.compute.is_skipped() => launch(),
        Some((account, slot)) => in_turn(account, slot, stream, flavour, work(), launch),
    }
}

#[cold]
fn in_turn(
    account: &'static ProcessAccount,
    slot: &ProcessSlot,
    stream: CUstream,
    flavour: &Flavour,
    work: Work,
    launch: impl FnOnce() -> CUresult,
) -> CUresult {
    // A captured launch is recorded and not run.
    if flavour.captures(stream) {
        return launch();
    }
    let Some((lane, is_current)) = lane(account, stream, flavour) else {
        return launch();
    };
    let compute = &account.compute;
    let (cost, measure) = compute.forecast.ask(work);
    let window = slot.ahead(WINDOW, boot_time_ns());
    // Launches that passed unseen since the last one are assumed to be like this one.
    let cost = cost.saturating_mul(compute.set_stride(cost, window, slot.is_bounded()));
    if is_current {
        compute.flight().enter(lane, boot_time_ns());
    }
    let now = wait(compute, slot, lane, is_current, (cost, window));
    slot.submit_work(lane.gpu, cost, now);
    slot.add_device_time(lane.gpu, cost);
    if !is_current {
        return launch();
    }
    let sample = if measure {
        compute.flight().begin_sample(lane, work)
    } else {
        None
    };
    let result = launch();
    compute.flight().launched(lane, cost, sample, window, now);
    result
}

/// Waits for the turn, and for room for so much more beside what may be ahead; returns the time then.
fn wait(
    compute: &Compute,
    slot: &ProcessSlot,
    lane: Lane,
    is_current: bool,
    (cost, window): (u64, u64),
) -> u64 {
    let drained = || {
        let mut flight = compute.flight();
        if is_current {
            flight.mark(lane, boot_time_ns());
        }
        flight.collect_finished(&compute.forecast, boot_time_ns());
        flight.is_empty(lane.gpu)
    };
    let start = boot_time_ns();
    let mut watching = None;
    loop {
        let now = boot_time_ns();
        if !slot.may_launch(lane.gpu, now) {
            if slot.wait_for_turn(lane.gpu, drained) >= MAX_GATE_WAIT_NS {
                return boot_time_ns();
            }
            continue;
        }
        let has_room = {
            let mut flight = compute.flight();
            flight.collect_finished(&compute.forecast, now);
            flight.has_room(lane.gpu, cost, window, now)
        };
        if has_room || now.saturating_sub(start) > GIVE_UP {
            return now;
        }
        watching.get_or_insert_with(|| slot.watch_work());
        nap(LOOK);
    }
}

/// Where a launch goes, and whether events can be recorded there: only the current context's can.
fn lane(
    account: &'static ProcessAccount,
    stream: CUstream,
    flavour: &Flavour,
) -> Option<(Lane, bool)> {
    /// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD` of `cuda.h` are no streams of the program's making.
    const SPECIAL: usize = 2;
    let current = device::current_context();
    let mut context = current;
    if stream as usize > SPECIAL {
        // SAFETY: the program's stream, and a place for the answer.
        unsafe { driver::cuStreamGetCtx.get()?(stream, &mut context) };
    }
    let device = crate::charge::stream::device_of(stream)?;
    let DeviceMembership::InSlice(place) = account.belongs(device) else {
        return None;
    };
    let lane = Lane {
        context,
        stream,
        name: StreamId::of(stream, flavour),
        per_thread: flavour.identity(std::ptr::null_mut()).is_none(),
        gpu: place.gpu,
    };
    Some((lane, context == current && !current.is_null()))
}
