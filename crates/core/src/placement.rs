//! Placement: which GPUs one request gets, on the GPUs as they are occupied now.
//!
//! ```text
//!  Snapshot ──► occupancy ──► fit ──► place ──► offers: GPUs, sizes, MIG instances
//!               (who holds    (one GPU, (the best GPUs of
//!                each GPU)     filter)   those that fit)
//! ```
//! Whole GPUs go by lowest index, parts by best fit, so that large gaps stay large, and MIG instances to the place that
//! leaves the most room for others. `backfill` says whether an offer could delay a job ahead; [`pinned`] allocates
//! devices that another scheduler has chosen.
//!
//! May use `units`, `mig` and `model`. `project`, `plan`, `resize` and `explain` use it.

pub(crate) mod backfill;
pub(crate) mod fit;
pub(crate) mod occupancy;
pub mod pinned;

use crate::mig::Candidate;
use crate::model::request::Request;
use crate::model::slice::MigGrant;
use crate::placement::fit::{GrantSize, RequestShape, fit};
use crate::placement::occupancy::{GpuUsage, NodeUsage};

/// What one GPU of the board would give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Place on the board.
    pub(crate) position: usize,
    pub(crate) size: GrantSize,
    /// The MIG instance that gives it.
    pub(crate) mig: Option<MigPlacementChoice>,
}

/// A MIG instance, and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MigPlacementChoice {
    pub(crate) grant: MigGrant,
    pub(crate) candidate: Candidate,
}

/// The best GPUs for a request among those that fit and are admitted; `None` when they are too few.
///
/// A part goes to a shared GPU before one in MIG mode: there it gets what it asks for, here the next size up. Of shared GPUs
/// it goes where the least share is left over, then the least memory, then the lowest index. Of those in MIG mode an idle
/// instance comes first, then the place with the least [rank](crate::mig::Rank), then the lowest index. A part is never spread over GPUs, and equal
/// parts go to different ones, all shared or all in MIG mode.
pub(crate) fn place(
    board: &NodeUsage<'_>,
    request: &Request,
    admit: impl Fn(&GpuUsage<'_>, &Offer) -> bool,
) -> Option<Vec<Offer>> {
    let tiles = board.gpus.iter().enumerate();
    let mut offers: Vec<Offer> = tiles
        .filter_map(|(tile, on)| offer(tile, on, request, &admit))
        .collect();
    let (least, most) = match RequestShape::of(request.amount) {
        RequestShape::Whole { min, max } => (min, max),
        RequestShape::Parts { count, .. } => {
            let (mut instances, mut parts): (Vec<Offer>, Vec<Offer>) =
                offers.into_iter().partition(|offer| offer.mig.is_some());
            // Stable, and the board is in order of index.
            parts.sort_by_key(|offer| {
                let tile = &board.gpus[offer.position];
                let share = tile.free_share() - u64::from(offer.size.share.thousandths());
                (share, tile.free_memory().saturating_sub(offer.size.memory))
            });
            instances.sort_by_key(|offer| offer.mig.as_ref().map(|seat| seat.candidate.rank));
            // One job is held by the limiter or by instances, never by both.
            let enough =
                |offers: &[Offer]| u32::try_from(offers.len()).is_ok_and(|found| found >= count);
            offers = match enough(&parts) {
                true => parts,
                false => instances,
            };
            (count, count)
        }
    };
    offers.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    let enough = u32::try_from(offers.len()).is_ok_and(|found| found >= least);
    enough.then_some(offers)
}

/// Whether the GPUs, with no holder and no unmanaged process, can serve the request.
pub(crate) fn can_ever_place(empty: &NodeUsage<'_>, request: &Request) -> bool {
    place(empty, request, |_, _| true).is_some()
}

/// What this GPU would give.
fn offer(
    tile: usize,
    on: &GpuUsage<'_>,
    request: &Request,
    admit: impl Fn(&GpuUsage<'_>, &Offer) -> bool,
) -> Option<Offer> {
    let size = fit(on, request).ok()?;
    let offer = |seat| Offer {
        position: tile,
        size,
        mig: seat,
    };
    let (Some(seats), Some(id)) = (&on.mig, size.profile) else {
        return Some(offer(None)).filter(|offer| admit(on, offer));
    };
    let name = seats.table().profile(id)?.name;
    let seat = |candidate: Candidate| MigPlacementChoice {
        grant: MigGrant {
            profile: name,
            placement: candidate.placement,
        },
        candidate,
    };
    let candidates = seats.candidates(id).into_iter();
    candidates
        .map(|candidate| offer(Some(seat(candidate))))
        .find(|offer| admit(on, offer))
}
