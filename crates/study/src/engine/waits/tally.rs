//! Counting: outcomes of runs become figures by queue and shape, and differences job by job.

use std::collections::BTreeMap;

use super::figures::{Answer, Difference, Figures, JobFigures, Wait};
use super::run::{JobOutcome, Outcome};
use super::work::Submission;
use crate::engine::estimate::Estimate;
use divvy_core::request::Amount;
use divvy_core::units::QueueName;

/// The jobs of a run that count, and its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted<'a> {
    pub submissions: &'a [Submission],
    /// The first job that counts; those before it warm the nodes up.
    pub first: usize,
    /// Thousandths of GPUs in all.
    pub capacity: u64,
    pub span_ms: u64,
}

/// Sums over runs.
pub(super) struct Tally {
    queues: BTreeMap<QueueName, usize>,
    groups: BTreeMap<(usize, Amount), Group>,
    held: f64,
    offered: f64,
}

#[derive(Clone, Default)]
struct Group {
    figures: JobFigures,
    waits: Vec<u64>,
}

impl Tally {
    pub fn new(queues: impl IntoIterator<Item = QueueName>) -> Self {
        Self {
            queues: queues.into_iter().zip(0..).collect(),
            groups: BTreeMap::new(),
            held: 0.0,
            offered: 0.0,
        }
    }

    pub fn add(&mut self, counted: Counted<'_>, outcome: &Outcome) {
        let jobs = counted.submissions.iter().zip(&outcome.jobs);
        for (job, outcome) in jobs.skip(counted.first) {
            let queue = self.queues.get(&job.queue).copied().unwrap_or(usize::MAX);
            let key = (queue, job.request.amount.plain());
            self.groups.entry(key).or_default().add(*outcome);
        }
        self.held += outcome.held as f64;
        self.offered += counted.capacity as f64 * counted.span_ms as f64;
    }

    pub fn figures(self) -> Figures {
        let mut by_queue: BTreeMap<usize, Group> = BTreeMap::new();
        let mut all = Group::default();
        let mut names: Vec<(usize, QueueName)> = self
            .queues
            .into_iter()
            .map(|(name, at)| (at, name))
            .collect();
        names.sort_unstable();
        let mut shapes = Vec::new();
        for ((queue, amount), group) in self.groups {
            all.merge(&group);
            by_queue.entry(queue).or_default().merge(&group);
            if let Some((_, name)) = names.get(queue) {
                shapes.push((name.clone(), amount, group.figures()));
            }
        }
        let queues = names.into_iter().map(|(at, name)| {
            let group = by_queue.remove(&at).unwrap_or_default();
            (name, group.figures())
        });
        Figures {
            queues: queues.collect(),
            shapes,
            all: all.figures(),
            in_use: if self.offered > 0.0 {
                self.held / self.offered
            } else {
                0.0
            },
        }
    }
}

impl Group {
    fn add(&mut self, outcome: JobOutcome) {
        let figures = &mut self.figures;
        figures.submitted += 1;
        figures.refused += u64::from(outcome.refused);
        figures.preempted += u64::from(outcome.preemptions > 0);
        match outcome.wait_ms {
            Some(wait) => self.waits.push(wait),
            None => figures.stuck += u64::from(!outcome.refused),
        }
    }

    fn merge(&mut self, other: &Self) {
        let (sum, figures) = (&mut self.figures, other.figures);
        sum.submitted += figures.submitted;
        sum.refused += figures.refused;
        sum.preempted += figures.preempted;
        sum.stuck += figures.stuck;
        self.waits.extend(&other.waits);
    }

    fn figures(mut self) -> JobFigures {
        JobFigures {
            wait: Wait::of(&mut self.waits),
            ..self.figures
        }
    }
}

impl Wait {
    /// Of these waits, in any order. A percentile is the smallest wait that so many of the jobs do not exceed.
    pub(super) fn of(waits: &mut [u64]) -> Self {
        waits.sort_unstable();
        let rank = |percent: usize| {
            let rank = (waits.len() * percent).div_ceil(100).max(1);
            waits.get(rank - 1).copied().unwrap_or(0)
        };
        let sum: u128 = waits.iter().map(|wait| u128::from(*wait)).sum();
        Self {
            jobs: waits.len() as u64,
            mean_ms: if waits.is_empty() {
                0.0
            } else {
                sum as f64 / waits.len() as f64
            },
            p50_ms: rank(50),
            p90_ms: rank(90),
            longest_ms: waits.last().copied().unwrap_or(0),
        }
    }
}

/// Differences of two scenes with the same submissions, over runs.
#[derive(Default)]
pub(super) struct Paired {
    all: Pairs,
    queues: BTreeMap<QueueName, Pairs>,
}

#[derive(Default)]
struct Pairs {
    difference: Difference,
    sum_ms: f64,
    /// The mean of each run.
    means: Vec<f64>,
    run: (u64, f64),
}

impl Paired {
    pub fn add(&mut self, counted: Counted<'_>, before: &Outcome, after: &Outcome) {
        let jobs = counted
            .submissions
            .iter()
            .zip(before.jobs.iter().zip(&after.jobs));
        for (job, (before, after)) in jobs.skip(counted.first) {
            if let (Some(before), Some(after)) = (before.wait_ms, after.wait_ms) {
                self.all.add(before, after);
                let queue = self.queues.entry(job.queue.clone()).or_default();
                queue.add(before, after);
            }
        }
        self.all.end_run();
        self.queues.values_mut().for_each(Pairs::end_run);
    }

    pub fn answer(mut self, before: Figures, after: Figures) -> Answer {
        let queues = before.queues.iter().map(|(name, _)| {
            let pairs = self.queues.remove(name).unwrap_or_default();
            (name.clone(), pairs.difference())
        });
        Answer {
            queues: queues.collect(),
            all: self.all.difference(),
            before,
            after,
        }
    }
}

impl Pairs {
    fn add(&mut self, before: u64, after: u64) {
        self.difference.jobs += 1;
        self.difference.shorter += u64::from(after < before);
        self.difference.longer += u64::from(after > before);
        let difference = after as f64 - before as f64;
        self.sum_ms += difference;
        self.run.0 += 1;
        self.run.1 += difference;
    }

    fn end_run(&mut self) {
        let (jobs, sum) = std::mem::take(&mut self.run);
        if jobs > 0 {
            self.means.push(sum / jobs as f64);
        }
    }

    fn difference(self) -> Difference {
        Difference {
            mean_ms: match self.difference.jobs {
                0 => 0.0,
                jobs => self.sum_ms / jobs as f64,
            },
            ci95_ms: Estimate::of(&self.means).and_then(|estimate| estimate.within),
            ..self.difference
        }
    }
}
