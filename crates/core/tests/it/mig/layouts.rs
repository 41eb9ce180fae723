//! Every legal layout there is, counted.

use std::collections::BTreeSet;

use divvy_core::mig::{
    Attribute, Layout, Placement, Profile, ProfileTable, ProfileTableError, models, sets,
};
use divvy_core::{Bytes, MigProfile};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::mig::rules::{self, MODELS, PLAIN, at, is_legal, some_set, spots, table};

/// Starts, legal sets, maximal ones, and different maximal ones when it is only counted how many there are of each profile.
fn census(table: &ProfileTable, profiles: &[u32]) -> (usize, usize, usize, usize) {
    let all = sets(table, profiles);
    let counts = |set: &[Placement]| {
        let mut ids: Vec<u32> = set.iter().map(|one| one.profile).collect();
        ids.sort_unstable();
        ids
    };
    let multisets: BTreeSet<Vec<u32>> = all.iter().map(|set| counts(set)).collect();
    let grows = |multiset: &Vec<u32>| {
        profiles.iter().any(|id| {
            let mut more = multiset.clone();
            more.push(*id);
            more.sort_unstable();
            multisets.contains(&more)
        })
    };
    let largest = multisets.iter().filter(|multiset| !grows(multiset));
    let starts = spots(table)
        .into_iter()
        .filter(|spot| profiles.contains(&spot.profile));
    (
        starts.count(),
        all.len(),
        maximal(table, profiles).len(),
        largest.count(),
    )
}

fn maximal(table: &ProfileTable, profiles: &[u32]) -> Vec<Vec<Placement>> {
    let full = |set: &Vec<Placement>| {
        let layout = Layout::of(table, set.iter().copied());
        profiles
            .iter()
            .all(|id| layout.starts(table, *id).next().is_none())
    };
    sets(table, profiles).into_iter().filter(full).collect()
}

#[test]
fn a_gpu_with_seven_compute_slices_has_298_layouts_of_its_plain_profiles_19_of_them_full() {
    let table = table("a100-40gb");
    assert_eq!(census(&table, &PLAIN), (14, 298, 19, 12));
    let multisets: BTreeSet<Vec<(u32, u8)>> = sets(&table, &PLAIN)
        .into_iter()
        .filter(|set| !set.is_empty())
        .map(|set| Layout::of(&table, set).counts(&table).collect())
        .collect();
    assert_eq!(multisets.len(), 37);
}

#[test]
fn the_full_layouts_are_those_that_nvidia_draws() {
    let table = table("a100-40gb");
    let written = "7@0 | 3@0 3@4 | 4@0 3@4 | 4@0 2@4 1@6 | 4@0 1@4 1@5 1@6 | 3@0 2@4 1@6 | 3@0 1@4 1@5 1@6 \
        | 2@0 2@2 3@4 | 2@0 2@2 2@4 1@6 | 2@0 2@2 1@4 1@5 1@6 | 2@0 1@2 1@3 3@4 | 2@0 1@2 1@3 2@4 1@6 \
        | 2@0 1@2 1@3 1@4 1@5 1@6 | 1@0 1@1 2@2 3@4 | 1@0 1@1 2@2 2@4 1@6 | 1@0 1@1 2@2 1@4 1@5 1@6 \
        | 1@0 1@1 1@2 1@3 3@4 | 1@0 1@1 1@2 1@3 2@4 1@6 | 1@0 1@1 1@2 1@3 1@4 1@5 1@6";
    let expected: BTreeSet<&str> = written.split('|').map(str::trim).collect();
    let text = |set: &Vec<Placement>| {
        let mut set = set.clone();
        set.sort_by_key(|one| one.start);
        let one = |one: &Placement| {
            let slices = table.profile(one.profile).unwrap().compute_slices;
            format!("{slices}@{}", one.start)
        };
        set.iter().map(one).collect::<Vec<String>>().join(" ")
    };
    let found: Vec<String> = maximal(&table, &PLAIN).iter().map(text).collect();
    assert_eq!(
        found.iter().map(String::as_str).collect::<BTreeSet<&str>>(),
        expected
    );
}

