//! GPU usage: clocks of usage rows, and the GPU activity of a job.

use std::time::Duration;

use crate::host::clock::{Instant, now};
use crate::model::usage::Metered;

/// When usage was last counted and journaled.
pub struct UsageClock {
    pub journaled: Instant,
    /// When held time was last counted.
    pub counted: Instant,
    /// Hours since 1970.
    pub hour: i64,
}

impl UsageClock {
    pub fn new() -> Self {
        Self {
            journaled: Instant::now(),
            counted: Instant::now(),
            hour: hour(),
        }
    }
}

pub fn hour() -> i64 {
    now().as_microsecond().div_euclid(PAGE_US)
}

/// What a job does with its GPUs.
pub struct GpuActivity {
    /// Measured and not yet journaled, by position in its allocations.
    pub metered: Vec<Metered>,
    /// GPU-nanoseconds that it held.
    pub allocated_ns: u64,
    /// When it last used its GPUs or asked for them.
    pub last_active: Instant,
    /// Its idle rule has been applied.
    pub idle_reported: bool,
    /// Since when its launches are watched.
    pub launches_watched_since: Option<Instant>,
    /// What it used of each GPU in the last measurement, in thousandths, by position in its allocations.
    pub last_used: Vec<Option<(Instant, u32)>>,
}

impl GpuActivity {
    pub fn new() -> Self {
        Self {
            metered: Vec::new(),
            allocated_ns: 0,
            last_active: Instant::now(),
            idle_reported: false,
            launches_watched_since: None,
            last_used: Vec::new(),
        }
    }

    /// Notes a measurement of one GPU.
    pub fn measure(&mut self, place: usize, measured: Metered) {
        let needed = self.metered.len().max(place + 1);
        self.metered.resize(needed, Metered::default());
        self.metered[place].add(measured);
        let used = measured.used.checked_div(measured.micros);
        let used = used.and_then(|used| u32::try_from(used).ok());
        let needed = self.last_used.len().max(place + 1);
        self.last_used.resize(needed, None);
        self.last_used[place] = used.map(|used| (Instant::now(), used));
    }

    /// What it used of one GPU lately, in thousandths.
    pub fn share_used(&self, place: usize) -> Option<u32> {
        let (at, used) = self.last_used.get(place).copied().flatten()?;
        (at.elapsed() < MEASUREMENT_LASTS).then_some(used)
    }

    /// Skips a time without observation, which shows neither use nor idleness.
    pub fn skip_unobserved(&mut self, missed: Duration) {
        let now = Instant::now();
        for since in self
            .launches_watched_since
            .iter_mut()
            .chain([&mut self.last_active])
        {
            *since = (*since + missed).min(now);
        }
    }

    /// Marks use of its GPUs, or a state in which it cannot use them.
    pub fn mark_active(&mut self, at: Instant) {
        if at > self.last_active {
            self.last_active = at;
            self.idle_reported = false;
        }
    }
}

/// How long a measurement shows what a job does: the driver is asked once a second.
const MEASUREMENT_LASTS: Duration = Duration::from_secs(3);

/// The longest row of usage, as use counts as even within a row.
pub const PAGE_US: i64 = 3600 * 1_000_000;
