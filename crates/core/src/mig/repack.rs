//! Repacking: whether instances would fit in another layout, which tells a fragmented GPU from a full one.
//!
//! For one GPU the search is exhaustive. For a pool of equal empty GPUs there are two closed forms:
//!
//! - Every profile starts at multiples of its size, and sizes divide each other (A30, RTX PRO 6000): largest first
//!   leaves no gap.
//! - The GPU has seven compute slices: its left half takes a 4g. Its right half does not, and the last eighth there is
//!   wasted unless it is part of a 3g, of a whole GPU or of a 1g with double memory.
//!
//! Any other pool is searched like a batch, if it is small enough.

use std::cmp::Reverse;

use super::batch::pack;
use super::layout::Layout;
use super::place::MigGpu;
use super::{Attribute, MigProfile, Placement, Profile, ProfileTable};

/// Whether instances of these profiles would fit on one GPU together, in any layout, beside what stays
/// where it is. Exact.
pub fn fits(table: &ProfileTable, stays: Layout, wanted: &[u32]) -> bool {
    let slices = |id: &u32| table.profile(*id).map(|profile| profile.memory_slices);
    let Some(sizes) = wanted.iter().map(slices).collect::<Option<Vec<u8>>>() else {
        return false;
    };
    let needed: u32 = sizes.into_iter().map(u32::from).sum();
    if needed > stays.free_slices(table) {
        return false;
    }
    // The largest have the fewest placements. Equal profiles are placed in ascending order, since permutations are
    // equal.
    let mut order = wanted.to_vec();
    order.sort_by_key(|id| (Reverse(slices(id)), *id));
    lay(table, stays, &order, None)
}

fn lay(table: &ProfileTable, layout: Layout, wanted: &[u32], last: Option<Placement>) -> bool {
    let Some((profile, rest)) = wanted.split_first() else {
        return true;
    };
    let profile = *profile;
    layout.starts(table, profile).any(|start| {
        let next = Placement { profile, start };
        let ascending = last.is_none_or(|last| last.profile != profile || last < next);
        ascending && lay(table, layout.and(table, next), rest, Some(next))
    })
}

/// Whether instances of these profiles would fit on the GPUs together in any layout, beside the held ones; idle
/// instances do not count. `None` if neither a closed form is known nor an exhaustive search is possible.
pub fn pool_fits(sites: &[MigGpu<'_>], wanted: &[MigProfile]) -> Option<bool> {
    if let Some((first, rest)) = sites.split_first() {
        let table = first.table;
        let alike = rest.iter().all(|site| site.table == table);
        let empty = sites.iter().all(|site| site.held == Layout::EMPTY);
        let ids: Option<Vec<u32>> = wanted
            .iter()
            .map(|name| Some(table.named(*name)?.id))
            .collect();
        if let (true, true, Some(ids)) = (alike, empty, ids) {
            let mut kinds = ids.clone();
            kinds.sort_unstable();
            kinds.dedup();
            if let Some(repack) = Repack::of(table, kinds.iter().copied()) {
                let count = |kind| ids.iter().map(|id| u64::from(*id == kind)).sum();
                let counts: Vec<u64> = kinds.into_iter().map(count).collect();
                let gpus = u64::try_from(sites.len()).expect("a number of GPUs");
                return Some(repack.fits(&counts, gpus));
            }
        }
    }
    let unused: Vec<MigGpu<'_>> = sites
        .iter()
        .map(|site| MigGpu { idle: &[], ..*site })
        .collect();
    let packing = pack(&unused, wanted);
    (packing.exact || packing.is_complete()).then(|| packing.is_complete())
}

/// The closed form for instances of certain profiles on equal GPUs.
#[derive(Clone, Debug)]
pub struct Repack(Form);

#[derive(Clone, Debug)]
enum Form {
    /// Memory slices of each profile, and of a GPU.
    Nested {
        sizes: Vec<u64>,
        each: u64,
    },
    Sevenths(Vec<Seventh>),
}

/// A profile of a GPU with seven compute slices, by its legal starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seventh {
    One,
    /// One compute slice with the memory of two.
    Double,
    Two,
    Three,
    Four,
    All,
}

impl Repack {
    /// For profiles by their ids. `None` where none is known: for profiles with other starts, that exclude each
    /// other, or that the table does not have.
    pub fn of(table: &ProfileTable, profiles: impl IntoIterator<Item = u32>) -> Option<Self> {
        let found: Option<Vec<&Profile>> =
            profiles.into_iter().map(|id| table.profile(id)).collect();
        let found = found?;
        let sociable = |profile: &&Profile| {
            let attribute = profile.name.attribute();
            !matches!(attribute, Attribute::Media | Attribute::AllMedia)
        };
        if !found.iter().all(sociable) {
            return None;
        }
        let sevenths: Option<Vec<Seventh>> = found.iter().map(|p| Seventh::of(p)).collect();
        if let Some(sevenths) = sevenths.filter(|_| table.memory_slices == 8) {
            return Some(Self(Form::Sevenths(sevenths)));
        }
        let aligned = found.iter().all(|p| is_aligned(p, table.memory_slices));
        let sizes: Vec<u64> = found.iter().map(|p| u64::from(p.memory_slices)).collect();
        let mut ascending = sizes.clone();
        ascending.sort_unstable();
        let divide = ascending.windows(2).all(|pair| pair[1] % pair[0] == 0);
        let each = u64::from(table.memory_slices);
        (aligned && divide).then_some(Self(Form::Nested { sizes, each }))
    }

    /// Whether so many of each profile, in the order they were given, fit on so many GPUs.
    pub fn fits(&self, counts: &[u64], gpus: u64) -> bool {
        match &self.0 {
            Form::Nested { sizes, each } => {
                let needed: u64 = counts.iter().zip(sizes).map(|(n, size)| n * size).sum();
                needed <= gpus * each
            }
            Form::Sevenths(kinds) => {
                let of = |wanted: Seventh| -> u64 {
                    let matching = kinds
                        .iter()
                        .zip(counts)
                        .filter(|(kind, _)| **kind == wanted);
                    matching.map(|(_, count)| *count).sum()
                };
                sevenths_left(of, gpus).is_some()
            }
        }
    }
}

/// How many more 1g would fit, if all do: whole GPUs first, then left halves for 4g and right ones for 3g, then
/// quarters, then eighths.
fn sevenths_left(of: impl Fn(Seventh) -> u64, gpus: u64) -> Option<u64> {
    let gpus = gpus.checked_sub(of(Seventh::All))?;
    let threes = of(Seventh::Three);
    let right = gpus.saturating_sub(threes);
    let left = gpus
        .checked_sub(of(Seventh::Four))?
        .checked_sub(threes.saturating_sub(gpus))?;
    // Two quarters of a left half and one of a right half take a 2g; the other of the right half takes a 1g, or one
    // with double memory, which wastes least there.
    let quarters = (2 * left + right).checked_sub(of(Seventh::Two))?;
    let doubles = of(Seventh::Double);
    let quarters = quarters.checked_sub(doubles.saturating_sub(right))?;
    let last = right.saturating_sub(doubles);
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

/// Whether the starts of the profile are all multiples of its size, and its maximum count is their number.
fn is_aligned(profile: &Profile, slices: u8) -> bool {
    let places = (0..slices).step_by(usize::from(profile.memory_slices));
    places.clone().eq(profile.starts.iter().copied()) && usize::from(profile.most) >= places.count()
}
