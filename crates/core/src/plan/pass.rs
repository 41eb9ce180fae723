//! One scheduling pass: considers the pending jobs in order, and keeps count of what each start takes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::Arc;

use super::{Cause, Considered, Decision, Extent, Preempt, UnplacedJob, run};
use crate::model::request::Request;
use crate::model::snapshot::{AllocatedJob, PendingJob, Snapshot};
use crate::placement::backfill::{delays, delays_reserved};
use crate::placement::fit::{GrantSize, RequestShape, fit};
use crate::placement::occupancy::{Assignment, GpuUsage, NodeUsage};
use crate::placement::{Offer, can_ever_place, place};
use crate::project::{
    PendingPreemption, QueuePosition, QuotaAhead, QuotaLedger, QuotaRequest, QuotaRule, Resources,
    UserLedger, Victims, delays_same_project, find_victims, of_offers, place_within, quota_cost,
};
use crate::units::{JobId, QueueName, UserName};

/// Backfill ends after so many different requests that do not fit, which bounds the time of a plan.
const DEEPEST_BACKFILL: usize = 64;

/// A pass over the pending jobs.
pub(super) struct Pass<'a, 'n> {
    snapshot: &'a Snapshot,
    may_preempt: bool,
    /// The caller has refused jobs that could never fit.
    all_fit_ever: bool,
    /// How many jobs have started.
    starts: usize,
    /// With projects, those jobs.
    started: Vec<AllocatedJob>,
    node: NodeUsage<'n>,
    /// The GPUs without any holder.
    empty: &'a NodeUsage<'n>,
    /// `None` without projects.
    quota: Option<QuotaLedger<'a>>,
    /// `None` where no user has a limit.
    users: Option<UserLedger<'a>>,
    backfill: bool,
    /// The jobs that did not fit, one for each different request; the first of them is the head.
    ahead: Vec<(&'a PendingJob, UnplacedJob)>,
    /// The first job of each kind that its project's quota or limit keeps waiting.
    blocked_by_quota: BTreeMap<ProjectKind, Arc<QuotaAhead>>,
    /// The first job of each user that the user's limit keeps waiting.
    blocked_by_user_limit: BTreeMap<&'a UserName, Arc<QuotaAhead>>,
    /// Why the next job of this kind with this request waits. A pass releases no GPU, so the cause stays true.
    known_causes: BTreeMap<Alike<'a>, Cause>,
    preempts: Vec<Preempt>,
    /// The head, if it starts once its victims have ended, and those.
    preemptor: Option<(JobId, Vec<JobId>)>,
    again_in_s: Option<u64>,
    /// GPUs looked at.
    looks: Cell<usize>,
}

/// Jobs that the same rules of projects bind: the index of their project, and whether they are preemptible.
type ProjectKind = (usize, bool);

/// Jobs that the same rules bind; the user only where the user has a limit.
type Kind<'a> = (ProjectKind, Option<&'a UserName>);

/// Jobs that the planner cannot tell apart but by their places: kind and request.
type Alike<'a> = (Kind<'a>, &'a Request);

/// The first of the jobs ahead.
const HEAD: usize = 0;

