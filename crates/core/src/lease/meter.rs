//! Utilisation meter of one GPU: what its tenants report, compared with the driver's figure.

use std::time::Duration;

/// Part of the time that GPUs are used, by what is reported of it: the mean of the last stretches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Utilisation {
    passed: Duration,
    /// Of this stretch and, where more was reported than fits into one, of the next.
    used: Duration,
    counts: bool,
    thousandths: Option<u32>,
}

impl Utilisation {
    /// So long is a stretch: a few turns. Two or three turns of 40 ms, so that the figure covers work and pause. Double
    /// would find out half as fast that a program has changed.
    const STRETCH: Duration = Duration::from_millis(100);
    /// Work reported at once counts for no longer than this.
    const LONGEST: Duration = Duration::from_secs(2);

    /// Time has passed; what is used in it `counts` or not.
    pub fn pass(&mut self, time: Duration, counts: bool) {
        self.counts = counts;
        if counts {
            self.passed += time;
        }
        if self.passed >= Self::STRETCH {
            let used = self.used.min(self.passed);
            let now = used.as_nanos() * 1000 / self.passed.as_nanos();
            let now = u32::try_from(now).expect("at most 1000");
            self.thousandths = Some(self.thousandths.map_or(now, |before| (before + now) / 2));
            (self.used, self.passed) = (self.used - used, Duration::ZERO);
        }
    }

    pub fn record(&mut self, time: Duration) {
        if self.counts {
            self.used = (self.used + time).min(Self::LONGEST);
        }
    }

    /// Whether what is used now counts.
    pub fn counts(&self) -> bool {
        self.counts
    }

    /// In thousandths; none while it is not known.
    pub fn thousandths(&self) -> Option<u32> {
        self.thousandths
    }

    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// What the driver and the tenants say of one GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    at: Duration,
    reported: Duration,
    /// How often in a row the driver saw more than was reported.
    excesses: u32,
    /// Until then nothing that is reported is believed.
    distrusted_until: Duration,
}

impl Meter {
    /// The driver may see so much more than is reported, in thousandths: it looks at other stretches of time, and
    /// counts what is not held up at the gate.
    const TOLERANCE: u128 = 250;
    /// So often in a row is no accident of timing. Two could be neighbours of one late sample; eight would let a liar
    /// run for most of a second.
    const EXCESSES: u32 = 4;
    /// Over a shorter time nothing can be compared: what is told at once is one word, however often it was said.
    const SHORTEST: Duration = Duration::from_millis(100);
    /// For so long there are only turns then.
    const DOUBT: Duration = Duration::from_secs(10);

    /// Compares what the driver says, in thousandths of the time, with what was reported since the last time;
    /// `reported` is the sum since ever.
    pub fn read(&mut self, now: Duration, reported: Duration, thousandths: u32) {
        let (passed, used) = (
            now.saturating_sub(self.at),
            reported.saturating_sub(self.reported),
        );
        if passed < Self::SHORTEST {
            return;
        }
        (self.at, self.reported) = (now, reported);
        let said = used.as_nanos() * 1000 / passed.as_nanos();
        let is_excess = u128::from(thousandths) > said + Self::TOLERANCE;
        self.excesses = if is_excess { self.excesses + 1 } else { 0 };
        if self.excesses >= Self::EXCESSES {
            self.distrusted_until = now + Self::DOUBT;
        }
    }

    pub fn is_trusted(&self, now: Duration) -> bool {
        now >= self.distrusted_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARTER: Duration = Duration::from_millis(250);

    #[test]
    fn work_reported_at_once_counts_for_as_long_as_it_takes() {
        let mut duty = Utilisation::default();
        duty.pass(Duration::ZERO, true);
        duty.record(Duration::from_millis(500));
        for _ in 0..5 {
            duty.pass(Duration::from_millis(100), true);
            assert_eq!(duty.thousandths(), Some(1000));
        }
        duty.pass(Duration::from_millis(100), true);
        assert_eq!(duty.thousandths(), Some(500));
    }

    #[test]
    fn time_that_does_not_count_tells_nothing() {
        let mut duty = Utilisation::default();
        duty.pass(Duration::from_secs(1), false);
        duty.record(Duration::from_secs(1));
        assert_eq!(duty.thousandths(), None);
        duty.pass(Duration::from_millis(100), true);
        assert_eq!(duty.thousandths(), Some(0));
    }

    #[test]
    fn tenants_are_doubted_once_the_driver_has_seen_more_several_times_in_a_row_and_not_for_ever() {
        let mut meter = Meter::default();
        let (mut now, mut reported) = (Duration::ZERO, Duration::ZERO);
        for thousandths in [900, 900, 900, 300, 900, 900, 900] {
            (now, reported) = (now + QUARTER, reported + QUARTER / 5);
            meter.read(now, reported, thousandths);
            assert!(meter.is_trusted(now));
        }
        (now, reported) = (now + QUARTER, reported + QUARTER / 5);
        meter.read(now, reported, 900);
        assert!(!meter.is_trusted(now));
        assert!(meter.is_trusted(now + Meter::DOUBT));
    }

    #[test]
    fn what_the_driver_said_several_times_and_is_told_at_once_is_one_word() {
        let mut meter = Meter::default();
        let now = QUARTER;
        for nanos in 0..10 {
            let now = now + Duration::from_nanos(nanos);
            meter.read(now, QUARTER / 5, 900);
            assert!(meter.is_trusted(now));
        }
    }
}
