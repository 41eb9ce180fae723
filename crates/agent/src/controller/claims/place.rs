//! Placement of a claim: exactly the devices that it names, beside the jobs of this daemon and of other daemons.

use divvy_api::v1::{ClaimDevice, Error};
use divvy_core::Snapshot;
use divvy_core::pinned::{Device, PinnedAllocation, allocate_pinned};

use crate::controller::io::Io;
use crate::controller::lifecycle::planner_input;
use crate::controller::sharing;
use crate::controller::state::State;
use crate::model::claim::{self, ClaimRequest, devices};

/// Allocates the devices of a claim beside the jobs of this daemon and of other daemons.
/// Answers the request with the sizes and starts that it got.
pub(super) fn place_beside_others(
    state: &mut State,
    io: &Io,
    mut asked: ClaimRequest,
) -> Result<(ClaimRequest, PinnedAllocation), Error> {
    for _ in 0..2 {
        let (devices, placed) =
            allocate(&planner_input::snapshot(state, io), &asked.claim.devices)?;
        if sharing::acquire(state, io, placed.grants.iter(), &[]).is_ok() {
            asked.claim.devices = devices;
            return Ok((asked, placed));
        }
    }
    Err(claim::contended())
}

/// Allocates devices, and chooses the start of each MIG instance that leaves it open: the first that fits, in the order
/// in which the planner prefers them. Answers the devices with their sizes and starts.
fn allocate(
    snapshot: &Snapshot,
    asked: &[ClaimDevice],
) -> Result<(Vec<ClaimDevice>, PinnedAllocation), Error> {
    let mut resolved = asked.to_vec();
    let mut chosen: Vec<Device> = Vec::with_capacity(resolved.len());
    for device in &mut resolved {
        devices::resolve_share(device, &snapshot.gpus);
        let Some(starts) = devices::open_starts(device, &snapshot.gpus) else {
            chosen.push(devices::to_planner(device)?);
            continue;
        };
        let mut first_misfit = None;
        let mut found = false;
        for start in starts {
            if let Some(mig) = &mut device.mig {
                mig.start = Some(start);
            }
            chosen.push(devices::to_planner(device)?);
            match allocate_pinned(snapshot, &chosen) {
                Ok(_) => {
                    found = true;
                    break;
                }
                Err(misfit) => {
                    chosen.pop();
                    first_misfit.get_or_insert(misfit);
                }
            }
        }
        if let Some(misfit) = first_misfit.filter(|_| !found) {
            return Err(claim::refusal(&misfit));
        }
    }
    let placed = allocate_pinned(snapshot, &chosen).map_err(|misfit| claim::refusal(&misfit))?;
    Ok((resolved, placed))
}
