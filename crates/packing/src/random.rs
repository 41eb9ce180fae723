//! Random number generator for simulations: a seed gives the same numbers in every version of this program.
//!
//! Not for secrets. It is written out here, because a recorded figure names its seed and must be reproducible after
//! every update of dependencies.

/// xoroshiro128+ by Blackman and Vigna, with the constants of 2018, seeded by splitmix64 as its authors advise.
#[derive(Clone, Debug)]
pub struct Random([u64; 2]);

impl Random {
    pub fn seeded(seed: u64) -> Self {
        let mut state = seed;
        Self([splitmix(&mut state), splitmix(&mut state)])
    }

    fn next(&mut self) -> u64 {
        let [first, mut second] = self.0;
        let drawn = first.wrapping_add(second);
        second ^= first;
        self.0 = [
            first.rotate_left(24) ^ second ^ (second << 16),
            second.rotate_left(37),
        ];
        drawn
    }

    /// Evenly distributed over 0 (which it may be) to 1 (which it never is), in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        const STEPS: f64 = (1_u64 << 53) as f64;
        (self.next() >> 11) as f64 / STEPS
    }

    /// Evenly distributed over the numbers below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The product's high word. The bias is below 2^-32 for every bound below 2^32.
        let product = u128::from(self.next()) * bound as u128;
        usize::try_from(product >> 64).unwrap_or(0)
    }

    /// A seed for another generator.
    pub fn seed(&mut self) -> u64 {
        self.next()
    }

    /// Fisher and Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Exponentially distributed with mean 1, finite and never negative.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

/// splitmix64 by Vigna.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the authors' own C program prints, as recorded in the tests of the `rand_xoshiro` crate.
    #[test]
    fn the_numbers_are_those_of_the_reference_implementations() {
        let mut random = Random([1, 2]);
        let drawn: [u64; 6] = std::array::from_fn(|_| random.next());
        assert_eq!(
            drawn,
            [
                3,
                412_333_834_243,
                2_360_170_716_294_286_339,
                9_295_852_285_959_843_169,
                2_797_080_929_874_688_578,
                6_019_711_933_173_041_966
            ]
        );
        let mut state = 1_477_776_061_723_855_037;
        let drawn: [u64; 3] = std::array::from_fn(|_| splitmix(&mut state));
        assert_eq!(
            drawn,
            [
                1_985_237_415_132_408_290,
                2_979_275_885_539_914_483,
                13_511_426_838_097_143_398
            ]
        );
    }

    #[test]
    fn a_shuffle_puts_each_item_in_each_place_equally_often() {
        let mut random = Random::seeded(11);
        let mut seen = [[0_u32; 5]; 5];
        for _ in 0..20_000 {
            let mut items = [0, 1, 2, 3, 4];
            random.shuffle(&mut items);
            for (place, item) in items.into_iter().enumerate() {
                seen[place][item] += 1;
            }
        }
        // 4000 each, with a standard deviation of 57; six of them.
        assert!(
            seen.as_flattened()
                .iter()
                .all(|count| count.abs_diff(4000) < 340),
            "{seen:?}"
        );
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn the_means_are_a_half_and_one() {
        let mut random = Random::seeded(7);
        let count = 100_000;
        let mean = |total: f64| total / f64::from(count);
        let unit = mean((0..count).map(|_| random.unit()).sum());
        let exponential = mean((0..count).map(|_| random.exponential()).sum());
        // Six standard errors of each.
        assert!((unit - 0.5).abs() < 6.0 * 0.289 / 316.0, "{unit}");
        assert!((exponential - 1.0).abs() < 6.0 / 316.0, "{exponential}");
    }
}
