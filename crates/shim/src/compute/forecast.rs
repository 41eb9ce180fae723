//! The duration forecast of a launch, from the durations of earlier equal launches.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::compute::flight::WINDOW;

/// The properties of a launch on which its duration depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Equal for launches that take about equally long.
    key: u64,
    /// Nanoseconds, where nothing is known.
    guess: u64,
}

/// The assumed duration of an unmeasured kernel. It is long, so that only a few of them are on the GPU before the first
/// is measured.
const KERNEL_GUESS: u64 = WINDOW / 4;
const GRAPH_GUESS: u64 = WINDOW;
/// The assumed fixed cost of a copy or fill, and its bytes per nanosecond: about the rate of PCIe 3 x16. Figures of a
/// slow bus: PCIe 5 has four times the rate, and too long a guess only lets less work onto the GPU ahead.
const COPY_START: u64 = 5_000;
const COPY_SPEED: u64 = 12;

impl Work {
    /// A kernel with so many blocks.
    pub fn kernel(function: usize, blocks: [u32; 3]) -> Self {
        let blocks = blocks
            .iter()
            .fold(function as u64, |key, n| mix(key ^ u64::from(*n)));
        Work {
            key: mix(blocks ^ 1),
            guess: KERNEL_GUESS,
        }
    }

    pub fn graph(executable: usize) -> Self {
        Work {
            key: mix(executable as u64 ^ 2 << 60),
            guess: GRAPH_GUESS,
        }
    }

    /// So many copies of unknown size.
    pub fn several(copies: usize) -> Self {
        Work {
            key: mix(copies as u64 ^ 4 << 60),
            guess: KERNEL_GUESS,
        }
    }

    /// A copy or fill of so many bytes; sizes within a factor of two are alike.
    pub fn copy(bytes: usize) -> Self {
        let guess = (bytes as u64 / COPY_SPEED).saturating_add(COPY_START);
        Work {
            key: mix(u64::from((bytes as u64).checked_ilog2().unwrap_or(0)) ^ 3 << 60),
            guess,
        }
    }
}

/// Spreads a key over all bits (the finaliser of MurmurHash3).
fn mix(key: u64) -> u64 {
    let key = (key ^ key >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ key >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ key >> 33
}

/// Places for what is known; two kinds of work that want one place take turns.
const PLACES: usize = 512;
/// The first launches of a kind are measured, and later one in so many.
const FIRST: u64 = 3;
const LATER: u64 = 16;

#[derive(Default)]
struct DurationEntry {
    key: AtomicU64,
    nanos: AtomicU64,
    launches: AtomicU64,
}

pub struct Forecast([DurationEntry; PLACES]);

impl Default for Forecast {
    fn default() -> Self {
        Forecast(std::array::from_fn(|_| DurationEntry::default()))
    }
}

impl Forecast {
    fn place(&self, key: u64) -> &DurationEntry {
        &self.0[key as usize % PLACES]
    }

    /// The expected duration, in nanoseconds, and whether to measure it.
    pub fn ask(&self, work: Work) -> (u64, bool) {
        let place = self.place(work.key);
        if place.key.load(Relaxed) != work.key {
            place.key.store(work.key, Relaxed);
            place.nanos.store(work.guess, Relaxed);
            place.launches.store(0, Relaxed);
        }
        let launches = place.launches.fetch_add(1, Relaxed);
        let measure = launches < FIRST || launches.is_multiple_of(LATER);
        (place.nanos.load(Relaxed), measure)
    }

    /// It took so long. The first measurement counts alone, later ones a quarter each.
    pub fn learn(&self, work: Work, nanos: u64) {
        let place = self.place(work.key);
        if place.key.load(Relaxed) == work.key {
            let known = place.nanos.load(Relaxed);
            let next = if known == work.guess {
                nanos
            } else {
                known - known / 4 + nanos / 4
            };
            place.nanos.store(next.max(1), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_what_the_next_launch_is_taken_to_last() {
        let forecast = Forecast::default();
        let work = Work::kernel(0x1000, [8, 1, 1]);
        assert_eq!(forecast.ask(work), (KERNEL_GUESS, true));
        forecast.learn(work, 400_000);
        assert_eq!(forecast.ask(work).0, 400_000);
        forecast.learn(work, 800_000);
        assert_eq!(forecast.ask(work).0, 500_000);
        assert_eq!(
            forecast.ask(Work::kernel(0x1000, [9, 1, 1])).0,
            KERNEL_GUESS
        );
    }

    #[test]
    fn after_the_first_few_only_some_launches_are_measured() {
        let forecast = Forecast::default();
        let measured = (0..64).filter(|_| forecast.ask(Work::graph(7)).1).count() as u64;
        assert_eq!(measured, FIRST + 64 / LATER - 1);
    }

    #[test]
    fn large_copies_are_taken_to_last_longer() {
        let forecast = Forecast::default();
        let [small, large] = [4 << 10, 1 << 30].map(|bytes| forecast.ask(Work::copy(bytes)).0);
        assert!(small < 10_000 && large > 50_000_000);
        assert!(forecast.ask(Work::copy(usize::MAX)).0 > large);
        assert!(forecast.ask(Work::copy(0)).0 < 10_000);
    }
}
