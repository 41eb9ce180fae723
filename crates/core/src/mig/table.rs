//! The profile table of a GPU: its MIG profiles, their possible starts, and which of them are plain.

use serde::{Deserialize, Serialize};

use super::{Attribute, MigProfile, Placement};
use crate::units::{Bytes, Share};

/// A kind of instance that a GPU offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// What the driver returns as `info.id` and takes when it creates; not the number by which the profile is asked
    /// for.
    pub id: u32,
    /// The label, for users. Its attribute is data: it decides which instances are legal beside it.
    pub name: MigProfile,
    /// What an instance has. A device may have up to 256 MiB more.
    pub memory: Bytes,
    pub compute_slices: u8,
    /// Memory slices an instance covers.
    pub memory_slices: u8,
    /// 0 where it is not known.
    pub multiprocessors: u32,
    /// Instances of it at once.
    pub most: u8,
    /// Memory slices at which an instance may start, ascending.
    pub starts: Vec<u8>,
}

impl Profile {
    /// The memory slices of an instance that starts there, one bit each.
    pub(super) fn mask(&self, start: u8) -> u32 {
        let run = u32::MAX >> (u32::BITS - u32::from(self.memory_slices));
        run << start
    }
}

/// What a GPU offers. Made by [`ProfileTable::new`] or [`ProfileTable::of_model`], which check it, and held as
/// `Arc<Table>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Profile>", into = "Vec<Profile>")]
pub struct ProfileTable {
    /// In order of memory, compute slices, memory slices, id: the smallest first.
    pub profiles: Vec<Profile>,
    /// Of the whole GPU: those of the largest profile.
    pub compute_slices: u8,
    /// Of the whole GPU: where the last profile ends.
    pub memory_slices: u8,
    /// The placements of the plain profiles, which count how much a layout leaves possible.
    pub(super) plain: Vec<Spot>,
}

/// A place of a profile in the table, and the memory slices it would cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) profile: usize,
    pub(super) mask: u32,
}

/// Masks have 32 bits, and a layout counts 32 profiles. The largest GPU known has 12 slices; nvml.h knows 18 profiles.
pub(super) const MOST_SLICES: u8 = 32;
pub(super) const MOST_PROFILES: usize = 32;

impl ProfileTable {
    /// A table of these profiles, in any order: those that a driver lists, with the starts and the size it says.
    ///
    /// The GPU has as many compute slices as its largest profile, and as many memory slices as the last one reaches.
    ///
    /// # Errors
    /// What makes it no table; the GPU is then not to be cut.
    pub fn new(mut profiles: Vec<Profile>) -> Result<Self, ProfileTableError> {
        if profiles.is_empty() {
            return Err(ProfileTableError::Empty);
        }
        if profiles.len() > MOST_PROFILES {
            return Err(ProfileTableError::TooMany(profiles.len()));
        }
        for profile in &mut profiles {
            profile.starts.sort_unstable();
            profile.starts.dedup();
            check(profile)?;
        }
        profiles.sort_by_key(|p| (p.memory, p.compute_slices, p.memory_slices, p.id));
        for (at, profile) in profiles.iter().enumerate() {
            if profiles[..at].iter().any(|before| before.id == profile.id) {
                return Err(ProfileTableError::Twice(profile.id));
            }
        }
        let ends = profiles
            .iter()
            .flat_map(|p| p.starts.iter().map(|start| start + p.memory_slices));
        let memory_slices = ends.max().unwrap_or(0);
        let compute_slices = profiles.iter().map(|p| p.compute_slices).max().unwrap_or(0);
        let plain = profiles
            .iter()
            .enumerate()
            .filter(|(_, profile)| is_plain(profile, &profiles))
            .flat_map(|(at, profile)| {
                let spot = move |start: &u8| Spot {
                    profile: at,
                    mask: profile.mask(*start),
                };
                profile.starts.iter().map(spot)
            })
            .collect();
        Ok(Self {
            profiles,
            compute_slices,
            memory_slices,
            plain,
        })
    }

    /// The profile with this id.
    pub fn profile(&self, id: u32) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// The profile of this name; of several, the smallest.
    pub fn named(&self, name: MigProfile) -> Option<&Profile> {
        let mut profiles = self.profiles.iter();
        profiles.find(|profile| self.is_named(profile, name))
    }

