//! Shared counters of a GPU's memory slices, so that the devices that the scheduler allocates from one GPU never
//! overlap.
//!
//! It knows sums, not places: a place takes one of each memory slice that it covers, and a counter of one is taken once. What
//! `core::mig` says of layouts beyond that is said in sums too, where a table needs it:
//!
//! | rule | counter | has | takes |
//! |---|---|---|---|
//! | no two on one memory slice | `memory-slice-N` | 1 | 1 of each that it covers |
//! | no more compute than there is | `compute-slices` | the GPU's | the profile's |
//! | one with media extensions | `media-extensions` | 1 | `+me`: 1 |
//! | beside all media engines none with any | `media-engines` | one for each memory slice | `+me.all`: all, `-me`: none, others: 1 |
//! | so many of a profile | `most-PROFILE` | its most | 1 |
//!
//! A fraction takes every counter once, however many fractions are allocated: all share the whole GPU.

use std::collections::BTreeMap;

use divvy_core::mig::{Attribute, Placement, Profile, ProfileTable};
use k8s_openapi::api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption};

use super::name;
use crate::base::quantity::of_count;

/// `ResourceSliceMaxCountersPerCounterSet` and `ResourceSliceMaxCountersPerDeviceCounterConsumption` of resource.k8s.io/v1.
pub(super) const MOST_COUNTERS: usize = 32;

/// The counters of a GPU that can be split.
pub(super) fn of(table: &ProfileTable) -> BTreeMap<String, u32> {
    let slices = 0..table.memory_slices;
    let mut counters: BTreeMap<String, u32> = slices.map(|slice| (memory(slice), 1)).collect();
    counters.insert(COMPUTE.to_owned(), u32::from(table.compute_slices));
    let any = |attribute| {
        let mut profiles = table.profiles.iter();
        profiles.any(|profile| profile.name.attribute() == attribute)
    };
    if any(Attribute::Media) {
        counters.insert(EXTENSIONS.to_owned(), 1);
    }
    if any(Attribute::AllMedia) {
        counters.insert(ENGINES.to_owned(), u32::from(table.memory_slices));
    }
    for profile in &table.profiles {
        if beside(profile) > usize::from(profile.most) {
            counters.insert(most(profile), u32::from(profile.most));
        }
    }
    counters
}

/// The counters that an instance at a placement takes.
pub(super) fn taken(
    table: &ProfileTable,
    profile: &Profile,
    place: Placement,
) -> BTreeMap<String, u32> {
    let has = of(table);
    let covers = place.start..place.start + profile.memory_slices;
    let mut taken: BTreeMap<String, u32> = covers.map(|slice| (memory(slice), 1)).collect();
    taken.insert(COMPUTE.to_owned(), u32::from(profile.compute_slices));
    let attribute = profile.name.attribute();
    let extensions = u32::from(attribute == Attribute::Media);
    let engines = match attribute {
        Attribute::AllMedia => u32::from(table.memory_slices),
        Attribute::NoMedia => 0,
        Attribute::None | Attribute::Media | Attribute::Graphics => 1,
    };
    let rules = [
        (EXTENSIONS.to_owned(), extensions),
        (ENGINES.to_owned(), engines),
        (most(profile), 1),
    ];
    let counted = rules.into_iter();
    taken.extend(counted.filter(|(name, count)| *count > 0 && has.contains_key(name)));
    taken
}

const COMPUTE: &str = "compute-slices";
const EXTENSIONS: &str = "media-extensions";
const ENGINES: &str = "media-engines";

fn memory(slice: u8) -> String {
    format!("memory-slice-{slice}")
}

fn most(profile: &Profile) -> String {
    format!("most-{}", name::profile_slug(profile.name))
}

/// How many of a profile could lie side by side, if nothing but their places counted. Of runs of one length the lowest first
/// leaves the most room.
fn beside(profile: &Profile) -> usize {
    let one = profile.name.attribute() == Attribute::Media;
    let mut free = 0;
    let mut count = 0;
    for start in &profile.starts {
        if *start >= free {
            free = start + profile.memory_slices;
            count += 1;
        }
    }
    if one { count.min(1) } else { count }
}

/// The set of one GPU.
pub(super) fn set(name: String, counters: BTreeMap<String, u32>) -> CounterSet {
    CounterSet {
        name,
        counters: values(counters),
    }
}

/// The counters that a device takes from the set of one GPU.
pub(super) fn consumption(
    name: String,
    counters: BTreeMap<String, u32>,
) -> DeviceCounterConsumption {
    DeviceCounterConsumption {
        counter_set: name,
        counters: values(counters),
    }
}

fn values(counters: BTreeMap<String, u32>) -> BTreeMap<String, Counter> {
    let counters = counters.into_iter();
    let counted = counters.map(|(name, count)| {
        let value = of_count(count);
        (name, Counter { value })
    });
    counted.collect()
}
