//! Quota checks: requests that a project can never serve, and how far a running job may grow.

use super::nearest::nearest_within;
use super::quota_cost::quota_cost;
use super::user_limit::{UserLedger, exceeded_with};
use super::{
    Limit, OutOfQuota, Project, QuotaExceeded, QuotaLedger, QuotaRule, QuotaSum, Resources,
    SchedulingClass,
};
use crate::model::gpu::Gpu;
use crate::model::request::Request;
use crate::model::slice::Grant;
use crate::model::snapshot::{Preemption, Snapshot};
use crate::placement::occupancy::NodeUsage;
use crate::units::{Gpus, JobId, UserName};

/// The quota or limit that a job exceeds even without another job of its project.
pub(super) fn never_within_quota(
    project: &Project,
    owner: &SchedulingClass,
    need: Resources,
    preemption: Preemption,
) -> Option<QuotaExceeded> {
    let nobody = Resources::default();
    let bound = !owner.preemptible && preemption == Preemption::On;
    over_limit(project, nobody, need)
        .or_else(|| over_quota(project, nobody, need).filter(|_| bound))
}

/// The limit of the project, if this usage and need exceed it.
pub(super) fn over_limit(
    project: &Project,
    used: Resources,
    need: Resources,
) -> Option<QuotaExceeded> {
    let resource = QuotaSum::exceeding(project.limit, used, need)?;
    Some(QuotaExceeded {
        rule: QuotaRule::Limit(project.name.clone()),
        resource,
    })
}

/// The quota of the project, if this usage and need exceed it.
pub(super) fn over_quota(
    project: &Project,
    used: Resources,
    need: Resources,
) -> Option<QuotaExceeded> {
    let resource = QuotaSum::exceeding(project.quota.into(), used, need)?;
    Some(QuotaExceeded {
        rule: QuotaRule::Quota(project.name.clone()),
        resource,
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
    let empty = NodeUsage::empty(gpus);
    let need = quota_cost(&empty, request);
    let Some(exceeded) = never_within_quota(project, owner, need, preemption) else {
        return Ok(());
    };
    let most = match exceeded.rule {
        QuotaRule::Quota(_) => project.quota.into(),
        QuotaRule::Limit(_) | QuotaRule::UserLimit(_) => project.limit,
    };
    let nearest = nearest_within(&empty, request, most);
    Err(OutOfQuota { exceeded, nearest })
}

/// Checks that a user whose jobs may hold `most` GPUs together can run a request once the user's other jobs have ended.
///
/// # Errors
/// [`OutOfQuota`], with the nearest request within the limit.
pub fn check_user_limit(
    gpus: &[Gpu],
    user: &UserName,
    most: Gpus,
    request: &Request,
) -> Result<(), OutOfQuota> {
    let empty = NodeUsage::empty(gpus);
    let need = quota_cost(&empty, request).gpus;
    let Some(exceeded) = exceeded_with(user, most, Gpus::ZERO, need) else {
        return Ok(());
    };
    let limit = Limit {
        gpus: Some(most),
        memory: None,
    };
    let nearest = nearest_within(&empty, request, limit);
    Err(OutOfQuota { exceeded, nearest })
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

/// The limit of its user, or the quota or limit of its project, that a job with these resources would exceed.
pub(crate) fn quota_exceeded_by(
    snapshot: &Snapshot,
    job: JobId,
    owner: &SchedulingClass,
    then: Resources,
) -> Option<QuotaExceeded> {
    user_limit_exceeded_by(snapshot, job, owner, then)
        .or_else(|| project_exceeded_by(snapshot, job, owner, then))
}

fn user_limit_exceeded_by(
    snapshot: &Snapshot,
    job: JobId,
    owner: &SchedulingClass,
    then: Resources,
) -> Option<QuotaExceeded> {
    let users = UserLedger::of(snapshot)?;
    let user = users.limited_user(owner)?;
    let others = snapshot.held.iter();
    let others = others.filter(|held| held.job != job && held.owner.user.as_ref() == Some(user));
    let used = others.map(|held| Resources::of(&held.grants).gpus).sum();
    exceeded_with(user, snapshot.user_limits[user], used, then.gpus)
}

fn project_exceeded_by(
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
    over_limit(project, others, then).or_else(|| {
        let fixed =
            project_usage.used_by(|job_usage| job_usage.job != job && !job_usage.owner.preemptible);
        over_quota(project, fixed, then).filter(|_| ledger.is_bound_to_quota(owner))
    })
}
