//! The clocks: the time of day, in the journal's microseconds (a time is the same before and after a restart), and the
//! monotonic clocks.

use std::ops::Add;
use std::time::{self, Duration};

use jiff::{Timestamp, Unit};

use super::machine::machine;

/// A moment of the machine's monotonic clock, as [`std::time::Instant`] is of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(time::Instant);

impl Instant {
    pub fn now() -> Self {
        Self(machine().monotonic())
    }

    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0 + by)
    }
}

pub fn now() -> Timestamp {
    let now = machine().wall();
    // Rounding fails only at the end of time, some eight thousand years from now.
    now.round(Unit::Microsecond).unwrap_or(now)
}

/// CLOCK_BOOTTIME in nanoseconds: the clock of the slices' files and, in other units, of processes' start times.
pub fn boot_ns() -> u64 {
    machine().boot_ns()
}

pub fn sleep(time: Duration) {
    machine().sleep(time);
}
