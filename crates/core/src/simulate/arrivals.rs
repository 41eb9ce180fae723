//! Random arrivals: a Poisson process with exponential holding times of mean 1.

use super::mix::Demand;
use super::pool::Arrival;
use crate::cluster::random::Random;
use crate::mig::ProfileTable;

/// Arrivals without end: the same seed draws the same, whatever becomes of them.
#[derive(Clone, Debug)]
pub struct Arrivals {
    random: Random,
    rate: f64,
    /// Profiles, each with the part of all requests that asks for it or for one before it.
    up_to: Vec<(u32, f64)>,
    now: f64,
}

/// Requests per unit of time that bring so much work: `load` is compute slices times holding time, as a part of all the
/// compute slices there are.
pub fn rate(table: &ProfileTable, demand: &Demand, gpus: u32, load: f64) -> f64 {
    load * f64::from(gpus) * f64::from(table.compute_slices) / demand.compute_slices(table)
}

impl Arrivals {
    /// So many requests per unit of time, of the demand's profiles.
    pub fn new(demand: &Demand, rate: f64, seed: u64) -> Self {
        let mut sum = 0.0;
        let up_to = demand.parts.iter().map(|(id, part)| {
            sum += part;
            (*id, sum)
        });
        Self {
            up_to: up_to.collect(),
            random: Random::seeded(seed),
            rate,
            now: 0.0,
        }
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    /// Three numbers are drawn for each: the gap before it, what it asks for, how long it holds.
    fn next(&mut self) -> Option<Arrival> {
        self.now += self.random.exponential() / self.rate;
        let drawn = self.random.unit();
        let asked = self.up_to.iter().find(|(_, up_to)| drawn < *up_to);
        // Sums of parts may end a little below 1.
        let (profile, _) = asked.or(self.up_to.last())?;
        Some(Arrival {
            at: self.now,
            profile: *profile,
            holding: self.random.exponential(),
        })
    }
}
