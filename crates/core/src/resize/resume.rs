//! Whether a job whose memory is aside may have its GPUs again: by the same arithmetic as a placement, on the GPUs that it had.
//!
//! Its memory can go back only where it was. So nobody else gets the room meanwhile, those who hold it are not stopped for it, and who
//! has waited longer comes first.

use crate::model::gpu::Mode;
use crate::model::slice::{Grant, label};
use crate::model::snapshot::Snapshot;
use crate::placement::fit::{
    GrantSize, UnmetConstraint, fraction_constraints, whole_gpu_constraints,
};
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::project::{QuotaExceeded, Resources, quota_exceeded_by};
use crate::units::{Bytes, JobId, Share};

/// What a job that is to go on waits for. `Display` goes on after `waits for`: `room on GPU 0: 0.25 free, 0.5 needed; held by #7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResumeBlocked {
    Room(Vec<GpuBlocked>),
    Quota(QuotaExceeded),
}

/// A GPU that has no room for what the job had there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuBlocked {
    pub index: u32,
    /// Every cause; empty for a GPU that is unavailable.
    pub unmet: Vec<UnmetConstraint>,
    /// The GPU is not managed any more, or is gone.
    pub is_unavailable: bool,
    /// Jobs that hold a part of it, or resume before this one.
    pub holders: Vec<JobId>,
}

impl ResumeBlocked {
    /// Whether only room is wanting, on GPUs that will have it: then it is kept. For who waits for something else, perhaps without end,
    /// nothing is.
    pub fn keeps_room(&self) -> bool {
        match self {
            Self::Quota(_) => false,
            Self::Room(full) => full.iter().all(|gpu| !gpu.is_unavailable),
        }
    }
}

/// What a job that is to go on holds from now on; `uses`: what its memory comes to, by position in its grants. Labels that others have
/// taken meanwhile are new ones.
///
/// # Errors
/// [`ResumeBlocked`], for one that has no room yet; without a cause for one that is not to go on.
pub fn plan_resume(
    snapshot: &Snapshot,
    job: JobId,
    uses: &[Bytes],
) -> Result<Vec<Grant>, ResumeBlocked> {
    let held = snapshot.held.iter().find(|held| held.job == job);
    let Some((held, since)) = held.and_then(|held| Some((held, held.due?))) else {
        return Err(ResumeBlocked::Room(Vec::new()));
    };
    let mut others = snapshot.clone();
    others.held.retain(|other| {
        let is_before = |theirs| (theirs, other.job) < (since, job);
        other.job != job && other.due.is_none_or(is_before)
    });
    if let Some(overdraft) =
        quota_exceeded_by(&others, job, &held.owner, Resources::of(&held.grants))
    {
        return Err(ResumeBlocked::Quota(overdraft));
    }
    let board = NodeUsage::of(&others);
    let mut full = Vec::new();
    let mut grants = Vec::new();
    for (nth, grant) in held.grants.iter().enumerate() {
        let uses = uses.get(nth).copied().unwrap_or(grant.memory);
        let tile = board.gpus.iter().find(|tile| tile.gpu.uuid == grant.gpu);
        match unmet_constraints(tile, grant, uses) {
            None => grants.push(named(tile, grant)),
            Some(unmet) => full.push(GpuBlocked {
                index: grant.index,
                unmet,
                is_unavailable: !tile.is_some_and(is_served),
                holders: tile.map(holders).unwrap_or_default(),
            }),
        }
    }
    match full.is_empty() {
        true => Ok(grants),
        false => Err(ResumeBlocked::Room(full)),
    }
}

/// Why this GPU does not take it back.
fn unmet_constraints(
    tile: Option<&GpuUsage<'_>>,
    grant: &Grant,
    uses: Bytes,
) -> Option<Vec<UnmetConstraint>> {
    let Some(tile) = tile else {
        return Some(Vec::new());
    };
    let is_whole = grant.share == Share::FULL;
    let misses = match tile.gpu.mode {
        Mode::Unmanaged | Mode::Mig => return Some(Vec::new()),
        Mode::Exclusive if !is_whole => vec![UnmetConstraint::Exclusive],
        Mode::Exclusive | Mode::Shared if is_whole => {
            let mut misses = whole_gpu_constraints(tile);
            // Of a whole GPU it had what was free then, and has to have what it uses.
            if misses.is_empty() && uses > tile.free_memory() {
                misses.push(UnmetConstraint::Memory {
                    free: tile.free_memory(),
                    needs: uses,
                });
            }
            misses
        }
        Mode::Exclusive | Mode::Shared => fraction_constraints(
            tile,
            GrantSize {
                share: grant.share,
                memory: grant.memory,
                profile: None,
            },
        ),
    };
    (!misses.is_empty()).then_some(misses)
}

fn is_served(tile: &GpuUsage<'_>) -> bool {
    !matches!(tile.gpu.mode, Mode::Unmanaged | Mode::Mig)
}

fn holders(tile: &GpuUsage<'_>) -> Vec<JobId> {
    let mut jobs: Vec<JobId> = tile.holders.iter().map(|holder| holder.job).collect();
    jobs.sort_unstable();
    jobs
}

fn named(tile: Option<&GpuUsage<'_>>, grant: &Grant) -> Grant {
    let holders = tile.map_or(&[][..], |tile| &tile.holders);
    let taken = |label: &str| holders.iter().any(|holder| holder.grant.label == label);
    let label = match taken(&grant.label) {
        true => label(grant.index, grant.share, taken),
        false => grant.label.clone(),
    };
    Grant {
        label,
        ..grant.clone()
    }
}
