//! Energy of a GPU: readings of its counter, and their division over the slices that held it. Pure.
//!
//! ```text
//! readings ──► increments ──► by weight: share × time, and what was used beyond the share; the rest is idle
//! ```
//! Energy is counted in millijoules. The parts of an increment and its idle part add up to it exactly (decision 060).

use std::time::Duration;

/// Longest time for which a reading of the power stands for the power since the one before. Without jobs the daemon reads
/// every 30 s; so one reading may be missing. A longer gap is a GPU that is powered down, or a driver that hangs.
const POWER_LASTS: Duration = Duration::from_secs(60);

/// What a GPU has drawn up to a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnergyReading {
    /// Microseconds since 1970.
    pub at: i64,
    /// Since the count began.
    pub millijoules: u64,
    pub source: EnergySource,
    /// Names the count: one that begins at zero again has another name.
    pub count: String,
}

/// How the energy of a GPU is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnergySource {
    Counter,
    /// The integral of the power, for a GPU without a counter.
    Power,
}

impl EnergySource {
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Power => "power",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = [Self::Counter, Self::Power].into_iter();
        all.find(|source| source.name() == name)
    }
}

impl EnergyReading {
    /// What was drawn since the reading `before`, as far as it is known. A count that began again, as the driver's does
    /// when the driver is loaded, counts from zero. With another source, nothing is known of the time between.
    pub fn since(&self, before: &Self) -> u64 {
        let is_same = self.count == before.count && self.millijoules >= before.millijoules;
        match (self.source == before.source, is_same) {
            (false, _) => 0,
            (true, true) => self.millijoules - before.millijoules,
            (true, false) => self.millijoules,
        }
    }
}

/// The integral of a GPU's power.
#[derive(Clone, Copy, Debug)]
pub struct PowerIntegral {
    at: Duration,
    milliwatts: u32,
    nanojoules: u128,
}

impl PowerIntegral {
    /// `at`: since the machine's boot.
    pub fn new(at: Duration, milliwatts: u32) -> Self {
        Self {
            at,
            milliwatts,
            nanojoules: 0,
        }
    }

    /// Adds the mean of two readings of the power, times the time between.
    pub fn add(&mut self, at: Duration, milliwatts: u32) {
        let passed = at.saturating_sub(self.at);
        if passed <= POWER_LASTS {
            let both = u128::from(self.milliwatts) + u128::from(milliwatts);
            self.nanojoules += both * passed.as_micros() / 2;
        }
        (self.at, self.milliwatts) = (at, milliwatts);
    }

    pub fn millijoules(&self) -> u64 {
        u64::try_from(self.nanojoules / 1_000_000).unwrap_or(u64::MAX)
    }
}

/// One amount of the GPU over one stretch of time, which may reach beyond the time of the division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldStretch {
    /// Thousandths.
    pub share: u16,
    /// Microseconds since 1970.
    pub began: i64,
    pub ended: i64,
    /// GPU-nanoseconds beyond the share that were used since the last division.
    pub lent: u64,
}

impl HeldStretch {
    /// GPU-nanoseconds that count within a time.
    fn weight(&self, from: i64, to: i64) -> u128 {
        let length = self.ended.min(to).saturating_sub(self.began.max(from));
        let length = u128::from(u64::try_from(length).unwrap_or(0));
        // Of a job that has not held the GPU in this time nothing counts, and of no job more than the whole GPU.
        match length {
            0 => 0,
            length => u128::from(self.share) * length + u128::from(self.lent).min(1000 * length),
        }
    }
}

/// Divides what a GPU drew from `from` to `to`: a part for each of `held`, in their order, and the idle part. Together
/// they are `millijoules`: what is left after rounding down goes to the largest remainders.
pub fn divide(millijoules: u64, (from, to): (i64, i64), held: &[HeldStretch]) -> (Vec<u64>, u64) {
    let capacity = u128::from(u64::try_from(to.saturating_sub(from)).unwrap_or(0)) * 1000;
    let mut weights: Vec<u128> = held.iter().map(|one| one.weight(from, to)).collect();
    let all: u128 = weights.iter().sum();
    weights.push(capacity.saturating_sub(all));
    let whole = all.max(capacity);
    if whole == 0 {
        return (vec![0; held.len()], millijoules);
    }
    // Both factors are below 2^64, as a time of 500 years is 2^54 µs, so no product overflows.
    let exact = |weight: &u128| u128::from(millijoules) * weight;
    let mut parts: Vec<u64> = (weights.iter())
        .map(|weight| u64::try_from(exact(weight) / whole).unwrap_or(u64::MAX))
        .collect();
    let left = millijoules - parts.iter().sum::<u64>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(exact(&weights[*place]) % whole));
    // Fewer than there are parts.
    for place in order.into_iter().take(usize::try_from(left).unwrap_or(0)) {
        parts[place] += 1;
    }
    let idle = parts.pop().unwrap_or(0);
    (parts, idle)
}

