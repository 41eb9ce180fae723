//! Where an instance goes.

use divvy_core::mig::{Candidate, Layout, MigGpu, Placement, PlacementPolicy, ProfileTable, place};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::mig::rules::{Lying, at, is_legal, pool, possible, slices, table};

fn sites<'a>(table: &'a ProfileTable, gpus: &'a [Lying]) -> Vec<MigGpu<'a>> {
    let site = |gpu: &'a Lying| MigGpu::new(table, gpu.held.iter().copied(), &gpu.idle);
    gpus.iter().map(site).collect()
}

fn lying(held: &[Placement], idle: &[Placement]) -> Lying {
    Lying {
        held: held.to_vec(),
        idle: idle.to_vec(),
    }
}

fn on_a100(gpus: &[Lying], profile: u32) -> Option<(usize, Candidate)> {
    let table = table("a100-40gb");
    place(
        &sites(&table, gpus),
        |_| Some(profile),
        PlacementPolicy::LeastLoss,
    )
}

#[test]
fn an_idle_instance_of_the_profile_is_taken_before_another_is_made() {
    let gpus = [
        lying(&[at(19, 6)], &[]),
        lying(&[], &[at(19, 0), at(14, 2)]),
    ];
    let (gpu, chosen) = on_a100(&gpus, 19).unwrap();
    assert_eq!((gpu, chosen.placement, chosen.reuse), (1, at(19, 0), true));
    assert_eq!(chosen.reclaim, []);
}

#[test]
fn of_several_idle_instances_the_one_is_taken_that_keeps_most_open() {
    let (gpu, chosen) = on_a100(&[lying(&[], &[at(19, 0), at(19, 6)])], 19).unwrap();
    assert_eq!((gpu, chosen.placement), (0, at(19, 6)));
    let beside = [lying(&[], &[at(19, 6)]), lying(&[at(9, 0)], &[at(19, 6)])];
    assert_eq!(on_a100(&beside, 19).unwrap().0, 1);
}

#[test]
fn room_that_idle_instances_take_is_room() {
    let (_, chosen) = on_a100(&[lying(&[], &[at(19, 0), at(19, 4), at(14, 2)])], 0).unwrap();
    assert_eq!(chosen.placement, at(0, 0));
    assert_eq!(chosen.reclaim, [at(19, 0), at(19, 4), at(14, 2)]);
}

#[test]
fn as_few_idle_instances_go_as_can() {
    // 3g at 4 loses as much on either GPU.
    let gpus = [
        lying(&[], &[at(19, 4), at(19, 5)]),
        lying(&[], &[at(14, 4)]),
    ];
    let (gpu, chosen) = on_a100(&gpus, 9).unwrap();
    assert_eq!((gpu, &chosen.reclaim[..]), (1, &[at(14, 4)][..]));
    // Of as many, those whose going opens more.
    let gpus = [lying(&[], &[at(19, 4)]), lying(&[], &[at(14, 4)])];
    assert_eq!(on_a100(&gpus, 9).unwrap().0, 1);
}

#[test]
fn an_instance_that_is_in_nobodys_slices_goes_when_its_kind_excludes_the_new_one() {
    let table = table("rtxpro6000-96gb");
    let gpus = [lying(&[at(67, 0)], &[at(14, 3), at(67, 6)])];
    let found = sites(&table, &gpus)[0].candidates(65, PlacementPolicy::LeastLoss);
    let last = found
        .iter()
        .find(|found| found.placement == at(65, 9))
        .unwrap();
    assert_eq!(last.reclaim, [at(14, 3)]);
}

#[test]
fn a_gpu_that_is_not_empty_is_filled_before_one_that_is() {
    let gpus = [lying(&[], &[]), lying(&[at(9, 4)], &[])];
    assert_eq!(on_a100(&gpus, 5).unwrap().0, 1);
    // Nothing between them: the first.
    assert_eq!(
        on_a100(&[lying(&[], &[]), lying(&[], &[])], 5).unwrap().0,
        0
    );
}

