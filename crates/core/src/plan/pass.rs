//! One scheduling pass: considers the pending jobs in order, and keeps count of what each start takes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Cause, Decision, Preempt, UnplacedJob, decide_until};
use crate::model::request::Request;
use crate::model::snapshot::{AllocatedJob, PendingJob, Snapshot};
use crate::placement::backfill::delays_reserved;
use crate::placement::occupancy::{Assignment, GpuUsage, NodeUsage};
use crate::placement::{Offer, can_ever_place, place};
use crate::project::{
    PendingPreemption, QueuePosition, QuotaAhead, QuotaLedger, QuotaRule, Resources, Victims,
    delays_same_project, find_victims,
};
use crate::units::{JobId, QueueName};

/// Backfill ends after so many different requests that do not fit, which bounds the time of a plan.
const DEEPEST_BACKFILL: usize = 64;

/// A pass over the pending jobs.
pub(super) struct Pass<'a> {
    snapshot: &'a Snapshot,
    may_preempt: bool,
    /// How many jobs have started.
    starts: usize,
    /// With projects, those jobs.
    started: Vec<AllocatedJob>,
    node: NodeUsage<'a>,
    /// The GPUs without any holder.
    empty: NodeUsage<'a>,
    /// `None` without projects.
    quota: Option<QuotaLedger<'a>>,
    backfill: bool,
    /// The jobs that did not fit, one for each different request; the first of them is the head.
    ahead: Vec<(&'a PendingJob, UnplacedJob)>,
    /// The first job of each kind that its project's quota or limit keeps waiting.
    blocked_by_quota: BTreeMap<Kind, Arc<QuotaAhead>>,
    /// Why the next job of this kind with this request waits. A pass releases no GPU, so the cause stays true.
    known_causes: BTreeMap<(Kind, &'a Request), Cause>,
    preempts: Vec<Preempt>,
    again_in_s: Option<u64>,
    /// GPUs looked at.
    looks: Cell<usize>,
}

/// Jobs that the same rules bind: the index of their project, and whether they are preemptible.
type Kind = (usize, bool);

/// The first of the jobs ahead.
const HEAD: usize = 0;

impl<'a> Pass<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, may_preempt: bool) -> Self {
        let empty = NodeUsage::empty(&snapshot.gpus);
        Self {
            snapshot,
            may_preempt,
            starts: 0,
            started: Vec::new(),
            node: NodeUsage::of(snapshot),
            quota: QuotaLedger::of(snapshot, &empty),
            empty,
            backfill: snapshot.backfill,
            ahead: Vec::new(),
            blocked_by_quota: BTreeMap::new(),
            known_causes: BTreeMap::new(),
            preempts: Vec::new(),
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

    /// Completes the decision, and returns how many GPUs the pass examined.
    pub(super) fn finish(self, decision: Decision) -> (Decision, usize) {
        let head = self.ahead.first().map(|(waiting, _)| waiting.job);
        let decision = Decision {
            head: head.filter(|_| self.quota.is_some()),
            ahead: self.ahead.into_iter().map(|(_, ahead)| ahead).collect(),
            preempts: self.preempts,
            replan_in_s: self.again_in_s,
            ..decision
        };
        (decision, self.looks.get())
    }

    /// Starts the job, or finds the cause that keeps it waiting.
    pub(super) fn consider(
        &mut self,
        waiting: &'a PendingJob,
        at: QueuePosition,
        queue: &QueueName,
    ) -> Result<Assignment, Cause> {
        self.looks.update(|looks| looks + 1);
        let PendingJob {
            job,
            request,
            owner,
            ..
        } = waiting;
        let project = self
            .quota
            .as_ref()
            .map_or(0, |ledger| ledger.project_index(owner));
        let kind = (project, owner.preemptible);
        if let Some(cause) = self.known_causes.get(&(kind, request)) {
            return Err(cause.clone());
        }
        if !can_ever_place(&self.empty, request) {
            self.known_causes.insert((kind, request), Cause::NeverFits);
            return Err(Cause::NeverFits);
        }
        if let Some(cause) = self.quota_block(kind, waiting, at) {
            return Err(cause);
        }
        let goes_on =
            self.ahead.is_empty() || (self.backfill && self.ahead.len() < DEEPEST_BACKFILL);
        if !goes_on {
            self.known_causes
                .insert((kind, request), Cause::Behind(HEAD));
            return Err(Cause::Behind(HEAD));
        }
        if let Some(offers) = self.place_without_delaying(&self.ahead, waiting) {
            let assignment = self.node.assign(*job, queue, &offers);
            self.starts += 1;
            if let Some(ledger) = &mut self.quota {
                ledger.add_starting(*job, owner, Resources::of(&assignment.grants));
                self.started.push(AllocatedJob {
                    owner: owner.clone(),
                    ..AllocatedJob::new(*job, queue.clone(), assignment.grants.clone())
                });
            }
            return Ok(assignment);
        }
        let preemption = self.preempt_for(waiting);
        let delayed = self.delayed_job(waiting);
        let this = self.push_ahead(waiting, at);
        let is_preempting = preemption.is_some();
        let cause = match (preemption, delayed) {
            (Some(preemption), _) => Cause::Preempting(preemption),
            (None, Some(ahead)) => Cause::WouldDelay(ahead),
            (None, None) => Cause::NoRoom(this),
        };
        let next = match self.backfill && !is_preempting {
            true => cause.clone(),
            false => Cause::Behind(this),
        };
        self.known_causes.insert((kind, request), next);
        Err(cause)
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

    /// The quota or limit of its project that keeps a job from starting, whether or not there is room.
    fn quota_block(
        &mut self,
        kind: Kind,
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
            self.known_causes.insert((kind, request), cause.clone());
            return Some(cause);
        }
        if let Some(ahead) = self.blocked_by_quota.get(&kind) {
            return Some(Cause::BehindQuota(Arc::clone(ahead)));
        }
        let exceeded = Arc::new(ledger.quota_exceeded(&ledger.quota_request(waiting))?);
        let ahead = Arc::new(QuotaAhead {
            job: *job,
            exceeded: Arc::clone(&exceeded),
        });
        // It may preempt jobs of its own project.
        if exceeded.rule == QuotaRule::Limit
            && let Some(preemption) = self.preempt_for(waiting)
        {
            self.push_ahead(waiting, at);
            return Some(Cause::Preempting(preemption));
        }
        // Preemptible jobs may go beyond the quota, and a job that waits for the quota preempts them. So a used-up
        // quota does not block preemptible jobs, and a used-up limit blocks both kinds.
        if exceeded.rule == QuotaRule::Limit {
            self.blocked_by_quota
                .entry((kind.0, !kind.1))
                .or_insert_with(|| Arc::clone(&ahead));
        }
        self.blocked_by_quota.insert(kind, ahead);
        Some(Cause::Quota(exceeded))
    }

    /// Finds and records the victims of the first job that does not fit.
    fn preempt_for(&mut self, waiting: &PendingJob) -> Option<Arc<PendingPreemption>> {
        let ledger = self.quota.as_ref()?;
        if !self.may_preempt || !self.ahead.is_empty() {
            return None;
        }
        let asking = ledger.quota_request(waiting);
        let found = find_victims(&self.node, ledger, &asking);
        if found == Victims::Nothing
            || !self.would_start_after_preemption(waiting.job, found.jobs())
        {
            return None;
        }
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

    /// Whether a job starts once these jobs and those that are stopping have ended. It does not if their room goes to a
    /// job that is considered before it.
    fn would_start_after_preemption(&self, job: JobId, gone: &[JobId]) -> bool {
        let mut after = self.snapshot.clone();
        after
            .held
            .retain(|held| !held.leaving && !gone.contains(&held.job));
        for started in &self.started {
            for queue in &mut after.queues {
                queue.waiting.retain(|waiting| waiting.job != started.job);
            }
        }
        let stay = self.started.iter();
        after
            .held
            .extend(stay.filter(|held| !gone.contains(&held.job)).cloned());
        after.head = Some(job);
        let (decision, looks) = decide_until(&after, false, Some(job));
        self.looks.update(|so_far| so_far + looks);
        decision.starts.iter().any(|start| start.job == job)
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
        let stopper = match &self.quota {
            // Each job ahead only narrows the choice, so the first conflict is found by bisection.
            None => {
                let counts: Vec<usize> = (1..=self.ahead.len()).collect();
                counts
                    .get(counts.partition_point(|first| fits(*first)))
                    .copied()
            }
            Some(_) => (1..=self.ahead.len()).find(|first| !fits(*first)),
        };
        Some(stopper? - 1)
    }

    /// Places the job where it delays none of these, within what its project may take beside them.
    fn place_without_delaying(
        &self,
        ahead: &[(&PendingJob, UnplacedJob)],
        waiting: &PendingJob,
    ) -> Option<Vec<Offer>> {
        let looks = self.node.gpus.len() * (1 + ahead.len());
        self.looks.update(|so_far| so_far + looks);
        let ahead = || ahead.iter().map(|(ahead, _)| *ahead);
        let spares = |usage: &GpuUsage<'_>, offer: &Offer| {
            !ahead().any(|ahead| delays_reserved(usage, offer, &ahead.request))
        };
        match &self.quota {
            None => place(&self.node, &waiting.request, spares),
            Some(ledger) => {
                let (asking, nobody) = (ledger.quota_request(waiting), BTreeSet::new());
                let offers = ledger.place(&self.node, &asking, &nobody, spares)?;
                let hinders = |ahead| delays_same_project(ledger, &asking, &offers, ahead);
                (!ahead().any(hinders)).then_some(offers)
            }
        }
    }
}
