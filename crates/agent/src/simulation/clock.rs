//! A simulation's time: nothing but its own steps moves it, and the time of day can be set.

use std::cell::Cell;
use std::ops::Add;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// When every simulation begins, by the clock on the wall.
const BEGIN: i64 = 1_800_000_000;

thread_local! {
    /// Since boot, and by how much somebody has set the clock on the wall. Nothing outside of a simulation.
    static TIME: Cell<Option<(Duration, SignedDuration)>> = const { Cell::new(None) };
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

/// A moment of the clock that nobody can set: the simulation's, or the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    pub fn now() -> Self {
        Self(boot().unwrap_or_else(|| Duration::from_nanos(divvy_ledger::boot_time_ns())))
    }

    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0 + by)
    }
}
