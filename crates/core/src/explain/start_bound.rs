//! When a waiting job starts at the latest, whenever the others end before their time is over.
//!
//! Letting everybody run for as long as it may, and asking the planner each time, does not answer that: a job that ends
//! early can make another start later, for who starts then lies elsewhere. So nothing is foreseen of where a job will lie
//! that has not started. Jobs start in the order in which they wait, so each is looked at in turn, and starts at the latest
//! at the first moment at which
//!
//! - all before it have started, each at its latest, and
//! - enough of its GPUs have room for it, wherever those lie that may still run.
//!
//! ```text
//!   held       known place, gone at the end of its time ┐   GPUs without room, and then
//!   before it  any place, gone at its latest start      ┘   as many as the others could fill together
//!              and its time
//! ```
//! How many GPUs the others can fill: none can be full for this job unless what lies there comes to a certain share or a
//! certain memory, so each of the others fills at most that part of a GPU, and together they fill no more than the sum.
//!
//! Nothing can be said where projects are: there jobs are stopped and run again, and who is next changes with every start.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::queue::Order;
use crate::model::request::Request;
use crate::model::snapshot::{PendingJob, Snapshot};
use crate::placement::fit::{GrantSize, RequestShape, fit, size};
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::placement::{can_ever_place, place};
use crate::plan::queue_order;
use crate::units::JobId;

/// So many GPUs are looked at, over all jobs, moments and different requests, before the answer is that nothing is known: it
/// bounds the time that it takes to well below a second.
const MOST_LOOKS: usize = 4_000_000;

/// Parts of a GPU are counted in millionths, rounded up.
const WHOLE: u64 = 1_000_000;

/// The end of one whose time has no limit.
const NEVER: u64 = u64::MAX;

/// What is known of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobBounds {
    /// In how many seconds each job that holds something is gone at the latest, and how long each that waits holds what it
    /// gets, for those of which it is known.
    pub remaining_s: BTreeMap<JobId, u64>,
    /// Whose ends each job waits for before it stands in its queue at all. In the snapshot such jobs stand where they will.
    pub dependencies: BTreeMap<JobId, Vec<JobId>>,
}

/// In how many seconds a waiting job starts at the latest, if nobody else comes; 0 for one that starts now, `None` where that
/// cannot be said, or would take too long to find out.
pub fn latest_start(snapshot: &Snapshot, job: JobId, known: &JobBounds) -> Option<u64> {
    if !snapshot.projects.is_empty() {
        return None;
    }
    let empty = NodeUsage::empty(&snapshot.gpus);
    let order = order(snapshot, job)?;
    let kinds: BTreeSet<&Request> = order.iter().map(|waiting| &waiting.request).collect();
    let fits = |request: &&Request| can_ever_place(&empty, request);
    let ever: BTreeSet<&Request> = kinds.into_iter().filter(fits).collect();
    let never = |waiting: &&PendingJob| !ever.contains(&waiting.request);
    let joins = |waiting: &&PendingJob| known.dependencies.contains_key(&waiting.job);
    // Whoever comes into a queue or is passed over in it changes whose turn it is.
    if snapshot.order == Order::Fairness && (order.iter().any(never) || order.iter().any(joins)) {
        return None;
    }
    // Who never starts is in nobody's way.
    let order: Vec<&PendingJob> = order.into_iter().filter(|one| !never(one)).collect();
    let place = order.iter().position(|waiting| waiting.job == job)?;
    if snapshot.order == Order::Fairness && snapshot.backfill && place > 0 {
        return None;
    }
    StartBoundSearch {
        snapshot,
        known,
        looks: 0,
        board: (0, NodeUsage::of(snapshot)),
        held: held(snapshot, known),
    }
    .latest(&order, place)
}

/// All that wait, in the order in which they are asked; `None` where the job is not among them.
fn order(snapshot: &Snapshot, job: JobId) -> Option<Vec<&PendingJob>> {
    snapshot.place_of(job)?;
    let turns = queue_order(snapshot).into_iter();
    Some(
        turns
            .map(|(queue, place)| &snapshot.queues[queue].waiting[place])
            .collect(),
    )
}

