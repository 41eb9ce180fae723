//! Scheduling order: which pending job the planner considers next.
//!
//! Inside a project: by priority, then in the order of its queues. Between projects, the project's first job decides:
//!
//! 1. jobs within quota, then within the fair share, then the rest,
//! 2. the higher project priority,
//! 3. the last plan's head, which keeps its turn,
//! 4. the project that has the smaller part of its quota or fair share.
//!
//! The order is determined again after each start. A job that waits for room keeps its turn: [`delays_same_project`]
//! stops jobs of its own project that would put it behind other projects.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, VecDeque};

use super::allowance::of_offers;
use super::{QuotaLedger, QuotaRequest, Resources};
use crate::model::snapshot::{PendingJob, Snapshot};
use crate::placement::Offer;
use crate::units::{Gpus, JobId};

/// A pending job: the index of its queue, and its place there.
pub(crate) type QueuePosition = (usize, usize);

/// The pending jobs that the planner has not considered yet.
pub(crate) enum SchedulingOrder {
    /// Without projects.
    Queues(VecDeque<QueuePosition>),
    /// By project; each job with its place in the order of the queues.
    Projects(Vec<VecDeque<(usize, QueuePosition)>>),
}

impl SchedulingOrder {
    /// `queues`: the pending jobs in the order in which queues are served.
    pub(crate) fn new(
        snapshot: &Snapshot,
        queues: Vec<QueuePosition>,
        ledger: Option<&QuotaLedger<'_>>,
    ) -> Self {
        let Some(ledger) = ledger else {
            return Self::Queues(queues.into());
        };
        let mut lists = vec![VecDeque::new(); ledger.projects().len()];
        for (place, turn) in queues.into_iter().enumerate() {
            lists[ledger.project_index(&at(snapshot, turn).owner)].push_back((place, turn));
        }
        for list in &mut lists {
            let list = list.make_contiguous();
            list.sort_by_key(|(_, turn)| at(snapshot, *turn).owner.precedence());
        }
        Self::Projects(lists)
    }

    /// The next job, by the current usage of the projects.
    pub(crate) fn next(
        &mut self,
        snapshot: &Snapshot,
        ledger: Option<&QuotaLedger<'_>>,
    ) -> Option<QueuePosition> {
        match (self, ledger) {
            (Self::Projects(lists), Some(ledger)) => {
                let heads = lists.iter().enumerate();
                let (_, project_usage) = heads
                    .filter_map(|(project_usage, list)| {
                        let (place, turn) = *list.front()?;
                        let head = at(snapshot, turn);
                        let kept = Some(head.job) == snapshot.head;
                        Some((
                            (Precedence::of(ledger, project_usage, head, kept), place),
                            project_usage,
                        ))
                    })
                    .min()?;
                lists[project_usage].pop_front().map(|(_, turn)| turn)
            }
            (Self::Queues(turns), _) => turns.pop_front(),
            (Self::Projects(_), None) => None,
        }
    }

    /// The queue of the next job, and that job with those that follow it, as long as they are of its queue and priority
    /// and yield. `None` with projects, whose order changes with every start.
    pub(crate) fn next_yielding<'a>(
        &self,
        snapshot: &'a Snapshot,
    ) -> Option<(usize, Vec<&'a PendingJob>)> {
        let Self::Queues(turns) = self else {
            return None;
        };
        let (queue, place) = *turns.front()?;
        let first = at(snapshot, (queue, place));
        let follows = |turn: &&QueuePosition| {
            let other = at(snapshot, **turn);
            turn.0 == queue && other.yields && other.owner.priority == first.owner.priority
        };
        let segment = turns.iter().take_while(follows);
        Some((queue, segment.map(|turn| at(snapshot, *turn)).collect()))
    }

    /// Takes these jobs out of the order.
    pub(crate) fn remove(&mut self, snapshot: &Snapshot, jobs: &BTreeSet<JobId>) {
        if let Self::Queues(turns) = self
            && !jobs.is_empty()
        {
            turns.retain(|turn| !jobs.contains(&at(snapshot, *turn).job));
        }
    }

    /// Orders the remaining jobs queue by queue.
    pub(crate) fn by_priority(&mut self, snapshot: &Snapshot) {
        match self {
            Self::Queues(turns) => turns.make_contiguous().sort_unstable(),
            Self::Projects(lists) => {
                for list in lists {
                    let list = list.make_contiguous();
                    list.sort_by_key(|(_, turn)| (at(snapshot, *turn).owner.precedence(), *turn));
                }
            }
        }
    }
}

fn at(snapshot: &Snapshot, (queue, place): QueuePosition) -> &PendingJob {
    &snapshot.queues[queue].waiting[place]
}

/// The precedence between the first jobs of projects; the smallest is next.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    class: QuotaClass,
    priority: Reverse<i32>,
    /// `false` for the last plan's head.
    comes_after: bool,
    has: UsageRatio,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum QuotaClass {
    WithinQuota,
    WithinFairShare,
    Beyond,
}

impl Precedence {
    fn of(ledger: &QuotaLedger<'_>, project_usage: usize, head: &PendingJob, kept: bool) -> Self {
        let class = QuotaClass::of(ledger, head);
        let project_usage = &ledger.projects()[project_usage];
        let due = match class {
            QuotaClass::WithinQuota => project_usage
                .project
                .map_or(Gpus::ZERO, |project| project.quota.gpus),
            QuotaClass::WithinFairShare | QuotaClass::Beyond => {
                Gpus::from_thousandths(project_usage.fair_share)
            }
        };
        Self {
            class,
            priority: Reverse(project_usage.project.map_or(0, |project| project.priority)),
            comes_after: !kept,
            has: UsageRatio::of(project_usage.used(), due),
        }
    }
}

impl QuotaClass {
    fn of(ledger: &QuotaLedger<'_>, waiting: &PendingJob) -> Self {
        let PendingJob { job, owner, .. } = waiting;
        let need = ledger.cost(&waiting.request);
        let project_usage = &ledger.projects()[ledger.project_index(owner)];
        if ledger.is_within_quota(*job, owner, need, &BTreeSet::new()) {
            Self::WithinQuota
        } else if project_usage.used().and(need).gpus
            <= Gpus::from_thousandths(project_usage.fair_share)
        {
            Self::WithinFairShare
        } else {
            Self::Beyond
        }
    }
}

/// Whether the start of a job with these offers would delay a job ahead of it in the same project: the job ahead would
/// fall behind other projects, or exceed the quota or limit.
pub(crate) fn delays_same_project(
    ledger: &QuotaLedger<'_>,
    new: &QuotaRequest<'_>,
    offers: &[Offer],
    ahead: &PendingJob,
) -> bool {
    if ledger.project_index(new.owner) != ledger.project_index(&ahead.owner) {
        return false;
    }
    let mut with = ledger.clone();
    with.add_starting(new.job, new.owner, of_offers(offers));
    QuotaClass::of(&with, ahead) > QuotaClass::of(ledger, ahead)
        || with.quota_exceeded(&with.quota_request(ahead)).is_some()
}

/// Usage over fair share, compared without rounding. A project without a fair share and without usage comes before
/// projects that hold their fair share.
struct UsageRatio {
    has: u128,
    due: u128,
}

impl UsageRatio {
    fn of(used: Resources, due: Gpus) -> Self {
        Self {
            has: used.gpus.thousandths().into(),
            due: u128::from(due.thousandths()).max(1),
        }
    }
}

impl Ord for UsageRatio {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.has * other.due).cmp(&(other.has * self.due))
    }
}

impl PartialOrd for UsageRatio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for UsageRatio {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for UsageRatio {}
