//! Layout graph: every layout that one GPU can have, and the transitions between them.

use std::collections::{BTreeMap, BTreeSet};

use super::mix::Demand;
use crate::mig::{Layout, Placement, ProfileTable};

/// All legal layouts of one GPU that hold nothing but wanted profiles. Number 0 is the empty one. A GPU with seven
/// compute slices has 298 of its five plain profiles, 2319 of all that it offers without graphics.
pub(super) struct Layouts<'a> {
    pub table: &'a ProfileTable,
    /// Profile and part of all requests, as the demand has them; a profile's place here is its column in what follows.
    pub wanted: Vec<(u32, f64)>,
    /// In ascending order of placements each.
    pub all: Vec<Vec<Placement>>,
    /// For each layout and wanted profile: where one more may start, ascending, and the layout that follows.
    pub more: Vec<Vec<Vec<(u8, usize)>>>,
    /// For each layout: the layouts that follow when one instance goes.
    pub fewer: Vec<Vec<usize>>,
    fitting: Fitting,
}

/// The numbers of instances of each wanted profile that fit on one GPU together, in any layout.
#[derive(Clone, Debug)]
pub(super) struct Fitting(BTreeSet<Vec<u8>>);

impl Fitting {
    /// Whether so many of each wanted profile fit.
    pub fn fits(&self, counts: &[u8]) -> bool {
        self.0.contains(counts)
    }

    /// Every combination that fits, the empty one included.
    pub fn all(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }
}

impl<'a> Layouts<'a> {
    pub fn of(table: &'a ProfileTable, demand: &Demand) -> Self {
        let wanted = demand.parts.clone();
        let mut all = vec![Vec::new()];
        let mut number = BTreeMap::from([(Vec::new(), 0)]);
        let mut more = Vec::new();
        // Layouts are found in the order of their sizes, so `all` grows while it is walked.
        let mut at = 0;
        while at < all.len() {
            let mut columns = Vec::new();
            for (id, _) in &wanted {
                let mut column = Vec::new();
                for start in Layout::of(table, all[at].iter().copied()).starts(table, *id) {
                    let mut next: Vec<Placement> = all[at].clone();
                    next.push(Placement {
                        profile: *id,
                        start,
                    });
                    next.sort_unstable();
                    let next = *number.entry(next.clone()).or_insert_with(|| {
                        all.push(next);
                        all.len() - 1
                    });
                    column.push((start, next));
                }
                columns.push(column);
            }
            more.push(columns);
            at += 1;
        }
        let without = |layout: &Vec<Placement>| {
            let one_less = |gone: usize| {
                let mut rest = layout.clone();
                rest.remove(gone);
                number[&rest]
            };
            (0..layout.len()).map(one_less).collect()
        };
        let fewer = all.iter().map(without).collect();
        let fitting = Fitting(all.iter().map(|layout| counts(&wanted, layout)).collect());
        Self {
            table,
            wanted,
            all,
            more,
            fewer,
            fitting,
        }
    }

    /// Of each wanted profile, how many the layout has.
    pub fn counts(&self, layout: usize) -> Vec<u8> {
        counts(&self.wanted, &self.all[layout])
    }

    pub fn fitting(&self) -> &Fitting {
        &self.fitting
    }

    /// Whether one more of the wanted profile would fit if the instances lay otherwise, though it does not fit as they
    /// lie.
    pub fn is_blocked(&self, layout: usize, wanted: usize) -> bool {
        if !self.more[layout][wanted].is_empty() {
            return false;
        }
        let mut counts = self.counts(layout);
        counts[wanted] += 1;
        self.fitting.fits(&counts)
    }

    /// Compute slices of the layout's instances, as a part of the GPU's.
    pub fn in_use(&self, layout: usize) -> f64 {
        let slices = |placement: &Placement| {
            let profile = self.table.profile(placement.profile);
            profile.map_or(0, |profile| u32::from(profile.compute_slices))
        };
        let used: u32 = self.all[layout].iter().map(slices).sum();
        f64::from(used) / f64::from(self.table.compute_slices)
    }
}

fn counts(wanted: &[(u32, f64)], layout: &[Placement]) -> Vec<u8> {
    let of = |id: u32| layout.iter().filter(|held| held.profile == id).count();
    let of = |(id, _): &(u32, f64)| u8::try_from(of(*id)).expect("a GPU has at most 32 instances");
    wanted.iter().map(of).collect()
}
