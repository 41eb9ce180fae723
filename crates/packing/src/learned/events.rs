//! Arrivals and departures without a clock: Poisson arrivals, exponential holding times, no waiting.

use super::mix::{Asked, Draw};
use crate::random::Random;

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Arrival(Asked),
    /// The request in this place leaves, and the last one moves to its place.
    Departure(usize),
}

/// The jumps of a queue with servers without limit: a refused request holds its place until it would have left. So
/// every policy sees the same events, and no logarithm is needed.
#[derive(Clone, Debug)]
pub(super) struct Events {
    random: Random,
    /// Arrivals in one mean holding time.
    rate: f64,
    present: usize,
}

impl Events {
    /// `load` is the volume asked for in a mean holding time, as a part of the capacity.
    pub(super) fn new(draw: &Draw, capacity_milli: u64, load: f64, seed: u64) -> Self {
        Self {
            random: Random::seeded(seed),
            rate: load * capacity_milli as f64 / draw.mean_milli().max(1.0),
            present: 0,
        }
    }

    /// Arrivals in one mean holding time.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    pub(super) fn next(&mut self, draw: &Draw) -> Event {
        let total = self.rate + self.present as f64;
        if self.random.unit() * total < self.rate {
            self.present += 1;
            Event::Arrival(draw.next(&mut self.random))
        } else {
            let place = self.random.below(self.present);
            self.present -= 1;
            Event::Departure(place)
        }
    }
}
