//! The planner: which pending jobs start now, on which GPUs, and the cause that keeps each other job waiting.
//!
//! The planner considers jobs in scheduling order:
//!
//! - The first job that does not fit ends the pass, so that smaller jobs do not overtake it for ever. With `backfill`
//!   the pass goes on for jobs that cannot delay it ([`backfill`](crate::placement::backfill)).
//! - A job that could never fit, for example because a GPU was lost since, delays no other job.
//! - A job that its project's quota or limit keeps waiting delays only jobs of its own project.
//! - A job that its user's limit keeps waiting delays only jobs of that user.
//! - A job within quota that does not fit can preempt jobs that are over quota ([`project`](crate::project)).
//!
//! The decision is data: identifiers, positions and figures. `explain` reads it afterwards and words the reasons.
//!
//! May use: `units`, `mig`, `model`, `placement`, `project`.
//! Used by: `resize`, `explain`.

mod pass;
mod patterns;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::mig::Placement;
use crate::model::queue::Order;
use crate::model::slice::Grant;
use crate::model::snapshot::Snapshot;
use crate::placement::occupancy::{Assignment, NodeUsage};
use crate::project::{
    PendingPreemption, QueuePosition, QuotaAhead, QuotaExceeded, QuotaLedger, SchedulingOrder,
};
use crate::units::{GpuUuid, JobId, QueueName};

use pass::Pass;
use patterns::PatternSearch;

/// A job that starts, and what it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub job: JobId,
    pub queue: QueueName,
    pub grants: Vec<Grant>,
    /// Idle MIG instances in the way of its own: to be removed before.
    pub reclaim: Vec<(GpuUuid, Placement)>,
}

/// A job that is stopped so that a job within quota can start. It holds its GPUs until it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preempt {
    pub job: JobId,
    /// The job that is to start in its place.
    pub preemptor: JobId,
}

/// What to do now. Every pending job of the snapshot is in exactly one of `starts` and `blocked`.
#[derive(Debug, Default)]
pub struct Decision {
    /// In the order in which they were decided.
    pub starts: Vec<Start>,
    /// In the order in which they were considered.
    pub(crate) blocked: Vec<BlockedJob>,
    /// Jobs that did not fit, and that later jobs wait behind; the first is the head.
    pub(crate) ahead: Vec<UnplacedJob>,
    pub preempts: Vec<Preempt>,
    /// After so many seconds the decision may be another one, though nothing else has changed.
    pub replan_in_s: Option<u64>,
    /// For the next snapshot.
    pub cursor: usize,
    /// With projects, the head. For the next snapshot.
    pub head: Option<JobId>,
}

/// A job that keeps waiting.
#[derive(Debug)]
pub(crate) struct BlockedJob {
    pub(crate) at: QueuePosition,
    /// Its place in its queue once the decision is carried out, from 1.
    pub(crate) place: usize,
    pub(crate) cause: Cause,
}

/// A job for which there was no room.
#[derive(Debug)]
pub(crate) struct UnplacedJob {
    pub(crate) at: QueuePosition,
    /// So many of the decision's starts came before it.
    pub(crate) starts_before: usize,
}

/// Why a job keeps waiting. Numbers are indices of [`Decision::ahead`]. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// There is no room for this job, or for one with the same request.
    NoRoom(usize),
    /// The pass ended at a job ahead.
    Behind(usize),
    /// It fits, and starting it now might delay a job ahead.
    WouldDelay(usize),
    /// The GPUs that it needs are gone. It delays no other job.
    NeverFits,
    /// Its user's limit, or its project's quota or limit, is used up. It delays only jobs of that user or project.
    Quota(Arc<QuotaExceeded>),
    /// A job of its user or project waits for that.
    BehindQuota(Arc<QuotaAhead>),
    /// It is within its project's quota, and preempts jobs that are over quota.
    Preempting(Arc<PendingPreemption>),
}

/// Decides. Equal snapshots give equal decisions.
pub(crate) fn decide(snapshot: &Snapshot) -> Decision {
    decide_until(snapshot, Extent::All).0
}

/// Whether the planner starts this job now.
pub fn starts_now(snapshot: &Snapshot, job: JobId) -> bool {
    starts(snapshot, job).0
}

/// Whether the planner starts this job now, and how many GPUs it looked at to find out.
pub(crate) fn starts(snapshot: &Snapshot, job: JobId) -> (bool, usize) {
    let (decision, looks) = decide_until(snapshot, Extent::Until(job));
    let starts = decision.starts.iter().any(|start| start.job == job);
    (starts, looks)
}

fn decide_until(snapshot: &Snapshot, extent: Extent) -> (Decision, usize) {
    let empty = NodeUsage::empty(&snapshot.gpus);
    let node = NodeUsage::of(snapshot);
    let (decision, Considered { looks, .. }) = run(snapshot, node, &empty, true, extent);
    (decision, looks)
}

/// Which jobs a pass considers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    All,
    /// No job after this one.
    Until(JobId),
    /// No job once none could start, or so many have started. Each could start if all others had ended. The pending
    /// jobs are of so many kinds at most: jobs of one kind differ by their places only.
    Starts {
        kinds: usize,
        most: usize,
    },
}

/// What a pass leaves besides its decision.
pub(crate) struct Considered<'n> {
    /// The occupancy once the decided jobs have started. Preempted jobs still hold theirs.
    pub(crate) node: NodeUsage<'n>,
    /// GPUs looked at.
    looks: usize,
}

