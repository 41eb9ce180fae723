//! Who uses how much on whose account, what that leaves, and what each account's fair share is.

use std::collections::{BTreeMap, BTreeSet};

use super::allowance::Allowance;
use super::fair::{Claim, fair_shares};
use super::need::{at_most, need};
use super::rules::never;
use super::{Claimant, Limit, Overdraft, Owner, Project, Reclaims, Rule, Use};
use crate::board::{Board, Tile};
use crate::gpu::Mode;
use crate::ids::{JobId, ProjectName};
use crate::placement::Offer;
use crate::request::Request;
use crate::snapshot::{Preemption, Snapshot, Waiting};
use crate::units::Gpus;

/// What those outside all projects weigh together: as much as a quota of one GPU.
const OUTSIDE_WEIGHS: u64 = 1000;

/// The accounts of a snapshot: one for each project, and the last for all who are outside.
#[derive(Clone)]
pub(crate) struct Books<'a> {
    accounts: Vec<Account<'a>>,
    preemption: Preemption,
    /// What each different request needs at least.
    needs: BTreeMap<&'a Request, Use>,
}

/// One account.
#[derive(Clone)]
pub(crate) struct Account<'a> {
    /// `None`: outside.
    pub(crate) project: Option<&'a Project>,
    /// Who holds something, in no order.
    pub(crate) members: Vec<Member>,
    /// Thousandths of GPUs.
    pub(crate) fair: u64,
    used: Use,
}

/// A job that holds something.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) job: JobId,
    pub(crate) owner: Owner,
    pub(crate) used: Use,
    pub(crate) ran_s: u64,
    /// It is being stopped.
    pub(crate) leaving: bool,
    /// It starts by the plan that is being made, or is to go on: there is nothing to be stopped.
    pub(crate) starts: bool,
}

impl<'a> Books<'a> {
    /// `None` where the node has no projects.
    pub(crate) fn of(snapshot: &'a Snapshot, empty: &Board<'_>) -> Option<Self> {
        if snapshot.projects.is_empty() {
            return None;
        }
        let project = snapshot.projects.iter().map(Some);
        let account = |project| Account {
            project,
            members: Vec::new(),
            fair: 0,
            used: Use::default(),
        };
        let mut books = Self {
            accounts: project.chain([None]).map(account).collect(),
            preemption: snapshot.preemption,
            needs: BTreeMap::new(),
        };
        for held in &snapshot.held {
            books.enter(Member {
                job: held.job,
                owner: held.owner.clone(),
                used: Use::of(&held.grants),
                ran_s: held.ran_s,
                leaving: held.leaving,
                starts: held.due.is_some(),
            });
        }
        let mut wanted = vec![(0, 0); books.accounts.len()];
        for waiting in snapshot.queues.iter().flat_map(|queue| &queue.waiting) {
            let need = *books
                .needs
                .entry(&waiting.request)
                .or_insert_with(|| need(empty, &waiting.request));
            let wants = at_most(&waiting.request).unwrap_or(need.gpus).thousandths();
            let (bound, free) = &mut wanted[books.account(&waiting.owner)];
            *match waiting.owner.preemptible {
                true => free,
                false => bound,
            } += wants;
        }
        let managed = empty
            .tiles
            .iter()
            .filter(|tile| tile.gpu.mode != Mode::Unmanaged);
        let total = Gpus::whole(managed.count() as u64).thousandths();
        let claims: Vec<Claim> = books
            .accounts
            .iter()
            .zip(wanted)
            .map(|(account, wanted)| books.claim(account, wanted))
            .collect();
        for (account, fair) in books.accounts.iter_mut().zip(fair_shares(total, &claims)) {
            account.fair = fair;
        }
        Some(books)
    }

