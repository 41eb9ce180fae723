//! Quota accounting: the usage of each project, what its quota and limit leave, and its fair share.

use std::collections::{BTreeMap, BTreeSet};

use super::allowance::Allowance;
use super::fair::{ProjectDemand, fair_shares};
use super::quota_check::{never_within_quota, over_limit, over_quota};
use super::quota_cost::{at_most, quota_cost};
use super::user_limit::UserLedger;
use super::{
    Limit, PendingPreemption, Project, QuotaExceeded, QuotaRequest, Resources, SchedulingClass,
};
use crate::model::gpu::Mode;
use crate::model::request::Request;
use crate::model::snapshot::{PendingJob, Preemption, Snapshot};
use crate::placement::Offer;
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::units::{Gpus, JobId, ProjectName};

/// The weight of all jobs outside projects together: that of a quota of one GPU. So users without a project are served
/// as a small one; with twice as much they would outweigh it.
const OUTSIDE_WEIGHS: u64 = 1000;

/// The usage of each project of a snapshot; the last entry is for jobs outside projects.
#[derive(Clone)]
pub(crate) struct QuotaLedger<'a> {
    projects: Vec<ProjectUsage<'a>>,
    preemption: Preemption,
    /// The quota cost of each different request.
    needs: BTreeMap<&'a Request, Resources>,
}

/// The usage of one project.
#[derive(Clone)]
pub(crate) struct ProjectUsage<'a> {
    /// `None`: outside projects.
    pub(crate) project: Option<&'a Project>,
    /// Jobs that hold GPUs, in no order.
    pub(crate) jobs: Vec<JobUsage>,
    /// Thousandths of GPUs.
    pub(crate) fair_share: u64,
    used: Resources,
}

/// The usage of one job.
#[derive(Clone, Debug)]
pub(crate) struct JobUsage {
    pub(crate) job: JobId,
    pub(crate) owner: SchedulingClass,
    pub(crate) used: Resources,
    pub(crate) ran_s: u64,
    /// It is being stopped.
    pub(crate) is_stopping: bool,
    /// It starts in this pass, or resumes: no process is there to be stopped.
    pub(crate) is_starting: bool,
}

impl<'a> QuotaLedger<'a> {
    /// `None` where the node has no projects.
    pub(crate) fn of(snapshot: &'a Snapshot, empty: &NodeUsage<'_>) -> Option<Self> {
        if snapshot.projects.is_empty() {
            return None;
        }
        let project = snapshot.projects.iter().map(Some);
        let project_usage = |project| ProjectUsage {
            project,
            jobs: Vec::new(),
            fair_share: 0,
            used: Resources::default(),
        };
        let mut ledger = Self {
            projects: project.chain([None]).map(project_usage).collect(),
            preemption: snapshot.preemption,
            needs: BTreeMap::new(),
        };
        for held in &snapshot.held {
            ledger.add(JobUsage {
                job: held.job,
                owner: held.owner.clone(),
                used: Resources::of(&held.grants),
                ran_s: held.ran_s,
                is_stopping: held.leaving,
                is_starting: held.resuming_since.is_some(),
            });
        }
        let mut wanted = vec![(0, 0); ledger.projects.len()];
        let mut users = UserLedger::of(snapshot);
        for waiting in snapshot.queues.iter().flat_map(|queue| &queue.waiting) {
            let need = *ledger
                .needs
                .entry(&waiting.request)
                .or_insert_with(|| quota_cost(empty, &waiting.request));
            let mut wants = at_most(&waiting.request).unwrap_or(need.gpus);
            if let Some(users) = &mut users {
                // A user at the limit cannot use a fair share.
                wants = users.remaining(&waiting.owner).unwrap_or(wants).min(wants);
                users.add(&waiting.owner, wants);
            }
            let wants = wants.thousandths();
            let (bound, free) = &mut wanted[ledger.project_index(&waiting.owner)];
            *if waiting.owner.preemptible {
                free
            } else {
                bound
            } += wants;
        }
        let managed = empty
            .gpus
            .iter()
            .filter(|usage| usage.gpu.mode != Mode::Unmanaged);
        let total = Gpus::whole(managed.count() as u64).thousandths();
        let claims: Vec<ProjectDemand> = ledger
            .projects
            .iter()
            .zip(wanted)
            .map(|(project_usage, wanted)| ledger.demand(project_usage, wanted))
            .collect();
        for (project_usage, fair) in ledger.projects.iter_mut().zip(fair_shares(total, &claims)) {
            project_usage.fair_share = fair;
        }
        Some(ledger)
    }

