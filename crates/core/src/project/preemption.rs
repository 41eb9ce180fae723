//! Who gives way to a job that is within its project's quota: the cheapest who help, and nobody who does not.
//!
//! Only jobs that may be preempted, have run for their project's minimum, and are over quota, each when its turn to go
//! comes, so that nobody within quota is ever stopped. Cheapest is who can go on elsewhere at once, then whose project
//! is beyond its fair share, then the lowest priority, then who has run least.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::quota::JobUsage;
use super::{QuotaLedger, Resources, SchedulingClass};
use crate::model::gpu::Mode;
use crate::model::request::Request;
use crate::placement::fit::{GrantSize, fraction_constraints};
use crate::placement::occupancy::NodeUsage;
use crate::units::{JobId, QueueName};

/// What giving way comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Victims {
    /// Who is being stopped already is enough.
    AlreadyStopping(Vec<JobId>),
    /// These are to be stopped.
    Preempt(Vec<JobId>),
    /// These are to be stopped once the last of them has run for its minimum, in so many seconds.
    PreemptLater(Vec<JobId>, u64),
    /// Nobody's leaving helps.
    Nothing,
}

impl Victims {
    /// Who gives way.
    pub(crate) fn jobs(&self) -> &[JobId] {
        match self {
            Self::AlreadyStopping(jobs) | Self::Preempt(jobs) | Self::PreemptLater(jobs, _) => jobs,
            Self::Nothing => &[],
        }
    }
}

/// A job that does not fit, and is within its project's quota.
pub(crate) struct QuotaRequest<'a> {
    pub(crate) job: JobId,
    pub(crate) owner: &'a SchedulingClass,
    pub(crate) request: &'a Request,
    pub(crate) cost: Resources,
}

/// A job that may be made to give way.
struct VictimCandidate<'a> {
    member: &'a JobUsage,
    /// Seconds until its minimum runtime is over.
    protected_s: u64,
}

/// Finds who gives way to the claimant, if it is within its project's quota.
pub(crate) fn find_victims(
    board: &NodeUsage<'_>,
    books: &QuotaLedger<'_>,
    claimant: &QuotaRequest<'_>,
) -> Victims {
    let nobody = BTreeSet::new();
    let (job, owner, need) = (claimant.job, claimant.owner, claimant.cost);
    if !books.is_preemption_on() || !books.is_within_quota(job, owner, need, &nobody) {
        return Victims::Nothing;
    }
    let search = Search {
        board,
        books,
        claimant,
    };
    let leaving: BTreeSet<JobId> = search
        .members()
        .filter(|member| member.is_stopping)
        .map(|member| member.job)
        .collect();
    if !leaving.is_empty() && search.fits(&leaving) {
        return Victims::AlreadyStopping(leaving.into_iter().collect());
    }
    let candidates = search.candidates();
    let ready: Vec<&VictimCandidate<'_>> = candidates
        .iter()
        .filter(|one| one.protected_s == 0)
        .collect();
    if let Some(victims) = search.victims(&ready, &leaving) {
        return Victims::Preempt(jobs(&victims));
    }
    let all: Vec<&VictimCandidate<'_>> = candidates.iter().collect();
    match search.victims(&all, &leaving) {
        Some(victims) => {
            let in_s = victims.iter().map(|victim| victim.protected_s).max();
            Victims::PreemptLater(jobs(&victims), in_s.unwrap_or(0))
        }
        None => Victims::Nothing,
    }
}

fn jobs(victims: &[&VictimCandidate<'_>]) -> Vec<JobId> {
    let mut jobs: Vec<JobId> = victims.iter().map(|victim| victim.member.job).collect();
    jobs.sort_unstable();
    jobs
}

struct Search<'a> {
    board: &'a NodeUsage<'a>,
    books: &'a QuotaLedger<'a>,
    claimant: &'a QuotaRequest<'a>,
}

