//! Several instances at once.

use std::collections::BTreeSet;

use divvy_core::MigProfile;
use divvy_core::mig::{
    Layout, MigGpu, Packing, Placement, PlacementPolicy, ProfileTable, pack, place, sets,
};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::mig::rules::{Lying, PLAIN, at, is_legal, pool, spots, table};

fn sites<'a>(table: &'a ProfileTable, gpus: &'a [Lying]) -> Vec<MigGpu<'a>> {
    let site = |gpu: &'a Lying| MigGpu::new(table, gpu.held.iter().copied(), &gpu.idle);
    gpus.iter().map(site).collect()
}

fn names(table: &ProfileTable, ids: &[u32]) -> Vec<MigProfile> {
    let name = |id: &u32| table.profile(*id).unwrap().name;
    ids.iter().map(name).collect()
}

fn empty(gpus: usize) -> Vec<Lying> {
    vec![
        Lying {
            held: vec![],
            idle: vec![]
        };
        gpus
    ]
}

/// Every different order of these.
fn orders(ids: &[u32]) -> BTreeSet<Vec<u32>> {
    let Some((last, rest)) = ids.split_last() else {
        return BTreeSet::from([vec![]]);
    };
    let mut all = BTreeSet::new();
    for order in orders(rest) {
        for place in 0..=order.len() {
            let mut order = order.clone();
            order.insert(place, *last);
            all.insert(order);
        }
    }
    all
}

/// Whether a policy that does not know what comes next finds room for all on one empty GPU.
fn fits_one_by_one(table: &ProfileTable, order: &[u32], policy: PlacementPolicy<'_>) -> bool {
    let mut held = Vec::new();
    order.iter().all(|id| {
        let site = MigGpu::new(table, held.iter().copied(), &[]);
        let placed = place(&[site], |_| Some(*id), policy);
        held.extend(placed.iter().map(|(_, chosen)| chosen.placement));
        placed.is_some()
    })
}

#[test]
fn a_batch_that_fits_is_placed_in_every_order_where_one_by_one_fails() {
    // Case C24.
    let table = table("a100-40gb");
    let orders = orders(&[19, 19, 14, 9]);
    assert_eq!(orders.len(), 12);
    let empty = empty(1);
    for order in &orders {
        let packing = pack(&sites(&table, &empty), &names(&table, order));
        assert!(packing.is_complete() && packing.exact, "{order:?}");
        let three = packing
            .placed
            .iter()
            .flatten()
            .find(|one| one.placement.profile == 9);
        assert_eq!(three.unwrap().placement, at(9, 4));
    }
    let fails = |policy| {
        let failed = orders
            .iter()
            .filter(|order| !fits_one_by_one(&table, order, policy));
        failed.count()
    };
    assert_eq!(
        (
            fails(PlacementPolicy::FirstFit),
            fails(PlacementPolicy::DriverDefault)
        ),
        (3, 9)
    );
}

#[test]
fn no_rule_that_places_one_by_one_is_safe_for_all_batches_that_fill_a_gpu() {
    let table = table("a100-40gb");
    let mut multisets: BTreeSet<Vec<u32>> = sets(&table, &PLAIN)
        .into_iter()
        .map(|set| set.iter().map(|one| one.profile).collect())
        .collect();
    let all = multisets.clone();
    multisets.retain(|multiset| {
        PLAIN.iter().all(|id| {
            let mut more = multiset.clone();
            more.push(*id);
            more.sort_unstable();
            !all.contains(&more)
        })
    });
    let orders: Vec<Vec<u32>> = multisets
        .iter()
        .flat_map(|multiset| orders(multiset))
        .collect();
    assert_eq!((multisets.len(), orders.len()), (12, 55));
    let fails = |policy| {
        let failed = orders
            .iter()
            .filter(|order| !fits_one_by_one(&table, order, policy));
        failed.count()
    };
    assert_eq!(
        (
            fails(PlacementPolicy::FirstFit),
            fails(PlacementPolicy::LeastLoss)
        ),
        (22, 15)
    );
    let empty = empty(1);
    for order in &orders {
        assert!(pack(&sites(&table, &empty), &names(&table, order)).is_complete());
    }
}

#[test]
fn of_a_batch_that_is_too_large_as_many_are_placed_as_can_be() {
    let table = table("a100-40gb");
    let empty = empty(1);
    let packing = pack(&sites(&table, &empty), &names(&table, &[0, 9, 9, 19]));
    assert!(!packing.is_complete());
    let placed: Vec<bool> = packing.placed.iter().map(Option::is_some).collect();
    // 7g alone is one; 3g and 3g are two; 3g and 1g are two as well, and no three fit.
    assert_eq!(placed, [false, true, true, false]);
    let packing = pack(&sites(&table, &empty), &names(&table, &[9, 19, 9]));
    let placed: Vec<bool> = packing.placed.iter().map(Option::is_some).collect();
    assert_eq!(placed, [true, true, false]);
    assert_eq!(pack(&sites(&table, &empty), &[]).placed, []);
}

