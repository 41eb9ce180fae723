//! Whether instances would fit if they lay otherwise.

use std::collections::BTreeSet;

use divvy_core::mig::{Layout, MigGpu, Placement, ProfileTable, Repack, fits, pool_fits, sets};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::mig::rules::{Lying, PLAIN, at, pool, slices, table};

/// Numbers of each profile that fit on one GPU together.
fn feasible(table: &ProfileTable, profiles: &[u32]) -> BTreeSet<Vec<u64>> {
    let counts = |set: &Vec<Placement>| {
        let of = |id: &u32| set.iter().map(|one| u64::from(one.profile == *id)).sum();
        profiles.iter().map(of).collect()
    };
    sets(table, profiles).iter().map(counts).collect()
}

/// All numbers up to one more of each than ever fit.
fn beyond(feasible: &BTreeSet<Vec<u64>>) -> Vec<Vec<u64>> {
    let width = feasible.iter().next().unwrap().len();
    let mut all = vec![vec![]];
    for place in 0..width {
        let most = feasible.iter().map(|counts| counts[place]).max().unwrap() + 1;
        all = all
            .into_iter()
            .flat_map(|counts: Vec<u64>| (0..=most).map(move |n| [&counts[..], &[n]].concat()))
            .collect();
    }
    all
}

#[test]
fn the_closed_form_says_what_enumeration_does_for_all_numbers() {
    let nested = ["a30-24gb", "rtxpro6000-96gb"].map(|model| {
        let plain: Vec<u32> = table(model).plain().map(|profile| profile.id).collect();
        (model, plain)
    });
    let sevenths = [
        ("a100-40gb", PLAIN.to_vec()),
        ("h100-80gb", vec![15, 19, 14, 9, 5, 0]),
        ("a100-40gb", vec![15, 14]),
    ];
    for (model, profiles) in nested.into_iter().chain(sevenths) {
        let table = table(model);
        let form = Repack::of(&table, profiles.iter().copied()).unwrap();
        let one = feasible(&table, &profiles);
        let add = |a: &Vec<u64>, b: &Vec<u64>| a.iter().zip(b).map(|(a, b)| a + b).collect();
        let two: BTreeSet<Vec<u64>> = one
            .iter()
            .flat_map(|a| one.iter().map(move |b| add(a, b)))
            .collect();
        let three: BTreeSet<Vec<u64>> = two
            .iter()
            .flat_map(|a| one.iter().map(move |b| add(a, b)))
            .collect();
        for (gpus, feasible) in (1..).zip([one, two, three]) {
            for counts in beyond(&feasible) {
                let fits = form.fits(&counts, gpus);
                assert_eq!(
                    fits,
                    feasible.contains(&counts),
                    "{gpus} {model}, {counts:?}"
                );
            }
        }
    }
    // The figures of the proof: 38 combinations, the empty one included.
    assert_eq!(feasible(&table("a100-40gb"), &PLAIN).len(), 38);
}

#[test]
fn profiles_that_exclude_each_other_have_no_closed_form() {
    for (model, ids) in [
        ("a100-40gb", [19, 20]),
        ("a30-24gb", [14, 6]),
        ("rtxpro6000-96gb", [65, 67]),
    ] {
        assert!(Repack::of(&table(model), ids).is_none(), "{model}");
    }
    assert!(Repack::of(&table("a100-40gb"), [99]).is_none());
    assert!(Repack::of(&table("rtxpro6000-96gb"), [14, 47, 67]).is_some());
}

#[test]
fn one_gpu_is_tried_in_every_way() {
    for model in ["a100-40gb", "a30-24gb", "rtxpro6000-96gb"] {
        let table = table(model);
        let all: Vec<u32> = table
            .profiles
            .iter()
            .map(|profile| profile.id)
            .take(6)
            .collect();
        let feasible = feasible(&table, &all);
        for counts in beyond(&feasible) {
            if counts.iter().sum::<u64>() > 9 {
                continue;
            }
            let repeat = |(id, n): (&u32, &u64)| vec![*id; usize::try_from(*n).unwrap()];
            let wanted: Vec<u32> = all.iter().zip(&counts).flat_map(repeat).collect();
            let fits = fits(&table, Layout::EMPTY, &wanted);
            assert_eq!(fits, feasible.contains(&counts), "{model}, {wanted:?}");
        }
    }
    assert!(!fits(&table("a100-40gb"), Layout::EMPTY, &[99]));
}

