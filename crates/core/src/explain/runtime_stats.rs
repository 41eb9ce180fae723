//! Runtime statistics: the usual runtime of a program, from earlier similar runs.
//!
//! An estimate for people. Backfill and the latest start use time limits only.

/// How many of the newest runs count: a program changes with time. Our choice. Half would be one day of a sweep; double
/// would keep durations of an older version of the program.
pub const RUNS: usize = 20;

/// Fewer runs give no estimate: of two runs, either may be the odd one. Our choice.
const LEAST: usize = 3;

/// The usual runtime of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeEstimate {
    /// The median of the runtimes, in seconds; of two middle ones the shorter.
    pub median_s: u64,
    /// The number of runs.
    pub runs: usize,
}

impl RuntimeEstimate {
    /// In how many seconds a run ends that has run for so long; `None` where it has exceeded the median.
    pub fn remaining_s(self, ran_s: u64) -> Option<u64> {
        self.median_s.checked_sub(ran_s)
    }
}

/// The usual runtime, from runtimes in seconds, the newest first; `None` for too few runs.
pub fn estimate_runtime(lengths: impl IntoIterator<Item = u64>) -> Option<RuntimeEstimate> {
    let mut lengths: Vec<u64> = lengths.into_iter().take(RUNS).collect();
    lengths.sort_unstable();
    let runs = lengths.len();
    (runs >= LEAST).then(|| RuntimeEstimate {
        median_s: lengths[(runs - 1) / 2],
        runs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_one_is_usual_whatever_the_order_and_however_long_the_longest() {
        for lengths in [[60, 90, 7000], [7000, 60, 90], [90, 7000, 60]] {
            let (median_s, runs) = (90, 3);
            assert_eq!(
                estimate_runtime(lengths),
                Some(RuntimeEstimate { median_s, runs })
            );
        }
        let even = estimate_runtime([10, 40, 20, 30]).map(|usual| usual.median_s);
        assert_eq!(even, Some(20), "the shorter of the two in the middle");
    }

    #[test]
    fn from_two_runs_nothing_follows() {
        assert_eq!(estimate_runtime([]), None);
        assert_eq!(estimate_runtime([60, 60]), None);
        assert!(estimate_runtime([60, 60, 60]).is_some());
    }

    #[test]
    fn runs_of_long_ago_count_for_nothing() {
        let new = std::iter::repeat_n(60, RUNS);
        let old = std::iter::repeat_n(7000, 10 * RUNS);
        let (median_s, runs) = (60, RUNS);
        assert_eq!(
            estimate_runtime(new.chain(old)),
            Some(RuntimeEstimate { median_s, runs })
        );
    }

    #[test]
    fn of_one_that_has_taken_longer_nothing_is_said() {
        let usual = RuntimeEstimate {
            median_s: 60,
            runs: 3,
        };
        let left = [0, 59, 60, 61].map(|ran| usual.remaining_s(ran));
        assert_eq!(left, [Some(60), Some(1), Some(0), None]);
    }
}