impl<'a, 'n> Pass<'a, 'n> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        node: NodeUsage<'n>,
        empty: &'a NodeUsage<'n>,
        may_preempt: bool,
        extent: Extent,
    ) -> Self {
        Self {
            snapshot,
            may_preempt,
            all_fit_ever: matches!(extent, Extent::Starts { .. }),
            starts: 0,
            started: Vec::new(),
            node,
            quota: QuotaLedger::of(snapshot, empty),
            users: UserLedger::of(snapshot),
            empty,
            backfill: snapshot.backfill,
            ahead: Vec::new(),
            blocked_by_quota: BTreeMap::new(),
            blocked_by_user_limit: BTreeMap::new(),
            known_causes: BTreeMap::new(),
            preempts: Vec::new(),
            preemptor: None,
            again_in_s: None,
            looks: Cell::new(0),
        }
    }

    pub(super) fn quota(&self) -> Option<&QuotaLedger<'a>> {
        self.quota.as_ref()
    }

    /// Whether every job so far had room.
    pub(super) fn is_unobstructed(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Whether a job that is considered now could still start.
    pub(super) fn goes_on(&self) -> bool {
        self.ahead.is_empty() || (self.backfill && self.ahead.len() < DEEPEST_BACKFILL)
    }

    /// Kinds of jobs that this pass starts no more.
    pub(super) fn known_kinds(&self) -> usize {
        self.known_causes.len()
    }

    /// Completes the decision. The occupancy is that of the decision carried out, without its preemptions.
    pub(super) fn finish(self, decision: Decision) -> (Decision, Considered<'n>) {
        let head = self.ahead.first().map(|(waiting, _)| waiting.job);
        let decision = Decision {
            head: head.filter(|_| self.quota.is_some()),
            ahead: self.ahead.into_iter().map(|(_, ahead)| ahead).collect(),
            preempts: self.preempts,
            replan_in_s: self.again_in_s,
            ..decision
        };
        let considered = Considered {
            node: self.node,
            looks: self.looks.get(),
        };
        (decision, considered)
    }

    /// Starts the job, or finds the cause that keeps it waiting.
    pub(super) fn consider(
        &mut self,
        waiting: &'a PendingJob,
        at: QueuePosition,
        queue: &QueueName,
    ) -> Result<Assignment, Cause> {
        self.looks.update(|looks| looks + 1);
        let PendingJob { request, owner, .. } = waiting;
        let project = self
            .quota
            .as_ref()
            .map_or(0, |ledger| ledger.project_index(owner));
        let users = self.users.as_ref();
        let user = users.and_then(|users| users.limited_user(owner));
        let kind = ((project, owner.preemptible), user);
        let alike = (kind, request);
        if let Some(cause) = self.known_causes.get(&alike) {
            return Err(cause.clone());
        }
        if !self.all_fit_ever && !can_ever_place(self.empty, request) {
            self.known_causes.insert(alike, Cause::NeverFits);
            return Err(Cause::NeverFits);
        }
        if let Some(cause) = self.user_limit_block(kind, waiting) {
            return Err(cause);
        }
        if let Some(cause) = self.quota_block(kind, waiting, at) {
            return Err(cause);
        }
        if !self.goes_on() {
            self.known_causes.insert(alike, Cause::Behind(HEAD));
            return Err(Cause::Behind(HEAD));
        }
        let offers = self.place_without_delaying(&self.ahead, waiting);
        let hinders = offers.as_ref();
        let hinders = hinders.is_some_and(|offers| self.hinders_preemptor(waiting, queue, offers));
        if let Some(offers) = offers.filter(|_| !hinders) {
            return Ok(self.start(waiting, queue, &offers));
        }
        let preemption = self.preempt_for(waiting);
        let delayed = if hinders {
            Some(HEAD)
        } else {
            self.delayed_job(waiting)
        };
        let this = self.push_ahead(waiting, at);
        let is_preempting = preemption.is_some();
        let cause = match (preemption, delayed) {
            (Some(preemption), _) => Cause::Preempting(preemption),
            (None, Some(ahead)) => Cause::WouldDelay(ahead),
            (None, None) => Cause::NoRoom(this),
        };
        let next = if self.backfill && !is_preempting {
            cause.clone()
        } else {
            Cause::Behind(this)
        };
        self.known_causes.insert(alike, next);
        Err(cause)
    }

    /// Gives the offers to the job.
    pub(super) fn start(
        &mut self,
        waiting: &PendingJob,
        queue: &QueueName,
        offers: &[Offer],
    ) -> Assignment {
        let PendingJob { job, owner, .. } = waiting;
        let assignment = self.node.assign(*job, queue, offers);
        self.starts += 1;
        if let Some(users) = &mut self.users {
            users.add(owner, Resources::of(&assignment.grants).gpus);
        }
        if let Some(ledger) = &mut self.quota {
            ledger.add_starting(*job, owner, Resources::of(&assignment.grants));
            self.started.push(AllocatedJob {
                owner: owner.clone(),
                ..AllocatedJob::new(*job, queue.clone(), assignment.grants.clone())
            });
        }
        assignment
    }

    pub(super) fn node(&self) -> &NodeUsage<'n> {
        &self.node
    }

    /// Whether only room decides about the job, and is not known to be missing.
    pub(super) fn is_open(&self, waiting: &PendingJob) -> bool {
        let users = self.users.as_ref();
        let is_limited = users.is_some_and(|users| users.limited_user(&waiting.owner).is_some());
        let kind = ((0, waiting.owner.preemptible), None);
        let alike = (kind, &waiting.request);
        !is_limited && self.quota.is_none() && !self.known_causes.contains_key(&alike)
    }

    /// Where the job could start without delaying a job ahead.
    pub(super) fn offers(&self, waiting: &PendingJob) -> Option<Vec<Offer>> {
        self.place_without_delaying(&self.ahead, waiting)
    }

    /// Whether the shared GPU has room for the job's part.
    pub(super) fn fits_alone(&self, usage: &GpuUsage<'_>, waiting: &PendingJob) -> bool {
        self.looks.update(|looks| looks + 1);
        let is_part = matches!(
            RequestShape::of(waiting.request.amount),
            RequestShape::Parts { count: 1, .. }
        );
        let is_promised = usage.promised().next().is_some();
        is_part && usage.mig.is_none() && !is_promised && fit(usage, &waiting.request).is_ok()
    }

    /// Whether a part of this size on the GPU delays no job ahead. The check of each GPU alone is enough for the many sets
    /// that a search looks at.
    pub(super) fn spares(&self, position: usize, usage: &GpuUsage<'_>, size: GrantSize) -> bool {
        self.looks.update(|looks| looks + self.ahead.len());
        let offer = Offer {
            position,
            size,
            mig: None,
        };
        let mut ahead = self.ahead.iter();
        !ahead.any(|(ahead, _)| delays_reserved(usage, &offer, &ahead.request))
    }

    /// Records a job that later jobs wait behind.
    fn push_ahead(&mut self, waiting: &'a PendingJob, at: QueuePosition) -> usize {
        let unplaced = UnplacedJob {
            at,
            starts_before: self.starts,
        };
        self.ahead.push((waiting, unplaced));
        self.ahead.len() - 1
    }

    /// The limit of its user that keeps a job from starting, whether or not there is room.
    fn user_limit_block(&mut self, kind: Kind<'a>, waiting: &'a PendingJob) -> Option<Cause> {
        let user = kind.1?;
        let PendingJob {
            job,
            request,
            owner,
            ..
        } = waiting;
        let users = self.users.as_ref()?;
        let need = quota_cost(self.empty, request).gpus;
        if let Some(never) = users.never(owner, need) {
            let cause = Cause::Quota(Arc::new(never));
            let alike = (kind, request);
            self.known_causes.insert(alike, cause.clone());
            return Some(cause);
        }
        if let Some(ahead) = self.blocked_by_user_limit.get(user) {
            return Some(Cause::BehindQuota(Arc::clone(ahead)));
        }
        let exceeded = Arc::new(users.exceeded(owner, need)?);
        let ahead = QuotaAhead {
            job: *job,
            exceeded: Arc::clone(&exceeded),
        };
        self.blocked_by_user_limit.insert(user, Arc::new(ahead));
        Some(Cause::Quota(exceeded))
    }

    /// The quota or limit of its project that keeps a job from starting, whether or not there is room.
    fn quota_block(
        &mut self,
        kind: Kind<'a>,
        waiting: &'a PendingJob,
        at: QueuePosition,
    ) -> Option<Cause> {
        let PendingJob {
            job,
            request,
            owner,
            ..
        } = waiting;
        let ledger = self.quota.as_ref()?;
        let need = ledger.cost(request);
        if let Some(never) = ledger.never_within_quota(owner, need) {
            let cause = Cause::Quota(Arc::new(never));
            let alike = (kind, request);
            self.known_causes.insert(alike, cause.clone());
            return Some(cause);
        }
        let project_kind = kind.0;
        if let Some(ahead) = self.blocked_by_quota.get(&project_kind) {
            return Some(Cause::BehindQuota(Arc::clone(ahead)));
        }
        let exceeded = Arc::new(ledger.quota_exceeded(&ledger.quota_request(waiting))?);
        let ahead = Arc::new(QuotaAhead {
            job: *job,
            exceeded: Arc::clone(&exceeded),
        });
        // It may preempt jobs of its own project.
        let is_limit = matches!(exceeded.rule, QuotaRule::Limit(_));
        if is_limit && let Some(preemption) = self.preempt_for(waiting) {
            self.push_ahead(waiting, at);
            return Some(Cause::Preempting(preemption));
        }
        // Preemptible jobs may go beyond the quota, and a job that waits for the quota preempts them. So a used-up
        // quota does not block preemptible jobs, and a used-up limit blocks both kinds.
        if is_limit {
            let (project, preemptible) = project_kind;
            self.blocked_by_quota
                .entry((project, !preemptible))
                .or_insert_with(|| Arc::clone(&ahead));
        }
        self.blocked_by_quota.insert(project_kind, ahead);
        Some(Cause::Quota(exceeded))
    }

    /// Finds and records the victims of the first job that does not fit.
    fn preempt_for(&mut self, waiting: &PendingJob) -> Option<Arc<PendingPreemption>> {
        let ledger = self.quota.as_ref()?;
        if !self.may_preempt || !self.ahead.is_empty() {
            return None;
        }
        let asking = self.quota_request(ledger, waiting);
        let found = find_victims(&self.node, ledger, &asking);
        if found == Victims::Nothing
            || !self.would_start_after_preemption(waiting.job, found.jobs(), &self.node, None)
        {
            return None;
        }
        self.preemptor = Some((waiting.job, found.jobs().to_vec()));
        let (stopped, in_s) = match found {
            Victims::Nothing => return None,
            Victims::AlreadyStopping(jobs) => (jobs, None),
            Victims::Preempt(jobs) => {
                let preempt = |job: &JobId| Preempt {
                    job: *job,
                    preemptor: waiting.job,
                };
                self.preempts.extend(jobs.iter().map(preempt));
                (jobs, None)
            }
            Victims::PreemptLater(jobs, in_s) => {
                self.again_in_s = Some(in_s);
                (jobs, Some(in_s))
            }
        };
        Some(Arc::new(ledger.pending_preemption(&asking, stopped, in_s)?))
    }

    /// Whether the head would not start after its victims if this job started now.
    ///
    /// The room that backfill leaves to the head may go to another job: one of the victims' project that comes within
    /// quota with them, and then comes first.
    fn hinders_preemptor(&self, waiting: &PendingJob, queue: &QueueName, offers: &[Offer]) -> bool {
        let Some((preemptor, victims)) = &self.preemptor else {
            return false;
        };
        let mut node = self.node.clone();
        let PendingJob { job, owner, .. } = waiting;
        let grants = node.assign(*job, queue, offers).grants;
        let starting = AllocatedJob {
            owner: owner.clone(),
            ..AllocatedJob::new(*job, queue.clone(), grants)
        };
        !self.would_start_after_preemption(*preemptor, victims, &node, Some(&starting))
    }

    /// Whether a job starts once these jobs and those that are stopping have ended. It does not if their room goes to a
    /// job that is considered before it. `node` has the jobs that have started, and the one that would.
    fn would_start_after_preemption(
        &self,
        job: JobId,
        gone: &[JobId],
        node: &NodeUsage<'_>,
        starting: Option<&AllocatedJob>,
    ) -> bool {
        let mut after = self.snapshot.clone();
        after
            .held
            .retain(|held| !held.leaving && !gone.contains(&held.job));
        let started = || self.started.iter().chain(starting);
        for started in started() {
            for queue in &mut after.queues {
                queue.waiting.retain(|waiting| waiting.job != started.job);
            }
        }
        let stay = started().filter(|held| !gone.contains(&held.job));
        after.held.extend(stay.cloned());
        after.head = Some(job);
        let starts = |(decision, Considered { looks, .. }): (Decision, Considered<'_>)| {
            self.looks.update(|so_far| so_far + looks);
            decision.starts.iter().any(|start| start.job == job)
        };
        let extent = Extent::Until(job);
        if !self.all_fit_ever {
            // An instance that lies where a victim does, and is not its own, still takes its place.
            return starts(run(
                &after,
                NodeUsage::of(&after),
                self.empty,
                false,
                extent,
            ));
        }
        let leaving = self.snapshot.held.iter().filter(|held| held.leaving);
        let gone = leaving.map(|held| held.job).chain(gone.iter().copied());
        let node = node.without(&gone.collect());
        starts(run(&after, node, self.empty, false, extent))
    }

    /// The job ahead that this job could delay; `None` for a job that does not fit anyway.
    fn delayed_job(&self, waiting: &PendingJob) -> Option<usize> {
        let fits = |first: usize| {
            self.place_without_delaying(&self.ahead[..first], waiting)
                .is_some()
        };
        if !fits(0) {
            return None;
        }
        let is_on_one_gpu = matches!(
            RequestShape::of(waiting.request.amount),
            RequestShape::Whole { max: 1, .. } | RequestShape::Parts { count: 1, .. }
        );
        let stopper = match (&self.quota, &self.users) {
            // Each job ahead only narrows the choice, so the first conflict is found by bisection.
            (None, None) if is_on_one_gpu => {
                let counts: Vec<usize> = (1..=self.ahead.len()).collect();
                counts
                    .get(counts.partition_point(|first| fits(*first)))
                    .copied()
            }
            _ => (1..=self.ahead.len()).find(|first| !fits(*first)),
        };
        Some(stopper? - 1)
    }

    fn quota_request<'w>(
        &self,
        ledger: &QuotaLedger<'_>,
        waiting: &'w PendingJob,
    ) -> QuotaRequest<'w> {
        let users = self.users.as_ref();
        QuotaRequest {
            user_remaining: users.and_then(|users| users.remaining(&waiting.owner)),
            ..ledger.quota_request(waiting)
        }
    }

    /// Whether the start of a job with these offers would delay a job ahead of the same user: both exceed the limit.
    fn delays_same_user(&self, waiting: &PendingJob, offers: &[Offer], ahead: &PendingJob) -> bool {
        let Some(users) = &self.users else {
            return false;
        };
        let user = users.limited_user(&waiting.owner);
        if user.is_none() || users.limited_user(&ahead.owner) != user {
            return false;
        }
        let mut with = users.clone();
        with.add(&waiting.owner, of_offers(offers).gpus);
        let need = quota_cost(self.empty, &ahead.request).gpus;
        with.exceeded(&ahead.owner, need).is_some()
    }

    /// Places the job where it delays none of these, within what its project and its user may take beside them.
    fn place_without_delaying(
        &self,
        ahead: &[(&PendingJob, UnplacedJob)],
        waiting: &PendingJob,
    ) -> Option<Vec<Offer>> {
        let looks = self.node.gpus.len() * (1 + ahead.len());
        self.looks.update(|so_far| so_far + looks);
        let ahead = || ahead.iter().map(|(ahead, _)| *ahead);
        // Beside a parked job more ends count than those of holders, so no job that stays passes another there.
        let stays = |request: &Request| !request.gives_way;
        let may_wait = stays(&waiting.request) && ahead().any(|ahead| stays(&ahead.request));
        let spares = |usage: &GpuUsage<'_>, offer: &Offer| {
            let may_delay = may_wait && usage.promised().next().is_some();
            let delays = |ahead| delays(&self.node, slice::from_ref(offer), ahead);
            !may_delay && !ahead().any(delays)
        };
        let offers = match (&self.quota, &self.users) {
            (None, None) => place(&self.node, &waiting.request, spares)?,
            (None, Some(users)) => {
                let most = users.remaining(&waiting.owner);
                place_within(&self.node, &waiting.request, most, spares)?
            }
            (Some(ledger), _) => {
                let (asking, nobody) = (self.quota_request(ledger, waiting), BTreeSet::new());
                let offers = ledger.place(&self.node, &asking, &nobody, spares)?;
                let hinders = |ahead| delays_same_project(ledger, &asking, &offers, ahead);
                if ahead().any(hinders) {
                    return None;
                }
                offers
            }
        };
        // Several GPUs that are harmless alone need not be so together.
        let is_joint = offers.len() > 1;
        let hinders = |ahead: &PendingJob| {
            self.delays_same_user(waiting, &offers, ahead)
                || is_joint && delays(&self.node, &offers, ahead)
        };
        (!ahead().any(hinders)).then_some(offers)
    }
}
