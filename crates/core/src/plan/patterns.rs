//! Patterns: behind the first job that does not fit, jobs that fill a GPU exactly start before others of equal rank.
//!
//! ```text
//!   GPU 2  ████████████████████··········    0.375, 0.25, 0.25 and 0.125 wait, in this order, and yield
//!          └── #1 holds 0.5 ──┘└─ 0.5 ──┘    in order:  0.375 and 0.125 ─► exact; without the 0.125:
//!                                            0.25 + 0.25 ─► exact, and the 0.375 waits
//! ```
//! Only jobs that [yield](PendingJob::yields) are passed, and only by jobs that follow them in their queue with no job
//! in between that does not yield. So a job that has waited for long keeps its turn. Each set contains the oldest job
//! that any exact set contains. The set delays no job ahead, like any backfilled job, taken together.
//!
//! A GPU is full where less than [`LEFT`] is left. Whole GPUs are full in any case.

use std::collections::BTreeSet;

use super::pass::Pass;
use crate::model::request::Request;
use crate::model::snapshot::PendingJob;
use crate::placement::Offer;
use crate::placement::fit::{GrantSize, RequestShape, fit};
use crate::placement::occupancy::{Assignment, GpuUsage};
use crate::units::{Bytes, QueueName, Share};

/// Thousandths of a GPU. Three thirds fill a GPU, and so does memory whose share was rounded up.
const LEFT: u64 = 10;

/// Jobs of one set. Five fifths still fill a GPU; each further job multiplies the sets that are tried by up to
/// [`MOST_KINDS`]. More would multiply the sets that are tried, by up to [`MOST_KINDS`] for each; five fifths still
/// fill a GPU.
const MOST_JOBS: usize = 5;

/// Different requests of one set are among so many, the first in the queue.
const MOST_KINDS: usize = 16;

/// Sets that one plan looks at, which bounds its time to a few milliseconds. More would take longer than a round may.
const MOST_SETS: usize = 20_000;

/// The search for exact sets, over one plan.
#[derive(Default)]
pub(super) struct PatternSearch {
    sets: usize,
}

/// A job that could be part of a set on one GPU.
#[derive(Clone, Copy)]
struct Item {
    /// Its index in the segment.
    at: usize,
    /// Equal for jobs that the search cannot tell apart.
    kind: usize,
    size: GrantSize,
}

/// What a set takes of a GPU.
#[derive(Clone, Copy)]
struct Sum {
    share: u64,
    memory: Bytes,
}

impl Sum {
    fn with(self, item: Item) -> Self {
        let size = item.size;
        Self {
            share: self.share + u64::from(size.share.thousandths()),
            memory: self.memory.saturating_add(size.memory),
        }
    }
}

impl PatternSearch {
    /// Starts every set of these jobs that fills a GPU exactly. They follow each other in one queue, with equal
    /// priority, and all yield. Answers the index of each started job, with what it gets.
    pub(super) fn start<'a>(
        &mut self,
        pass: &mut Pass<'a, '_>,
        segment: &[&'a PendingJob],
        queue: &QueueName,
    ) -> Vec<(usize, Assignment)> {
        let mut started: Vec<(usize, Assignment)> = Vec::new();
        let mut done: BTreeSet<usize> = BTreeSet::new();
        let mut hopeless: BTreeSet<&Request> = BTreeSet::new();
        for (first, waiting) in segment.iter().enumerate() {
            let kind = &waiting.request;
            if done.contains(&first) || hopeless.contains(kind) || !pass.is_open(waiting) {
                continue;
            }
            let set = match RequestShape::of(waiting.request.amount) {
                RequestShape::Whole { .. } => {
                    pass.offers(waiting).map(|offers| vec![(first, offers)])
                }
                RequestShape::Parts { count: 1, .. } => self.find(pass, segment, first, &done),
                RequestShape::Parts { .. } => None,
            };
            let Some(set) = set else {
                hopeless.insert(kind);
                continue;
            };
            for (at, offers) in set {
                done.insert(at);
                started.push((at, pass.start(segment[at], queue, &offers)));
            }
        }
        started
    }