impl<'a> Search<'a> {
    fn members(&self) -> impl Iterator<Item = &'a JobUsage> {
        let accounts = self.books.projects().iter();
        accounts.flat_map(|account| &account.jobs)
    }

    /// Whether the claimant fits once these are gone.
    fn fits(&self, gone: &BTreeSet<JobId>) -> bool {
        let board = self.board.without(gone);
        self.books
            .place(&board, self.claimant, gone, |_, _| true)
            .is_some()
    }

    /// Whether a job is over its project's quota, once these are gone and the claimant is there.
    fn is_over(&self, member: &JobUsage, gone: &BTreeSet<JobId>) -> bool {
        let QuotaRequest {
            owner, cost: need, ..
        } = *self.claimant;
        let same = self.books.project_index(owner) == self.books.project_index(&member.owner);
        let needed = match same && owner.displaces(&member.owner) {
            true => member.used.and(need),
            false => member.used,
        };
        !self
            .books
            .is_within_quota(member.job, &member.owner, needed, gone)
    }

    /// Who may be stopped, cheapest first.
    fn candidates(&self) -> Vec<VictimCandidate<'a>> {
        let mut candidates = Vec::new();
        for account in self.books.projects() {
            let beyond = account.used().gpus.thousandths() > account.fair_share;
            let least_s = account.project.map_or(0, |project| project.min_runtime_s);
            for member in &account.jobs {
                if member.owner.preemptible && !member.is_stopping && !member.is_starting {
                    let cost = (
                        !beyond,
                        member.owner.priority,
                        member.ran_s,
                        Reverse(member.job),
                    );
                    let young_s = least_s.saturating_sub(member.ran_s);
                    candidates.push((
                        cost,
                        VictimCandidate {
                            member,
                            protected_s: young_s,
                        },
                    ));
                }
            }
        }
        candidates.sort_by_key(|(cost, _)| *cost);
        candidates
            .into_iter()
            .map(|(_, candidate)| candidate)
            .collect()
    }

    /// The cheapest one whose leaving is enough, else some of whom none can be spared.
    fn victims<'c>(
        &self,
        candidates: &[&'c VictimCandidate<'a>],
        leaving: &BTreeSet<JobId>,
    ) -> Option<Vec<&'c VictimCandidate<'a>>> {
        let with = |gone: &BTreeSet<JobId>, member: &JobUsage| {
            let mut gone = gone.clone();
            gone.insert(member.job);
            gone
        };
        let enough = candidates.iter().filter(|one| {
            self.is_over(one.member, leaving) && self.fits(&with(leaving, one.member))
        });
        if let Some(one) = enough.min_by_key(|one| !self.can_restart_elsewhere(one.member, leaving))
        {
            return Some(vec![one]);
        }
        let mut gone = leaving.clone();
        let mut chosen: Vec<&'c VictimCandidate<'a>> = Vec::new();
        for one in candidates {
            if self.is_over(one.member, &gone) {
                gone.insert(one.member.job);
                chosen.push(one);
                if self.fits(&gone) {
                    break;
                }
            }
        }
        if chosen.is_empty() || !self.fits(&gone) {
            return None;
        }
        // The fewer go, the more those that go are over quota, so sparing one makes no other's going wrong.
        for place in (0..chosen.len()).rev() {
            let job = chosen[place].member.job;
            gone.remove(&job);
            if self.fits(&gone) {
                chosen.remove(place);
            } else {
                gone.insert(job);
            }
        }
        Some(chosen)
    }

    /// Whether there is room for it elsewhere beside the claimant. A job on several GPUs is not looked at.
    fn can_restart_elsewhere(&self, member: &JobUsage, leaving: &BTreeSet<JobId>) -> bool {
        let mut gone = leaving.clone();
        gone.insert(member.job);
        let mut board = self.board.without(&gone);
        let Some(offers) = self.books.place(&board, self.claimant, &gone, |_, _| true) else {
            return false;
        };
        let held = self.board.held_by(member.job);
        let [grant] = &held[..] else {
            return false;
        };
        board.assign(self.claimant.job, &QueueName::default_queue(), &offers);
        let size = GrantSize {
            share: grant.share,
            memory: grant.memory,
            profile: None,
        };
        board.gpus.iter().any(|tile| {
            tile.gpu.mode == Mode::Shared && fraction_constraints(tile, size).is_empty()
        })
    }
}
