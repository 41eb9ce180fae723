//! What earlier runs suggest: jobs of the journal, by what they ran and on how many GPUs, and what the core makes of them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use divvy_api::v1;
use divvy_core::advise::{Run, advise, amount, program};
use divvy_core::{Bytes, Gpu, JobId};

use crate::job::Job;

/// Whose runs are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runs {
    All,
    /// Of jobs whose name matches this pattern.
    Named(String),
    /// Of this program.
    Of(String),
}

impl Runs {
    fn has(&self, job: &Job) -> bool {
        match self {
            Self::All => true,
            Self::Named(pattern) => divvy_core::advise::matches(pattern, &job.ask.name),
            Self::Of(wanted) => program(&job.ask.command) == *wanted,
        }
    }
}

/// One item for each program and number of GPUs, the one that ran last first. `jobs`: ended ones, in any order.
/// `sufficient`: under which limit all that was refused would have passed, by job.
pub fn advice(
    runs: &Runs,
    mut jobs: Vec<Job>,
    sufficient: &BTreeMap<JobId, Bytes>,
    gpus: &[Gpu],
) -> Vec<v1::Advice> {
    jobs.retain(|job| job.life.outcome().is_some() && !job.holdings.is_empty() && runs.has(job));
    jobs.sort_by_key(|job| std::cmp::Reverse(job.id));
    let mut groups: Vec<((String, usize), Vec<&Job>)> = Vec::new();
    for job in &jobs {
        let key = (program(&job.ask.command), job.holdings.len());
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(job),
            None => groups.push((key, vec![job])),
        }
    }
    groups
        .into_iter()
        .filter_map(|((program, count), group)| one(program, count, &group, sufficient, gpus))
        .collect()
}

fn one(
    program: String,
    count: usize,
    group: &[&Job],
    sufficient: &BTreeMap<JobId, Bytes>,
    gpus: &[Gpu],
) -> Option<v1::Advice> {
    let runs: Vec<Run> = group.iter().map(|job| run(job, sufficient)).collect();
    let advice = advise(&runs)?;
    let newest = group.first()?;
    let count = NonZeroU32::new(u32::try_from(count).ok()?)?;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Some(v1::Advice {
        name: newest.ask.name.clone(),
        program,
        gpus: count.get(),
        runs: number(advice.runs),
        refused: number(advice.refused),
        memory_limit_bytes: advice.limit.get(),
        memory_peak_median_bytes: advice.peak_median.get(),
        memory_peak_bytes: advice.peak_most.get(),
        memory_bytes: advice.memory.get(),
        amount: amount(advice.memory, count, gpus).map(Into::into),
        would_refuse: number(advice.would_refuse),
        command: newest.ask.command.clone(),
    })
}

fn run(job: &Job, sufficient: &BTreeMap<JobId, Bytes>) -> Run {
    let most = |of: &dyn Fn(&crate::job::Holding) -> Bytes| {
        job.holdings.iter().map(of).max().unwrap_or_default()
    };
    let refused = most(&|holding| match holding.traces.last_denied {
        Some(last) => holding.traces.peak.saturating_add(last),
        None => Bytes::ZERO,
    });
    Run {
        limit: most(&|holding| holding.grant.memory),
        peak: most(&|holding| holding.traces.peak),
        denied: job.holdings.iter().fold(0, |sum: u64, holding| {
            sum.saturating_add(holding.traces.denied)
        }),
        // Where no record is kept, the last size refused on top of the peak is the best guess there is.
        sufficient: sufficient.get(&job.id).copied().unwrap_or(refused),
    }
}
