//! Who uses how much on whose account, what that leaves, and what each account's fair share is.

use std::collections::{BTreeMap, BTreeSet};

use super::allowance::Allowance;
use super::fair::{ProjectDemand, fair_shares};
use super::quota_check::never_within_quota;
use super::quota_cost::{at_most, quota_cost};
use super::{
    Limit, PendingPreemption, Project, QuotaExceeded, QuotaRequest, QuotaRule, Resources,
    SchedulingClass,
};
use crate::model::gpu::Mode;
use crate::model::request::Request;
use crate::model::snapshot::{PendingJob, Preemption, Snapshot};
use crate::placement::Offer;
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::units::{Gpus, JobId, ProjectName};

/// What those outside all projects weigh together: as much as a quota of one GPU.
const OUTSIDE_WEIGHS: u64 = 1000;

/// The accounts of a snapshot: one for each project, and the last for all who are outside.
#[derive(Clone)]
pub(crate) struct QuotaLedger<'a> {
    projects: Vec<ProjectUsage<'a>>,
    preemption: Preemption,
    /// What each different request needs at least.
    needs: BTreeMap<&'a Request, Resources>,
}

/// One account.
#[derive(Clone)]
pub(crate) struct ProjectUsage<'a> {
    /// `None`: outside.
    pub(crate) project: Option<&'a Project>,
    /// Who holds something, in no order.
    pub(crate) jobs: Vec<JobUsage>,
    /// Thousandths of GPUs.
    pub(crate) fair_share: u64,
    used: Resources,
}

/// A job that holds something.
#[derive(Clone, Debug)]
pub(crate) struct JobUsage {
    pub(crate) job: JobId,
    pub(crate) owner: SchedulingClass,
    pub(crate) used: Resources,
    pub(crate) ran_s: u64,
    /// It is being stopped.
    pub(crate) is_stopping: bool,
    /// It starts by the plan that is being made, or is to go on: there is nothing to be stopped.
    pub(crate) is_starting: bool,
}

impl<'a> QuotaLedger<'a> {
    /// `None` where the node has no projects.
    pub(crate) fn of(snapshot: &'a Snapshot, empty: &NodeUsage<'_>) -> Option<Self> {
        if snapshot.projects.is_empty() {
            return None;
        }
        let project = snapshot.projects.iter().map(Some);
        let account = |project| ProjectUsage {
            project,
            jobs: Vec::new(),
            fair_share: 0,
            used: Resources::default(),
        };
        let mut books = Self {
            projects: project.chain([None]).map(account).collect(),
            preemption: snapshot.preemption,
            needs: BTreeMap::new(),
        };
        for held in &snapshot.held {
            books.add(JobUsage {
                job: held.job,
                owner: held.owner.clone(),
                used: Resources::of(&held.grants),
                ran_s: held.ran_s,
                is_stopping: held.leaving,
                is_starting: held.due.is_some(),
            });
        }
        let mut wanted = vec![(0, 0); books.projects.len()];
        for waiting in snapshot.queues.iter().flat_map(|queue| &queue.waiting) {
            let need = *books
                .needs
                .entry(&waiting.request)
                .or_insert_with(|| quota_cost(empty, &waiting.request));
            let wants = at_most(&waiting.request).unwrap_or(need.gpus).thousandths();
            let (bound, free) = &mut wanted[books.project_index(&waiting.owner)];
            *match waiting.owner.preemptible {
                true => free,
                false => bound,
            } += wants;
        }
        let managed = empty
            .gpus
            .iter()
            .filter(|tile| tile.gpu.mode != Mode::Unmanaged);
        let total = Gpus::whole(managed.count() as u64).thousandths();
        let claims: Vec<ProjectDemand> = books
            .projects
            .iter()
            .zip(wanted)
            .map(|(account, wanted)| books.demand(account, wanted))
            .collect();
        for (account, fair) in books.projects.iter_mut().zip(fair_shares(total, &claims)) {
            account.fair_share = fair;
        }
        Some(books)
    }

    fn demand(&self, account: &ProjectUsage<'_>, (bound, free): (u64, u64)) -> ProjectDemand {
        let used = account.used.gpus.thousandths();
        let Some(project) = account.project else {
            return ProjectDemand {
                quota: 0,
                weight: OUTSIDE_WEIGHS,
                wants: used + bound + free,
                priority: 0,
            };
        };
        let quota = project.quota.gpus.thousandths();
        let fixed = account.used_by(|member| !member.owner.preemptible).gpus;
        // Who cannot be preempted does not get beyond the quota, so wants no more.
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

    /// On which account a job of this owner runs.
    pub(crate) fn project_index(&self, owner: &SchedulingClass) -> usize {
        let is_its = |account: &ProjectUsage<'_>| {
            account.project.map(|project| &project.name) == owner.project.as_ref()
        };
        let outside = self.projects.len() - 1;
        self.projects.iter().position(is_its).unwrap_or(outside)
    }

    /// What a request of the snapshot needs at least.
    pub(crate) fn cost(&self, request: &Request) -> Resources {
        self.needs.get(request).copied().unwrap_or_default()
    }