#[test]
fn a_3g_that_lies_wrong_is_told_from_a_gpu_that_is_full() {
    let table = table("a100-40gb");
    // A 4g has room beside a 3g that lies at 4, and beside a 3g and a 1g never.
    assert!(fits(&table, Layout::EMPTY, &[9, 5]));
    assert!(!fits(&table, Layout::EMPTY, &[9, 19, 5]));
    // What somebody else made does not move.
    let stays = Layout::of(&table, [at(9, 0)]);
    assert!(!fits(&table, stays, &[5]));
    let site = |held| MigGpu {
        table: &table,
        held,
        idle: &[],
    };
    let names = |ids: &[u32]| {
        ids.iter()
            .map(|id| table.profile(*id).unwrap().name)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        pool_fits(&[site(stays), site(Layout::EMPTY)], &names(&[5])),
        Some(true)
    );
    assert_eq!(
        pool_fits(&[site(stays), site(stays)], &names(&[5])),
        Some(false)
    );
    assert_eq!(
        pool_fits(&[site(Layout::EMPTY); 100], &names(&[5; 100])),
        Some(true)
    );
    assert_eq!(
        pool_fits(&[site(Layout::EMPTY); 100], &names(&[5; 101])),
        Some(false)
    );
    assert_eq!(pool_fits(&[], &names(&[5])), Some(false));
}

#[test]
fn a_pool_too_large_to_try_and_without_a_closed_form_is_not_guessed_at() {
    let table = table("rtxpro6000-96gb");
    let ids: Vec<u32> = table.profiles.iter().map(|profile| profile.id).collect();
    let name = |id: &u32| table.profile(*id).unwrap().name;
    let wanted: Vec<_> = ids.iter().cycle().take(ids.len() * 8).map(name).collect();
    let site = MigGpu {
        table: &table,
        held: Layout::EMPTY,
        idle: &[],
    };
    assert_eq!(pool_fits(&[site; 16], &wanted), None);
}

proptest! {
    #[test]
    fn a_pool_with_something_on_it_is_searched((model, gpus) in pool(2), draws in proptest::collection::vec(any::<Index>(), 1..4)) {
        let table = table(model);
        let wanted: Vec<u32> = draws.iter().map(|draw| draw.get(&table.profiles).id).collect();
        let site = |gpu: &Lying| MigGpu {
            table: &table,
            held: Layout::of(&table, gpu.held.iter().copied()),
            idle: &[],
        };
        let sites: Vec<MigGpu<'_>> = gpus.iter().map(site).collect();
        let names: Vec<_> = wanted.iter().map(|id| table.profile(*id).unwrap().name).collect();
        let found = pool_fits(&sites, &names);
        // Each of the wanted on either GPU.
        let mut expected = false;
        for split in 0..1_u32 << wanted.len() {
            let on = |gpu: u32| -> Vec<u32> {
                let there = |nth: &usize| split >> nth & 1 == gpu;
                (0..wanted.len()).filter(there).map(|nth| wanted[nth]).collect()
            };
            expected |= fits(&table, sites[0].held, &on(0))
                && match sites.get(1) {
                    Some(second) => fits(&table, second.held, &on(1)),
                    None => on(1).is_empty(),
                };
        }
        prop_assert_eq!(found, Some(expected));
        let used: usize = gpus[0].held.iter().map(|one| slices(&table, *one).len()).sum();
        prop_assert_eq!(sites[0].held.free_slices(&table), u32::from(table.memory_slices) - u32::try_from(used).unwrap());
    }
}
