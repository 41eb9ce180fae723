//! Preemption: the victims that make room for a job within its project's quota.
//!
//! A victim is preemptible, has run for its project's minimum runtime, and is over quota when its turn to go comes. So
//! no job within quota is preempted. The cheapest victims go first, and only as many as needed:
//!
//! 1. jobs that can restart elsewhere at once,
//! 2. jobs of projects beyond their fair share,
//! 3. jobs of the lowest priority,
//! 4. jobs that have run least.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::quota::JobUsage;
use super::{QuotaLedger, Resources, SchedulingClass};
use crate::model::gpu::Mode;
use crate::model::request::Request;
use crate::placement::fit::{GrantSize, fraction_constraints};
use crate::placement::occupancy::NodeUsage;
use crate::units::{Gpus, JobId, QueueName};

/// The outcome of the search for victims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Victims {
    /// Jobs that are stopping already make enough room.
    AlreadyStopping(Vec<JobId>),
    /// These jobs are to be preempted now.
    Preempt(Vec<JobId>),
    /// These jobs are to be preempted in so many seconds, when the last of them has run for its minimum.
    PreemptLater(Vec<JobId>, u64),
    /// No preemption helps.
    Nothing,
}

impl Victims {
    /// The jobs that have to end to make room.
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
    /// What the limit of its user leaves; `None` without one.
    pub(crate) user_remaining: Option<Gpus>,
}

/// A job that can be preempted.
struct VictimCandidate<'a> {
    job_usage: &'a JobUsage,
    /// Seconds until its minimum runtime is over.
    protected_s: u64,
}

/// Finds the victims for a job, if it is within its project's quota.
pub(crate) fn find_victims(
    node: &NodeUsage<'_>,
    ledger: &QuotaLedger<'_>,
    asking: &QuotaRequest<'_>,
) -> Victims {
    let nobody = BTreeSet::new();
    let (job, owner, need) = (asking.job, asking.owner, asking.cost);
    if !ledger.is_preemption_on() || !ledger.is_within_quota(job, owner, need, &nobody) {
        return Victims::Nothing;
    }
    let search = Search {
        node,
        ledger,
        asking,
    };
    let leaving: BTreeSet<JobId> = search
        .members()
        .filter(|job_usage| job_usage.is_stopping)
        .map(|job_usage| job_usage.job)
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
    let mut jobs: Vec<JobId> = victims.iter().map(|victim| victim.job_usage.job).collect();
    jobs.sort_unstable();
    jobs
}

struct Search<'a> {
    node: &'a NodeUsage<'a>,
    ledger: &'a QuotaLedger<'a>,
    asking: &'a QuotaRequest<'a>,
}

impl<'a> Search<'a> {
    fn members(&self) -> impl Iterator<Item = &'a JobUsage> {
        let accounts = self.ledger.projects().iter();
        accounts.flat_map(|project_usage| &project_usage.jobs)
    }

    /// Whether the job fits once these jobs have ended.
    fn fits(&self, gone: &BTreeSet<JobId>) -> bool {
        let node = self.node.without(gone);
        self.ledger
            .place(&node, self.asking, gone, |_, _| true)
            .is_some()
    }

    /// Whether a holder is over its project's quota, once these jobs have ended and the asking job has started.
    fn is_over(&self, job_usage: &JobUsage, gone: &BTreeSet<JobId>) -> bool {
        let QuotaRequest {
            owner, cost: need, ..
        } = *self.asking;
        let same = self.ledger.project_index(owner) == self.ledger.project_index(&job_usage.owner);
        let needed = if same && owner.displaces(&job_usage.owner) {
            job_usage.used.and(need)
        } else {
            job_usage.used
        };
        !self
            .ledger
            .is_within_quota(job_usage.job, &job_usage.owner, needed, gone)
    }

    /// Jobs that can be preempted, cheapest first.
    fn candidates(&self) -> Vec<VictimCandidate<'a>> {
        let mut candidates = Vec::new();
        for project_usage in self.ledger.projects() {
            let beyond = project_usage.used().gpus.thousandths() > project_usage.fair_share;
            let least_s = project_usage
                .project
                .map_or(0, |project| project.min_runtime_s);
            for job_usage in &project_usage.jobs {
                if job_usage.owner.preemptible && !job_usage.is_stopping && !job_usage.is_starting {
                    let cost = (
                        !beyond,
                        job_usage.owner.priority,
                        job_usage.ran_s,
                        Reverse(job_usage.job),
                    );
                    let young_s = least_s.saturating_sub(job_usage.ran_s);
                    candidates.push((
                        cost,
                        VictimCandidate {
                            job_usage,
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

    /// The cheapest single job that frees enough, otherwise a minimal set of jobs.
    fn victims<'c>(
        &self,
        candidates: &[&'c VictimCandidate<'a>],
        leaving: &BTreeSet<JobId>,
    ) -> Option<Vec<&'c VictimCandidate<'a>>> {
        let with = |gone: &BTreeSet<JobId>, job_usage: &JobUsage| {
            let mut gone = gone.clone();
            gone.insert(job_usage.job);
            gone
        };
        let enough = candidates.iter().filter(|one| {
            self.is_over(one.job_usage, leaving) && self.fits(&with(leaving, one.job_usage))
        });
        if let Some(one) =
            enough.min_by_key(|one| !self.can_restart_elsewhere(one.job_usage, leaving))
        {
            return Some(vec![one]);
        }
        let mut gone = leaving.clone();
        let mut chosen: Vec<&'c VictimCandidate<'a>> = Vec::new();
        for one in candidates {
            if self.is_over(one.job_usage, &gone) {
                gone.insert(one.job_usage.job);
                chosen.push(one);
                if self.fits(&gone) {
                    break;
                }
            }
        }
        if chosen.is_empty() || !self.fits(&gone) {
            return None;
        }
        // With fewer victims, each remaining victim is further over quota. So sparing one leaves the others valid.
        for place in (0..chosen.len()).rev() {
            let job = chosen[place].job_usage.job;
            gone.remove(&job);
            if self.fits(&gone) {
                chosen.remove(place);
            } else {
                gone.insert(job);
            }
        }
        Some(chosen)
    }

    /// Whether the holder has room elsewhere beside the asking job. Jobs on several GPUs count as having none.
    fn can_restart_elsewhere(&self, job_usage: &JobUsage, leaving: &BTreeSet<JobId>) -> bool {
        let mut gone = leaving.clone();
        gone.insert(job_usage.job);
        let mut node = self.node.without(&gone);
        let Some(offers) = self.ledger.place(&node, self.asking, &gone, |_, _| true) else {
            return false;
        };
        let held = self.node.held_by(job_usage.job);
        let [grant] = &held[..] else {
            return false;
        };
        node.assign(self.asking.job, &QueueName::default_queue(), &offers);
        let size = GrantSize {
            share: grant.share,
            memory: grant.memory,
            profile: None,
        };
        node.gpus.iter().any(|usage| {
            usage.gpu.mode == Mode::Shared && fraction_constraints(usage, size).is_empty()
        })
    }
}
