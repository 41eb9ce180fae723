//! An address allocator: a range from which pieces are taken and given back, best fit, with merging of neighbours.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub struct Addresses {
    by_start: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl Addresses {
    pub fn new(start: u64, length: u64) -> Self {
        let mut addresses = Addresses::default();
        addresses.add(start, length);
        addresses
    }

    /// Takes `length` addresses that start at a multiple of `align`, a power of two.
    pub fn take(&mut self, length: u64, align: u64) -> Option<u64> {
        let (start, have) = self
            .by_length
            .range((length, 0)..)
            .find_map(|(have, start)| {
                let aligned = start.checked_next_multiple_of(align)?;
                (aligned - start <= have - length).then_some((*start, *have))
            })?;
        let aligned = start.next_multiple_of(align);
        self.remove(start, have);
        self.add(start, aligned - start);
        self.add(aligned + length, start + have - (aligned + length));
        Some(aligned)
    }

    /// Gives a piece back.
    pub fn give(&mut self, mut start: u64, mut length: u64) {
        if let Some((before, have)) = self
            .by_start
            .range(..start)
            .next_back()
            .map(|(at, have)| (*at, *have))
            && before + have == start
        {
            self.remove(before, have);
            (start, length) = (before, have + length);
        }
        if let Some(have) = self.by_start.get(&(start + length)).copied() {
            self.remove(start + length, have);
            length += have;
        }
        self.add(start, length);
    }

    /// Whether exactly this range is free and nothing else: nothing is taken.
    pub fn is_whole(&self, start: u64, length: u64) -> bool {
        self.by_start.len() == 1 && self.by_start.get(&start) == Some(&length)
    }

    fn add(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.by_start.insert(start, length);
            self.by_length.insert((length, start));
        }
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_melt_together_again() {
        let mut addresses = Addresses::new(100, 10_000);
        let pieces: Vec<(u64, u64)> = [(10, 1), (1000, 256), (1, 512), (500, 64)]
            .map(|(length, align)| (addresses.take(length, align).expect("room"), length))
            .to_vec();
        for (at, (start, length)) in pieces.iter().enumerate() {
            assert!(
                pieces[at + 1..]
                    .iter()
                    .all(|(other, size)| start + length <= *other || other + size <= *start)
            );
        }
        assert_eq!(pieces[1].0 % 256 + pieces[2].0 % 512 + pieces[3].0 % 64, 0);
        for (start, length) in [pieces[2], pieces[0], pieces[3], pieces[1]] {
            addresses.give(start, length);
        }
        assert!(addresses.is_whole(100, 10_000));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut addresses = Addresses::new(1, 1023);
        assert_eq!(addresses.take(1024, 1), None);
        assert_eq!(addresses.take(600, 512), None);
        assert_eq!(addresses.take(512, 512), Some(512));
    }
}
