//! The MIG layout of one GPU: its memory slices, the instances on them, and the placements that remain legal.
//!
//! A set of instances is legal under these rules:
//!
//! - No two instances share a memory slice, and each starts where its profile may.
//! - No profile occurs more often than its maximum.
//! - At most one instance has media extensions, and beside one with all media engines no other has any (nvml.h,
//!   `nvmlGpuInstancePlacement_t` and the `_ALL_ME` profiles). One `+me` in all is inferred from the tables of NVIDIA's
//!   MIG User Guide.
//!
//! Compute slices need no rule: on every model of data/mig.toml no legal set has more than the GPU.

use super::table::MOST_PROFILES;
use super::{Attribute, Placement, Profile, ProfileTable};

/// The instances on a GPU, as far as they decide which others are legal: the memory slices taken, and how many
/// instances there are of each profile. Small, and copied freely. It belongs to one table; with another it means
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    /// One bit for each memory slice.
    taken: u32,
    /// One bit for each attribute that some instance has.
    attributes: u8,
    /// By place in the table.
    counts: [u8; MOST_PROFILES],
}

impl Layout {
    /// No instances.
    pub const EMPTY: Self = Self {
        taken: 0,
        attributes: 0,
        counts: [0; MOST_PROFILES],
    };

    /// The observed instances, unchecked. An instance that the table does not have is taken to cover the
    /// whole GPU, so that nothing is put beside what is not understood.
    pub fn of(table: &ProfileTable, placements: impl IntoIterator<Item = Placement>) -> Self {
        placements
            .into_iter()
            .fold(Self::EMPTY, |layout, placement| {
                layout.and(table, placement)
            })
    }

    /// With one more instance, legal or not.
    #[must_use]
    pub(super) fn and(mut self, table: &ProfileTable, placement: Placement) -> Self {
        let found = table
            .profiles
            .iter()
            .position(|profile| profile.id == placement.profile);
        match found {
            Some(at) if u32::from(placement.start) < u32::BITS => {
                let profile = &table.profiles[at];
                self.taken |= profile.mask(placement.start);
                self.attributes |= bit(profile.name.attribute());
                self.counts[at] = self.counts[at].saturating_add(1);
            }
            _ => self.taken = u32::MAX,
        }
        self
    }

    /// The layout with one more instance; `None` if that is illegal.
    #[must_use]
    pub fn with(self, table: &ProfileTable, placement: Placement) -> Option<Self> {
        self.allows(table, placement)
            .then(|| self.and(table, placement))
    }

    /// Whether one more instance is legal at this placement.
    pub fn allows(&self, table: &ProfileTable, placement: Placement) -> bool {
        self.starts(table, placement.profile)
            .any(|start| start == placement.start)
    }

