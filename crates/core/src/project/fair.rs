//! Fair shares: divides a node over its projects, quota first, the rest by weight, and no project gets more than it
//! wants.
//!
//! Exact in thousandths: parts are rounded down, and the rest goes, one thousandth each, to the largest remainders. So
//! the shares add up to the whole node where that much is wanted.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The demand of one project, in thousandths of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectDemand {
    pub quota: u64,
    /// Against the other weights.
    pub weight: u64,
    /// Usage and requests together, at most its limit.
    pub wants: u64,
    /// Projects of higher priority first get all that they want of what is over quota.
    pub priority: i32,
}

/// Each one's fair share, in thousandths: `quota + idle × weight / Σ weights`, at most what it wants. A weight of zero
/// gets nothing beyond its quota. Where the quotas exceed the node, it is divided in proportion to them.
pub fn fair_shares(total: u64, claims: &[ProjectDemand]) -> Vec<u64> {
    let within: Vec<Participant> = claims
        .iter()
        .map(|claim| Participant {
            weight: claim.quota,
            most: claim.quota.min(claim.wants),
        })
        .collect();
    let mut shares = water_fill(total, &within);
    let levels: BTreeSet<Reverse<i32>> =
        claims.iter().map(|claim| Reverse(claim.priority)).collect();
    for Reverse(level) in levels {
        let rest = total - shares.iter().sum::<u64>();
        let over: Vec<Participant> = claims
            .iter()
            .zip(&shares)
            .map(|(claim, share)| Participant {
                weight: if claim.priority == level {
                    claim.weight
                } else {
                    0
                },
                most: claim.wants.saturating_sub(*share),
            })
            .collect();
        for (share, more) in shares.iter_mut().zip(water_fill(rest, &over)) {
            *share += more;
        }
    }
    shares
}

/// One participant of a division.
#[derive(Clone, Copy)]
struct Participant {
    weight: u64,
    most: u64,
}

/// Divides by weight up to each maximum; a full participant leaves the rest to the others.
fn water_fill(total: u64, parts: &[Participant]) -> Vec<u64> {
    let mut given = vec![0; parts.len()];
    let mut rest = total;
    let mut open: Vec<usize> = (0..parts.len())
        .filter(|part| parts[*part].weight > 0)
        .collect();
    loop {
        let weights: u128 = open
            .iter()
            .map(|part| u128::from(parts[*part].weight))
            .sum();
        let product = |part: usize| u128::from(rest) * u128::from(parts[part].weight);
        let is_full = |part: &usize| u128::from(parts[*part].most) * weights <= product(*part);
        let full: Vec<usize> = open.iter().copied().filter(is_full).collect();
        if full.is_empty() {
            let mut remainders = Vec::new();
            let before = rest;
            for part in open {
                let product = u128::from(before) * u128::from(parts[part].weight);
                let floor = u64::try_from(product / weights).expect("no more than the rest");
                given[part] = floor;
                rest -= floor;
                remainders.push((Reverse(product % weights), part));
            }
            remainders.sort_unstable();
            let left = usize::try_from(rest).expect("less than one each");
            for (_, part) in remainders.into_iter().take(left) {
                given[part] += 1;
            }
            return given;
        }
        for part in full {
            given[part] = parts[part].most;
            rest -= given[part];
        }
        open.retain(|part| given[*part] < parts[*part].most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ENDLESS: u64 = 1_000_000;

    fn claim(quota: u64, weight: u64, wants: u64) -> ProjectDemand {
        ProjectDemand {
            quota,
            weight,
            wants,
            priority: 0,
        }
    }

    #[test]
    fn quota_first_and_the_rest_by_weight() {
        let claims = [
            claim(4000, 2, ENDLESS),
            claim(6000, 3, ENDLESS),
            claim(0, 1, ENDLESS),
        ];
        assert_eq!(fair_shares(30_000, &claims), [10_667, 16_000, 3333]);
    }

    #[test]
    fn what_one_does_not_want_goes_to_the_others() {
        let claims = [
            claim(4000, 1, 1000),
            claim(1000, 1, 3000),
            claim(0, 2, ENDLESS),
        ];
        assert_eq!(fair_shares(8000, &claims), [1000, 3000, 4000]);
        assert_eq!(fair_shares(6500, &claims), [1000, 2500, 3000]);
        assert_eq!(fair_shares(5000, &claims[..2]), [1000, 3000]);
    }

    #[test]
    fn a_higher_priority_has_what_is_over_first() {
        let mut claims = [claim(2000, 1, ENDLESS), claim(2000, 5, 4000)];
        assert_eq!(fair_shares(8000, &claims), [4000, 4000]);
        claims[0].priority = 1;
        assert_eq!(fair_shares(8000, &claims), [6000, 2000]);
    }

    #[test]
    fn quotas_beyond_the_node_are_cut_in_proportion() {
        let claims = [claim(6000, 0, ENDLESS), claim(2000, 0, ENDLESS)];
        assert_eq!(fair_shares(4000, &claims), [3000, 1000]);
        assert_eq!(fair_shares(4000, &[]), Vec::<u64>::new());
    }

    proptest! {
        #[test]
        fn fair_shares_add_up_and_no_project_gets_more_than_it_wants(
            total in 0..64_000_u64,
            claims in proptest::collection::vec((0..20_000_u64, 0..5000_u64, 0..40_000_u64, 0..3_i32), 0..6),
        ) {
            let claims: Vec<ProjectDemand> = claims
                .into_iter()
                .map(|(quota, weight, wants, priority)| ProjectDemand { quota, weight, wants, priority })
                .collect();
            let shares = fair_shares(total, &claims);
            prop_assert!(shares.iter().zip(&claims).all(|(share, claim)| *share <= claim.wants));
            let given: u64 = shares.iter().sum();
            prop_assert!(given <= total);
            let weighty = claims.iter().zip(&shares).any(|(claim, share)| claim.weight > 0 && *share < claim.wants);
            prop_assert!(given == total || !weighty, "some wait while something is left");
            let promised: u64 = claims.iter().map(|claim| claim.quota.min(claim.wants)).sum();
            if promised <= total {
                prop_assert!(shares.iter().zip(&claims).all(|(share, claim)| *share >= claim.quota.min(claim.wants)));
            }
        }
    }
}
