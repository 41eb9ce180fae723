//! Placement of GPU instances: where they may lie, and where the driver puts one itself. Pure.

use crate::config::Choice;
use crate::model::mig::{GpuProfile, Table};

/// What occupies memory slices: the profile's id and the first slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    pub profile: u32,
    pub start: u32,
}

fn slices(start: u32, size: u32) -> u64 {
    ((1 << size) - 1) << start
}

fn occupied(table: &Table, placed: &[Placed]) -> u64 {
    let of = |at: &Placed| {
        let size = table.profile(at.profile).map_or(0, |profile| profile.size);
        slices(at.start, size)
    };
    placed.iter().map(of).fold(0, |all, one| all | one)
}

/// How many more of a profile may be there, by its number and by what media engines the others have. Slices are not
/// looked at.
fn allowed(table: &Table, placed: &[Placed], profile: &GpuProfile) -> usize {
    let others = || placed.iter().filter_map(|at| table.profile(at.profile));
    let alone = |one: &GpuProfile, other: &GpuProfile| one.has_all_media() && !other.has_no_media();
    if others().any(|other| alone(other, profile) || alone(profile, other)) {
        return 0;
    }
    if profile.has_media_extensions() && others().any(GpuProfile::has_media_extensions) {
        return 0;
    }
    let same = others().filter(|other| other.id == profile.id).count();
    (profile.most as usize).saturating_sub(same)
}

/// The starts at which a further instance of a profile may lie.
pub fn legal_starts(table: &Table, placed: &[Placed], profile: &GpuProfile) -> Vec<u32> {
    if allowed(table, placed, profile) == 0 {
        return Vec::new();
    }
    free_starts(occupied(table, placed), profile).collect()
}

fn free_starts(occupied: u64, profile: &GpuProfile) -> impl Iterator<Item = u32> {
    let starts = profile.starts.iter().copied();
    starts.filter(move |start| occupied & slices(*start, profile.size) == 0)
}

/// How many more instances of a profile there could be (`nvmlDeviceGetGpuInstanceRemainingCapacity`).
pub fn remaining(table: &Table, placed: &[Placed], profile: &GpuProfile) -> usize {
    let free = free_starts(occupied(table, placed), profile).count();
    free.min(allowed(table, placed, profile))
}

