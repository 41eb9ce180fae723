//! Who gives way to a job that is within its project's quota: the cheapest who help, and nobody who does not.
//!
//! Only jobs that may be preempted, have run for their project's minimum, and are over quota, each when its turn to go
//! comes, so that nobody within quota is ever stopped. Cheapest is who can go on elsewhere at once, then whose project
//! is beyond its fair share, then the lowest priority, then who has run least.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::books::Member;
use super::{Books, Owner, Use};
use crate::board::Board;
use crate::fit::{Size, part_misses};
use crate::gpu::Mode;
use crate::ids::{JobId, QueueName};
use crate::request::Request;

/// What giving way comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Who is being stopped already is enough.
    Leaving(Vec<JobId>),
    /// These are to be stopped.
    Stop(Vec<JobId>),
    /// These are to be stopped once the last of them has run for its minimum, in so many seconds.
    Later(Vec<JobId>, u64),
    /// Nobody's leaving helps.
    Nothing,
}

impl Found {
    /// Who gives way.
    pub(crate) fn jobs(&self) -> &[JobId] {
        match self {
            Self::Leaving(jobs) | Self::Stop(jobs) | Self::Later(jobs, _) => jobs,
            Self::Nothing => &[],
        }
    }
}

/// A job that does not fit, and is within its project's quota.
pub(crate) struct Claimant<'a> {
    pub(crate) job: JobId,
    pub(crate) owner: &'a Owner,
    pub(crate) request: &'a Request,
    pub(crate) need: Use,
}

/// A job that may be made to give way.
struct Candidate<'a> {
    member: &'a Member,
    /// Seconds until its minimum runtime is over.
    young_s: u64,
}

/// Finds who gives way to the claimant, if it is within its project's quota.
pub(crate) fn reclaim(board: &Board<'_>, books: &Books<'_>, claimant: &Claimant<'_>) -> Found {
    let nobody = BTreeSet::new();
    let (job, owner, need) = (claimant.job, claimant.owner, claimant.need);
    if !books.may_preempt() || !books.is_within(job, owner, need, &nobody) {
        return Found::Nothing;
    }
    let search = Search {
        board,
        books,
        claimant,
    };
    let leaving: BTreeSet<JobId> = search
        .members()
        .filter(|member| member.leaving)
        .map(|member| member.job)
        .collect();
    if !leaving.is_empty() && search.fits(&leaving) {
        return Found::Leaving(leaving.into_iter().collect());
    }
    let candidates = search.candidates();
    let ready: Vec<&Candidate<'_>> = candidates.iter().filter(|one| one.young_s == 0).collect();
    if let Some(victims) = search.victims(&ready, &leaving) {
        return Found::Stop(jobs(&victims));
    }
    let all: Vec<&Candidate<'_>> = candidates.iter().collect();
    match search.victims(&all, &leaving) {
        Some(victims) => {
            let in_s = victims.iter().map(|victim| victim.young_s).max();
            Found::Later(jobs(&victims), in_s.unwrap_or(0))
        }
        None => Found::Nothing,
    }
}

fn jobs(victims: &[&Candidate<'_>]) -> Vec<JobId> {
    let mut jobs: Vec<JobId> = victims.iter().map(|victim| victim.member.job).collect();
    jobs.sort_unstable();
    jobs
}

struct Search<'a> {
    board: &'a Board<'a>,
    books: &'a Books<'a>,
    claimant: &'a Claimant<'a>,
}

impl<'a> Search<'a> {
    fn members(&self) -> impl Iterator<Item = &'a Member> {
        let accounts = self.books.accounts().iter();
        accounts.flat_map(|account| &account.members)
    }

    /// Whether the claimant fits once these are gone.
    fn fits(&self, gone: &BTreeSet<JobId>) -> bool {
        let board = self.board.without(gone);
        self.books
            .place(&board, self.claimant, gone, |_, _| true)
            .is_some()
    }

    /// Whether a job is over its project's quota, once these are gone and the claimant is there.
    fn is_over(&self, member: &Member, gone: &BTreeSet<JobId>) -> bool {
        let Claimant { owner, need, .. } = *self.claimant;
        let same = self.books.account(owner) == self.books.account(&member.owner);
        let needed = match same && owner.displaces(&member.owner) {
            true => member.used.and(need),
            false => member.used,
        };
        !self
            .books
            .is_within(member.job, &member.owner, needed, gone)
    }

    /// Who may be stopped, cheapest first.
    fn candidates(&self) -> Vec<Candidate<'a>> {
        let mut candidates = Vec::new();
        for account in self.books.accounts() {
            let beyond = account.used().gpus.thousandths() > account.fair;
            let least_s = account.project.map_or(0, |project| project.min_runtime_s);
            for member in &account.members {
                if member.owner.preemptible && !member.leaving && !member.starts {
                    let cost = (
                        !beyond,
                        member.owner.priority,
                        member.ran_s,
                        Reverse(member.job),
                    );
                    let young_s = least_s.saturating_sub(member.ran_s);
                    candidates.push((cost, Candidate { member, young_s }));
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
        candidates: &[&'c Candidate<'a>],
        leaving: &BTreeSet<JobId>,
    ) -> Option<Vec<&'c Candidate<'a>>> {
        let with = |gone: &BTreeSet<JobId>, member: &Member| {
            let mut gone = gone.clone();
            gone.insert(member.job);
            gone
        };
        let enough = candidates.iter().filter(|one| {
            self.is_over(one.member, leaving) && self.fits(&with(leaving, one.member))
        });
        if let Some(one) = enough.min_by_key(|one| !self.goes_on(one.member, leaving)) {
            return Some(vec![one]);
        }
        let mut gone = leaving.clone();
        let mut chosen: Vec<&'c Candidate<'a>> = Vec::new();
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
    fn goes_on(&self, member: &Member, leaving: &BTreeSet<JobId>) -> bool {
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
        board.give(self.claimant.job, &QueueName::default_queue(), &offers);
        let size = Size {
            share: grant.share,
            memory: grant.memory,
            profile: None,
        };
        board
            .tiles
            .iter()
            .any(|tile| tile.gpu.mode == Mode::Shared && part_misses(tile, size).is_empty())
    }
}