#[test]
fn a_batch_uses_idle_instances_and_leaves_empty_gpus_empty() {
    let table = table("a100-40gb");
    let gpus = [
        Lying {
            held: vec![],
            idle: vec![],
        },
        Lying {
            held: vec![at(5, 0)],
            idle: vec![at(14, 4)],
        },
    ];
    let packing = pack(&sites(&table, &gpus), &names(&table, &[19, 14]));
    let placed: Vec<(usize, Placement, bool)> = packing
        .placed
        .iter()
        .flatten()
        .map(|one| (one.site, one.placement, one.reuse))
        .collect();
    assert_eq!(placed, [(1, at(19, 6), false), (1, at(14, 4), true)]);
    assert_eq!(packing.reclaim, []);
    let packing = pack(&sites(&table, &gpus[1..]), &names(&table, &[9]));
    assert_eq!(packing.reclaim, [(0, at(14, 4))]);
}

#[test]
fn gpus_of_different_models_are_told_apart_by_the_names_of_their_profiles() {
    let (a30, a100) = (table("a30-24gb"), table("a100-40gb"));
    let sites = [
        MigGpu {
            table: &a30,
            held: Layout::EMPTY,
            idle: &[],
        },
        MigGpu {
            table: &a100,
            held: Layout::EMPTY,
            idle: &[],
        },
    ];
    // Id 14 is a 1g.6gb on the one and a 2g.10gb on the other.
    let wanted = [names(&a100, &[14]), names(&a30, &[14])].concat();
    let packing = pack(&sites, &wanted);
    let on: Vec<usize> = packing
        .placed
        .iter()
        .flatten()
        .map(|one| one.site)
        .collect();
    assert_eq!(on, [1, 0]);
}

#[test]
fn a_batch_too_large_to_try_everything_is_placed_largest_first() {
    let table = table("rtxpro6000-96gb");
    let ids: Vec<u32> = table.profiles.iter().map(|profile| profile.id).collect();
    let wanted: Vec<u32> = ids.iter().cycle().take(ids.len() * 8).copied().collect();
    let gpus = empty(16);
    let packing = pack(&sites(&table, &gpus), &names(&table, &wanted));
    assert!(!packing.exact);
    check(&table, &gpus, &packing);
    let whole = packing
        .placed
        .iter()
        .flatten()
        .filter(|one| one.placement.profile == 0);
    assert_eq!(whole.count(), 8);
}

/// Everything lies where it may, beside what is held and what idle instances are left.
fn check(table: &ProfileTable, gpus: &[Lying], packing: &Packing) {
    for (nth, gpu) in gpus.iter().enumerate() {
        let here = packing
            .placed
            .iter()
            .flatten()
            .filter(|one| one.site == nth);
        let new: Vec<Placement> = here.clone().map(|one| one.placement).collect();
        let gone: Vec<Placement> = packing
            .reclaim
            .iter()
            .filter(|(site, _)| *site == nth)
            .map(|(_, placement)| *placement)
            .collect();
        assert!(
            gone.iter()
                .all(|gone| gpu.idle.contains(gone) && !new.contains(gone))
        );
        assert!(
            here.clone()
                .all(|one| one.reuse == gpu.idle.contains(&one.placement))
        );
        let kept = gpu
            .idle
            .iter()
            .filter(|idle| !gone.contains(idle) && !new.contains(idle));
        let all: Vec<Placement> = gpu.held.iter().chain(&new).chain(kept).copied().collect();
        assert!(is_legal(table, &all), "{all:?}");
    }
}

/// The most of these that fit, and of those the set that serves the first, by trying every place for each in turn.
fn most(table: &ProfileTable, held: &mut [Vec<Placement>], wanted: &[u32]) -> Vec<bool> {
    let Some((first, rest)) = wanted.split_first() else {
        return vec![];
    };
    let key = |served: &[bool]| {
        let count = served.iter().filter(|served| **served).count();
        (count, served.to_vec())
    };
    let mut best = [&[false], &most(table, held, rest)[..]].concat();
    for gpu in 0..held.len() {
        for spot in spots(table)
            .into_iter()
            .filter(|spot| spot.profile == *first)
        {
            if is_legal(table, &[&held[gpu][..], &[spot]].concat()) {
                held[gpu].push(spot);
                let served = [&[true], &most(table, held, rest)[..]].concat();
                held[gpu].pop();
                if key(&served) > key(&best) {
                    best = served;
                }
            }
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_batch_is_placed_as_trying_everything_places_it(
        (model, gpus) in pool(2),
        draws in proptest::collection::vec(any::<Index>(), 1..4),
    ) {
        let table = table(model);
        let wanted: Vec<u32> = draws.iter().map(|draw| draw.get(&table.profiles).id).collect();
        let wanted_names = names(&table, &wanted);
        let packing = pack(&sites(&table, &gpus), &wanted_names);
        check(&table, &gpus, &packing);
        prop_assert!(packing.exact);
        let served: Vec<bool> = packing.placed.iter().map(Option::is_some).collect();
        let mut held: Vec<Vec<Placement>> = gpus.iter().map(|gpu| gpu.held.clone()).collect();
        prop_assert_eq!(served, most(&table, &mut held, &wanted));
        for (name, placed) in wanted_names.iter().zip(&packing.placed) {
            if let Some(placed) = placed {
                prop_assert_eq!(table.profile(placed.placement.profile).unwrap().name, *name);
            }
        }
        prop_assert_eq!(&packing, &pack(&sites(&table, &gpus), &wanted_names));
    }
}