    /// A job of the snapshot that asks.
    pub(crate) fn quota_request<'w>(&self, waiting: &'w PendingJob) -> QuotaRequest<'w> {
        QuotaRequest {
            job: waiting.job,
            owner: &waiting.owner,
            request: &waiting.request,
            cost: self.cost(&waiting.request),
        }
    }

    /// Counts a job that holds something from now on.
    pub(crate) fn add(&mut self, member: JobUsage) {
        let account = self.project_index(&member.owner);
        let account = &mut self.projects[account];
        account.used = account.used.and(member.used);
        account.jobs.push(member);
    }

    /// Counts a job that starts now.
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

    /// The words for a claim that these give way to.
    pub(crate) fn pending_preemption(
        &self,
        claimant: &QuotaRequest<'_>,
        stopped: Vec<JobId>,
        in_s: Option<u64>,
    ) -> Option<PendingPreemption> {
        let QuotaRequest {
            job,
            owner,
            cost: need,
            ..
        } = *claimant;
        let account = &self.projects[self.project_index(owner)];
        let before = self.before(account, job, owner, &BTreeSet::new());
        let project = account.project?;
        Some(PendingPreemption {
            project: project.name.clone(),
            quota: project.quota.gpus,
            used: before.and(need).gpus,
            victims: stopped,
            in_s,
        })
    }

    /// Whether the quota of its project holds it, and all that stand before it there and are not gone.
    pub(crate) fn is_within_quota(
        &self,
        job: JobId,
        owner: &SchedulingClass,
        need: Resources,
        gone: &BTreeSet<JobId>,
    ) -> bool {
        let account = &self.projects[self.project_index(owner)];
        let with = self.before(account, job, owner, gone).and(need);
        account
            .project
            .is_some_and(|project| project.quota.holds(with))
    }

    /// What those use who stand before it in its project and are not gone.
    fn before(
        &self,
        account: &ProjectUsage<'_>,
        job: JobId,
        owner: &SchedulingClass,
        gone: &BTreeSet<JobId>,
    ) -> Resources {
        let waits = || account.jobs.iter().all(|member| member.job != job);
        let stands_before: &dyn Fn(&JobUsage) -> bool = match waits() {
            true => &|member| !owner.displaces(&member.owner),
            false => &|member| member.owner.rank(member.job) < owner.rank(job),
        };
        account.used_by(|member| stands_before(member) && !gone.contains(&member.job))
    }

    /// The best GPUs for a job among those admitted, once these are gone, within what its project may take.
    ///
    /// Who asks within quota gets no more than that, so that a range of GPUs does not become the next to be stopped; only
    /// where there is room for it on smaller GPUs alone, of which it takes a larger part, it may go over.
    pub(crate) fn place(
        &self,
        board: &NodeUsage<'_>,
        claimant: &QuotaRequest<'_>,
        gone: &BTreeSet<JobId>,
        admit: impl Fn(&GpuUsage<'_>, &Offer) -> bool,
    ) -> Option<Vec<Offer>> {
        let QuotaRequest {
            job,
            owner,
            request,
            cost: need,
        } = *claimant;
        let within = self.is_within_quota(job, owner, need, gone);
        let place = |within| {
            self.allowance(job, owner, within, gone)
                .place(board, request, &admit)
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
        let account = &self.projects[self.project_index(owner)];
        let Some(project) = account.project else {
            return Allowance(Limit::default());
        };
        let stays = |member: &JobUsage| !gone.contains(&member.job);
        let mut allowance = Allowance(project.limit).less(account.used_by(stays));
        if within || self.is_bound_to_quota(owner) {
            let before = self.before(account, job, owner, gone);
            allowance = allowance.and(Allowance(project.quota.into()).less(before));
        }
        allowance
    }

    /// Who cannot be preempted never borrows, as nobody could get it back.
    pub(super) fn is_bound_to_quota(&self, owner: &SchedulingClass) -> bool {
        !owner.preemptible && self.preemption == Preemption::On
    }

    pub(crate) fn is_preemption_on(&self) -> bool {
        self.preemption == Preemption::On
    }

    /// The rule that keeps a job from what it needs, whatever there is room for; `None` when there is none.
    pub(crate) fn quota_exceeded(&self, claimant: &QuotaRequest<'_>) -> Option<QuotaExceeded> {
        let QuotaRequest {
            job,
            owner,
            cost: need,
            ..
        } = *claimant;
        let account = &self.projects[self.project_index(owner)];
        let project = account.project?;
        QuotaExceeded::of(project, QuotaRule::Limit, project.limit, account.used, need).or_else(
            || {
                let before = self.before(account, job, owner, &BTreeSet::new());
                QuotaExceeded::of(
                    project,
                    QuotaRule::Quota,
                    project.quota.into(),
                    before,
                    need,
                )
                .filter(|_| self.is_bound_to_quota(owner))
            },
        )
    }

    /// The same if nobody of its project held anything: it would never start.
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
        let members = self.jobs.iter().filter(|member| which(member));
        members.fold(Resources::default(), |sum, member| sum.and(member.used))
    }

    pub(crate) fn used(&self) -> Resources {
        self.used
    }
}

/// Where a project stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaStatus {
    /// `None`: those outside all projects.
    pub project: Option<ProjectName>,
    pub used: Resources,
    /// Held by jobs that are over quota.
    pub over: Resources,
    pub fair_share: Gpus,
}

/// Where each project stands, in the order of the snapshot, and last those outside; empty where there are no projects.
pub fn quota_status(snapshot: &Snapshot) -> Vec<QuotaStatus> {
    let empty = NodeUsage::empty(&snapshot.gpus);
    let Some(books) = QuotaLedger::of(snapshot, &empty) else {
        return Vec::new();
    };
    let nobody = BTreeSet::new();
    let standing = |account: &ProjectUsage<'_>| QuotaStatus {
        project: account.project.map(|project| project.name.clone()),
        used: account.used,
        over: account.used_by(|member| {
            !books.is_within_quota(member.job, &member.owner, member.used, &nobody)
        }),
        fair_share: Gpus::from_thousandths(account.fair_share),
    };
    books.projects.iter().map(standing).collect()
}
