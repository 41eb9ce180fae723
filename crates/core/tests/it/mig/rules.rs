//! The rules of MIG a second time, as plainly as they can be said, and things to try them with.

use std::sync::Arc;

use divvy_core::mig::{Attribute, Placement, Profile, ProfileTable};
use proptest::prelude::*;
use proptest::sample::Index;

/// Ids of the five plain profiles of a GPU with seven compute slices, 1g to 7g.
pub const PLAIN: [u32; 5] = [19, 14, 9, 5, 0];

pub const MODELS: [&str; 5] = [
    "a100-40gb",
    "h100-80gb",
    "b200-180gb",
    "a30-24gb",
    "rtxpro6000-96gb",
];

pub fn table(model: &str) -> Arc<ProfileTable> {
    ProfileTable::of_model(model).unwrap()
}

pub fn at(profile: u32, start: u8) -> Placement {
    Placement { profile, start }
}

/// Every profile at every start.
pub fn spots(table: &ProfileTable) -> Vec<Placement> {
    let all = |profile: &Profile| {
        let id = profile.id;
        profile
            .starts
            .clone()
            .into_iter()
            .map(move |start| at(id, start))
    };
    table.profiles.iter().flat_map(all).collect()
}

/// The memory slices an instance lies on.
pub fn slices(table: &ProfileTable, placement: Placement) -> Vec<u8> {
    let profile = table.profile(placement.profile).unwrap();
    (placement.start..placement.start + profile.memory_slices).collect()
}

/// Whether these can be on one GPU together.
pub fn is_legal(table: &ProfileTable, set: &[Placement]) -> bool {
    let mut taken: Vec<u8> = set.iter().flat_map(|one| slices(table, *one)).collect();
    let all = taken.len();
    taken.sort_unstable();
    taken.dedup();
    let profiles: Vec<&Profile> = set
        .iter()
        .map(|one| table.profile(one.profile).unwrap())
        .collect();
    let with = |attribute: Attribute| {
        let has = |profile: &&&Profile| profile.name.attribute() == attribute;
        profiles.iter().filter(has).count()
    };
    let few = |profile: &&Profile| {
        let same = profiles.iter().filter(|other| other.id == profile.id);
        same.count() <= usize::from(profile.most)
    };
    let listed = set
        .iter()
        .zip(&profiles)
        .all(|(one, profile)| profile.starts.contains(&one.start));
    let alone = with(Attribute::AllMedia) == 0
        || with(Attribute::AllMedia) == 1 && with(Attribute::NoMedia) == set.len() - 1;
    listed && taken.len() == all && profiles.iter().all(few) && with(Attribute::Media) <= 1 && alone
}

/// The plain profiles at every start where one more of them is legal.
pub fn possible(table: &ProfileTable, set: &[Placement]) -> i64 {
    let plain: Vec<u32> = table.plain().map(|profile| profile.id).collect();
    let open = spots(table)
        .into_iter()
        .filter(|spot| plain.contains(&spot.profile) && is_legal(table, &[set, &[*spot]].concat()));
    i64::try_from(open.count()).unwrap()
}

/// A legal set of any profiles, by adding what can be added until it is as full as was drawn.
pub fn some_set(table: &ProfileTable, draws: &[Index]) -> Vec<Placement> {
    let mut set = Vec::new();
    for draw in draws {
        let open: Vec<Placement> = spots(table)
            .into_iter()
            .filter(|spot| is_legal(table, &[&set[..], &[*spot]].concat()))
            .collect();
        if !open.is_empty() {
            set.push(*draw.get(&open));
        }
    }
    set
}

/// What lies on a GPU: instances that are held, and idle ones.
#[derive(Clone, Debug)]
pub struct Lying {
    pub held: Vec<Placement>,
    pub idle: Vec<Placement>,
}

/// Some model, and some GPUs of it with something on each.
pub fn pool(gpus: usize) -> impl Strategy<Value = (&'static str, Vec<Lying>)> {
    let one = (
        proptest::collection::vec(any::<Index>(), 0..7),
        proptest::collection::vec(any::<bool>(), 7),
    );
    let all = proptest::collection::vec(one, 1..=gpus);
    (proptest::sample::select(MODELS.to_vec()), all).prop_map(|(model, drawn)| {
        let table = table(model);
        let lying = |(draws, held): (Vec<Index>, Vec<bool>)| {
            let mut lying = Lying {
                held: vec![],
                idle: vec![],
            };
            for (one, is_held) in some_set(&table, &draws).into_iter().zip(held) {
                if is_held {
                    lying.held.push(one);
                } else {
                    lying.idle.push(one);
                }
            }
            lying
        };
        (model, drawn.into_iter().map(lying).collect())
    })
}
