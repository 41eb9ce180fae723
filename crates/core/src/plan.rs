//! The plan: who starts now and on what, who waits and why.
//!
//! Jobs are asked in the order in which queues are served. The first that does not fit stops the pass, so that nothing
//! small overtakes it for ever; with `backfill` the pass goes on for those that cannot delay it (see `backfill`). A job
//! that could never fit, say because a GPU was lost since it was accepted, is set aside and stops nobody. A job that its
//! project's limit or quota holds back stops only its own project's. Whom others give way to is found in `project`.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::explain::capacity::fits_empty;
use crate::explain::reason::{JobAhead, Reason, Shortage};
use crate::mig::Placement;
use crate::model::queue::Order;
use crate::model::request::Request;
use crate::model::slice::Grant;
use crate::model::snapshot::{AllocatedJob, PendingJob, Snapshot};
use crate::placement::backfill::delays_reserved;
use crate::placement::occupancy::{Assignment, GpuUsage, NodeUsage};
use crate::placement::{Offer, place};
use crate::project::{PendingPreemption, QuotaAhead, QuotaLedger, QuotaRule, Resources, SchedulingOrder, Victims, delays_same_project, find_victims};
use crate::units::{GpuUuid, JobId, QueueName};

/// What to do now. Every waiting job of the snapshot is in exactly one of the two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they were decided.
    pub starts: Vec<Start>,
    /// In the order in which they were asked.
    pub waits: Vec<Wait>,
    /// Who is to be stopped, so that somebody within quota can start. They hold what they have until they are gone.
    pub preempts: Vec<Preempt>,
    /// After so many seconds the plan may be another one, though nothing else has changed.
    pub replan_in_s: Option<u64>,
    /// For the next snapshot.
    pub cursor: usize,
    /// With projects, the first job that waits for room. For the next snapshot; where it is another one than before, the
    /// next plan may start more, though nothing else has changed.
    pub head: Option<JobId>,
}

/// A job that is stopped for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preempt {
    pub job: JobId,
    /// Who is to start in its place.
    pub preemptor: JobId,
}

/// A job that starts, and what it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub job: JobId,
    pub queue: QueueName,
    pub grants: Vec<Grant>,
    /// Idle MIG instances in the way of its own: to be removed before.
    pub reclaim: Vec<(GpuUuid, Placement)>,
}

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub job: JobId,
    pub queue: QueueName,
    /// Its place in its queue once the plan is carried out, from 1.
    pub place: usize,
    pub reason: Reason,
}

/// Decides. Equal snapshots give equal plans.
pub fn plan(snapshot: &Snapshot) -> Plan {
    plan_on_board(snapshot).0
}

/// The plan, and the board with the plan carried out.
pub(crate) fn plan_on_board(snapshot: &Snapshot) -> (Plan, NodeUsage<'_>) {
    let (plan, board, _) = decide(snapshot, true, None);
    (plan, board)
}

/// Whether the plan starts this job, and how much work it was to find out, in GPUs looked at.
pub(crate) fn starts(snapshot: &Snapshot, job: JobId) -> (bool, usize) {
    let (plan, _, work) = decide(snapshot, true, Some(job));
    let starts = plan.starts.last().is_some_and(|start| start.job == job);
    (starts, work)
}

/// `reclaims`: whether others may be made to give way; `until`: nobody is asked after this one. Answers how many GPUs were looked
/// at, too.
fn decide(
    snapshot: &Snapshot,
    reclaims: bool,
    until: Option<JobId>,
) -> (Plan, NodeUsage<'_>, usize) {
    let empty = NodeUsage::empty(&snapshot.gpus);
    let mut pass = Pass {
        snapshot,
        may_preempt: reclaims,
        started: Vec::new(),
        board: NodeUsage::of(snapshot),
        quota: QuotaLedger::of(snapshot, &empty),
        empty,
        backfill: snapshot.backfill,
        ahead: Vec::new(),
        blocked_by_quota: BTreeMap::new(),
        known_reasons: BTreeMap::new(),
        preempts: Vec::new(),
        again_in_s: None,
        work: Cell::new(0),
    };
    let mut plan = Plan {
        cursor: snapshot.cursor,
        ..Plan::default()
    };
    let mut places = vec![0; snapshot.queues.len()];
    let mut turns = SchedulingOrder::new(snapshot, queue_order(snapshot), pass.quota.as_ref());
    while let Some((queue, place)) = turns.next(snapshot, pass.quota.as_ref()) {
        let waiting = &snapshot.queues[queue].waiting[place];
        let job = waiting.job;
        let name = snapshot.queues[queue].spec.name.clone();
        let unobstructed = pass.ahead.is_empty();
        pass.work.update(|work| work + 1);
        match pass.consider(waiting, &name) {
            Ok(Assignment { grants, reclaim }) => {
                if unobstructed && snapshot.order == Order::Fairness {
                    plan.cursor = (queue + 1) % snapshot.queues.len();
                }
                plan.starts.push(Start {
                    job,
                    queue: name,
                    grants,
                    reclaim,
                });
            }
            Err(reason) => {
                places[queue] += 1;
                plan.waits.push(Wait {
                    job,
                    queue: name,
                    place: places[queue],
                    reason,
                });
            }
        }
        if snapshot.backfill && unobstructed && !pass.ahead.is_empty() {
            // What the head leaves over goes by priority, so that the next plan would ask in the same order.
            turns.by_priority(snapshot);
        }
        if until == Some(job) {
            break;
        }
    }
    let first = pass.ahead.first().map(|(waiting, _)| waiting.job);
    plan.head = first.filter(|_| pass.quota.is_some());
    (plan.preempts, plan.replan_in_s) = (pass.preempts, pass.again_in_s);
    (plan, pass.board, pass.work.get())
}

