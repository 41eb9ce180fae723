//! The nearest request within a limit, for the hint of a refusal.

use std::num::NonZeroU32;

use super::Limit;
use super::quota_cost::quota_cost;
use crate::model::gpu::GRANULE;
use crate::model::request::{Amount, Request};
use crate::placement::can_ever_place;
use crate::placement::occupancy::NodeUsage;
use crate::units::{Bytes, Share};

/// The largest request of a like kind that the limit allows and that empty GPUs can serve.
pub(super) fn nearest_within(
    empty: &NodeUsage<'_>,
    request: &Request,
    limit: Limit,
) -> Option<Request> {
    let candidates = candidates(empty, request.amount, limit).into_iter();
    candidates
        .filter(|amount| *amount != request.amount)
        .map(|amount| request.with_amount(amount))
        .find(|smaller| can_ever_place(empty, smaller) && limit.holds(quota_cost(empty, smaller)))
}

/// Amounts that the limit may allow, nearest first.
fn candidates(empty: &NodeUsage<'_>, amount: Amount, limit: Limit) -> Vec<Amount> {
    let most = limit.gpus.map_or(u64::MAX, |gpus| gpus.thousandths());
    let part = u16::try_from(most.min(1000)).ok();
    let part = part.and_then(Share::from_thousandths);
    let fewer = |count: NonZeroU32, each: u64| {
        let most = u32::try_from(most / each.max(1)).unwrap_or(u32::MAX);
        (1..=most.min(count.get()))
            .rev()
            .filter_map(NonZeroU32::new)
    };
    let share = part.map(|part| match part {
        Share::FULL => Amount::ONE_GPU,
        part => Amount::Share(part),
    });
    match amount {
        Amount::Whole(count) | Amount::Range { min: count, .. } => {
            fewer(count, 1000).map(Amount::Whole).chain(share).collect()
        }
        Amount::Shares { count, share: each } => {
            let on_fewer = |count| match count {
                NonZeroU32::MIN => Amount::Share(each),
                count => Amount::Shares { count, share: each },
            };
            let fewer = fewer(count, each.thousandths().into()).map(on_fewer);
            fewer.chain(share).collect()
        }
        Amount::Share(_) => share.into_iter().collect(),
        Amount::Memory(_) => memories(empty, part, limit.memory),
        Amount::Mig(_) => {
            let tables = empty.gpus.iter().filter_map(|usage| usage.mig.as_ref());
            let mut profiles: Vec<_> = tables
                .flat_map(|mig| &mig.table().profiles)
                .map(|profile| (profile.memory, profile.name))
                .collect();
            profiles.sort_unstable();
            profiles.dedup();
            let names = profiles.into_iter().rev();
            names.map(|(_, name)| Amount::Mig(name)).collect()
        }
    }
}

/// The memory of this part of each GPU, within the limit of memory, as a round figure; the largest first.
fn memories(empty: &NodeUsage<'_>, part: Option<Share>, most: Option<Bytes>) -> Vec<Amount> {
    let Some(part) = part else {
        return Vec::new();
    };
    let gpus = empty.gpus.iter();
    let sizes = gpus.map(|usage| {
        let memory = usage.gpu.memory_of(part);
        let memory = most.map_or(memory, |most| most.min(memory));
        if memory >= Bytes::gib(1) {
            memory.round_down(Bytes::gib(1))
        } else {
            memory.round_down(GRANULE)
        }
    });
    let mut sizes: Vec<Bytes> = sizes.filter(|size| *size > Bytes::ZERO).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().rev().map(Amount::Memory).collect()
}