#[test]
fn two_full_layouts_are_dead_ends_that_lie_better_with_their_3g_on_the_right() {
    let table = table("a100-40gb");
    let full = maximal(&table, &PLAIN);
    let ids = |set: &[Placement]| set.iter().map(|one| one.profile).collect::<Vec<u32>>();
    let lies_better = |set: &&Vec<Placement>| {
        sets(&table, &PLAIN)
            .iter()
            .any(|other| ids(other) == ids(set) && !full.contains(other))
    };
    let dead: Vec<Vec<Placement>> = full.iter().filter(lies_better).cloned().collect();
    let expected = [
        vec![at(9, 0), at(14, 4), at(19, 6)],
        vec![at(9, 0), at(19, 4), at(19, 5), at(19, 6)],
    ];
    assert_eq!(dead, expected);
}

#[test]
fn other_sets_of_profiles_have_as_many_layouts_as_were_counted() {
    let a100 = table("a100-40gb");
    assert_eq!(census(&a100, &[19, 14, 9, 5, 0, 15]), (18, 723, 78, 28));
    assert_eq!(
        census(&a100, &[19, 14, 9, 5, 0, 15, 20]),
        (25, 2319, 239, 44)
    );
    for model in ["a30-24gb", "rtxpro6000-96gb"] {
        let table = table(model);
        let plain: Vec<u32> = table.plain().map(|profile| profile.id).collect();
        let (starts, _, maximal, multisets) = census(&table, &plain);
        assert_eq!((starts, maximal, multisets), (7, 5, 4), "{model}");
    }
    let rtx = table("rtxpro6000-96gb");
    let all: Vec<u32> = rtx.profiles.iter().map(|profile| profile.id).collect();
    assert_eq!(census(&rtx, &all), (30, 717, 302, 64));
}

#[test]
fn all_gpus_with_seven_compute_slices_are_laid_out_alike() {
    let shape = |profile: &Profile| {
        let Profile {
            id,
            memory_slices,
            most,
            starts,
            ..
        } = profile.clone();
        (id, memory_slices, most, starts)
    };
    let shapes = |table: &ProfileTable| table.profiles.iter().map(shape).collect::<BTreeSet<_>>();
    let first = shapes(&table("a100-40gb"));
    let sevens: Vec<&str> = models()
        .iter()
        .filter(|model| model.table.compute_slices == 7)
        .map(|model| model.key.as_str())
        .collect();
    assert_eq!(sevens.len(), 11, "{sevens:?}");
    for model in sevens {
        let table = table(model);
        assert_eq!(shapes(&table), first, "{model}");
        assert_eq!(
            table
                .plain()
                .map(|profile| profile.id)
                .collect::<Vec<u32>>(),
            PLAIN
        );
    }
}

#[test]
fn no_legal_layout_of_any_model_has_more_compute_slices_than_the_gpu_and_some_have_all() {
    for model in models() {
        let table = &model.table;
        let all: Vec<u32> = table.profiles.iter().map(|profile| profile.id).collect();
        let compute = |set: &Vec<Placement>| {
            let of = |one: &Placement| table.profile(one.profile).unwrap().compute_slices;
            set.iter().map(of).sum::<u8>()
        };
        let most = sets(table, &all).iter().map(compute).max();
        assert_eq!(most, Some(table.compute_slices), "{}", model.key);
    }
}

#[test]
fn a_gpu_with_twelve_memory_slices_places_in_threes() {
    // Cases C1 and C2.
    let starts = |model: &str, id: u32| {
        let table = table(model);
        let profile = table.profile(id).unwrap();
        (profile.starts.clone(), profile.memory_slices)
    };
    assert_eq!(starts("rtxpro6000-96gb", 14), (vec![0, 3, 6, 9], 3));
    assert_eq!(starts("rtxpro6000-96gb", 5), (vec![0, 6], 6));
    assert_eq!(starts("rtxpro6000-96gb", 0), (vec![0], 12));
    assert_eq!(starts("a100-40gb", 19), (vec![0, 1, 2, 3, 4, 5, 6], 1));
    assert_eq!(starts("a100-40gb", 15), (vec![0, 2, 4, 6], 2));
    assert_eq!(starts("a100-40gb", 14), (vec![0, 2, 4], 2));
    assert_eq!(starts("a100-40gb", 9), (vec![0, 4], 4));
    assert_eq!(starts("a100-40gb", 5), (vec![0], 4));
    assert_eq!(starts("a100-40gb", 0), (vec![0], 8));
}