/// What a caller that simulates knows beside the snapshot of [`decide_on`].
#[derive(Clone, Copy)]
pub struct Simulated<'a, 'n> {
    /// The GPUs that quotas count, without holders. Each pending job could start on the node if all others had ended.
    pub empty: &'a NodeUsage<'n>,
    /// At most so many kinds of jobs wait; jobs differ by project, preemptibility, request, and a user with a limit.
    pub kinds: usize,
    /// The decision ends after so many starts, but for a set of jobs that fill a GPU exactly.
    pub most: usize,
}

/// Decides on a node as it is occupied. The GPUs and holders of the snapshot do not count here, but for projects and
/// limits of users.
///
/// Only what happens is decided: the blocked jobs after the last one that could have started are not listed.
pub fn decide_on<'n>(
    snapshot: &Snapshot,
    node: NodeUsage<'n>,
    simulated: Simulated<'_, 'n>,
) -> (Decision, NodeUsage<'n>) {
    let Simulated { empty, kinds, most } = simulated;
    let extent = Extent::Starts { kinds, most };
    let (decision, considered) = run(snapshot, node, empty, true, extent);
    (decision, considered.node)
}

/// The pending jobs in the order in which a plan considers them. `empty`: the GPUs that quotas count, without holders.
pub fn scheduling_order(snapshot: &Snapshot, empty: &NodeUsage<'_>) -> Vec<JobId> {
    let quota = QuotaLedger::of(snapshot, empty);
    let mut order = SchedulingOrder::new(snapshot, queue_order(snapshot), quota.as_ref());
    let next = || order.next(snapshot, quota.as_ref());
    let job = |(queue, place): QueuePosition| snapshot.queues[queue].waiting[place].job;
    std::iter::from_fn(next).map(job).collect()
}

impl Decision {
    /// The first job that waits for room; later jobs wait behind it.
    pub fn first_ahead(&self, snapshot: &Snapshot) -> Option<JobId> {
        let (queue, place) = self.ahead.first()?.at;
        Some(snapshot.queues[queue].waiting[place].job)
    }
}

/// `may_preempt`: whether jobs can be preempted.
fn run<'n>(
    snapshot: &Snapshot,
    node: NodeUsage<'n>,
    empty: &NodeUsage<'n>,
    may_preempt: bool,
    extent: Extent,
) -> (Decision, Considered<'n>) {
    let mut pass = Pass::new(snapshot, node, empty, may_preempt, extent);
    let mut decision = Decision {
        cursor: snapshot.cursor,
        ..Decision::default()
    };
    let mut places = vec![0; snapshot.queues.len()];
    let mut order = SchedulingOrder::new(snapshot, queue_order(snapshot), pass.quota());
    let mut patterns = PatternSearch::default();
    // The next so many jobs have been searched for patterns.
    let mut searched = 0_usize;
    loop {
        if searched == 0 && !pass.is_unobstructed() && pass.goes_on() {
            searched = start_patterns(
                snapshot,
                &mut pass,
                &mut order,
                &mut patterns,
                &mut decision,
            );
            if let Extent::Until(last) = extent
                && decision.starts.iter().any(|start| start.job == last)
            {
                break;
            }
        }
        let Some(at) = order.next(snapshot, pass.quota()) else {
            break;
        };
        searched = searched.saturating_sub(1);
        let (queue, place) = at;
        let waiting = &snapshot.queues[queue].waiting[place];
        let job = waiting.job;
        let name = &snapshot.queues[queue].spec.name;
        let unobstructed = pass.is_unobstructed();
        match pass.consider(waiting, at, name) {
            Ok(Assignment { grants, reclaim }) => {
                if unobstructed && snapshot.order == Order::Fairness {
                    decision.cursor = (queue + 1) % snapshot.queues.len();
                }
                decision.starts.push(Start {
                    job,
                    queue: name.clone(),
                    grants,
                    reclaim,
                });
            }
            Err(cause) => {
                places[queue] += 1;
                decision.blocked.push(BlockedJob {
                    at,
                    place: places[queue],
                    cause,
                });
            }
        }
        if snapshot.backfill && unobstructed && !pass.is_unobstructed() {
            // What the head leaves over goes by priority, so that the next plan would consider jobs in the same order.
            order.by_priority(snapshot);
        }
        let is_last = match extent {
            Extent::All => false,
            Extent::Until(last) => job == last,
            Extent::Starts { kinds, most } => {
                !pass.goes_on() || pass.known_kinds() >= kinds || decision.starts.len() >= most
            }
        };
        if is_last {
            break;
        }
    }
    pass.finish(decision)
}

/// Starts jobs that fill GPUs exactly, among the next jobs that yield to each other. Answers how many of them remain.
fn start_patterns<'a>(
    snapshot: &'a Snapshot,
    pass: &mut Pass<'a, '_>,
    order: &mut SchedulingOrder,
    patterns: &mut PatternSearch,
    decision: &mut Decision,
) -> usize {
    let Some((queue, segment)) = order.next_yielding(snapshot) else {
        return 0;
    };
    let name = &snapshot.queues[queue].spec.name;
    let started = patterns.start(pass, &segment, name);
    let jobs: BTreeSet<JobId> = started.iter().map(|(at, _)| segment[*at].job).collect();
    order.remove(snapshot, &jobs);
    let starts = started.into_iter().map(|(at, assignment)| Start {
        job: segment[at].job,
        queue: name.clone(),
        grants: assignment.grants,
        reclaim: assignment.reclaim,
    });
    decision.starts.extend(starts);
    segment.len() - jobs.len()
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
