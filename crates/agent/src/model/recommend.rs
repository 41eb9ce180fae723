//! Size recommendations from earlier runs of the same program on the same number of GPUs.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use divvy_api::v1;
use divvy_core::advise::{RunUsage, advise, amount};
use divvy_core::command::program;
use divvy_core::{Bytes, Gpu, JobId};

use crate::model::job::Job;

/// The selection of earlier runs that a recommendation reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFilter {
    All,
    /// Of jobs with names that match this pattern.
    Named(String),
    /// Of this program.
    Of(String),
}

impl RunFilter {
    fn matches(&self, job: &Job) -> bool {
        match self {
            Self::All => true,
            Self::Named(pattern) => divvy_core::advise::matches(pattern, &job.spec.name),
            Self::Of(wanted) => program(&job.spec.command) == *wanted,
        }
    }
}

/// One item for each program and number of GPUs, the one that ran last first. `jobs`: ended ones, in any order.
/// `sufficient`: under which limit all that was refused would have passed, by job.
pub fn advice(
    runs: &RunFilter,
    mut jobs: Vec<Job>,
    sufficient: &BTreeMap<JobId, Bytes>,
    gpus: &[Gpu],
) -> Vec<v1::Advice> {
    // What a claim is used for is not known.
    jobs.retain(|job| job.spec.policy.claim.is_none());
    jobs.retain(|job| {
        job.state.outcome().is_some() && !job.allocations.is_empty() && runs.matches(job)
    });
    jobs.sort_by_key(|job| std::cmp::Reverse(job.id));
    let mut groups: Vec<((String, usize), Vec<&Job>)> = Vec::new();
    for job in &jobs {
        let key = (program(&job.spec.command), job.allocations.len());
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
    let runs: Vec<RunUsage> = group.iter().map(|job| run(job, sufficient)).collect();
    let advice = advise(&runs)?;
    let newest = group.first()?;
    let count = NonZeroU32::new(u32::try_from(count).ok()?)?;
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Some(v1::Advice {
        name: newest.spec.name.clone(),
        program,
        gpus: count.get(),
        runs: number(advice.runs),
        denied_runs: number(advice.refused),
        memory_limit_bytes: advice.limit.get(),
        memory_peak_median_bytes: advice.peak_median.get(),
        memory_peak_bytes: advice.peak_most.get(),
        memory_at_least_bytes: advice.at_least.get(),
        memory_bytes: advice.memory.map(Bytes::get),
        amount: (advice.memory)
            .and_then(|memory| amount(memory, count, gpus))
            .map(Into::into),
        command: newest.spec.command.clone(),
    })
}

fn run(job: &Job, sufficient: &BTreeMap<JobId, Bytes>) -> RunUsage {
    let most = |of: &dyn Fn(&crate::model::job::Allocation) -> Bytes| {
        job.allocations.iter().map(of).max().unwrap_or_default()
    };
    let refused = most(&|holding| match holding.stats.last_denied {
        Some(last) => holding.stats.peak.saturating_add(last),
        None => Bytes::ZERO,
    });
    RunUsage {
        limit: most(&|holding| holding.grant.memory),
        peak: most(&|holding| holding.stats.peak),
        denied: job.allocations.iter().fold(0, |sum: u64, holding| {
            sum.saturating_add(holding.stats.denied)
        }),
        // Where no record is kept, the last size refused on top of the peak is the best guess there is.
        sufficient: sufficient.get(&job.id).copied().unwrap_or(refused),
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::job::{Event, ProgramExit};
    use divvy_core::{Amount, Grant, Mode, Share};

    use super::*;
    use crate::journal;
    use crate::model::job::JobSpec;

    const GPU: u64 = 80;

    fn gpu() -> Gpu {
        Gpu {
            uuid: divvy_core::GpuUuid::from_bytes([0; 16]),
            index: 0,
            model: "A100 80GB".to_owned(),
            mode: Mode::Shared,
            away: false,
            out_of_service: None,
            total: Bytes::gib(GPU),
            reserved: Bytes::ZERO,
            unmanaged: Bytes::ZERO,
            unlisted: Bytes::ZERO,
            unlisted_holder: None,
            enforcement: divvy_core::Enforcement::Limiter,
            elsewhere: Vec::new(),
            context: Bytes::ZERO,
            mig: None,
        }
    }

    /// An ended run on so many GPUs, of which it used so much each.
    fn ran(id: u64, name: &str, command: &str, gpus: u8, used: u64) -> Job {
        let mut new = journal::tests::new(None);
        new.spec = JobSpec {
            name: name.into(),
            credentials: crate::model::job::Credentials::current(),
            request: Amount::ONE_GPU.into(),
            command: command.split(' ').map(str::to_owned).collect(),
            ..new.spec
        };
        let mut job = Job::queued(JobId(id), &new);
        let grant = |index: u8| Grant {
            gpu: divvy_core::GpuUuid::from_bytes([index; 16]),
            index: index.into(),
            memory: Bytes::gib(40),
            share: Share::from_thousandths(500).unwrap(),
            label: format!("gpu{index}.5a"),
            mig: None,
        };
        job.place((0..gpus).map(grant).collect());
        job.apply_event(Event::Exited(ProgramExit::Exited(0)));
        for holding in &mut job.allocations {
            holding.stats.peak = Bytes::gib(used);
        }
        job
    }

    #[test]
    fn runs_are_compared_by_program_and_number_of_gpus() {
        let jobs = vec![
            ran(1, "a", "python train.py --lr 1", 1, 10),
            ran(2, "b", "/opt/python train.py", 1, 20),
            ran(3, "c", "python train.py", 2, 10),
            ran(4, "d", "python eval.py", 1, 5),
            ran(5, "e", "true", 1, 0),
        ];
        let all = advice(&RunFilter::All, jobs.clone(), &BTreeMap::new(), &[gpu()]);
        let rows: Vec<_> = all
            .iter()
            .map(|one| (one.program.as_str(), one.gpus, one.runs, one.name.as_str()))
            .collect();
        let expected = [
            ("python eval.py", 1, 1, "d"),
            ("python train.py", 2, 1, "c"),
            ("python train.py", 1, 2, "b"),
        ];
        assert_eq!(rows, expected);
        assert_eq!(
            all[1].amount,
            Some(v1::Amount::Shares {
                count: 2,
                thousandths: 138
            })
        );
        assert_eq!(all[2].amount, Some(v1::Amount::Memory { bytes: 22 << 30 }));
        let of = |runs: RunFilter| advice(&runs, jobs.clone(), &BTreeMap::new(), &[gpu()]).len();
        assert_eq!(of(RunFilter::Of("python train.py".into())), 2);
        assert_eq!(of(RunFilter::Named("[ab]".into())), 0);
        assert_eq!(of(RunFilter::Named("?".into())), 3);
    }

    #[test]
    fn a_refusal_counts_with_its_record_or_else_with_its_size() {
        let mut job = ran(1, "a", "x", 1, 10);
        job.allocations[0].stats.denied = 1;
        job.allocations[0].stats.last_denied = Some(Bytes::gib(10));
        let asked = |sufficient: &BTreeMap<JobId, Bytes>| {
            let advice = &advice(&RunFilter::All, vec![job.clone()], sufficient, &[gpu()])[0];
            assert_eq!((advice.memory_bytes, &advice.amount), (None, &None));
            advice.memory_at_least_bytes
        };
        assert_eq!(asked(&BTreeMap::new()), 20 << 30);
        let sufficient = BTreeMap::from([(JobId(1), Bytes::gib(30))]);
        assert_eq!(asked(&sufficient), 30 << 30);
    }
}