#[test]
fn the_remaining_capacity_is_what_an_a100_said_while_it_was_filled() {
    // Case C3.
    let table = table("a100-40gb");
    let mut layout = Layout::EMPTY;
    let mut seen = Vec::new();
    for next in [None, Some(at(5, 0)), Some(at(14, 4)), Some(at(19, 6))] {
        if let Some(next) = next {
            layout = layout.with(&table, next).unwrap();
        }
        seen.push([19, 20, 15, 14, 9, 5, 0].map(|id| layout.remaining(&table, id)));
    }
    let expected = [
        [7, 1, 4, 3, 2, 1, 1],
        [3, 1, 2, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(seen, expected);
}

#[test]
fn what_overlaps_is_refused_and_so_is_a_second_instance_with_media_extensions() {
    // Cases C8, C9 and C10.
    let table = table("a100-40gb");
    let left = Layout::of(&table, [at(9, 0)]);
    let right = Layout::of(&table, [at(9, 4)]);
    assert!(!left.allows(&table, at(5, 0)));
    assert!(right.allows(&table, at(5, 0)));
    let doubles = Layout::of(&table, [0, 2, 4, 6].map(|start| at(15, start)));
    assert_eq!(doubles.starts(&table, 19).count(), 0);
    let media = Layout::of(&table, [at(20, 0)]);
    assert_eq!(media.remaining(&table, 20), 0);
    assert_eq!(media.remaining(&table, 19), 6);
}

#[test]
fn beside_an_instance_with_all_media_engines_there_are_only_such_without_any() {
    let table = table("rtxpro6000-96gb");
    let all_media = Layout::of(&table, [at(65, 0)]);
    let open: BTreeSet<u32> = spots(&table)
        .into_iter()
        .filter(|spot| all_media.allows(&table, *spot))
        .map(|spot| spot.profile)
        .collect();
    assert_eq!(open, BTreeSet::from([66, 67]));
    let none = Layout::of(&table, [at(67, 0)]);
    assert!(none.allows(&table, at(65, 3)));
    let media = Layout::of(&table, [at(21, 0)]);
    assert!(!media.allows(&table, at(65, 3)));
}

#[test]
fn nothing_is_put_beside_an_instance_that_is_not_understood() {
    let table = table("a100-40gb");
    let layout = Layout::of(&table, [at(99, 3)]);
    assert!(
        spots(&table)
            .iter()
            .all(|spot| !layout.allows(&table, *spot))
    );
    assert_eq!(
        (layout.possible(&table), layout.free_slices(&table)),
        (0, 0)
    );
}

/// A profile of one slice that may start anywhere.
fn profile(id: u32) -> Profile {
    Profile {
        id,
        name: MigProfile::new(1, 5, Attribute::None).unwrap(),
        memory: Bytes::gib(5),
        compute_slices: 1,
        memory_slices: 1,
        multiprocessors: 14,
        most: 7,
        starts: vec![0, 1],
    }
}

#[test]
fn what_a_driver_says_is_checked_before_it_is_believed() {
    let one = profile(1);
    let with = |change: fn(&mut Profile)| {
        let mut profile = profile(2);
        change(&mut profile);
        ProfileTable::new(vec![one.clone(), profile])
    };
    assert_eq!(
        with(|p| p.memory_slices = 0),
        Err(ProfileTableError::Nothing(2))
    );
    assert_eq!(
        with(|p| p.compute_slices = 0),
        Err(ProfileTableError::Nothing(2))
    );
    assert_eq!(
        with(|p| p.memory = Bytes::ZERO),
        Err(ProfileTableError::Nothing(2))
    );
    assert_eq!(
        with(|p| p.starts = vec![]),
        Err(ProfileTableError::Nowhere(2))
    );
    assert_eq!(with(|p| p.most = 0), Err(ProfileTableError::Nowhere(2)));
    assert_eq!(with(|p| p.id = 1), Err(ProfileTableError::Twice(1)));
    let outside = Err(ProfileTableError::Outside { id: 2, start: 30 });
    assert_eq!(
        with(|p| (p.starts, p.memory_slices) = (vec![30], 3)),
        outside
    );
    let outside = Err(ProfileTableError::Outside { id: 2, start: 255 });
    assert_eq!(with(|p| p.starts = vec![255]), outside);
    assert_eq!(ProfileTable::new(vec![]), Err(ProfileTableError::Empty));
    let many = (0..33).map(profile).collect();
    assert_eq!(ProfileTable::new(many), Err(ProfileTableError::TooMany(33)));
    let whole = with(|p| (p.starts, p.memory_slices, p.compute_slices) = (vec![0], 32, 9)).unwrap();
    assert_eq!((whole.compute_slices, whole.memory_slices), (9, 32));
}

#[test]
fn a_table_has_its_smallest_profiles_first_however_they_were_listed() {
    let table = table("a100-40gb");
    let mut reversed = table.profiles.clone();
    reversed.reverse();
    assert_eq!(ProfileTable::new(reversed).unwrap(), *table);
    let names: Vec<String> = table.profiles.iter().map(|p| p.name.to_string()).collect();
    assert_eq!(
        names,
        [
            "1g.5gb",
            "1g.5gb+me",
            "1g.10gb",
            "2g.10gb",
            "3g.20gb",
            "4g.20gb",
            "7g.40gb"
        ]
    );
}

#[test]
fn models_are_found_by_key_and_by_pci_device() {
    assert_eq!(
        ProfileTable::of_pci_device(0x20B0),
        ProfileTable::of_model("a100-40gb")
    );
    assert_eq!(
        ProfileTable::of_pci_device(0x2BB5),
        ProfileTable::of_model("rtxpro6000-96gb")
    );
    assert_eq!(
        (
            ProfileTable::of_pci_device(0x1234),
            ProfileTable::of_model("gtx")
        ),
        (None, None)
    );
    for (device, largest) in [
        (0x3182, "7g.269gb"),
        (0x31C2, "7g.278gb"),
        (0x2348, "7g.144gb"),
    ] {
        let table = ProfileTable::of_pci_device(device).expect("a known model");
        let last = table.plain().last().map(|profile| profile.name.to_string());
        assert_eq!(last.as_deref(), Some(largest));
    }
    let label = table("a100-40gb").label(at(19, 3));
    assert_eq!(
        (label.as_str(), table("a30-24gb").label(at(99, 3)).as_str()),
        ("1g.5gb@3", "99@3")
    );
}

proptest! {
    #[test]
    fn a_layout_allows_what_the_rules_do(
        model in proptest::sample::select(MODELS.to_vec()),
        draws in proptest::collection::vec(any::<Index>(), 0..8),
    ) {
        let table = table(model);
        let set = some_set(&table, &draws);
        let layout = Layout::of(&table, set.iter().copied());
        for spot in spots(&table) {
            let legal = is_legal(&table, &[&set[..], &[spot]].concat());
            prop_assert_eq!(layout.allows(&table, spot), legal, "{} beside {:?}", spot, &set);
        }
        prop_assert_eq!(i64::from(layout.possible(&table)), rules::possible(&table, &set));
        for profile in &table.profiles {
            let mut more = set.clone();
            let mut count = 0;
            while let Some(start) = Layout::of(&table, more.iter().copied()).starts(&table, profile.id).next() {
                more.push(at(profile.id, start));
                count += 1;
            }
            prop_assert_eq!(layout.remaining(&table, profile.id), count);
            prop_assert!(is_legal(&table, &more));
        }
    }
}
