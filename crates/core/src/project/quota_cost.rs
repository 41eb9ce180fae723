//! What a request comes to on a project's account before it has a place.

use super::Resources;
use crate::model::request::{Amount, Request};
use crate::placement::fit::size;
use crate::placement::occupancy::NodeUsage;
use crate::units::{Bytes, Gpus};

/// What a request takes where it takes least: of as many GPUs as it needs at least.
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
        .filter_map(|tile| size(tile, request).ok());
    let least = sizes.min_by_key(|size| (size.share, size.memory));
    least.map_or_else(Resources::default, |size| Resources {
        gpus: Gpus::from_thousandths(u64::from(size.share.thousandths()) * count),
        memory: Bytes::new(size.memory.get().saturating_mul(count)),
    })
}

/// The most that a range would take.
pub(super) fn at_most(request: &Request) -> Option<Gpus> {
    match request.amount {
        Amount::Range { max, .. } => Some(Gpus::whole(max.get().into())),
        _ => None,
    }
}
