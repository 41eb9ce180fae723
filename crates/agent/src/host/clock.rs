//! Which time it is: the time of day, to the microsecond that the journal keeps (what was told once is told the same after a
//! restart), and the clocks that nobody can set.
//!
//! A simulation has all of them to itself; that is what [`Instant`] is for here.

use std::time::Duration;

use jiff::{Timestamp, Unit};

#[cfg(test)]
pub use crate::simulation::clock::Instant;
#[cfg(not(test))]
pub use std::time::Instant;

pub fn now() -> Timestamp {
    #[cfg(test)]
    if let Some(now) = crate::simulation::clock::wall() {
        return now;
    }
    let now = Timestamp::now();
    // Rounding fails only at the end of time, some eight thousand years from now.
    now.round(Unit::Microsecond).unwrap_or(now)
}

/// CLOCK_BOOTTIME in nanoseconds: the clock of the slices' files and, in other units, of processes' start times.
pub fn boot_ns() -> u64 {
    #[cfg(test)]
    if let Some(now) = crate::simulation::clock::boot() {
        return u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    }
    divvy_ledger::boot_time_ns()
}

/// Waits. In a simulation nobody sees that time passes.
pub fn sleep(time: Duration) {
    #[cfg(test)]
    if crate::simulation::clock::boot().is_some() {
        return;
    }
    std::thread::sleep(time);
}