#[test]
fn a_gpu_that_does_not_offer_the_profile_gets_none() {
    let table = table("a100-40gb");
    let gpus = [lying(&[], &[]), lying(&[], &[])];
    let only = |gpu: usize| (gpu == 1).then_some(0);
    assert_eq!(
        place(&sites(&table, &gpus), only, PlacementPolicy::LeastLoss)
            .unwrap()
            .0,
        1
    );
    assert!(place(&sites(&table, &gpus), |_| None, PlacementPolicy::LeastLoss).is_none());
    assert!(
        place(
            &sites(&table, &gpus),
            |_| Some(99),
            PlacementPolicy::LeastLoss
        )
        .is_none()
    );
}

#[test]
fn the_other_policies_do_as_they_say() {
    let table = table("a100-40gb");
    let by = |gpus: &[Lying], policy| {
        let (gpu, chosen) = place(&sites(&table, gpus), |_| Some(19), policy).unwrap();
        (gpu, chosen.placement.start)
    };
    let used_last = [lying(&[], &[]), lying(&[at(9, 4)], &[])];
    assert_eq!(by(&used_last, PlacementPolicy::FirstFit), (0, 0));
    assert_eq!(by(&used_last, PlacementPolicy::DriverDefault), (0, 6));
    let used_first = [lying(&[at(14, 0)], &[]), lying(&[], &[])];
    assert_eq!(by(&used_first, PlacementPolicy::FirstFit), (0, 2));
    assert_eq!(by(&used_first, PlacementPolicy::Spread), (1, 0));
    // Where nothing but 3g is asked for, the rest of the left half is good for nothing else.
    let threes = [(9, 1)];
    assert_eq!(
        by(&used_first, PlacementPolicy::DemandWeighted(&threes)),
        (0, 2)
    );
    // Where nothing but 2g is asked for, it is good for one, and the end of the right half for none.
    let twos = [(14, 1)];
    assert_eq!(
        by(&used_first, PlacementPolicy::DemandWeighted(&twos)),
        (0, 6)
    );
}

/// The fewest of the idle instances without which the rest is legal beside what is held and the new one; each such choice.
fn fewest(table: &ProfileTable, gpu: &Lying, new: Placement) -> Vec<Vec<Placement>> {
    let mut found: Vec<Vec<Placement>> = Vec::new();
    for choice in 0..1_u32 << gpu.idle.len() {
        let (gone, kept): (Vec<_>, Vec<_>) =
            (0..gpu.idle.len()).partition(|nth| choice & 1 << nth != 0);
        let kept = kept.into_iter().map(|nth| gpu.idle[nth]);
        let all: Vec<Placement> = gpu.held.iter().copied().chain([new]).chain(kept).collect();
        if is_legal(table, &all) {
            found.push(gone.into_iter().map(|nth| gpu.idle[nth]).collect());
        }
    }
    let least = found.iter().map(Vec::len).min().unwrap();
    found.retain(|gone| gone.len() == least);
    found
}

/// The best place by trying all: its key, GPU and start.
type Key = (bool, i64, usize, i64, usize, usize, u8);