/// Who holds something, by when it is gone at the latest.
fn held(snapshot: &Snapshot, known: &JobBounds) -> Vec<(u64, JobId)> {
    let end = |job: &JobId| known.remaining_s.get(job).copied().unwrap_or(NEVER);
    let held = snapshot.held.iter();
    let mut held: Vec<(u64, JobId)> = held.map(|held| (end(&held.job), held.job)).collect();
    held.sort_unstable();
    held
}

/// One that may lie anywhere, and is gone by then at the latest.
type Loose<'a> = (u64, &'a Request);

struct StartBoundSearch<'a> {
    snapshot: &'a Snapshot,
    known: &'a JobBounds,
    looks: usize,
    /// Those who hold something and are not gone at a moment, for the last that was looked at.
    board: (u64, NodeUsage<'a>),
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
            // Before it stood there and was first, others may have started who wait behind it. From then on nobody can delay it.
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

    /// When one is gone that starts then.
    fn end(&self, start: u64, job: JobId) -> u64 {
        let left = self.known.remaining_s.get(&job);
        left.map_or(NEVER, |left| start.saturating_add(*left))
    }

    /// The first moment from `from` on at which there is room for certain.
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

    /// Whether there is room at a moment, wherever the others lie; `None` where that is too much to find out.
    fn has_room(&mut self, moment: u64, request: &Request, loose: &[Loose<'a>]) -> Option<bool> {
        let tiles = self.snapshot.gpus.len();
        // A kind of request at a time: many jobs ask for the same.
        let mut kinds: BTreeMap<&Request, u64> = BTreeMap::new();
        for (_, other) in loose.iter().filter(|(end, _)| *end > moment) {
            *kinds.entry(other).or_default() += 1;
        }
        self.looks += loose.len() + tiles * (kinds.len() + 1);
        if self.board.0 != moment {
            let gone = self.held.iter().filter(|(end, _)| *end <= moment);
            let gone: BTreeSet<JobId> = gone.map(|(_, job)| *job).collect();
            self.looks += self.held.len();
            self.board = (moment, NodeUsage::of(self.snapshot).without(&gone));
        }
        if self.looks > MOST_LOOKS {
            return None;
        }
        let board = &self.board.1;
        if kinds.is_empty() {
            return Some(place(board, request, |_, _| true).is_some());
        }
        let open = board.gpus.iter();
        let open: Vec<&GpuUsage<'_>> = open.filter(|tile| fit(tile, request).is_ok()).collect();
        let carved = open.iter().filter(|tile| tile.mig.is_some()).count();
        let parts: Vec<Vec<u64>> = open
            .iter()
            .map(|tile| parts(tile, request, kinds.keys().copied()))
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
        // One job gets parts of shared GPUs or instances, never both.
        let most = carved.max(open.len() - carved) as u64;
        Some(most >= needed.saturating_add(filled))
    }
}

/// Of a GPU that has room for the request: which part of what keeps the request off it each of these would bring there; 0 for one
/// that never lies there.
fn parts<'r>(
    tile: &GpuUsage<'_>,
    request: &Request,
    others: impl Iterator<Item = &'r Request>,
) -> Vec<u64> {
    let sizes: Vec<Option<GrantSize>> = others.map(|other| size(tile, other).ok()).collect();
    let there = || sizes.iter().flatten();
    let needs = match size(tile, request) {
        Ok(needs) if tile.mig.is_none() && !is_whole(request) => needs,
        // Anything at all keeps a whole one off, and where instances would lie is not foreseen.
        _ => {
            let part = |size: &Option<GrantSize>| size.map_or(0, |_| WHOLE);
            return sizes.iter().map(part).collect();
        }
    };
    // One more than leaves room, in the steps in which the others come.
    let step = |sizes: &mut dyn Iterator<Item = u64>| sizes.fold(0, gcd).max(1);
    let share_step = step(&mut there().map(|size| size.share.thousandths().into()));
    let memory_step = step(&mut there().map(|size| size.memory.get()));
    let share = tile.free_share() - u64::from(needs.share.thousandths()) + 1;
    let memory = tile.free_memory().saturating_sub(needs.memory).get() + 1;
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
