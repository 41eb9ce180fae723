//! In which order waiting jobs are asked.
//!
//! Inside a project by priority, then as its queues are served. Between projects: first who is within quota, then who is within the fair
//! share, then the rest; among those the higher priority, then who was first and did not fit, then whoever has the smaller
//! part of what is due to it. That is looked at again after each start, for every start changes it; so whoever is first and
//! waits for room keeps its turn, and nobody of its own project starts who would make it stand behind others ([`hinders`]).

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, VecDeque};

use super::allowance::of_offers;
use super::{QuotaLedger, QuotaRequest, Resources};
use crate::model::snapshot::{PendingJob, Snapshot};
use crate::placement::Offer;
use crate::units::Gpus;

/// A waiting job: the number of its queue, and its place there.
pub(crate) type QueuePosition = (usize, usize);

/// Who has not been asked yet.
pub(crate) enum SchedulingOrder {
    /// Without projects.
    Queues(VecDeque<QueuePosition>),
    /// By account; each with its place in the order of the queues.
    Accounts(Vec<VecDeque<(usize, QueuePosition)>>),
}

impl SchedulingOrder {
    /// `queues`: the waiting jobs in the order in which queues are served.
    pub(crate) fn new(
        snapshot: &Snapshot,
        queues: Vec<QueuePosition>,
        books: Option<&QuotaLedger<'_>>,
    ) -> Self {
        let Some(books) = books else {
            return Self::Queues(queues.into());
        };
        let mut lists = vec![VecDeque::new(); books.projects().len()];
        for (place, turn) in queues.into_iter().enumerate() {
            lists[books.project_index(&at(snapshot, turn).owner)].push_back((place, turn));
        }
        for list in &mut lists {
            let list = list.make_contiguous();
            list.sort_by_key(|(_, turn)| at(snapshot, *turn).owner.precedence());
        }
        Self::Accounts(lists)
    }

    /// Who is asked next, as things stand.
    pub(crate) fn next(
        &mut self,
        snapshot: &Snapshot,
        books: Option<&QuotaLedger<'_>>,
    ) -> Option<QueuePosition> {
        match (self, books) {
            (Self::Accounts(lists), Some(books)) => {
                let heads = lists.iter().enumerate();
                let (_, account) = heads
                    .filter_map(|(account, list)| {
                        let (place, turn) = *list.front()?;
                        let head = at(snapshot, turn);
                        let kept = Some(head.job) == snapshot.head;
                        Some(((Precedence::of(books, account, head, kept), place), account))
                    })
                    .min()?;
                lists[account].pop_front().map(|(_, turn)| turn)
            }
            (Self::Queues(turns), _) => turns.pop_front(),
            (Self::Accounts(_), None) => None,
        }
    }

    /// Asks who is left queue by queue from now on.
    pub(crate) fn by_priority(&mut self, snapshot: &Snapshot) {
        match self {
            Self::Queues(turns) => turns.make_contiguous().sort_unstable(),
            Self::Accounts(lists) => {
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

/// Whose turn it is before whose.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Precedence {
    class: QuotaClass,
    priority: Reverse<i32>,
    /// `false` for who was first when last asked.
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
    fn of(books: &QuotaLedger<'_>, account: usize, head: &PendingJob, kept: bool) -> Self {
        let class = QuotaClass::of(books, head);
        let account = &books.projects()[account];
        let due = match class {
            QuotaClass::WithinQuota => account
                .project
                .map_or(Gpus::ZERO, |project| project.quota.gpus),
            QuotaClass::WithinFairShare | QuotaClass::Beyond => {
                Gpus::from_thousandths(account.fair_share)
            }
        };
        Self {
            class,
            priority: Reverse(account.project.map_or(0, |project| project.priority)),
            comes_after: !kept,
            has: UsageRatio::of(account.used(), due),
        }
    }
}

impl QuotaClass {
    fn of(books: &QuotaLedger<'_>, waiting: &PendingJob) -> Self {
        let PendingJob { job, owner, .. } = waiting;
        let need = books.cost(&waiting.request);
        let account = &books.projects()[books.project_index(owner)];
        if books.is_within_quota(*job, owner, need, &BTreeSet::new()) {
            Self::WithinQuota
        } else if account.used().and(need).gpus <= Gpus::from_thousandths(account.fair_share) {
            Self::WithinFairShare
        } else {
            Self::Beyond
        }
    }
}

/// Whether a job that starts with these would cost one ahead of it on the same account its turn, or what its project may
/// still take.
pub(crate) fn delays_same_project(
    books: &QuotaLedger<'_>,
    new: &QuotaRequest<'_>,
    offers: &[Offer],
    ahead: &PendingJob,
) -> bool {
    if books.project_index(new.owner) != books.project_index(&ahead.owner) {
        return false;
    }
    let mut with = books.clone();
    with.add_starting(new.job, new.owner, of_offers(offers));
    QuotaClass::of(&with, ahead) > QuotaClass::of(books, ahead)
        || with.quota_exceeded(&with.quota_request(ahead)).is_some()
}

/// `has / due`, compared without rounding. Whoever is due nothing and has nothing comes before those who have their due.
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
