//! The time of day, to the microsecond that the journal keeps: what was told once is told the same after a restart.

use jiff::{Timestamp, Unit};

pub fn now() -> Timestamp {
    let now = Timestamp::now();
    // Rounding fails only at the end of time, some eight thousand years from now.
    now.round(Unit::Microsecond).unwrap_or(now)
}