/// The waiting jobs as (queue, place in it), in the order in which they are served.
///
/// Strict: queue by queue, for after each start it is the first queue's turn again. Fair: the first job of each queue
/// from the cursor on, then the second of each, and so on; an empty queue loses its turn.
pub(crate) fn queue_order(snapshot: &Snapshot) -> Vec<(usize, usize)> {
    let queues = snapshot.queues.iter().enumerate();
    let mut turns: Vec<_> = queues
        .flat_map(|(queue, on)| (0..on.waiting.len()).map(move |place| (queue, place)))
        .collect();
    if snapshot.order == Order::Fairness {
        let count = snapshot.queues.len();
        turns.sort_by_key(|(queue, place)| {
            (*place, (queue + count - snapshot.cursor % count) % count)
        });
    }
    turns
}

/// So many different requests may wait before backfill looks no further; it bounds the time a plan takes.
const DEEPEST_BACKFILL: usize = 64;

/// A pass over the waiting jobs.
struct Pass<'a> {
    snapshot: &'a Snapshot,
    may_preempt: bool,
    /// With projects, who has started.
    started: Vec<AllocatedJob>,
    board: NodeUsage<'a>,
    empty: NodeUsage<'a>,
    /// `None` without projects.
    quota: Option<QuotaLedger<'a>>,
    backfill: bool,
    /// The jobs that did not fit, one for each different request; the first of them is the head.
    ahead: Vec<(&'a PendingJob, Arc<JobAhead>)>,
    /// The first job of each project that the project's own rules keep from starting.
    blocked_by_quota: BTreeMap<Kind, Arc<QuotaAhead>>,
    /// Why the next job of this kind with this request waits. Nothing is released during a pass, so it stays true.
    known_reasons: BTreeMap<(Kind, &'a Request), Reason>,
    preempts: Vec<Preempt>,
    again_in_s: Option<u64>,
    /// GPUs looked at.
    work: Cell<usize>,
}

/// Jobs whom the same rules bind: the number of their account, and whether they may be preempted.
type Kind = (usize, bool);

impl<'a> Pass<'a> {
    /// Starts the job, or says why not.
    fn consider(
        &mut self,
        waiting: &'a PendingJob,
        queue: &QueueName,
    ) -> Result<Assignment, Reason> {
        let PendingJob {
            job,
            request,
            owner,
            ..
        } = waiting;
        let account = self
            .quota
            .as_ref()
            .map_or(0, |books| books.project_index(owner));
        let kind = (account, owner.preemptible);
        if let Some(reason) = self.known_reasons.get(&(kind, request)) {
            return Err(reason.clone());
        }
        if let Err(never) = fits_empty(&self.empty, request) {
            let reason = Reason::Never(Arc::new(never));
            self.known_reasons.insert((kind, request), reason.clone());
            return Err(reason);
        }
        if let Some(reason) = self.quota_block(kind, waiting, queue) {
            return Err(reason);
        }
        if let Some((_, head)) = self.ahead.first()
            && !(self.backfill && self.ahead.len() < DEEPEST_BACKFILL)
        {
            let reason = Reason::Behind(Arc::clone(head));
            self.known_reasons.insert((kind, request), reason.clone());
            return Err(reason);
        }
        if let Some(offers) = self.place_without_delaying(&self.ahead, waiting) {
            let given = self.board.assign(*job, queue, &offers);
            if let Some(books) = &mut self.quota {
                books.add_starting(*job, owner, Resources::of(&given.grants));
                self.started.push(AllocatedJob {
                    owner: owner.clone(),
                    ..AllocatedJob::new(*job, queue.clone(), given.grants.clone())
                });
            }
            return Ok(given);
        }
        let short = Arc::new(Shortage::of(&self.board, request));
        let reclaims = self.preempt_for(waiting);
        let reason = match (&reclaims, self.delayed_job(waiting)) {
            (Some(reclaims), _) => Reason::Preempting(Arc::clone(reclaims)),
            (None, Some(ahead)) => Reason::WouldDelay(ahead),
            (None, None) => Reason::Short(Arc::clone(&short)),
        };
        let this = self.head(waiting, queue, short);
        let next = if self.backfill && reclaims.is_none() {
            reason.clone()
        } else {
            Reason::Behind(this)
        };
        self.known_reasons.insert((kind, request), next);
        Err(reason)
    }

    /// Notes that a job is waited behind.
    fn head(
        &mut self,
        waiting: &'a PendingJob,
        queue: &QueueName,
        short: Arc<Shortage>,
    ) -> Arc<JobAhead> {
        let ahead = Arc::new(JobAhead {
            job: waiting.job,
            queue: queue.clone(),
            short,
        });
        self.ahead.push((waiting, Arc::clone(&ahead)));
        ahead
    }

    /// Why the rules of its project keep a job from starting, whatever there is room for.
    fn quota_block(
        &mut self,
        kind: Kind,
        waiting: &'a PendingJob,
        queue: &QueueName,
    ) -> Option<Reason> {
        let PendingJob {
            job,
            request,
            owner,
            ..
        } = waiting;
        let books = self.quota.as_ref()?;
        let need = books.cost(request);
        if let Some(never) = books.never_within_quota(owner, need) {
            let reason = Reason::Quota(Arc::new(never));
            self.known_reasons.insert((kind, request), reason.clone());
            return Some(reason);
        }
        if let Some(ahead) = self.blocked_by_quota.get(&kind) {
            return Some(Reason::BehindQuota(Arc::clone(ahead)));
        }
        let overdraft = Arc::new(books.quota_exceeded(&books.quota_request(waiting))?);
        let ahead = Arc::new(QuotaAhead {
            job: *job,
            overdraft: Arc::clone(&overdraft),
        });
        // It may displace others of its own project.
        if overdraft.rule == QuotaRule::Limit
            && let Some(reclaims) = self.preempt_for(waiting)
        {
            let short = Arc::new(Shortage::of(&self.board, request));
            self.head(waiting, queue, short);
            return Some(Reason::Preempting(reclaims));
        }
        // Who may be preempted may go beyond the quota, and is displaced by whoever waits for it.
        if overdraft.rule == QuotaRule::Limit {
            self.blocked_by_quota
                .entry((kind.0, !kind.1))
                .or_insert_with(|| Arc::clone(&ahead));
        }
        self.blocked_by_quota.insert(kind, ahead);
        Some(Reason::Quota(overdraft))
    }

    /// Who gives way to the first job that does not fit, and notes it.
    fn preempt_for(&mut self, waiting: &PendingJob) -> Option<Arc<PendingPreemption>> {
        let books = self.quota.as_ref()?;
        if !self.may_preempt || !self.ahead.is_empty() {
            return None;
        }
        let claimant = books.quota_request(waiting);
        let found = find_victims(&self.board, books, &claimant);
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
        Some(Arc::new(
            books.pending_preemption(&claimant, stopped, in_s)?,
        ))
    }

    /// Whether a job starts once these are gone, and those who are leaving. It does not where another is asked before it
    /// whom their going sets free as well.
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
        let (plan, _, work) = decide(&after, false, Some(job));
        self.work.update(|so_far| so_far + work);
        plan.starts.iter().any(|start| start.job == job)
    }

    /// The job ahead for whose sake this request is not started, if it fits.
    fn delayed_job(&self, waiting: &PendingJob) -> Option<Arc<JobAhead>> {
        let fits = |first: usize| {
            self.place_without_delaying(&self.ahead[..first], waiting)
                .is_some()
        };
        if !fits(0) {
            return None;
        }
        let stopper = match &self.quota {
            // The more are spared, the less is left.
            None => {
                let counts: Vec<usize> = (1..=self.ahead.len()).collect();
                counts
                    .get(counts.partition_point(|first| fits(*first)))
                    .copied()
            }
            Some(_) => (1..=self.ahead.len()).find(|first| !fits(*first)),
        };
        Some(Arc::clone(&self.ahead[stopper? - 1].1))
    }

    /// Places the job where it disturbs none of these, within what its project may take beside them.
    fn place_without_delaying(
        &self,
        ahead: &[(&PendingJob, Arc<JobAhead>)],
        waiting: &PendingJob,
    ) -> Option<Vec<Offer>> {
        let looks = self.board.gpus.len() * (1 + ahead.len());
        self.work.update(|so_far| so_far + looks);
        let ahead = || ahead.iter().map(|(ahead, _)| *ahead);
        let spares = |tile: &GpuUsage<'_>, offer: &Offer| {
            !ahead().any(|ahead| delays_reserved(tile, offer, &ahead.request))
        };
        match &self.quota {
            None => place(&self.board, &waiting.request, spares),
            Some(books) => {
                let (claimant, nobody) = (books.quota_request(waiting), BTreeSet::new());
                let offers = books.place(&self.board, &claimant, &nobody, spares)?;
                let hinders = |ahead| delays_same_project(books, &claimant, &offers, ahead);
                (!ahead().any(hinders)).then_some(offers)
            }
        }
    }
}
