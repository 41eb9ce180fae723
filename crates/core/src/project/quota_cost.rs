//! Quota cost: what a request takes of its project's quota before it is placed.

use super::Resources;
use crate::model::request::{Amount, Request};
use crate::placement::fit::size;
use crate::placement::occupancy::NodeUsage;
use crate::units::{Bytes, Gpus};

/// The least that a request takes on any GPU, for the smallest number of GPUs that it accepts.
pub(super) fn quota_cost(empty: &NodeUsage<'_>, request: &Request) -> Resources {
    let count = match request.amount {
        Amount::Whole(count) | Amount::Shares { count, .. } | Amount::Range { min: count, .. } => {
            u64::from(count.get())
        }
        Amount::Share(_) | Amount::Memory(_) | Amount::Mig(_) => 1,
    };
    let sizes = empty
        .gpus
        .iter()
        .filter_map(|usage| size(usage, request).ok());
    let least = sizes.min_by_key(|size| (size.share, size.memory));
    least.map_or_else(Resources::default, |size| Resources {
        gpus: Gpus::from_thousandths(u64::from(size.share.thousandths()) * count),
        memory: Bytes::new(size.memory.get().saturating_mul(count)),
    })
}

/// The most GPUs that a range takes.
pub(super) fn at_most(request: &Request) -> Option<Gpus> {
    match request.amount {
        Amount::Range { max, .. } => Some(Gpus::whole(max.get().into())),
        _ => None,
    }
}