    fn claim(&self, account: &Account<'_>, (bound, free): (u64, u64)) -> Claim {
        let used = account.used.gpus.thousandths();
        let Some(project) = account.project else {
            return Claim {
                quota: 0,
                weight: OUTSIDE_WEIGHS,
                wants: used + bound + free,
                priority: 0,
            };
        };
        let quota = project.quota.gpus.thousandths();
        let fixed = account.used_by(|member| !member.owner.preemptible).gpus;
        // Who cannot be preempted does not get beyond the quota, so wants no more.
        let bound = match self.preemption {
            Preemption::On => bound.min(quota.saturating_sub(fixed.thousandths())),
            Preemption::Off => bound,
        };
        let limit = project.limit.gpus.map_or(u64::MAX, Gpus::thousandths);
        Claim {
            quota,
            weight: project.weighs(),
            wants: (used + bound + free).min(limit),
            priority: project.priority,
        }
    }

    pub(crate) fn accounts(&self) -> &[Account<'a>] {
        &self.accounts
    }

    /// On which account a job of this owner runs.
    pub(crate) fn account(&self, owner: &Owner) -> usize {
        let is_its = |account: &Account<'_>| {
            account.project.map(|project| &project.name) == owner.project.as_ref()
        };
        let outside = self.accounts.len() - 1;
        self.accounts.iter().position(is_its).unwrap_or(outside)
    }

    /// What a request of the snapshot needs at least.
    pub(crate) fn need(&self, request: &Request) -> Use {
        self.needs.get(request).copied().unwrap_or_default()
    }

    /// A job of the snapshot that asks.
    pub(crate) fn claimant<'w>(&self, waiting: &'w Waiting) -> Claimant<'w> {
        Claimant {
            job: waiting.job,
            owner: &waiting.owner,
            request: &waiting.request,
            need: self.need(&waiting.request),
        }
    }

    /// Counts a job that holds something from now on.
    pub(crate) fn enter(&mut self, member: Member) {
        let account = self.account(&member.owner);
        let account = &mut self.accounts[account];
        account.used = account.used.and(member.used);
        account.members.push(member);
    }

    /// Counts a job that starts now.
    pub(crate) fn start(&mut self, job: JobId, owner: &Owner, used: Use) {
        self.enter(Member {
            job,
            owner: owner.clone(),
            used,
            ran_s: 0,
            leaving: false,
            starts: true,
        });
    }

    /// The words for a claim that these give way to.
    pub(crate) fn reclaims(
        &self,
        claimant: &Claimant<'_>,
        stopped: Vec<JobId>,
        in_s: Option<u64>,
    ) -> Option<Reclaims> {
        let Claimant {
            job, owner, need, ..
        } = *claimant;
        let account = &self.accounts[self.account(owner)];
        let before = self.before(account, job, owner, &BTreeSet::new());
        let project = account.project?;
        Some(Reclaims {
            project: project.name.clone(),
            quota: project.quota.gpus,
            used: before.and(need).gpus,
            stopped,
            in_s,
        })
    }

    /// Whether the quota of its project holds it, and all that stand before it there and are not gone.
    pub(crate) fn is_within(
        &self,
        job: JobId,
        owner: &Owner,
        need: Use,
        gone: &BTreeSet<JobId>,
    ) -> bool {
        let account = &self.accounts[self.account(owner)];
        let with = self.before(account, job, owner, gone).and(need);
        account
            .project
            .is_some_and(|project| project.quota.holds(with))
    }

    /// What those use who stand before it in its project and are not gone.
    fn before(
        &self,
        account: &Account<'_>,
        job: JobId,
        owner: &Owner,
        gone: &BTreeSet<JobId>,
    ) -> Use {
        let waits = || account.members.iter().all(|member| member.job != job);
        let stands_before: &dyn Fn(&Member) -> bool = match waits() {
            true => &|member| !owner.displaces(&member.owner),
            false => &|member| member.owner.rank(member.job) < owner.rank(job),
        };
        account.used_by(|member| stands_before(member) && !gone.contains(&member.job))
    }

    /// The best GPUs for a job among those admitted, once these are gone, within what its project may take.
    ///
    /// Who asks within quota gets no more than that, so that a range of GPUs does not become the next to be stopped; only
    /// where there is room for it on smaller GPUs alone, of which it takes a larger part, it may go over.
    pub(crate) fn place(
        &self,
        board: &Board<'_>,
        claimant: &Claimant<'_>,
        gone: &BTreeSet<JobId>,
        admit: impl Fn(&Tile<'_>, &Offer) -> bool,
    ) -> Option<Vec<Offer>> {
        let Claimant {
            job,
            owner,
            request,
            need,
        } = *claimant;
        let within = self.is_within(job, owner, need, gone);
        let place = |within| {
            self.allowance(job, owner, within, gone)
                .place(board, request, &admit)
        };
        place(within).or_else(|| within.then(|| place(false)).flatten())
    }

    fn allowance(
        &self,
        job: JobId,
        owner: &Owner,
        within: bool,
        gone: &BTreeSet<JobId>,
    ) -> Allowance {
        let account = &self.accounts[self.account(owner)];
        let Some(project) = account.project else {
            return Allowance(Limit::default());
        };
        let stays = |member: &Member| !gone.contains(&member.job);
        let mut allowance = Allowance(project.limit).less(account.used_by(stays));
        if within || self.is_bound(owner) {
            let before = self.before(account, job, owner, gone);
            allowance = allowance.and(Allowance(project.quota.into()).less(before));
        }
        allowance
    }

    /// Who cannot be preempted never borrows, as nobody could get it back.
    pub(super) fn is_bound(&self, owner: &Owner) -> bool {
        !owner.preemptible && self.preemption == Preemption::On
    }

    pub(crate) fn may_preempt(&self) -> bool {
        self.preemption == Preemption::On
    }

    /// The rule that keeps a job from what it needs, whatever there is room for; `None` when there is none.
    pub(crate) fn overdraft(&self, claimant: &Claimant<'_>) -> Option<Overdraft> {
        let Claimant {
            job, owner, need, ..
        } = *claimant;
        let account = &self.accounts[self.account(owner)];
        let project = account.project?;
        Overdraft::of(project, Rule::Limit, project.limit, account.used, need).or_else(|| {
            let before = self.before(account, job, owner, &BTreeSet::new());
            Overdraft::of(project, Rule::Quota, project.quota.into(), before, need)
                .filter(|_| self.is_bound(owner))
        })
    }

    /// The same if nobody of its project held anything: it would never start.
    pub(crate) fn never(&self, owner: &Owner, need: Use) -> Option<Overdraft> {
        let project = self.accounts[self.account(owner)].project?;
        never(project, owner, need, self.preemption)
    }
}

impl Account<'_> {
    pub(crate) fn used_by(&self, which: impl Fn(&Member) -> bool) -> Use {
        let members = self.members.iter().filter(|member| which(member));
        members.fold(Use::default(), |sum, member| sum.and(member.used))
    }

    pub(crate) fn used(&self) -> Use {
        self.used
    }
}

/// Where a project stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// `None`: those outside all projects.
    pub project: Option<ProjectName>,
    pub used: Use,
    /// Held by jobs that are over quota.
    pub over: Use,
    pub fair_share: Gpus,
}

/// Where each project stands, in the order of the snapshot, and last those outside; empty where there are no projects.
pub fn standings(snapshot: &Snapshot) -> Vec<Standing> {
    let empty = Board::empty(&snapshot.gpus);
    let Some(books) = Books::of(snapshot, &empty) else {
        return Vec::new();
    };
    let nobody = BTreeSet::new();
    let standing = |account: &Account<'_>| Standing {
        project: account.project.map(|project| project.name.clone()),
        used: account.used,
        over: account
            .used_by(|member| !books.is_within(member.job, &member.owner, member.used, &nobody)),
        fair_share: Gpus::from_thousandths(account.fair),
    };
    books.accounts.iter().map(standing).collect()
}