/// What a GPU drew over a stretch of time and no job got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleEnergy {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    /// Microseconds since 1970.
    pub began: i64,
    pub ended: i64,
    pub millijoules: u64,
    /// The part of it that is an estimate.
    pub estimated: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(share: u16, began: i64, ended: i64, lent: u64) -> HeldStretch {
        HeldStretch {
            share,
            began,
            ended,
            lent,
        }
    }

    #[test]
    fn energy_is_divided_by_share_and_time_and_by_what_was_lent() {
        let whole = (0, 1000);
        assert_eq!(divide(100, whole, &[]), (vec![], 100));
        assert_eq!(
            divide(100, whole, &[held(250, -5, i64::MAX, 0)]),
            (vec![25], 75)
        );
        // A quarter for half of the time.
        assert_eq!(
            divide(80, whole, &[held(250, 500, 2000, 0)]),
            (vec![10], 70)
        );
        // A job that had the whole GPU beyond its quarter.
        assert_eq!(
            divide(80, whole, &[held(250, 0, 1000, 750_000)]),
            (vec![80], 0)
        );
        // Beside one that reserved the rest.
        let both = [held(250, 0, 1000, 750_000), held(750, 0, 1000, 0)];
        assert_eq!(divide(70, whole, &both), (vec![40, 30], 0));
        assert_eq!(
            divide(9, whole, &[held(1000, -9, 0, 5), held(1000, 1000, 1001, 5)]),
            (vec![0, 0], 9)
        );
        assert_eq!(divide(9, (5, 5), &[held(1000, 0, 9, 0)]), (vec![0], 9));
        assert_eq!(
            divide(9, (5, 2), &[held(1000, 0, 9, 0)]),
            (vec![0], 9),
            "the clock was set back"
        );
    }

    #[test]
    fn what_rounding_leaves_goes_to_the_largest_remainders() {
        let thirds = [333, 333, 334].map(|share| held(share, 0, 1, 0));
        assert_eq!(divide(2, (0, 1), &thirds), (vec![1, 0, 1], 0));
        assert_eq!(divide(100, (0, 1), &thirds), (vec![33, 33, 34], 0));
    }

    #[test]
    fn a_counter_that_began_again_counts_from_zero_and_another_source_nothing() {
        let reading = |millijoules, source, count: &str| EnergyReading {
            at: 0,
            millijoules,
            source,
            count: count.to_owned(),
        };
        let counter = |millijoules, count| reading(millijoules, EnergySource::Counter, count);
        let before = counter(100, "boot 1");
        assert_eq!(counter(130, "boot 1").since(&before), 30);
        assert_eq!(counter(20, "boot 1").since(&before), 20);
        assert_eq!(counter(130, "boot 2").since(&before), 130);
        let power = reading(130, EnergySource::Power, "boot 1");
        assert_eq!((power.since(&before), before.since(&power)), (0, 0));
        for source in [EnergySource::Counter, EnergySource::Power] {
            assert_eq!(EnergySource::from_name(source.name()), Some(source));
        }
    }

    #[test]
    fn the_integral_of_the_power_leaves_out_a_time_without_readings() {
        let second = Duration::from_secs(1);
        let mut integral = PowerIntegral::new(second, 100_000);
        integral.add(second * 2, 200_000);
        assert_eq!(integral.millijoules(), 150_000);
        integral.add(second * 62, 200_000);
        assert_eq!(integral.millijoules(), 12_150_000);
        integral.add(second * 123, 300_000);
        assert_eq!(integral.millijoules(), 12_150_000, "it was powered down");
        integral.add(second * 124, 300_000);
        assert_eq!(integral.millijoules(), 12_450_000);
    }

    proptest! {
        /// For any energy, any time and anything that is held.
        #[test]
        fn parts_and_idle_add_up_to_the_energy(
            millijoules in 0..1_u64 << 62,
            from in -1_i64 << 52..1 << 52,
            length in -10..1_i64 << 50,
            some in proptest::collection::vec(
                (1..=1000_u16, any::<i64>(), any::<i64>(), any::<u64>()), 0..70,
            ),
        ) {
            let held: Vec<_> = (some.into_iter())
                .map(|(share, began, ended, lent)| HeldStretch { share, began, ended, lent })
                .collect();
            let (parts, idle) = divide(millijoules, (from, from + length), &held);
            prop_assert_eq!(parts.len(), held.len());
            prop_assert_eq!(parts.iter().sum::<u64>() + idle, millijoules);
        }
    }
}