    fn demand(&self, project_usage: &ProjectUsage<'_>, (bound, free): (u64, u64)) -> ProjectDemand {
        let used = project_usage.used.gpus.thousandths();
        let Some(project) = project_usage.project else {
            return ProjectDemand {
                quota: 0,
                weight: OUTSIDE_WEIGHS,
                wants: used + bound + free,
                priority: 0,
            };
        };
        let quota = project.quota.gpus.thousandths();
        let fixed = project_usage
            .used_by(|job_usage| !job_usage.owner.preemptible)
            .gpus;
        // A job that is not preemptible never exceeds the quota, so it adds no demand beyond it.
        let bound = match self.preemption {
            Preemption::On => bound.min(quota.saturating_sub(fixed.thousandths())),
            Preemption::Off => bound,
        };
        let limit = project.limit.gpus.map_or(u64::MAX, Gpus::thousandths);
        ProjectDemand {
            quota,
            weight: project.weighs(),
            wants: (used + bound + free).min(limit),
            priority: project.priority,
        }
    }

    pub(crate) fn projects(&self) -> &[ProjectUsage<'a>] {
        &self.projects
    }

    /// The index of the project that a job of this owner counts for.
    pub(crate) fn project_index(&self, owner: &SchedulingClass) -> usize {
        let is_its = |project_usage: &ProjectUsage<'_>| {
            project_usage.project.map(|project| &project.name) == owner.project.as_ref()
        };
        let outside = self.projects.len() - 1;
        self.projects.iter().position(is_its).unwrap_or(outside)
    }

    /// The quota cost of a request of the snapshot.
    pub(crate) fn cost(&self, request: &Request) -> Resources {
        self.needs.get(request).copied().unwrap_or_default()
    }

    /// The quota request of a pending job.
    pub(crate) fn quota_request<'w>(&self, waiting: &'w PendingJob) -> QuotaRequest<'w> {
        QuotaRequest {
            job: waiting.job,
            owner: &waiting.owner,
            request: &waiting.request,
            cost: self.cost(&waiting.request),
            user_remaining: None,
        }
    }

    /// Adds the usage of a job.
    pub(crate) fn add(&mut self, job_usage: JobUsage) {
        let project_usage = self.project_index(&job_usage.owner);
        let project_usage = &mut self.projects[project_usage];
        project_usage.used = project_usage.used.and(job_usage.used);
        project_usage.jobs.push(job_usage);
    }

    /// Adds the usage of a job that starts now.
    pub(crate) fn add_starting(&mut self, job: JobId, owner: &SchedulingClass, used: Resources) {
        self.add(JobUsage {
            job,
            owner: owner.clone(),
            used,
            ran_s: 0,
            is_stopping: false,
            is_starting: true,
        });
    }

    /// The figures of a preemption that makes room for a job.
    pub(crate) fn pending_preemption(
        &self,
        asking: &QuotaRequest<'_>,
        stopped: Vec<JobId>,
        in_s: Option<u64>,
    ) -> Option<PendingPreemption> {
        let QuotaRequest {
            job,
            owner,
            cost: need,
            ..
        } = *asking;
        let project_usage = &self.projects[self.project_index(owner)];
        let before = self.before(project_usage, job, owner, &BTreeSet::new());
        let project = project_usage.project?;
        Some(PendingPreemption {
            project: project.name.clone(),
            quota: project.quota.gpus,
            used: before.and(need).gpus,
            victims: stopped,
            in_s,
        })
    }

    /// Whether the quota of its project holds the job and all jobs that rank before it and have not ended.
    pub(crate) fn is_within_quota(
        &self,
        job: JobId,
        owner: &SchedulingClass,
        need: Resources,
        gone: &BTreeSet<JobId>,
    ) -> bool {
        let project_usage = &self.projects[self.project_index(owner)];
        let with = self.before(project_usage, job, owner, gone).and(need);
        project_usage
            .project
            .is_some_and(|project| project.quota.holds(with))
    }

    /// The usage of the jobs that rank before it in its project and have not ended.
    fn before(
        &self,
        project_usage: &ProjectUsage<'_>,
        job: JobId,
        owner: &SchedulingClass,
        gone: &BTreeSet<JobId>,
    ) -> Resources {
        let waits = || {
            project_usage
                .jobs
                .iter()
                .all(|job_usage| job_usage.job != job)
        };
        let stands_before: &dyn Fn(&JobUsage) -> bool = if waits() {
            &|job_usage| !owner.displaces(&job_usage.owner)
        } else {
            &|job_usage| job_usage.owner.rank(job_usage.job) < owner.rank(job)
        };
        project_usage
            .used_by(|job_usage| stands_before(job_usage) && !gone.contains(&job_usage.job))
    }

    /// The best GPUs for a job among those admitted, once these jobs have ended, within what its project may take.
    ///
    /// A job within quota gets at most the quota, so that a range of GPUs does not become the next victim. It may
    /// exceed the quota only if it fits on smaller GPUs alone, of which it takes a larger part.
    pub(crate) fn place(
        &self,
        node: &NodeUsage<'_>,
        asking: &QuotaRequest<'_>,
        gone: &BTreeSet<JobId>,
        admit: impl Fn(&GpuUsage<'_>, &Offer) -> bool,
    ) -> Option<Vec<Offer>> {
        let QuotaRequest {
            job,
            owner,
            request,
            cost: need,
            user_remaining,
        } = *asking;
        let of_user = Allowance(Limit {
            gpus: user_remaining,
            memory: None,
        });
        let within = self.is_within_quota(job, owner, need, gone);
        let place = |within| {
            self.allowance(job, owner, within, gone)
                .and(of_user)
                .place(node, request, &admit)
        };
        place(within).or_else(|| within.then(|| place(false)).flatten())
    }

    fn allowance(
        &self,
        job: JobId,
        owner: &SchedulingClass,
        within: bool,
        gone: &BTreeSet<JobId>,
    ) -> Allowance {
        let project_usage = &self.projects[self.project_index(owner)];
        let Some(project) = project_usage.project else {
            return Allowance(Limit::default());
        };
        let stays = |job_usage: &JobUsage| !gone.contains(&job_usage.job);
        let mut allowance = Allowance(project.limit).less(project_usage.used_by(stays));
        if within || self.is_bound_to_quota(owner) {
            let before = self.before(project_usage, job, owner, gone);
            allowance = allowance.and(Allowance(project.quota.into()).less(before));
        }
        allowance
    }

    /// A job that is not preemptible stays within quota, since no preemption could reclaim what it borrows.
    pub(super) fn is_bound_to_quota(&self, owner: &SchedulingClass) -> bool {
        !owner.preemptible && self.preemption == Preemption::On
    }

    pub(crate) fn is_preemption_on(&self) -> bool {
        self.preemption == Preemption::On
    }

    /// The quota or limit that keeps a job waiting, whether or not there is room.
    pub(crate) fn quota_exceeded(&self, asking: &QuotaRequest<'_>) -> Option<QuotaExceeded> {
        let QuotaRequest {
            job,
            owner,
            cost: need,
            ..
        } = *asking;
        let project_usage = &self.projects[self.project_index(owner)];
        let project = project_usage.project?;
        over_limit(project, project_usage.used, need).or_else(|| {
            let before = self.before(project_usage, job, owner, &BTreeSet::new());
            over_quota(project, before, need).filter(|_| self.is_bound_to_quota(owner))
        })
    }

    /// The quota or limit that the job exceeds even without another job of its project: it never starts.
    pub(crate) fn never_within_quota(
        &self,
        owner: &SchedulingClass,
        need: Resources,
    ) -> Option<QuotaExceeded> {
        let project = self.projects[self.project_index(owner)].project?;
        never_within_quota(project, owner, need, self.preemption)
    }
}

