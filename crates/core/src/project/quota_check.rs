//! What a project's rules never allow, and how far a job may grow.

use super::quota_cost::quota_cost;
use super::{
    OutOfQuota, Project, QuotaExceeded, QuotaLedger, QuotaRule, Resources, SchedulingClass,
};
use crate::model::gpu::Gpu;
use crate::model::request::Request;
use crate::model::slice::Grant;
use crate::model::snapshot::{Preemption, Snapshot};
use crate::placement::occupancy::NodeUsage;
use crate::units::JobId;

/// The rule that keeps a job from ever starting, though nobody of its project holds anything.
pub(super) fn never_within_quota(
    project: &Project,
    owner: &SchedulingClass,
    need: Resources,
    preemption: Preemption,
) -> Option<QuotaExceeded> {
    let nobody = Resources::default();
    let bound = !owner.preemptible && preemption == Preemption::On;
    QuotaExceeded::of(project, QuotaRule::Limit, project.limit, nobody, need).or_else(|| {
        QuotaExceeded::of(
            project,
            QuotaRule::Quota,
            project.quota.into(),
            nobody,
            need,
        )
        .filter(|_| bound)
    })
}

/// Why a project could never serve a request, whoever of it ends.
///
/// # Errors
/// [`OutOfQuota`], with what would help.
pub fn check_quota(
    gpus: &[Gpu],
    project: &Project,
    owner: &SchedulingClass,
    request: &Request,
    preemption: Preemption,
) -> Result<(), OutOfQuota> {
    let need = quota_cost(&NodeUsage::empty(gpus), request);
    match never_within_quota(project, owner, need, preemption) {
        Some(overdraft) => Err(OutOfQuota(overdraft)),
        None => Ok(()),
    }
}

/// The rule that keeps a job from holding this instead of what it holds; `None` where there is none, and for whoever asks
/// for no more than it has.
pub fn quota_exceeded_by_resize(
    snapshot: &Snapshot,
    job: JobId,
    grants: &[Grant],
) -> Option<QuotaExceeded> {
    let held = snapshot.held.iter().find(|held| held.job == job)?;
    let (now, then) = (Resources::of(&held.grants), Resources::of(grants));
    if then.gpus <= now.gpus && then.memory <= now.memory {
        return None;
    }
    quota_exceeded_by(snapshot, job, &held.owner, then)
}

/// The rule of its project that keeps a job from holding so much; `None` where there is none.
pub(crate) fn quota_exceeded_by(
    snapshot: &Snapshot,
    job: JobId,
    owner: &SchedulingClass,
    then: Resources,
) -> Option<QuotaExceeded> {
    let empty = NodeUsage::empty(&snapshot.gpus);
    let books = QuotaLedger::of(snapshot, &empty)?;
    let account = &books.projects()[books.project_index(owner)];
    let project = account.project?;
    let others = account.used_by(|member| member.job != job);
    QuotaExceeded::of(project, QuotaRule::Limit, project.limit, others, then).or_else(|| {
        let fixed = account.used_by(|member| member.job != job && !member.owner.preemptible);
        QuotaExceeded::of(project, QuotaRule::Quota, project.quota.into(), fixed, then)
            .filter(|_| books.is_bound_to_quota(owner))
    })
}
