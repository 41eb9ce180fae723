//! Profile selection: the smallest MIG profile that satisfies a request.

use super::{Attribute, MigProfile, Profile, ProfileTable};
use crate::units::{Bytes, Share};

/// What an instance has to be at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceRequirement {
    pub size: InstanceSize,
    /// Of the instance; 0 for any. A profile with an unknown number of multiprocessors has too few for any other
    /// number.
    pub multiprocessors: u32,
    /// Profiles with an attribute only serve requests for that attribute.
    pub attribute: Attribute,
}

/// How large an instance has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceSize {
    /// This profile and no other, also where the driver calls it otherwise ([`ProfileTable::is_named`]); its attribute
    /// is the name's.
    Named(MigProfile),
    /// At least this part of the GPU's memory slices. A quarter is 1g.10gb on an A100 40GB, 1g.6gb on an A30.
    Share(Share),
    /// By the nominal name: 10 GiB is met by a 1g.10gb, though that has 9856 MiB. What it has must be told.
    Memory(Bytes),
    /// By what the instance has.
    Exact(Bytes),
}

impl From<InstanceSize> for InstanceRequirement {
    fn from(size: InstanceSize) -> Self {
        let attribute = match size {
            InstanceSize::Named(name) => name.attribute(),
            InstanceSize::Share(_) | InstanceSize::Memory(_) | InstanceSize::Exact(_) => {
                Attribute::None
            }
        };
        Self {
            size,
            multiprocessors: 0,
            attribute,
        }
    }
}

impl InstanceRequirement {
    /// Whether an instance of the profile is enough.
    pub fn is_met_by(&self, table: &ProfileTable, profile: &Profile) -> bool {
        let size = match self.size {
            InstanceSize::Named(name) => table.is_named(profile, name),
            InstanceSize::Share(share) => table.share(profile) >= share,
            // Some drivers round the name down: 3g.39gb for 39.5 GiB.
            InstanceSize::Memory(memory) => {
                let rounded = profile.memory.round_up(Bytes::GIB);
                rounded.max(profile.name.nominal()) >= memory
            }
            InstanceSize::Exact(memory) => profile.memory >= memory,
        };
        size && profile.name.attribute() == self.attribute
            && profile.multiprocessors >= self.multiprocessors
    }
}

/// The profiles that are enough, the smallest first: by memory, then compute slices, memory slices, id.
pub fn sufficient(
    table: &ProfileTable,
    need: InstanceRequirement,
) -> impl Iterator<Item = &Profile> {
    // The table is in that order.
    let enough = move |profile: &&Profile| need.is_met_by(table, profile);
    table.profiles.iter().filter(enough)
}

/// The smallest profile that is enough; `None` where the GPU has none. One that does not fit now is waited for: a
/// larger one is not taken in its place, since that would starve requests for it.
pub fn smallest(table: &ProfileTable, need: impl Into<InstanceRequirement>) -> Option<&Profile> {
    sufficient(table, need.into()).next()
}
