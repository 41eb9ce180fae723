//! Placement: which GPUs one request gets, on the GPUs as they are occupied now.
//!
//! ```text
//!  Snapshot ──► occupancy ──► fit ──► place ──► offers: GPUs, sizes, MIG instances
//!               (holders of   (one GPU, (the best GPUs of
//!                each GPU)     filter)   those that fit)
//! ```
//! Whole GPUs go by lowest index, parts by best fit, so that large gaps stay large, and MIG instances to the place that
//! leaves the most room for others. `backfill` says whether an offer could delay a job ahead; [`pinned`] allocates
//! devices that another scheduler has chosen.
//!
//! May use: `units`, `mig`, `model`.
//! Used by: `project`, `plan`, `resize`, `explain`.

pub(crate) mod backfill;
pub(crate) mod fit;
pub(crate) mod occupancy;
pub mod pinned;
pub mod rank;

use crate::mig::Candidate;
use crate::model::request::Request;
use crate::model::slice::MigGrant;
use crate::placement::fit::{GrantSize, RequestShape, fit};
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::placement::rank::{LeftOver, tightest_first};

/// What one GPU of the node would grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The GPU's place in order of index.
    pub position: usize,
    pub(crate) size: GrantSize,
    /// The MIG instance, on a GPU in MIG mode.
    pub(crate) mig: Option<MigPlacementChoice>,
}

/// The chosen MIG instance, and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MigPlacementChoice {
    pub(crate) grant: MigGrant,
    pub(crate) candidate: Candidate,
}

/// The best GPUs for a request among those that fit and are admitted; `None` when they are too few.
///
/// A part goes to a shared GPU before one in MIG mode: a shared GPU grants exactly the request, a MIG instance the next
/// size up. The order of preference:
///
/// - among shared GPUs: the least share left over, then the least memory, then the lowest index,
/// - among GPUs in MIG mode: an idle instance, then the least [rank](crate::mig::Rank), then the lowest index.
///
/// A part never spans GPUs. Equal parts go to different GPUs, all shared or all in MIG mode.
pub(crate) fn place(
    node: &NodeUsage<'_>,
    request: &Request,
    admit: impl Fn(&GpuUsage<'_>, &Offer) -> bool,
) -> Option<Vec<Offer>> {
    let usages = node.gpus.iter().enumerate();
    let mut offers: Vec<Offer> = usages
        .filter_map(|(position, usage)| offer(position, usage, request, &admit))
        .collect();
    let (least, most) = match RequestShape::of(request.amount) {
        RequestShape::Whole { min, max } => (min, max),
        RequestShape::Parts { count, .. } => {
            let (mut instances, mut parts): (Vec<Offer>, Vec<Offer>) =
                offers.into_iter().partition(|offer| offer.mig.is_some());
            tightest_first(&mut parts, |offer| {
                let usage = &node.gpus[offer.position];
                let memory = usage.free_memory().saturating_sub(offer.size.memory);
                LeftOver {
                    share: usage.free_share() - u64::from(offer.size.share.thousandths()),
                    memory: memory.get(),
                }
            });
            instances.sort_by_key(|offer| offer.mig.as_ref().map(|choice| choice.candidate.rank));
            // The limiter or MIG instances hold a job to its limit, never both.
            let enough =
                |offers: &[Offer]| u32::try_from(offers.len()).is_ok_and(|found| found >= count);
            offers = if enough(&parts) { parts } else { instances };
            (count, count)
        }
    };
    offers.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    let enough = u32::try_from(offers.len()).is_ok_and(|found| found >= least);
    enough.then_some(offers)
}

/// Whether the GPUs, with no holder and no unmanaged process, can serve the request.
pub fn can_ever_place(empty: &NodeUsage<'_>, request: &Request) -> bool {
    place(empty, request, |_, _| true).is_some()
}

/// What this GPU would grant.
fn offer(
    position: usize,
    usage: &GpuUsage<'_>,
    request: &Request,
    admit: impl Fn(&GpuUsage<'_>, &Offer) -> bool,
) -> Option<Offer> {
    let size = fit(usage, request).ok()?;
    let offer = |choice| Offer {
        position,
        size,
        mig: choice,
    };
    let (Some(mig), Some(id)) = (&usage.mig, size.profile) else {
        return Some(offer(None)).filter(|offer| admit(usage, offer));
    };
    let name = mig.table().profile(id)?.name;
    let choice = |candidate: Candidate| MigPlacementChoice {
        grant: MigGrant {
            profile: name,
            placement: candidate.placement,
        },
        candidate,
    };
    let candidates = mig.candidates(id).into_iter();
    candidates
        .map(|candidate| offer(Some(choice(candidate))))
        .find(|offer| admit(usage, offer))
}
