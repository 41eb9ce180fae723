//! The breakdown of a process's usage on a GPU by size and kind, for the out-of-memory report.

use std::collections::HashMap;

use divvy_ledger::{AllocationGroup, AllocationKind, NAMED};

#[derive(Default)]
pub struct Breakdown(HashMap<(u64, AllocationKind), u64>);

impl Breakdown {
    /// One allocation.
    pub fn add(&mut self, kind: AllocationKind, bytes: u64) {
        if bytes > 0 {
            *self.0.entry((bytes, kind)).or_default() += 1;
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The sizes that come to the most bytes, most first.
    pub fn largest(&self) -> Vec<AllocationGroup> {
        let mut all: Vec<_> = self
            .0
            .iter()
            .map(|((bytes, kind), count)| AllocationGroup {
                bytes: *bytes,
                count: u32::try_from(*count).unwrap_or(u32::MAX),
                kind: *kind,
            })
            .collect();
        all.sort_by_key(|live| {
            let sum = live.bytes.saturating_mul(live.count.into());
            std::cmp::Reverse((sum, live.bytes, live.kind))
        });
        all.truncate(NAMED);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_by_what_they_come_to() {
        let mut tally = Breakdown::default();
        tally.add(AllocationKind::Linear, 100);
        (0..30).for_each(|_| tally.add(AllocationKind::Pool, 4));
        (0..3).for_each(|_| tally.add(AllocationKind::Linear, 4));
        tally.add(AllocationKind::Handle, 0);
        let named: Vec<_> = tally
            .largest()
            .iter()
            .map(|live| (live.bytes, live.count, live.kind))
            .collect();
        let expected = [
            (4, 30, AllocationKind::Pool),
            (100, 1, AllocationKind::Linear),
            (4, 3, AllocationKind::Linear),
        ];
        assert_eq!(named, expected);
        assert_eq!(tally.count(), 34);
    }

    #[test]
    fn no_more_are_named_than_a_record_holds() {
        let mut tally = Breakdown::default();
        (1..100).for_each(|bytes| tally.add(AllocationKind::Linear, bytes));
        let largest = tally.largest();
        assert_eq!((largest.len(), largest[0].bytes), (NAMED, 99));
    }
}
