//! Resume admission: whether an offloaded job gets its GPUs back, by the same arithmetic as a placement.
//!
//! The memory can only return to the GPUs that it came from. The planner reserves the room meanwhile and stops no holder
//! for it; idle holders may be parked ([`park`](super::park)). [`resume_order`] is the order of the jobs.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::model::gpu::Mode;
use crate::model::slice::{Grant, label};
use crate::model::snapshot::{AllocatedJob, Snapshot};
use crate::placement::fit::{
    GrantSize, UnmetConstraint, fraction_constraints, whole_gpu_constraints,
};
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::project::{QuotaExceeded, QuotaLedger, Resources, quota_exceeded_by};
use crate::units::{Bytes, JobId, Share};

/// What an offloaded job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResumeBlocked {
    Room(Vec<GpuBlocked>),
    Quota(QuotaExceeded),
}

/// A GPU without room for the job's former slice.
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
    /// Whether the job lacks only room, on GPUs that can have it: then the room is reserved. A job that waits for
    /// another cause, perhaps for ever, reserves none.
    pub fn keeps_room(&self) -> bool {
        match self {
            Self::Quota(_) => false,
            Self::Room(full) => full.iter().all(|gpu| !gpu.is_unavailable),
        }
    }
}

/// The grants of an offloaded job that resumes; `uses`: the size of its memory, by index of its grants. A grant gets a
/// new label if another job has taken its own.
///
/// # Errors
/// [`ResumeBlocked`] for a job without room; without a cause for a job that is not to resume.
pub fn plan_resume(
    snapshot: &Snapshot,
    job: JobId,
    uses: &[Bytes],
) -> Result<Vec<Grant>, ResumeBlocked> {
    plan_resume_in(&resume_order(snapshot), snapshot, job, uses)
}

/// The same in an order that is known.
///
/// # Errors
/// As [`plan_resume`].
pub fn plan_resume_in(
    order: &[JobId],
    snapshot: &Snapshot,
    job: JobId,
    uses: &[Bytes],
) -> Result<Vec<Grant>, ResumeBlocked> {
    let held = snapshot.held.iter().find(|held| held.job == job);
    let Some(held) = held.filter(|held| held.resuming_since.is_some()) else {
        return Err(ResumeBlocked::Room(Vec::new()));
    };
    let before = order.iter().take_while(|one| **one != job);
    let before: BTreeSet<JobId> = before.copied().collect();
    let mut others = snapshot.clone();
    others.held.retain(|other| {
        other.job != job && (other.resuming_since.is_none() || before.contains(&other.job))
    });
    if let Some(exceeded) =
        quota_exceeded_by(&others, job, &held.owner, Resources::of(&held.grants))
    {
        return Err(ResumeBlocked::Quota(exceeded));
    }
    let node = NodeUsage::of(&others);
    let mut full = Vec::new();
    let mut grants = Vec::new();
    for (nth, grant) in held.grants.iter().enumerate() {
        let uses = uses.get(nth).copied().unwrap_or(grant.memory);
        let usage = node.gpus.iter().find(|usage| usage.gpu.uuid == grant.gpu);
        match unmet_constraints(usage, grant, uses) {
            None => grants.push(named(usage, grant)),
            Some(unmet) => full.push(GpuBlocked {
                index: grant.index,
                unmet,
                is_unavailable: !usage.is_some_and(is_served),
                holders: usage.map(holders).unwrap_or_default(),
            }),
        }
    }
    if full.is_empty() {
        Ok(grants)
    } else {
        Err(ResumeBlocked::Room(full))
    }
}

/// The jobs that resume, in order: by priority, then jobs within the quota of their project, then the job that has
/// waited longest.
pub fn resume_order(snapshot: &Snapshot) -> Vec<JobId> {
    let (due, held) = (snapshot.held.iter()).partition(|held| held.resuming_since.is_some());
    let (due, held): (Vec<&AllocatedJob>, Vec<&AllocatedJob>) = (due, held);
    if due.len() < 2 {
        return due.into_iter().map(|one| one.job).collect();
    }
    let others = Snapshot {
        held: held.into_iter().cloned().collect(),
        ..snapshot.clone()
    };
    let empty = NodeUsage::empty(&others.gpus);
    let ledger = QuotaLedger::of(&others, &empty);
    let nobody = BTreeSet::new();
    let key = |one: &&AllocatedJob| {
        let need = Resources::of(&one.grants);
        let is_within = (ledger.as_ref())
            .is_none_or(|ledger| ledger.is_within_quota(one.job, &one.owner, need, &nobody));
        let priority = Reverse(one.owner.priority);
        (priority, !is_within, one.resuming_since, one.job)
    };
    let mut due = due;
    due.sort_by_cached_key(key);
    due.into_iter().map(|one| one.job).collect()
}

/// The constraints that keep the job off this GPU; `None` where it fits.
fn unmet_constraints(
    usage: Option<&GpuUsage<'_>>,
    grant: &Grant,
    uses: Bytes,
) -> Option<Vec<UnmetConstraint>> {
    let Some(usage) = usage else {
        return Some(Vec::new());
    };
    let is_whole = grant.share == Share::FULL;
    let unmet = match usage.gpu.mode {
        Mode::Unmanaged | Mode::Mig => return Some(Vec::new()),
        Mode::Exclusive if !is_whole => vec![UnmetConstraint::Exclusive],
        Mode::Exclusive | Mode::Shared if is_whole => {
            let mut unmet = whole_gpu_constraints(usage);
            // A whole-GPU job was granted the free memory of its start; now it needs what it uses.
            if unmet.is_empty() && uses > usage.free_memory() {
                unmet.push(UnmetConstraint::Memory {
                    free: usage.free_memory(),
                    needs: uses,
                });
            }
            unmet
        }
        Mode::Exclusive | Mode::Shared => fraction_constraints(
            usage,
            GrantSize {
                share: grant.share,
                memory: grant.memory,
                profile: None,
            },
        ),
    };
    (!unmet.is_empty()).then_some(unmet)
}

fn is_served(usage: &GpuUsage<'_>) -> bool {
    !matches!(usage.gpu.mode, Mode::Unmanaged | Mode::Mig)
}

fn holders(usage: &GpuUsage<'_>) -> Vec<JobId> {
    let mut jobs: Vec<JobId> = usage.holders.iter().map(|holder| holder.job).collect();
    jobs.sort_unstable();
    jobs
}

fn named(usage: Option<&GpuUsage<'_>>, grant: &Grant) -> Grant {
    let holders = usage.map_or(&[][..], |usage| &usage.holders);
    let taken = |label: &str| holders.iter().any(|holder| holder.grant.label == label);
    let label = if taken(&grant.label) {
        label(grant.index, grant.share, taken)
    } else {
        grant.label.clone()
    };
    Grant {
        label,
        ..grant.clone()
    }
}
