//! The figures of a subject.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A figure; its number is its place in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    MemoryUsed,
    MemoryLimit,
    Share,
    ShareUsed,
    Utilization,
    Power,
    Temperature,
    Running,
    Waiting,
}

/// Number of figures. It must be the number of variants above.
pub const COUNT: usize = 9;

impl Figure {
    pub const ALL: [(Self, &'static str); COUNT] = [
        (Self::MemoryUsed, "memory_used_bytes"),
        (Self::MemoryLimit, "memory_limit_bytes"),
        (Self::Share, "share"),
        (Self::ShareUsed, "share_used"),
        (Self::Utilization, "utilization_percent"),
        (Self::Power, "power_watts"),
        (Self::Temperature, "temperature_celsius"),
        (Self::Running, "running"),
        (Self::Waiting, "waiting"),
    ];
}

/// What each series of a sample or of a point shows, by subject.
pub type Series = BTreeMap<Arc<str>, Values>;

/// One value of each figure; NaN where there is none. A `f32` has MiB of up to 16 TiB exactly.
#[derive(Clone, Copy, Debug)]
pub struct Values(pub [f32; COUNT]);

impl Default for Values {
    fn default() -> Self {
        Self([f32::NAN; COUNT])
    }
}

impl PartialEq for Values {
    /// A missing value equals a missing value.
    fn eq(&self, other: &Self) -> bool {
        self.changes(other) == 0
    }
}

impl Values {
    #[must_use]
    pub fn with(mut self, figure: Figure, value: impl Into<Option<f32>>) -> Self {
        if let Some(place) = self.0.get_mut(figure as usize) {
            *place = value.into().unwrap_or(f32::NAN);
        }
        self
    }

    /// The figures that differ, as bits.
    pub fn changes(&self, other: &Self) -> u16 {
        let pairs = self.0.iter().zip(&other.0).enumerate();
        pairs.fold(0, |bits, (at, (one, two))| {
            match one == two || (one.is_nan() && two.is_nan()) {
                true => bits,
                false => bits | 1 << at,
            }
        })
    }
}

/// Sums of values over a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums([(f64, u32); COUNT]);

impl Sums {
    /// Adds values that lasted so many seconds.
    pub fn add(&mut self, values: &Values, seconds: u32) {
        for ((sum, count), value) in self.0.iter_mut().zip(values.0) {
            if !value.is_nan() {
                *sum += f64::from(value) * f64::from(seconds);
                *count += seconds;
            }
        }
    }

    /// The means.
    pub fn means(&self) -> Values {
        // An `f32` is what the files hold.
        Values(self.0.map(|(sum, count)| (sum / f64::from(count)) as f32))
    }
}