/// Where the driver puts an instance of a profile; `None` when there is no room.
pub fn choose(
    table: &Table,
    placed: &[Placed],
    profile: &GpuProfile,
    choice: Choice,
) -> Option<u32> {
    let before = occupied(table, placed);
    let counted = |profile: &&GpuProfile| {
        !profile.has_graphics() && !profile.has_no_media() && !profile.has_all_media()
    };
    let left = |start: u32| -> usize {
        let after = before | slices(start, profile.size);
        let counted = table.profiles.iter().filter(counted);
        counted.map(|other| free_starts(after, other).count()).sum()
    };
    // The slice that no ordinary small instance can have goes to one of twice the memory last (GH200: 15,15,15 were not
    // at 6).
    let last =
        |start: u32| profile.has_double_memory() && start + profile.size == table.memory_slices;
    let legal = legal_starts(table, placed, profile).into_iter();
    match choice {
        Choice::Likely => {
            legal.min_by_key(|start| (last(*start), std::cmp::Reverse(left(*start)), *start))
        }
        Choice::Adversarial => legal.min_by_key(|start| (left(*start), *start)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::gpu_instance_id;
    use super::*;
    use crate::config::IdMap;
    use std::collections::BTreeSet;

    fn table(key: &str) -> &'static Table {
        Table::find(key).expect("listed")
    }

    /// Starts and sizes of profiles made one after the other, as far as they go.
    fn made(key: &str, ids: &[u32]) -> Vec<(u32, u32)> {
        let table = table(key);
        let mut placed = Vec::new();
        for id in ids {
            let profile = table.profile(*id).expect("a profile");
            let Some(start) = choose(table, &placed, profile, Choice::Likely) else {
                break;
            };
            placed.push(Placed {
                profile: *id,
                start,
            });
        }
        let size = |at: &Placed| table.profile(at.profile).expect("placed").size;
        placed.iter().map(|at| (at.start, size(at))).collect()
    }

    fn ids(placed: &[(u32, u32)], map: IdMap) -> Vec<u32> {
        let id = |(start, size): &(u32, u32)| gpu_instance_id(8, *start, *size, map);
        placed.iter().map(id).collect()
    }

    #[test]
    fn the_drivers_choice_is_that_of_all_known_transcripts() {
        let (a, b) = (IdMap::A, IdMap::B);
        // The board, profiles, where they came to lie, and what they were called.
        type Row<'a> = (&'a str, &'a [u32], &'a [(u32, u32)], IdMap, &'a [u32]);
        let rows: [Row<'_>; 7] = [
            ("a100-40gb", &[9, 9], &[(4, 4), (0, 4)], a, &[2, 1]),
            ("a100-80gb", &[9, 9], &[(4, 4), (0, 4)], b, &[1, 2]),
            (
                "a100-40gb",
                &[5, 14, 19],
                &[(0, 4), (4, 2), (6, 1)],
                b,
                &[2, 3, 9],
            ),
            (
                "a100-40gb",
                &[19, 14, 5],
                &[(6, 1), (4, 2), (0, 4)],
                a,
                &[13, 5, 1],
            ),
            (
                "a100-40gb",
                &[19, 19, 14, 9],
                &[(6, 1), (4, 1), (0, 2)],
                a,
                &[13, 11, 3],
            ),
            (
                "a100-40gb",
                &[9, 19, 14, 19],
                &[(4, 4), (0, 1), (2, 2), (1, 1)],
                b,
                &[1, 11, 6, 12],
            ),
            (
                "gh200-96gb",
                &[15, 15, 15],
                &[(4, 2), (0, 2), (2, 2)],
                a,
                &[5, 3, 4],
            ),
        ];
        for (key, profiles, expected, map, named) in rows {
            let placed = made(key, profiles);
            assert_eq!(placed, expected, "{key} {profiles:?}");
            assert_eq!(ids(&placed, map), named, "{key} {profiles:?}");
        }
        let thrice = made("h100-80gb", &[19, 19, 19]);
        assert_eq!(thrice, [(6, 1), (4, 1), (5, 1)]);
    }

    #[test]
    fn capacity_goes_as_in_a_full_transcript_of_an_a100() {
        let table = table("a100-40gb");
        let mut placed = Vec::new();
        let capacities = |placed: &[Placed]| {
            [19, 20, 15, 14, 9, 5, 0]
                .map(|id| remaining(table, placed, table.profile(id).expect("a profile")))
        };
        assert_eq!(capacities(&placed), [7, 1, 4, 3, 2, 1, 1]);
        let steps = [
            (5, 0, [3, 1, 2, 1, 1, 0, 0]),
            (14, 4, [1, 1, 1, 0, 0, 0, 0]),
            (19, 6, [0; 7]),
        ];
        for (profile, start, expected) in steps {
            placed.push(Placed { profile, start });
            assert_eq!(capacities(&placed), expected);
        }
    }

    #[test]
    fn one_instance_has_media_extensions_and_beside_all_media_engines_there_are_only_instances_without()
     {
        let table = table("rtxpro6000-96gb");
        let remaining_beside = |held: u32, wanted: u32| {
            let placed = [Placed {
                profile: held,
                start: 0,
            }];
            remaining(table, &placed, table.profile(wanted).expect("a profile"))
        };
        assert_eq!(remaining_beside(21, 21), 0);
        assert_eq!(remaining_beside(21, 14), 3);
        assert_eq!(remaining_beside(65, 14), 0);
        assert_eq!(remaining_beside(65, 67), 3);
        assert_eq!(remaining_beside(14, 65), 0);
        assert_eq!(remaining_beside(67, 65), 1);
        assert_eq!(remaining_beside(65, 64), 0);
    }

    #[test]
    fn the_adversary_is_legal_and_takes_what_leaves_least() {
        let table = table("a100-40gb");
        let profile = table.profile(9).expect("3g");
        assert_eq!(choose(table, &[], profile, Choice::Adversarial), Some(0));
        assert_eq!(choose(table, &[], profile, Choice::Likely), Some(4));
    }

    /// All legal sets of instances of these profiles, the empty one too, and those to which nothing can be added.
    fn sets(key: &str, ids: &[u32]) -> (usize, usize) {
        let table = table(key);
        let mut found = BTreeSet::from([Vec::new()]);
        let mut maximal = 0;
        let mut open = vec![Vec::new()];
        while let Some(set) = open.pop() {
            let placed: Vec<Placed> = set
                .iter()
                .map(|(start, profile)| Placed {
                    profile: *profile,
                    start: *start,
                })
                .collect();
            let profiles = ids.iter().map(|id| table.profile(*id).expect("a profile"));
            let more: Vec<(u32, u32)> = profiles
                .flat_map(|profile| {
                    let starts = legal_starts(table, &placed, profile);
                    starts.into_iter().map(|start| (start, profile.id))
                })
                .collect();
            maximal += usize::from(more.is_empty());
            for one in more {
                let mut larger: Vec<(u32, u32)> = set.clone();
                larger.push(one);
                larger.sort_unstable();
                if found.insert(larger.clone()) {
                    open.push(larger);
                }
            }
        }
        (found.len(), maximal)
    }

    /// The user guide's figure has the 19; all were counted by another program from the same placements.
    #[test]
    fn there_are_as_many_legal_sets_as_elsewhere_counted() {
        assert_eq!(sets("a100-40gb", &[19, 14, 9, 5, 0]), (298, 19));
        assert_eq!(sets("a100-40gb", &[19, 15, 14, 9, 5, 0]), (723, 78));
        assert_eq!(sets("a100-40gb", &[19, 20, 15, 14, 9, 5, 0]), (2319, 239));
        assert_eq!(sets("a30-24gb", &[14, 5, 0]).1, 5);
        assert_eq!(sets("rtxpro6000-96gb", &[14, 5, 0]).1, 5);
        let all = [14, 21, 47, 65, 67, 5, 35, 64, 66, 0, 32];
        assert_eq!(sets("rtxpro6000-96gb", &all), (717, 302));
    }
}
