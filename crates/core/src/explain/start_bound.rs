//! Start-time bound: when a pending job starts at the latest, given time limits, whenever other jobs end before theirs.
//!
//! A replay of the planner with every job at its time limit is no bound. A job that ends early can delay another,
//! because the next job starts on another GPU then. So the bound assumes nothing about the GPUs of jobs that have not
//! started. Jobs start in their order; each starts at the latest at the first moment at which
//!
//! - all jobs before it have started, each at its latest, and
//! - enough of its GPUs have room, wherever the jobs are that may still run.
//!
//! ```text
//!   held       known GPUs, ends at its time limit  ┐   GPUs without room, and then
//!   before it  any GPUs, ends at its latest start  ┘   as many as the others could fill together
//!              and its time limit
//! ```
//! How many GPUs the others can fill: a GPU is full for this job only from a certain share or memory on. So each other
//! job fills at most its part of a GPU, and together they fill no more than the sum.
//!
//! With projects there is no bound: preemption stops jobs, and the order changes with every start. Nor is there one
//! where all jobs of a user together may exceed the user's limit: one of them may then start after later jobs.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::queue::Order;
use crate::model::request::Request;
use crate::model::snapshot::{PendingJob, Snapshot};
use crate::placement::fit::{GrantSize, RequestShape, fit, size};
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::placement::{can_ever_place, place};
use crate::plan::queue_order;
use crate::project::can_delay;
use crate::units::JobId;

/// The search gives up after so many GPUs, over all jobs, moments and different requests, which bounds it to well below
/// a second.
const MOST_LOOKS: usize = 4_000_000;

/// Parts of a GPU are counted in millionths, rounded up. A thousandth of `Share`'s unit, so that rounding sums of
/// shares up never adds a part of a GPU.
const WHOLE: u64 = 1_000_000;

/// The end of a job without a time limit.
const NEVER: u64 = u64::MAX;

/// The known bounds of all jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobBounds {
    /// In how many seconds each running job has ended at the latest, and how long each pending job runs at most, for
    /// jobs with a time limit.
    pub remaining_s: BTreeMap<JobId, u64>,
    /// The jobs that have to end before a job enters its queue. In the snapshot such a job is in its later place.
    pub dependencies: BTreeMap<JobId, Vec<JobId>>,
}

/// In how many seconds a pending job starts at the latest, if no other job is submitted; 0 for a job that starts now,
/// `None` where there is no bound or the search would take too long.
pub fn latest_start(snapshot: &Snapshot, job: JobId, known: &JobBounds) -> Option<u64> {
    if !snapshot.projects.is_empty() || can_delay(snapshot) {
        return None;
    }
    let empty = NodeUsage::empty(&snapshot.gpus);
    let order = order(snapshot, job)?;
    let kinds: BTreeSet<&Request> = order.iter().map(|waiting| &waiting.request).collect();
    let fits = |request: &&Request| can_ever_place(&empty, request);
    let ever: BTreeSet<&Request> = kinds.into_iter().filter(fits).collect();
    let never = |waiting: &&PendingJob| !ever.contains(&waiting.request);
    let joins = |waiting: &&PendingJob| known.dependencies.contains_key(&waiting.job);
    // A job that enters a queue later, or is passed over, changes the order of the queues.
    if snapshot.order == Order::Fairness && (order.iter().any(never) || order.iter().any(joins)) {
        return None;
    }
    // A job that never starts delays no other job.
    let order: Vec<&PendingJob> = order.into_iter().filter(|one| !never(one)).collect();
    let place = order.iter().position(|waiting| waiting.job == job)?;
    if snapshot.order == Order::Fairness && snapshot.backfill && place > 0 {
        return None;
    }
    StartBoundSearch {
        snapshot,
        known,
        looks: 0,
        node: (0, NodeUsage::of(snapshot)),
        held: held(snapshot, known),
    }
    .latest(&order, place)
}

