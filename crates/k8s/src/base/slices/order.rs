//! The order of devices: the scheduler takes the first that fits, so the order decides how GPUs are packed.

use divvy_core::mig::{MigGpu, Placement, PlacementPolicy, Profile};
use divvy_core::units::Bytes;

use super::offer::{Carving, Gpu, Offer};

/// First GPUs that are only allocated whole, for they serve no other request; then those for fractions, then those for
/// instances. Within a kind the smallest comes first, which wastes least, and equal ones keep their order.
pub(super) fn in_order(gpus: &[Gpu]) -> Vec<&Gpu> {
    let mut ordered: Vec<&Gpu> = gpus.iter().collect();
    let rank = |gpu: &Gpu| match gpu.offer {
        Offer::Whole => 0,
        // A part on one that can be cut would keep it from being cut.
        Offer::Parts(None) => 1,
        Offer::Parts(Some(_)) => 2,
        Offer::Instances(_) | Offer::Nothing(_) => 3,
    };
    ordered.sort_by_key(|gpu| (rank(gpu), gpu.memory, gpu.index));
    ordered
}

/// The order of the instances of all GPUs of a node: the smallest first, since a claim by memory takes the first that has it.
/// Those of one profile keep their order, GPU by GPU.
pub(super) fn by_size(profile: &Profile) -> (Bytes, u8, u32) {
    // Of two profiles with so much memory the one with less compute (1g.20gb before 2g.20gb) leaves more to others.
    (profile.memory, profile.compute_slices, profile.id)
}

/// Every place on a GPU that nothing lies on for good. Of each profile first those where instances of it would go one after
/// the other, each taking least of what is still possible; then those that overlap them, for when they are taken.
///
/// The planner sees what lies there when it chooses; this is said beforehand, so it is right where a GPU has one profile, and
/// as near as an order can be where it has several.
pub(super) fn places(carving: &Carving) -> Vec<Placement> {
    let table = &carving.table;
    let mut all = Vec::new();
    for profile in &table.profiles {
        // Claims name profiles, and of two with one name the agent takes the first too.
        if table.named(profile.name).map(|first| first.id) != Some(profile.id) {
            continue;
        }
        let candidates = |laid: &[Placement]| {
            let site = MigGpu::new(table, carving.taken.iter().chain(laid).copied(), &[]);
            let found = site
                .candidates(profile.id, PlacementPolicy::LeastLoss)
                .into_iter();
            found.map(|candidate| candidate.placement)
        };
        let mut places: Vec<Placement> = Vec::new();
        while let Some(next) = candidates(&places).next() {
            places.push(next);
        }
        let beside = places.len();
        for place in candidates(&[]) {
            if !places[..beside].contains(&place) {
                places.push(place);
            }
        }
        all.append(&mut places);
    }
    all
}
