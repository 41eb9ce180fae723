//! Whether requests would fit on a pool of equal GPUs if all instances could be laid anew, over all the GPUs: what no policy that
//! leaves instances where they are can better.
//!
//! A closed form for two kinds of GPU. In the first, every profile starts at the multiples of its size and sizes divide each
//! other (A30, RTX PRO 6000), so that the largest first never leaves a gap. The second is the GPU with seven compute slices:
//! each has a left half, which takes a 4g, and a right half, which does not and of which the last eighth goes to waste unless
//! it is part of a 3g, of a whole GPU or of a 1g with double memory.

use crate::mig::{Profile, Table};

use super::mix::Demand;

/// The closed form for the profiles of one demand.
#[derive(Clone, Debug)]
pub(super) enum Repack {
    /// Memory slices of each profile, and of a GPU.
    Nested {
        sizes: Vec<u64>,
        each: u64,
    },
    Sevenths(Vec<Seventh>),
}

/// A profile of a GPU with seven compute slices, by where it may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seventh {
    One,
    /// One compute slice with the memory of two.
    Double,
    Two,
    Three,
    Four,
    All,
}

impl Repack {
    /// `None` for demands that it is not known for: of profiles that may lie elsewhere, or that exclude each other.
    pub fn of(table: &Table, demand: &Demand) -> Option<Self> {
        let profiles = || demand.parts.iter().filter_map(|(id, _)| table.profile(*id));
        let sevenths: Option<Vec<Seventh>> = profiles().map(Seventh::of).collect();
        if let Some(sevenths) = sevenths.filter(|_| table.memory_slices == 8) {
            return Some(Self::Sevenths(sevenths));
        }
        let mut sizes: Vec<u8> = profiles().map(|profile| profile.memory_slices).collect();
        let nested = profiles().all(|profile| is_aligned(profile, table.memory_slices));
        let sizes_as_asked = sizes.iter().copied().map(u64::from).collect();
        sizes.sort_unstable();
        let divide = sizes.windows(2).all(|pair| pair[1] % pair[0] == 0);
        (nested && divide).then_some(Self::Nested {
            sizes: sizes_as_asked,
            each: u64::from(table.memory_slices),
        })
    }

    /// Whether so many of each profile, in the demand's order, fit on so many GPUs.
    pub fn fits(&self, counts: &[u64], gpus: u64) -> bool {
        match self {
            Self::Nested { sizes, each } => {
                let wanted: u64 = counts
                    .iter()
                    .zip(sizes)
                    .map(|(count, size)| count * size)
                    .sum();
                wanted <= gpus * each
            }
            Self::Sevenths(kinds) => {
                let of = |wanted: Seventh| -> u64 {
                    let matching = kinds
                        .iter()
                        .zip(counts)
                        .filter(|(kind, _)| **kind == wanted);
                    matching.map(|(_, count)| *count).sum()
                };
                sevenths_fit(of, gpus).is_some()
            }
        }
    }
}

/// Some if they fit: whole GPUs first, then left halves for 4g and right ones for 3g, then quarters, then eighths.
fn sevenths_fit(of: impl Fn(Seventh) -> u64, gpus: u64) -> Option<u64> {
    let gpus = gpus.checked_sub(of(Seventh::All))?;
    let threes = of(Seventh::Three);
    let right = gpus.saturating_sub(threes);
    let left = gpus
        .checked_sub(of(Seventh::Four))?
        .checked_sub(threes.saturating_sub(gpus))?;
    // Two quarters of a left half and one of a right half take a 2g; the other of the right half takes a 1g, or one with
    // double memory, which wastes least there.
    let quarters = (2 * left + right).checked_sub(of(Seventh::Two))?;
    let doubles = of(Seventh::Double);
    let last = right.saturating_sub(doubles);
    let quarters = quarters.checked_sub(doubles.saturating_sub(right))?;
    (2 * quarters + last).checked_sub(of(Seventh::One))
}

impl Seventh {
    fn of(profile: &Profile) -> Option<Self> {
        Some(
            match (profile.memory_slices, &profile.starts[..], profile.most) {
                (1, [0, 1, 2, 3, 4, 5, 6], 7..) => Self::One,
                (2, [0, 2, 4, 6], 4..) => Self::Double,
                (2, [0, 2, 4], 3..) => Self::Two,
                (4, [0, 4], 2..) => Self::Three,
                (4, [0], _) => Self::Four,
                (8, [0], _) => Self::All,
                _ => return None,
            },
        )
    }
}

/// Whether the profile may lie wherever a multiple of its size begins, as often as there are such places, and whatever lies
/// beside it.
fn is_aligned(profile: &Profile, slices: u8) -> bool {
    let places = (0..slices).step_by(usize::from(profile.memory_slices));
    let free = matches!(
        profile.name.attribute(),
        crate::mig::Attribute::None | crate::mig::Attribute::Graphics
    );
    free && places.clone().eq(profile.starts.iter().copied())
        && usize::from(profile.most) >= places.count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::layouts::Layouts;
    use super::super::mix::Mix;
    use super::*;

    /// Every combination that two GPUs have room for, or one, against what the closed form says of all combinations.
    fn agrees(model: &str, mix: &str) {
        let table = Table::of_model(model).unwrap();
        let demand = mix.parse::<Mix>().unwrap().on(&table).unwrap();
        let repack = Repack::of(&table, &demand).unwrap();
        let layouts = Layouts::of(&table, &demand);
        let one: BTreeSet<Vec<u64>> = layouts
            .fitting()
            .all()
            .map(|counts| counts.iter().copied().map(u64::from).collect())
            .collect();
        let sum = |a: &Vec<u64>, b: &Vec<u64>| a.iter().zip(b).map(|(a, b)| a + b).collect();
        let two: BTreeSet<Vec<u64>> = one
            .iter()
            .flat_map(|a| one.iter().map(move |b| sum(a, b)))
            .collect();
        for (gpus, fitting) in [(1, one), (2, two)] {
            let width = demand.parts.len();
            let most: Vec<u64> = (0..width)
                .map(|at| fitting.iter().map(|counts| counts[at]).max().unwrap() + 1)
                .collect();
            let mut counts = vec![0; width];
            loop {
                assert_eq!(
                    repack.fits(&counts, gpus),
                    fitting.contains(&counts),
                    "{model}, {gpus} GPUs, {counts:?} of {mix}"
                );
                let Some(at) = (0..width).find(|at| counts[*at] < most[*at]) else {
                    break;
                };
                counts[..at].fill(0);
                counts[at] += 1;
            }
        }
    }

    #[test]
    fn the_closed_form_says_what_trying_every_layout_does() {
        agrees("a100-40gb", "1g=1,2g=1,3g=1,4g=1,7g=1");
        agrees("h100-80gb", "1g=1,1g.20gb=1,2g=1,3g=1,4g=1,7g=1");
        agrees("a30-24gb", "1g=1,2g=1,4g=1");
        agrees("rtxpro6000-96gb", "1g=1,2g=1,4g=1");
    }

    #[test]
    fn profiles_that_exclude_each_other_have_no_closed_form() {
        for (model, mix) in [
            ("a100-40gb", "1g=1,1g.5gb+me=1"),
            ("a30-24gb", "1g.6gb+me=1"),
        ] {
            let table = Table::of_model(model).unwrap();
            let demand = mix.parse::<Mix>().unwrap().on(&table).unwrap();
            assert!(Repack::of(&table, &demand).is_none(), "{mix}");
        }
    }
}