/// All pending jobs in scheduling order; `None` where the job is not among them.
fn order(snapshot: &Snapshot, job: JobId) -> Option<Vec<&PendingJob>> {
    snapshot.place_of(job)?;
    let turns = queue_order(snapshot).into_iter();
    Some(
        turns
            .map(|(queue, place)| &snapshot.queues[queue].waiting[place])
            .collect(),
    )
}

/// Jobs that hold GPUs, with the time at which each has ended at the latest.
fn held(snapshot: &Snapshot, known: &JobBounds) -> Vec<(u64, JobId)> {
    let end = |job: &JobId| known.remaining_s.get(job).copied().unwrap_or(NEVER);
    let held = snapshot.held.iter();
    let mut held: Vec<(u64, JobId)> = held.map(|held| (end(&held.job), held.job)).collect();
    held.sort_unstable();
    held
}

/// A job that may run on any GPU, and has ended by then at the latest.
type Loose<'a> = (u64, &'a Request);

struct StartBoundSearch<'a> {
    snapshot: &'a Snapshot,
    known: &'a JobBounds,
    looks: usize,
    /// The occupancy at the moment of the last look, without the jobs that have ended by then.
    node: (u64, NodeUsage<'a>),
    held: Vec<(u64, JobId)>,
}

impl<'a> StartBoundSearch<'a> {
    fn latest(mut self, order: &[&'a PendingJob], wanted: usize) -> Option<u64> {
        let mut gone: BTreeMap<JobId, u64> =
            self.held.iter().map(|(end, job)| (*job, *end)).collect();
        let mut started: Vec<Loose<'a>> = Vec::new();
        let mut at = 0;
        for (nth, waiting) in order.iter().enumerate() {
            let joins = self.known.dependencies.get(&waiting.job);
            for other in joins.into_iter().flatten() {
                at = at.max(gone.get(other).copied().filter(|end| *end < NEVER)?);
            }
            // Jobs behind it may have started before it was first in its queue. From then on no job can delay it.
            let overtaken = joins.is_some() || (self.snapshot.backfill && nth > 0);
            let mut loose = started.clone();
            if overtaken {
                let behind = order[nth + 1..].iter();
                loose.extend(behind.map(|other| (self.end(at, other.job), &other.request)));
            }
            at = self.first_room(at, &waiting.request, &loose)?;
            if nth == wanted {
                return Some(at);
            }
            let end = self.end(at, waiting.job);
            gone.insert(waiting.job, end);
            started.push((end, &waiting.request));
        }
        None
    }

    /// The end of a job that starts then.
    fn end(&self, start: u64, job: JobId) -> u64 {
        let left = self.known.remaining_s.get(&job);
        left.map_or(NEVER, |left| start.saturating_add(*left))
    }

    /// The first moment from `from` on at which there is certainly room.
    fn first_room(&mut self, from: u64, request: &Request, loose: &[Loose<'a>]) -> Option<u64> {
        let ends = self.held.iter().map(|(end, _)| *end);
        let ends = ends.chain(loose.iter().map(|(end, _)| *end));
        let mut moments: Vec<u64> = ends.filter(|end| (from..NEVER).contains(end)).collect();
        moments.push(from);
        moments.sort_unstable();
        moments.dedup();
        self.looks += moments.len();
        for moment in moments {
            if self.has_room(moment, request, loose)? {
                return Some(moment);
            }
        }
        None
    }

    /// Whether there is room at a moment, wherever the other jobs run; `None` after too many looks.
    fn has_room(&mut self, moment: u64, request: &Request, loose: &[Loose<'a>]) -> Option<bool> {
        let usages = self.snapshot.gpus.len();
        // Grouped by request, since many jobs have the same request.
        let mut kinds: BTreeMap<&Request, u64> = BTreeMap::new();
        for (_, other) in loose.iter().filter(|(end, _)| *end > moment) {
            *kinds.entry(other).or_default() += 1;
        }
        self.looks += loose.len() + usages * (kinds.len() + 1);
        if self.node.0 != moment {
            let gone = self.held.iter().filter(|(end, _)| *end <= moment);
            let gone: BTreeSet<JobId> = gone.map(|(_, job)| *job).collect();
            self.looks += self.held.len();
            self.node = (moment, NodeUsage::of(self.snapshot).without(&gone));
        }
        if self.looks > MOST_LOOKS {
            return None;
        }
        let node = &self.node.1;
        if kinds.is_empty() {
            return Some(place(node, request, |_, _| true).is_some());
        }
        let open = node.gpus.iter();
        let open: Vec<&GpuUsage<'_>> = open.filter(|usage| fit(usage, request).is_ok()).collect();
        let mig = open.iter().filter(|usage| usage.mig.is_some()).count();
        let parts: Vec<Vec<u64>> = open
            .iter()
            .map(|usage| parts(usage, request, kinds.keys().copied()))
            .collect();
        let filled = kinds.iter().enumerate().map(|(kind, (other, count))| {
            let most = parts.iter().map(|parts| parts[kind]).max().unwrap_or(0);
            let grants = match RequestShape::of(other.amount) {
                RequestShape::Whole { max, .. } => max,
                RequestShape::Parts { count, .. } => count,
            };
            let grants = u64::from(grants).min(open.len() as u64);
            most.saturating_mul(grants).saturating_mul(*count)
        });
        let filled = filled.fold(0, u64::saturating_add) / WHOLE;
        let needed = match RequestShape::of(request.amount) {
            RequestShape::Whole { min, .. } => u64::from(min),
            RequestShape::Parts { count, .. } => u64::from(count),
        };
        // A job gets parts of shared GPUs or MIG instances, never both.
        let most = mig.max(open.len() - mig) as u64;
        Some(most >= needed.saturating_add(filled))
    }
}

/// For a GPU with room for the request: the part of the room that each other request can take away; 0 for a request
/// that never runs there.
fn parts<'r>(
    usage: &GpuUsage<'_>,
    request: &Request,
    others: impl Iterator<Item = &'r Request>,
) -> Vec<u64> {
    let sizes: Vec<Option<GrantSize>> = others.map(|other| size(usage, other).ok()).collect();
    let there = || sizes.iter().flatten();
    let needs = match size(usage, request) {
        Ok(needs) if usage.mig.is_none() && !is_whole(request) => needs,
        // Any holder excludes a whole-GPU job, and the placement of MIG instances is not predicted.
        _ => {
            let part = |size: &Option<GrantSize>| size.map_or(0, |_| WHOLE);
            return sizes.iter().map(part).collect();
        }
    };
    // The least usage that leaves no room, in steps of the other sizes.
    let step = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0, gcd).max(1);
    let share_step = step(&mut there().map(|size| size.share.thousandths().into()));
    let memory_step = step(&mut there().map(|size| size.memory.get()));
    let share = usage.free_share() - u64::from(needs.share.thousandths()) + 1;
    let memory = usage.free_memory().saturating_sub(needs.memory).get() + 1;
    let (share, memory) = (
        share.next_multiple_of(share_step),
        memory.next_multiple_of(memory_step),
    );
    let of = |part: u64, all: u64| {
        let part = (u128::from(part) * u128::from(WHOLE)).div_ceil(u128::from(all));
        u64::try_from(part).unwrap_or(WHOLE).min(WHOLE)
    };
    let part = |size: &Option<GrantSize>| {
        size.map_or(0, |size| {
            of(size.share.thousandths().into(), share).max(of(size.memory.get(), memory))
        })
    };
    sizes.iter().map(part).collect()
}

fn is_whole(request: &Request) -> bool {
    matches!(RequestShape::of(request.amount), RequestShape::Whole { .. })
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}
