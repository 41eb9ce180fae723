//! Go's `math/rand`, rebuilt from its definition, so that the orders of published runs can be drawn again.
//!
//! ```text
//!  x[k] = x[k-607] + x[k-273]   modulo 2^64      (additive lagged Fibonacci)
//! ```
//! A seed fills the 607 first numbers from a multiplicative generator, and XORs them with the numbers that the same
//! recurrence has after 7.8 · 10^12 steps from seed 1. Those are computed here: the recurrence is linear, so a jump over n
//! steps is the polynomial x^n modulo x^607 - x^334 - 1.

use std::sync::OnceLock;

const LENGTH: usize = 607;
const TAP: usize = 273;

/// The modulus of the generator that seeds, a Mersenne prime.
const PRIME: u64 = (1 << 31) - 1;

/// The steps that the numbers beside the seed are ahead.
const AHEAD: u64 = 7_800_000_000_000;

/// A source of numbers. Equal seeds give the numbers that a Go program gets.
#[derive(Clone, Debug)]
pub(super) struct GoRandom {
    /// In the order of Go's array: the recurrence walks it backwards.
    state: Vec<u64>,
    tap: usize,
    feed: usize,
}

impl GoRandom {
    pub(super) fn seeded(seed: u64) -> Self {
        let mut drawn = Seeding::of(seed);
        let mut state: Vec<u64> = (0..LENGTH).map(|_| drawn.three(40, 20)).collect();
        for (number, cooked) in state.iter_mut().zip(cooked()) {
            *number ^= cooked;
        }
        Self::starting(state)
    }

    fn starting(state: Vec<u64>) -> Self {
        Self {
            state,
            tap: 0,
            feed: LENGTH - TAP,
        }
    }

    /// 64 bits, of which the highest belongs to no number that Go gives out.
    fn bits(&mut self) -> u64 {
        self.tap = self.tap.checked_sub(1).unwrap_or(LENGTH - 1);
        self.feed = self.feed.checked_sub(1).unwrap_or(LENGTH - 1);
        let sum = self.state[self.feed].wrapping_add(self.state[self.tap]);
        self.state[self.feed] = sum;
        sum
    }

    /// One number of 63 bits, as `Int63`.
    pub(super) fn int63(&mut self) -> u64 {
        self.bits() & (u64::MAX >> 1)
    }

    /// A number below `bound`, as `Intn` for bounds of 31 bits. The bound must not be 0.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        let bound = u64::from(bound);
        let range = 1_u64 << 31;
        let limit = range - range % bound;
        loop {
            let drawn = self.int63() >> 32;
            if drawn < limit {
                return u32::try_from(drawn % bound).unwrap_or(0);
            }
        }
    }

    /// A number below `bound` by multiplication, as `Shuffle` draws it.
    fn below_by_product(&mut self, bound: u32) -> u32 {
        let reject_below = bound.wrapping_neg() % bound;
        loop {
            let product = (self.int63() >> 31) * u64::from(bound);
            if product as u32 >= reject_below {
                return u32::try_from(product >> 32).unwrap_or(0);
            }
        }
    }

    /// Fisher and Yates, as `Shuffle`.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let bound = u32::try_from(last + 1).unwrap_or(u32::MAX);
            items.swap(last, self.below_by_product(bound) as usize);
        }
    }

    /// The numbers below `count` in random order, as `Perm`.
    pub(super) fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut numbers = Vec::new();
        for next in 0..count {
            let place = self.below(next + 1) as usize;
            numbers.push(next);
            let last = numbers.len() - 1;
            numbers[last] = numbers[place];
            numbers[place] = next;
        }
        numbers
    }
}

/// The generator that fills a state: multiplication by 48271 modulo a prime.
struct Seeding(u64);

impl Seeding {
    /// The first twenty numbers are lost.
    fn of(seed: u64) -> Self {
        let seed = match seed % PRIME {
            0 => 89_482_311,
            seed => seed,
        };
        let mut seeding = Self(seed);
        for _ in 0..20 {
            seeding.next();
        }
        seeding
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0 * 48_271 % PRIME;
        self.0
    }