    /// Whether a request for this name means the profile: it has the name; or no profile here has it, and another
    /// driver calls the same slices so. Drivers round the memory up or down, so such names differ by 1 GB.
    pub(super) fn is_named(&self, profile: &Profile, name: MigProfile) -> bool {
        if profile.name == name {
            return true;
        }
        let has = |one: &&Profile| one.name == name;
        if !profile.name.differs_by_rounding(name) || self.profiles.iter().any(|one| has(&one)) {
            return false;
        }
        let slices = |table: &Self, one: &Profile| {
            let of_all = (table.compute_slices, table.memory_slices);
            (one.compute_slices, one.memory_slices, of_all)
        };
        let models = super::models().iter();
        let known: Vec<_> = models
            .filter_map(|model| {
                let known = model.table.profiles.iter().find(has)?;
                Some(slices(&model.table, known))
            })
            .collect();
        known.is_empty() || known.contains(&slices(self, profile))
    }

    /// The profiles by which what is still possible is measured: without attribute, and of those with as many compute
    /// slices the ones with the fewest memory slices. Five on a GPU with seven compute slices, three on one with four.
    pub fn plain(&self) -> impl Iterator<Item = &Profile> {
        self.profiles
            .iter()
            .filter(|profile| is_plain(profile, &self.profiles))
    }

    /// The part of the GPU that an instance takes: its memory slices of all, in thousandths, rounded down.
    pub fn share(&self, profile: &Profile) -> Share {
        let thousandths = u32::from(profile.memory_slices) * 1000 / u32::from(self.memory_slices);
        u16::try_from(thousandths)
            .ok()
            .and_then(Share::from_thousandths)
            .expect("a profile has 1 to all of at most 32 slices")
    }

    /// The label of a placement, `1g.5gb@3`; the bare id where the table does not have its profile.
    pub fn label(&self, placement: Placement) -> String {
        match self.profile(placement.profile) {
            Some(profile) => format!("{}@{}", profile.name, placement.start),
            None => placement.to_string(),
        }
    }
}

pub(super) fn is_plain(profile: &Profile, all: &[Profile]) -> bool {
    let bare = |p: &Profile| p.name.attribute() == Attribute::None;
    let smaller = |p: &Profile| {
        bare(p)
            && p.compute_slices == profile.compute_slices
            && p.memory_slices < profile.memory_slices
    };
    bare(profile) && !all.iter().any(smaller)
}

fn check(profile: &Profile) -> Result<(), ProfileTableError> {
    let id = profile.id;
    if profile.memory_slices == 0 || profile.compute_slices == 0 || profile.memory == Bytes::ZERO {
        return Err(ProfileTableError::Nothing(id));
    }
    if profile.most == 0 || profile.starts.is_empty() {
        return Err(ProfileTableError::Nowhere(id));
    }
    let outside = |start: &&u8| {
        u16::from(**start) + u16::from(profile.memory_slices) > u16::from(MOST_SLICES)
    };
    match profile.starts.iter().find(outside) {
        Some(start) => Err(ProfileTableError::Outside { id, start: *start }),
        None => Ok(()),
    }
}

impl TryFrom<Vec<Profile>> for ProfileTable {
    type Error = ProfileTableError;

    fn try_from(profiles: Vec<Profile>) -> Result<Self, ProfileTableError> {
        Self::new(profiles)
    }
}

impl From<ProfileTable> for Vec<Profile> {
    fn from(table: ProfileTable) -> Self {
        table.profiles
    }
}

/// The profiles make no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileTableError {
    #[error("the GPU offers no MIG profile")]
    Empty,
    #[error("the GPU offers {0} MIG profiles, but at most {MOST_PROFILES} are supported")]
    TooMany(usize),
    #[error("MIG profile {0} is listed twice")]
    Twice(u32),
    #[error("MIG profile {0} has no memory, or no slice")]
    Nothing(u32),
    #[error("MIG profile {0} has no possible slot")]
    Nowhere(u32),
    #[error("MIG profile {id} at {start} ends beyond slice {MOST_SLICES}")]
    Outside { id: u32, start: u8 },
}
