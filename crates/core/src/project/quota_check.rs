//! Quota checks: requests that a project can never serve, and how far a running job may grow.

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

/// The quota or limit that a job exceeds even without another job of its project.
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

/// Checks that a project can serve a request once its other jobs have ended.
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
        Some(exceeded) => Err(OutOfQuota(exceeded)),
        None => Ok(()),
    }
}

/// The quota or limit that a resize would exceed; `None` for a resize to no more than the job holds.
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

/// The quota or limit of its project that a job with these resources would exceed.
pub(crate) fn quota_exceeded_by(
    snapshot: &Snapshot,
    job: JobId,
    owner: &SchedulingClass,
    then: Resources,
) -> Option<QuotaExceeded> {
    let empty = NodeUsage::empty(&snapshot.gpus);
    let ledger = QuotaLedger::of(snapshot, &empty)?;
    let project_usage = &ledger.projects()[ledger.project_index(owner)];
    let project = project_usage.project?;
    let others = project_usage.used_by(|job_usage| job_usage.job != job);
    QuotaExceeded::of(project, QuotaRule::Limit, project.limit, others, then).or_else(|| {
        let fixed =
            project_usage.used_by(|job_usage| job_usage.job != job && !job_usage.owner.preemptible);
        QuotaExceeded::of(project, QuotaRule::Quota, project.quota.into(), fixed, then)
            .filter(|_| ledger.is_bound_to_quota(owner))
    })
}
