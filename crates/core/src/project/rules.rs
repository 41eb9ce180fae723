//! What a project's rules never allow, and how far a job may grow.

use super::need::need;
use super::{Books, OutOfQuota, Overdraft, Owner, Project, Rule, Use};
use crate::board::Board;
use crate::gpu::Gpu;
use crate::ids::JobId;
use crate::request::Request;
use crate::slice::Grant;
use crate::snapshot::{Preemption, Snapshot};

/// The rule that keeps a job from ever starting, though nobody of its project holds anything.
pub(super) fn never(
    project: &Project,
    owner: &Owner,
    need: Use,
    preemption: Preemption,
) -> Option<Overdraft> {
    let nobody = Use::default();
    let bound = !owner.preemptible && preemption == Preemption::On;
    Overdraft::of(project, Rule::Limit, project.limit, nobody, need).or_else(|| {
        Overdraft::of(project, Rule::Quota, project.quota.into(), nobody, need).filter(|_| bound)
    })
}

/// Why a project could never serve a request, whoever of it ends.
///
/// # Errors
/// [`OutOfQuota`], with what would help.
pub fn refusal(
    gpus: &[Gpu],
    project: &Project,
    owner: &Owner,
    request: &Request,
    preemption: Preemption,
) -> Result<(), OutOfQuota> {
    let need = need(&Board::empty(gpus), request);
    match never(project, owner, need, preemption) {
        Some(overdraft) => Err(OutOfQuota(overdraft)),
        None => Ok(()),
    }
}

/// The rule that keeps a job from holding this instead of what it holds; `None` where there is none, and for whoever asks
/// for no more than it has.
pub fn outgrown(snapshot: &Snapshot, job: JobId, grants: &[Grant]) -> Option<Overdraft> {
    let held = snapshot.held.iter().find(|held| held.job == job)?;
    let (now, then) = (Use::of(&held.grants), Use::of(grants));
    if then.gpus <= now.gpus && then.memory <= now.memory {
        return None;
    }
    beyond(snapshot, job, &held.owner, then)
}

/// The rule of its project that keeps a job from holding so much; `None` where there is none.
pub(crate) fn beyond(
    snapshot: &Snapshot,
    job: JobId,
    owner: &Owner,
    then: Use,
) -> Option<Overdraft> {
    let empty = Board::empty(&snapshot.gpus);
    let books = Books::of(snapshot, &empty)?;
    let account = &books.accounts()[books.account(owner)];
    let project = account.project?;
    let others = account.used_by(|member| member.job != job);
    Overdraft::of(project, Rule::Limit, project.limit, others, then).or_else(|| {
        let fixed = account.used_by(|member| member.job != job && !member.owner.preemptible);
        Overdraft::of(project, Rule::Quota, project.quota.into(), fixed, then)
            .filter(|_| books.is_bound(owner))
    })
}
