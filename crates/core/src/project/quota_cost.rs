//! Quota cost: what a request takes of its project's quota before it is placed.

use super::Resources;
use crate::model::request::{Amount, Request};
use crate::placement::fit::{GrantSize, size};
use crate::placement::occupancy::NodeUsage;
use crate::units::{Bytes, Gpus};

/// The least that a request takes on any GPU, for the smallest number of GPUs that it accepts.
pub(crate) fn quota_cost(empty: &NodeUsage<'_>, request: &Request) -> Resources {
    let count = count(request);
    let least = sizes(empty, request).min_by_key(|size| (size.share, size.memory));
    least.map_or_else(Resources::default, |size| Resources {
        gpus: Gpus::from_thousandths(u64::from(size.share.thousandths()) * count),
        memory: Bytes::new(size.memory.get().saturating_mul(count)),
    })
}

/// The most GPUs that a request takes, on whichever GPUs it is placed.
pub(super) fn most_cost(empty: &NodeUsage<'_>, request: &Request) -> Gpus {
    let largest = sizes(empty, request).map(|size| size.share).max();
    let each = largest.map_or(0, |share| u64::from(share.thousandths()));
    at_most(request).unwrap_or(Gpus::from_thousandths(each * count(request)))
}

/// The size of one part of the request, on each GPU that can serve it.
fn sizes(empty: &NodeUsage<'_>, request: &Request) -> impl Iterator<Item = GrantSize> {
    let usages = empty.gpus.iter();
    usages.filter_map(|usage| size(usage, request).ok())
}

/// The smallest number of GPUs that a request accepts.
fn count(request: &Request) -> u64 {
    match request.amount {
        Amount::Whole(count) | Amount::Shares { count, .. } | Amount::Range { min: count, .. } => {
            u64::from(count.get())
        }
        Amount::Share(_) | Amount::Memory(_) | Amount::Mig(_) => 1,
    }
}

/// The most GPUs that a range takes.
pub(super) fn at_most(request: &Request) -> Option<Gpus> {
    match request.amount {
        Amount::Range { max, .. } => Some(Gpus::whole(max.get().into())),
        _ => None,
    }
}
