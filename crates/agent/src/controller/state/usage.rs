//! GPU usage: clocks of usage rows, and the GPU activity of a job.

use std::collections::VecDeque;
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
    /// When energy was last divided; `None` before the first time.
    pub divided: Option<Instant>,
}

impl UsageClock {
    pub fn new() -> Self {
        Self {
            journaled: Instant::now(),
            counted: Instant::now(),
            hour: hour(),
            divided: None,
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
    /// The highest use of memory that is journaled, by position.
    pub most: Vec<Option<u64>>,
    /// Energy that it got from this daemon, in millijoules.
    pub millijoules: u64,
    /// The same of the last seconds, on all its GPUs.
    pub recent: RecentUse,
    /// GPU-nanoseconds that it held.
    pub allocated_ns: u64,
    /// When it last used its GPUs or asked for them.
    pub last_active: Instant,
    /// Its idle rule has been applied.
    pub idle_reported: bool,
    /// Its last wake, as long as it matters.
    pub woken: Option<Woken>,
    /// Since when its launches are watched.
    pub launches_watched_since: Option<Instant>,
}

/// A wake of a parked job.
#[derive(Clone, Copy, Debug)]
pub struct Woken {
    pub at: Instant,
    /// How long its memory took to return.
    pub took: Duration,
    /// How long the job stays awake from then on.
    pub stays: Duration,
    /// It was decided whether the job had use of it.
    pub is_judged: bool,
}

impl GpuActivity {
    pub fn new() -> Self {
        Self {
            metered: Vec::new(),
            most: Vec::new(),
            millijoules: 0,
            recent: RecentUse::default(),
            allocated_ns: 0,
            last_active: Instant::now(),
            idle_reported: false,
            woken: None,
            launches_watched_since: None,
        }
    }

    /// Notes a measurement of one GPU.
    pub fn measure(&mut self, place: usize, measured: Metered) {
        let needed = self.metered.len().max(place + 1);
        self.metered.resize(needed, Metered::default());
        self.metered[place].add(measured);
        self.recent.add(Instant::now(), place, measured);
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

/// How long a measurement shows what a job does: the driver is asked once a second. So two answers may be missing;
/// longer would show work of a program that has ended.
const MEASUREMENT_LASTS: Duration = Duration::from_secs(3);

/// How far back [`RecentUse`] reaches. Shorter would jump with each pause of a training, and longer would hide that it
/// has stopped.
const RECENT: Duration = Duration::from_secs(10);

/// Measurements of the last ten seconds, each with the position of its GPU in the job's allocations.
#[derive(Default)]
pub struct RecentUse(VecDeque<(Instant, usize, Metered)>);

impl RecentUse {
    pub fn add(&mut self, at: Instant, place: usize, metered: Metered) {
        while let Some((first, ..)) = self.0.front()
            && at.saturating_duration_since(*first) > RECENT
        {
            self.0.pop_front();
        }
        self.0.push_back((at, place, metered));
    }

    /// What the last measurement of one GPU found, in thousandths; `None` without a measurement lately.
    pub fn last_of(&self, place: usize, now: Instant) -> Option<u32> {
        let mut newest_first = self.0.iter().rev();
        let (at, _, metered) = newest_first.find(|(_, of, _)| *of == place)?;
        let is_recent = now.saturating_duration_since(*at) < MEASUREMENT_LASTS;
        let used = metered.used.checked_div(metered.micros);
        used.filter(|_| is_recent)
            .and_then(|used| u32::try_from(used).ok())
    }

    /// The part of each GPU's time that was used, in thousandths; `None` without a measurement.
    pub fn share(&self, now: Instant) -> Option<u16> {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) <= RECENT;
        let recent = self.0.iter().filter(|(at, ..)| is_recent(at));
        let sum = recent.fold(Metered::default(), |mut sum, (.., one)| {
            sum.add(*one);
            sum
        });
        // GPU-nanoseconds of a microsecond are thousandths.
        let thousandths = sum.used.checked_div(sum.micros)?;
        u16::try_from(thousandths.min(1000)).ok()
    }
}

/// The longest row of usage, as use counts as even within a row.
pub const PAGE_US: i64 = 3600 * 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_use_is_the_mean_of_all_gpus_over_ten_seconds() {
        let begin = Instant::now();
        let at = |second| begin + Duration::from_secs(second);
        let of = |used: u64| Metered {
            micros: 1_000_000,
            used: used * 1_000_000,
            loaned: 0,
        };
        let mut recent = RecentUse::default();
        assert_eq!(recent.share(begin), None);
        // Two GPUs, one of them idle.
        for second in 0..100 {
            recent.add(at(second), 0, of(500));
            recent.add(at(second), 1, of(0));
        }
        assert_eq!(recent.share(at(99)), Some(250));
        assert!(recent.0.len() <= 22, "{}", recent.0.len());
        assert_eq!(
            (recent.last_of(0, at(99)), recent.last_of(1, at(99))),
            (Some(500), Some(0))
        );
        assert_eq!(
            (recent.last_of(2, at(99)), recent.last_of(0, at(103))),
            (None, None)
        );
        recent.add(at(105), 0, of(1000));
        // Ten measurements of the last five seconds, and the new one.
        assert_eq!(recent.share(at(105)), Some(318));
        assert_eq!(recent.share(at(116)), None, "nothing was measured since");
    }
}