    /// Three numbers as one, the first two shifted.
    fn three(&mut self, first: u32, second: u32) -> u64 {
        let high = self.next() << first;
        let middle = self.next() << second;
        high ^ middle ^ self.next()
    }
}

/// The numbers that every seeded state is XORed with.
fn cooked() -> &'static [u64] {
    static COOKED: OnceLock<Vec<u64>> = OnceLock::new();
    COOKED.get_or_init(|| {
        let mut drawn = Seeding::of(1);
        let state = (0..LENGTH).map(|_| drawn.three(20, 10)).collect();
        ahead(state, AHEAD)
    })
}

/// The array after so many steps of the recurrence.
fn ahead(state: Vec<u64>, steps: u64) -> Vec<u64> {
    // The step k writes the place (333 - k) modulo 607, so the numbers before step 0 lie there in reverse.
    let place = |step: u64| {
        let length = LENGTH as u64;
        let back = step % length;
        ((LENGTH - TAP - 1) as u64 + length - back) as usize % LENGTH
    };
    let mut numbers: Vec<u64> = (0..LENGTH as u64).map(|step| state[place(step)]).collect();
    for next in LENGTH..2 * LENGTH {
        let sum = numbers[next - LENGTH].wrapping_add(numbers[next - TAP]);
        numbers.push(sum);
    }
    let jump = power(steps);
    let mut after = state;
    for step in 0..LENGTH {
        let terms = jump.iter().zip(&numbers[step..]);
        let sum = terms.fold(0_u64, |sum, (factor, number)| {
            sum.wrapping_add(factor.wrapping_mul(*number))
        });
        after[place(steps % LENGTH as u64 + step as u64)] = sum;
    }
    after
}

/// x^n modulo x^607 - x^334 - 1, over the integers modulo 2^64. The factor of x^i is at index i.
fn power(exponent: u64) -> Vec<u64> {
    let mut result = vec![0_u64; LENGTH];
    result[0] = 1;
    for bit in (0..u64::BITS - exponent.leading_zeros()).rev() {
        let mut square = vec![0_u64; 2 * LENGTH];
        let shift = usize::from(exponent >> bit & 1 == 1);
        for (i, a) in result.iter().enumerate() {
            for (j, b) in result.iter().enumerate() {
                let at = i + j + shift;
                square[at] = square[at].wrapping_add(a.wrapping_mul(*b));
            }
        }
        for high in (LENGTH..2 * LENGTH).rev() {
            let factor = square[high];
            for low in [high - LENGTH, high - TAP] {
                square[low] = square[low].wrapping_add(factor);
            }
        }
        square.truncate(LENGTH);
        result = square;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `rand.New(rand.NewSource(1))` of every Go since 1.0 gives.
    #[test]
    fn seed_1_gives_the_numbers_that_every_go_program_knows() {
        let mut random = GoRandom::seeded(1);
        let drawn: Vec<u64> = (0..4).map(|_| random.int63()).collect();
        assert_eq!(
            drawn,
            [
                5_577_006_791_947_779_410,
                8_674_665_223_082_153_551,
                6_129_484_611_666_145_821,
                4_037_200_794_235_010_051
            ]
        );
        let mut random = GoRandom::seeded(1);
        let below: Vec<u32> = (0..8).map(|_| random.below(100)).collect();
        assert_eq!(below, [81, 87, 47, 59, 81, 18, 25, 40]);
    }

    #[test]
    fn a_jump_is_as_many_steps() {
        let mut drawn = Seeding::of(1);
        let state: Vec<u64> = (0..LENGTH).map(|_| drawn.three(20, 10)).collect();
        for steps in [0, 1, 333, 607, 1000] {
            let mut walked = GoRandom::starting(state.clone());
            for _ in 0..steps {
                walked.bits();
            }
            assert_eq!(ahead(state.clone(), steps), walked.state, "{steps}");
        }
    }

    #[test]
    fn a_permutation_and_a_shuffle_lose_nothing() {
        let mut random = GoRandom::seeded(42);
        let mut drawn = random.permutation(1000);
        random.shuffle(&mut drawn);
        assert_ne!(drawn, (0..1000).collect::<Vec<u32>>());
        drawn.sort_unstable();
        assert_eq!(drawn, (0..1000).collect::<Vec<u32>>());
    }
}
