//! The simulated clock: only the steps of a run move it, and the time of day can be set.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// When every simulation begins, by the clock on the wall.
const BEGIN: i64 = 1_800_000_000;

thread_local! {
    /// Time since boot, and the offset of a wall clock that was set. Nothing outside of a simulation.
    static TIME: Cell<Option<Time>> = const { Cell::new(None) };
}

/// Begins a simulation's time on this thread, or ends it.
pub fn set(since_boot: Option<Duration>) {
    TIME.set(since_boot.map(|boot| (boot, SignedDuration::ZERO)));
}

pub fn advance(by: Duration) {
    TIME.set(TIME.get().map(|(boot, off)| (boot + by, off)));
}

/// Sets the clock on the wall.
pub fn jump(by: SignedDuration) {
    TIME.set(TIME.get().map(|(boot, off)| (boot, off + by)));
}

/// The time of a simulation, for the thread that goes on with it.
pub type Time = (Duration, SignedDuration);

pub fn time() -> Option<Time> {
    TIME.get()
}

pub fn resume(time: Time) {
    TIME.set(Some(time));
}

pub fn stop() {
    TIME.set(None);
}

/// Since boot.
pub fn boot() -> Option<Duration> {
    Some(TIME.get()?.0)
}

/// The time of day.
pub fn wall() -> Option<Timestamp> {
    let (boot, off) = TIME.get()?;
    let since = SignedDuration::try_from(boot).ok()? + off;
    Timestamp::from_second(BEGIN).ok()?.checked_add(since).ok()
}

/// The monotonic clock.
pub fn monotonic() -> Option<Instant> {
    static BOOT: OnceLock<Instant> = OnceLock::new();
    Some(*BOOT.get_or_init(Instant::now) + boot()?)
}