    /// The set on some GPU that begins with this job, the fullest GPU first.
    fn find(
        &mut self,
        pass: &Pass<'_, '_>,
        segment: &[&PendingJob],
        first: usize,
        done: &BTreeSet<usize>,
    ) -> Option<Vec<(usize, Vec<Offer>)>> {
        let node = pass.node();
        let usages = node.gpus.iter().enumerate();
        let mut gaps: Vec<(u64, usize)> = usages
            .filter(|(_, usage)| pass.fits_alone(usage, segment[first]))
            .map(|(at, usage)| (usage.free_share(), at))
            .collect();
        gaps.sort_unstable();
        gaps.into_iter().find_map(|(_, position)| {
            let usage = &node.gpus[position];
            let items = items(pass, usage, segment, first, done);
            let (head, rest) = items.split_first()?;
            let nothing = Sum {
                share: 0,
                memory: Bytes::ZERO,
            };
            let mut set = vec![*head];
            let sum = nothing.with(*head);
            if !self.complete(pass, position, usage, rest, sum, &mut set) {
                return None;
            }
            let offer = |item: &Item| Offer {
                position,
                size: item.size,
                mig: None,
            };
            Some(
                set.iter()
                    .map(|item| (item.at, vec![offer(item)]))
                    .collect(),
            )
        })
    }

    /// Adds jobs to the set until the GPU is full: the first in the queue that do it, and delay no job ahead.
    fn complete(
        &mut self,
        pass: &Pass<'_, '_>,
        position: usize,
        usage: &GpuUsage<'_>,
        rest: &[Item],
        sum: Sum,
        set: &mut Vec<Item>,
    ) -> bool {
        self.sets += 1;
        let free = usage.free_share();
        if self.sets > MOST_SETS || sum.share > free || sum.memory > usage.free_memory() {
            return false;
        }
        if free - sum.share < LEFT {
            return pass.spares(position, usage, sum.size());
        }
        if set.len() == MOST_JOBS {
            return false;
        }
        let mut tried: BTreeSet<usize> = BTreeSet::new();
        for (nth, item) in rest.iter().enumerate() {
            if tried.insert(item.kind) {
                set.push(*item);
                if self.complete(
                    pass,
                    position,
                    usage,
                    &rest[nth + 1..],
                    sum.with(*item),
                    set,
                ) {
                    return true;
                }
                set.pop();
            }
        }
        false
    }
}

impl Sum {
    /// As one part. It is at most what is free of a GPU.
    fn size(self) -> GrantSize {
        let share = u16::try_from(self.share).ok();
        GrantSize {
            share: share
                .and_then(Share::from_thousandths)
                .unwrap_or(Share::FULL),
            memory: self.memory,
            profile: None,
        }
    }
}

/// The jobs from `first` on that fit the GPU, each alone: of the first kinds as many as a set can have.
fn items(
    pass: &Pass<'_, '_>,
    usage: &GpuUsage<'_>,
    segment: &[&PendingJob],
    first: usize,
    done: &BTreeSet<usize>,
) -> Vec<Item> {
    let mut kinds: Vec<(&Request, Option<GrantSize>, usize)> = Vec::new();
    let mut items = Vec::new();
    for (at, waiting) in segment.iter().enumerate().skip(first) {
        if done.contains(&at) || !pass.is_open(waiting) {
            continue;
        }
        let known = kinds
            .iter()
            .position(|(request, ..)| **request == waiting.request);
        let kind = match known {
            Some(kind) => kind,
            None if kinds.len() == MOST_KINDS => continue,
            None => {
                let fits = pass.fits_alone(usage, waiting);
                let size = fits.then(|| fit(usage, &waiting.request).ok()).flatten();
                kinds.push((&waiting.request, size, 0));
                kinds.len() - 1
            }
        };
        let (.., size, count) = &mut kinds[kind];
        if let Some(size) = *size
            && *count < MOST_JOBS
        {
            *count += 1;
            items.push(Item { at, kind, size });
        }
    }
    items
}