impl ProjectUsage<'_> {
    pub(crate) fn used_by(&self, which: impl Fn(&JobUsage) -> bool) -> Resources {
        let members = self.jobs.iter().filter(|job_usage| which(job_usage));
        members.fold(Resources::default(), |sum, job_usage| {
            sum.and(job_usage.used)
        })
    }

    pub(crate) fn used(&self) -> Resources {
        self.used
    }
}

/// The status of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaStatus {
    /// `None`: jobs outside projects.
    pub project: Option<ProjectName>,
    pub used: Resources,
    /// Held by jobs that are over quota.
    pub over: Resources,
    pub fair_share: Gpus,
    /// Pending jobs that fit into the unused part of the quota, each taken alone.
    pub entitled: u64,
}

/// The status of each project in the order of the snapshot, and last of the jobs outside; empty without projects.
pub fn quota_status(snapshot: &Snapshot) -> Vec<QuotaStatus> {
    let empty = NodeUsage::empty(&snapshot.gpus);
    let Some(ledger) = QuotaLedger::of(snapshot, &empty) else {
        return Vec::new();
    };
    let nobody = BTreeSet::new();
    let mut entitled = vec![0; ledger.projects.len()];
    for waiting in snapshot.queues.iter().flat_map(|queue| &queue.waiting) {
        let index = ledger.project_index(&waiting.owner);
        let (project_usage, need) = (&ledger.projects[index], ledger.cost(&waiting.request));
        let fits = |project: &Project| over_quota(project, project_usage.used, need).is_none();
        // A request that no GPU can serve has no cost.
        if need.gpus > Gpus::ZERO && project_usage.project.is_some_and(fits) {
            entitled[index] += 1;
        }
    }
    let standing = |(project_usage, entitled): (&ProjectUsage<'_>, u64)| QuotaStatus {
        project: project_usage.project.map(|project| project.name.clone()),
        used: project_usage.used,
        over: project_usage.used_by(|job_usage| {
            !ledger.is_within_quota(job_usage.job, &job_usage.owner, job_usage.used, &nobody)
        }),
        fair_share: Gpus::from_thousandths(project_usage.fair_share),
        entitled,
    };
    let projects = ledger.projects.iter();
    projects.zip(entitled).map(standing).collect()
}