fn best(table: &ProfileTable, gpus: &[Lying], profile: u32) -> Option<Key> {
    let mut keys = Vec::new();
    for (nth, gpu) in gpus.iter().enumerate() {
        for start in &table.profile(profile).unwrap().starts {
            let new = at(profile, *start);
            let after = [&gpu.held[..], &[new]].concat();
            if !is_legal(table, &after) {
                continue;
            }
            let reuse = gpu.idle.contains(&new);
            let loss = possible(table, &gpu.held) - possible(table, &after);
            let gone = if reuse {
                vec![]
            } else {
                fewest(table, gpu, new)[0].clone()
            };
            let kept = gpu.idle.iter().filter(|idle| !gone.contains(idle));
            let lying: Vec<Placement> = after.iter().chain(kept).copied().collect();
            let gain = if gone.is_empty() {
                0
            } else {
                possible(table, &lying) - possible(table, &[&gpu.held[..], &gpu.idle].concat())
            };
            let taken: usize = after.iter().map(|one| slices(table, *one).len()).sum();
            let free = usize::from(table.memory_slices) - taken;
            keys.push((!reuse, loss, gone.len(), -gain, free, nth, *start));
        }
    }
    keys.into_iter().min()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_place_with_least_loss_is_what_trying_all_finds((model, gpus) in pool(4), draw in any::<Index>()) {
        let table = table(model);
        let profile = draw.get(&table.profiles).id;
        let found = place(&sites(&table, &gpus), |_| Some(profile), PlacementPolicy::LeastLoss);
        let expected = best(&table, &gpus, profile);
        let seen = found.as_ref().map(|(gpu, found)| {
            (!found.reuse, found.reclaim.len(), *gpu, found.placement)
        });
        let wanted = expected.map(|(new, _, gone, _, _, gpu, start)| (new, gone, gpu, at(profile, start)));
        prop_assert_eq!(seen, wanted);
    }

    #[test]
    fn no_policy_puts_an_instance_where_it_may_not_lie_or_touches_one_that_is_held(
        (model, gpus) in pool(3),
        draw in any::<Index>(),
    ) {
        let table = table(model);
        let profile = draw.get(&table.profiles).id;
        let weights = [(profile, 3)];
        let sites = sites(&table, &gpus);
        for policy in [
            PlacementPolicy::FirstFit,
            PlacementPolicy::Spread,
            PlacementPolicy::DriverDefault,
            PlacementPolicy::LeastLoss,
            PlacementPolicy::DemandWeighted(&weights),
        ] {
            let placed = place(&sites, |_| Some(profile), policy);
            prop_assert_eq!(&placed, &place(&sites, |_| Some(profile), policy));
            let mut some = false;
            for (gpu, site) in gpus.iter().zip(&sites) {
                let found = site.candidates(profile, policy);
                prop_assert!(found.is_sorted_by_key(|found| found.rank));
                some |= !found.is_empty();
                for found in found {
                    prop_assert!(found.reclaim.iter().all(|gone| gpu.idle.contains(gone)));
                    prop_assert_eq!(found.reuse, gpu.idle.contains(&found.placement));
                    let fewest = fewest(&table, gpu, found.placement);
                    if found.reuse {
                        prop_assert!(found.reclaim.is_empty());
                    } else {
                        prop_assert!(fewest.contains(&found.reclaim), "{:?} of {:?}", &found, fewest);
                    }
                }
            }
            prop_assert_eq!(placed.is_some(), some);
            if let Some((gpu, placed)) = placed {
                prop_assert!(sites[gpu].candidates(profile, policy).contains(&placed));
            }
        }
    }

    #[test]
    fn instances_come_and_go_and_never_overlap(
        steps in proptest::collection::vec((any::<Index>(), any::<Index>(), any::<bool>()), 1..60),
    ) {
        let table = table("a100-40gb");
        let mut gpus = vec![lying(&[], &[]); 3];
        for (what, which, comes) in steps {
            if comes {
                let profile = what.get(&table.profiles).id;
                let Some((gpu, chosen)) = place(&sites(&table, &gpus), |_| Some(profile), PlacementPolicy::LeastLoss) else {
                    for gpu in &gpus {
                        let held = Layout::of(&table, gpu.held.iter().copied());
                        prop_assert_eq!(held.starts(&table, profile).count(), 0);
                    }
                    continue;
                };
                let Lying { held, idle } = &mut gpus[gpu];
                idle.retain(|idle| *idle != chosen.placement && !chosen.reclaim.contains(idle));
                held.push(chosen.placement);
            } else {
                let Lying { held, idle } = what.get_mut(&mut gpus);
                if !held.is_empty() {
                    idle.push(held.swap_remove(which.index(held.len())));
                }
            }
            for Lying { held, idle } in &gpus {
                prop_assert!(is_legal(&table, &[&held[..], idle].concat()));
            }
        }
    }
}
