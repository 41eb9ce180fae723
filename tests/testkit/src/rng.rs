//! Random numbers from a seed: SplitMix64 (Steele, Lea and Flood, 2014). The same seed gives the same numbers, so a failure that prints its
//! seed can be repeated.

/// Not for secrets.
#[derive(Clone, Copy, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The numbers of this seed, from the first.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// Once in `times`.
    #[inline]
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// The index of one of `count`, if there is one.
    #[inline]
    pub fn index(&mut self, count: usize) -> Option<usize> {
        let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
        usize::try_from(self.below(count)).ok()
    }

    /// One of them, if there is one.
    #[inline]
    pub fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        self.index(of.len()).map(|index| of[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As recorded in the tests of the `rand_xoshiro` crate.
    #[test]
    fn the_numbers_are_those_of_the_reference_implementation() {
        let mut rng = Rng::new(1_477_776_061_723_855_037);
        let drawn: [u64; 3] = std::array::from_fn(|_| rng.draw());
        assert_eq!(
            drawn,
            [
                1_985_237_415_132_408_290,
                2_979_275_885_539_914_483,
                13_511_426_838_097_143_398
            ]
        );
    }
}
