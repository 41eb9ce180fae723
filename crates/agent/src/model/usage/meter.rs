//! The usage meter: from the driver's figures of processes to the usage of jobs. Pure.

use std::collections::BTreeMap;

use divvy_core::JobId;

use super::Metered;

/// What the driver measured on one GPU since it was last asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UtilisationSample {
    /// The time that it speaks of, in microseconds.
    pub micros: u64,
    pub utilisation: ReportedUtilisation,
}

/// The owner of the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportedUtilisation {
    /// Percent of the time, by pid; a missing pid did nothing.
    PerProcess(BTreeMap<u32, u32>),
    /// Percent of the time, all together.
    Total(u32),
}

/// A job that holds something of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub job: JobId,
    /// Thousandths.
    pub share: u16,
}

/// The usage of each job that holds a part of a GPU. `listed` gives the job of every process that has a context there.
/// The result omits a job whose usage the figures do not show.
pub fn metered(
    worked: &UtilisationSample,
    holders: &[Holder],
    listed: &[(u32, Option<JobId>)],
) -> Vec<(JobId, Metered)> {
    let of = |job| listed.iter().filter(move |(_, of)| *of == Some(job));
    let percent = |job| match &worked.utilisation {
        ReportedUtilisation::PerProcess(work) => Some(
            of(job)
                .filter_map(|(pid, _)| work.get(pid))
                .fold(0_u32, |sum, percent| sum.saturating_add(*percent)),
        ),
        // The whole figure is theirs if no other job is there.
        ReportedUtilisation::Total(percent) => match (of(job).count(), listed.len()) {
            (0, _) => Some(0),
            (own, all) if own == all => Some(*percent),
            _ => None,
        },
    };
    let metered = |holder: &Holder| {
        let percent = u64::from(percent(holder.job)?.min(100));
        let used = worked.micros.saturating_mul(percent * 10);
        let due = worked.micros.saturating_mul(u64::from(holder.share));
        let metered = Metered {
            micros: worked.micros,
            used,
            loaned: used.saturating_sub(due),
        };
        Some((holder.job, metered))
    };
    holders.iter().filter_map(metered).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Holder = Holder {
        job: JobId(1),
        share: 250,
    };
    const B: Holder = Holder {
        job: JobId(2),
        share: 500,
    };

    fn figures(found: &[(JobId, Metered)]) -> Vec<(u64, u64, u64)> {
        let figures = |(job, metered): &(JobId, Metered)| (job.0, metered.used, metered.loaned);
        found.iter().map(figures).collect()
    }

    #[test]
    fn a_job_used_what_its_processes_did_together() {
        let worked = UtilisationSample {
            micros: 1_000_000,
            utilisation: ReportedUtilisation::PerProcess(BTreeMap::from([
                (10, 30),
                (11, 20),
                (12, 7),
                (99, 40),
            ])),
        };
        let listed = [
            (10, Some(A.job)),
            (11, Some(A.job)),
            (12, Some(B.job)),
            (13, Some(B.job)),
            (99, None),
        ];
        let found = metered(&worked, &[A, B], &listed);
        let expected = [(1, 500_000_000, 250_000_000), (2, 70_000_000, 0)];
        assert_eq!(figures(&found), expected);
        assert!(found.iter().all(|(_, one)| one.micros == 1_000_000));
    }

    #[test]
    fn without_figures_of_processes_only_a_sole_job_is_known() {
        let worked = UtilisationSample {
            micros: 100,
            utilisation: ReportedUtilisation::Total(60),
        };
        let alone = metered(&worked, &[A, B], &[(10, Some(A.job))]);
        assert_eq!(figures(&alone), [(1, 60_000, 35_000), (2, 0, 0)]);
        let beside = metered(&worked, &[A, B], &[(10, Some(A.job)), (99, None)]);
        assert_eq!(figures(&beside), [(2, 0, 0)]);
    }

    #[test]
    fn no_job_uses_more_than_the_whole_gpu() {
        let worked = UtilisationSample {
            micros: 100,
            utilisation: ReportedUtilisation::PerProcess(BTreeMap::from([(10, 90), (11, 90)])),
        };
        let listed = [(10, Some(A.job)), (11, Some(A.job))];
        let found = metered(&worked, &[A], &listed);
        assert_eq!(figures(&found), [(1, 100_000, 75_000)]);
    }
}
