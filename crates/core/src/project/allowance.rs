//! Allowance: how much a job may take within its project, and the best placement within that.

use super::{Limit, Resources};
use crate::model::request::{Amount, Request};
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::placement::{self, Offer};
use crate::units::Gpus;

/// What a job may take at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance(pub(super) Limit);

impl Allowance {
    /// The rest beside this usage.
    #[must_use]
    pub(super) fn less(self, used: Resources) -> Self {
        let Limit { gpus, memory } = self.0;
        Self(Limit {
            gpus: gpus.map(|gpus| gpus.saturating_sub(used.gpus)),
            memory: memory.map(|memory| memory.saturating_sub(used.memory)),
        })
    }

    /// The smaller of both, for each resource.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        Self(Limit {
            gpus: least(self.0.gpus, other.0.gpus),
            memory: least(self.0.memory, other.0.memory),
        })
    }

    /// The best GPUs for a request among those admitted, within the allowance; of a range as many as it allows.
    pub(super) fn place(
        self,
        node: &NodeUsage<'_>,
        request: &Request,
        admit: impl Fn(&GpuUsage<'_>, &Offer) -> bool,
    ) -> Option<Vec<Offer>> {
        let place = |request: &Request| {
            placement::place(node, request, |usage, offer| {
                self.0.holds(of_offers([offer])) && admit(usage, offer)
            })
        };
        let is_allowed = |offers: &Vec<Offer>| self.0.holds(of_offers(offers));
        let mut offers = place(request)?;
        let least = match request.amount {
            Amount::Range { min, .. } => usize::try_from(min.get()).unwrap_or(usize::MAX),
            _ => offers.len(),
        };
        // The best for fewer GPUs are the first of the best for more.
        while !is_allowed(&offers) {
            if offers.len() <= least {
                return None;
            }
            offers.pop();
        }
        Some(offers)
    }
}

/// The best GPUs for a request among those admitted, with at most so many GPUs in all.
pub(crate) fn place_within(
    node: &NodeUsage<'_>,
    request: &Request,
    most: Option<Gpus>,
    admit: impl Fn(&GpuUsage<'_>, &Offer) -> bool,
) -> Option<Vec<Offer>> {
    let limit = Limit {
        gpus: most,
        memory: None,
    };
    Allowance(limit).place(node, request, admit)
}

/// The sum of these offers.
pub(crate) fn of_offers<'a>(offers: impl IntoIterator<Item = &'a Offer>) -> Resources {
    offers.into_iter().fold(Resources::default(), |sum, offer| {
        sum.and(Resources {
            gpus: offer.size.share.into(),
            memory: offer.size.memory,
        })
    })
}

fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