    /// Where one more instance of the profile may start, ascending; nowhere for a profile that the table does not have.
    pub fn starts<'a>(
        &self,
        table: &'a ProfileTable,
        profile: u32,
    ) -> impl Iterator<Item = u8> + use<'a> {
        let found = table
            .profiles
            .iter()
            .enumerate()
            .find(|(at, found)| found.id == profile && self.admits(*at, found));
        let taken = self.taken;
        found.into_iter().flat_map(move |(_, profile)| {
            let free = move |start: &u8| profile.mask(*start) & taken == 0;
            profile.starts.iter().copied().filter(free)
        })
    }

    /// Whether the number and the profiles of the instances leave room for one more of the profile, at any start.
    fn admits(&self, at: usize, profile: &Profile) -> bool {
        let attribute = profile.name.attribute();
        let others = self.attributes & !bit(Attribute::NoMedia);
        let beside = match attribute {
            Attribute::NoMedia => true,
            Attribute::AllMedia => others == 0,
            Attribute::Media => others & (bit(Attribute::Media) | bit(Attribute::AllMedia)) == 0,
            Attribute::None | Attribute::Graphics => others & bit(Attribute::AllMedia) == 0,
        };
        beside && self.counts[at] < profile.most
    }

    /// How many more instances of the profile there could be, of that profile alone: what NVML calls its remaining
    /// capacity.
    pub fn remaining(&self, table: &ProfileTable, profile: u32) -> u8 {
        let mut layout = *self;
        let mut count = 0;
        // The lowest start first leaves the most room for further instances of the same size.
        while let Some(start) = layout.starts(table, profile).next() {
            layout = layout.and(table, Placement { profile, start });
            count += 1;
        }
        count
    }

    /// How much is still possible: the plain profiles, each counted at every start where one more of it is legal. What
    /// the loss of a placement is measured in.
    pub fn possible(&self, table: &ProfileTable) -> u32 {
        let spots = table.plain.iter();
        let open = spots.filter(|spot| {
            spot.mask & self.taken == 0 && self.admits(spot.profile, &table.profiles[spot.profile])
        });
        u32::try_from(open.count()).expect("at most 32 starts of at most 32 profiles")
    }

    /// The same over all profiles, those with attributes too.
    pub fn possible_of_all(&self, table: &ProfileTable) -> u32 {
        table
            .profiles
            .iter()
            .map(|profile| self.starts(table, profile.id).map(|_| 1).sum::<u32>())
            .sum()
    }

    /// The same in thousandths of a weight for each profile, by id: a profile that is legal at all its starts counts
    /// its weight in full, however many starts it has.
    pub fn possible_by_weight(&self, table: &ProfileTable, weights: &[(u32, u32)]) -> u64 {
        let open = |(id, weight): &(u32, u32)| {
            let profile = table.profile(*id)?;
            let open = self.starts(table, *id).map(|_| 1).sum::<u64>();
            let all = u64::try_from(profile.starts.len()).expect("at most 32 starts");
            Some(open * u64::from(*weight) * 1000 / all)
        };
        weights.iter().filter_map(open).sum()
    }

    /// Adds the instances that are legal beside it, in their order; returns the others.
    pub(super) fn beside(
        self,
        table: &ProfileTable,
        others: impl IntoIterator<Item = Placement>,
    ) -> (Self, Vec<Placement>) {
        let mut clash = Vec::new();
        let with = |layout: Self, other| {
            layout.with(table, other).unwrap_or_else(|| {
                clash.push(other);
                layout
            })
        };
        (others.into_iter().fold(self, with), clash)
    }

    /// Free memory slices.
    pub fn free_slices(&self, table: &ProfileTable) -> u32 {
        u32::from(table.memory_slices).saturating_sub(self.taken.count_ones())
    }

    /// How many instances there are of each profile: id and number, in the table's order, none left out that is there.
    pub fn counts<'a>(&'a self, table: &'a ProfileTable) -> impl Iterator<Item = (u32, u8)> + 'a {
        let counted = table.profiles.iter().zip(self.counts);
        counted
            .filter(|(_, count)| *count > 0)
            .map(|(profile, count)| (profile.id, count))
    }
}

fn bit(attribute: Attribute) -> u8 {
    1 << attribute as u8
}

/// Every legal set of instances of these profiles on an empty GPU, the empty set included, each in order, all in order:
/// 298 for the five plain profiles of a GPU with seven compute slices.
pub fn sets(table: &ProfileTable, profiles: &[u32]) -> Vec<Vec<Placement>> {
    let mut all = Vec::new();
    extend(table, profiles, Layout::EMPTY, Vec::new(), &mut all);
    all.sort_unstable();
    all
}

/// Adds the set, and all that it grows to in ascending order, which meets each set once.
fn extend(
    table: &ProfileTable,
    profiles: &[u32],
    layout: Layout,
    set: Vec<Placement>,
    all: &mut Vec<Vec<Placement>>,
) {
    for profile in profiles.iter().copied() {
        for start in layout.starts(table, profile) {
            let next = Placement { profile, start };
            if set.last().is_none_or(|last| *last < next) {
                let more = set.iter().copied().chain([next]).collect();
                extend(table, profiles, layout.and(table, next), more, all);
            }
        }
    }
    all.push(set);
}
