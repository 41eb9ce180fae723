//! Counters of the daemon for its metrics: since its start, and never an input of a decision.

use std::collections::BTreeMap;
use std::time::Duration;

/// Upper bounds of waits, in seconds: from at once to a week.
pub const BOUNDS: [u64; 10] = [1, 5, 15, 60, 300, 1800, 3600, 14_400, 86_400, 604_800];

/// Directions of resizes, and what comes of them: only for more there may be no room, and what is refused otherwise has none.
pub const RESIZES: [(&str, &str); 6] = [
    ("more", "done"),
    ("less", "done"),
    ("waiting", "done"),
    ("compute", "done"),
    ("more", "refused"),
    ("none", "refused"),
];

/// The counters.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Events, by kind.
    pub events: BTreeMap<String, u64>,
    /// How long jobs waited before they were placed, by queue.
    pub waits: BTreeMap<String, WaitHistogram>,
    /// Jobs that were told to give way, and those of them that have.
    pub preempted: u64,
    pub preempted_done: u64,
    /// How long it took to stop all processes of suspended jobs.
    pub suspends: DurationSum,
    /// Jobs that were to be suspended and could not be.
    pub failed_suspends: u64,
    /// How long copies took that brought the memory of parked jobs back.
    pub wakes: DurationSum,
    /// Sizes that were asked for, by direction and result.
    pub resizes: BTreeMap<(&'static str, &'static str), u64>,
    /// What was found after the start: jobs that run on, and jobs that had ended.
    pub adopted: u64,
    pub finalized: u64,
    pub plans: DurationSum,
    /// Commits that had something to write.
    pub commits: DurationSum,
    /// Rows of the journal that the last of them had changed.
    pub committed_rows: u64,
}

impl Counters {
    /// Counts a commit after which the daemon has changed so many rows. One without a change writes nothing, and most
    /// rounds have none: they would hide a slow disk in an average.
    pub fn add_commit(&mut self, rows: u64, took: Duration) {
        if std::mem::replace(&mut self.committed_rows, rows) != rows {
            self.commits.add(took);
        }
    }

    /// How many events of this kind there were.
    pub fn event_count(&self, kind: &str) -> u64 {
        self.events.get(kind).copied().unwrap_or_default()
    }
}

/// How often, and how long it took altogether.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationSum {
    pub count: u64,
    pub total: Duration,
}

impl DurationSum {
    pub fn add(&mut self, took: Duration) {
        self.count += 1;
        self.total += took;
    }
}

/// Waits of one queue's jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitHistogram {
    /// So many were no longer than each of [`BOUNDS`].
    pub within: [u64; BOUNDS.len()],
    pub all: DurationSum,
}

impl WaitHistogram {
    pub fn add(&mut self, waited: Duration) {
        for (count, bound) in self.within.iter_mut().zip(BOUNDS) {
            *count += u64::from(waited <= Duration::from_secs(bound));
        }
        self.all.add(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_without_a_change_is_no_write() {
        let mut counters = Counters::default();
        for (rows, millis) in [(0, 1), (3, 200), (3, 1), (3, 1), (4, 100)] {
            counters.add_commit(rows, Duration::from_millis(millis));
        }
        let written = (counters.commits.count, counters.commits.total.as_millis());
        assert_eq!(written, (2, 300));
    }

    #[test]
    fn a_wait_counts_in_every_bucket_that_it_fits_in() {
        let mut waits = WaitHistogram::default();
        for millis in [0, 1000, 1001, 700_000_000] {
            waits.add(Duration::from_millis(millis));
        }
        assert_eq!(waits.within, [2, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!(
            (waits.all.count, waits.all.total.as_millis()),
            (4, 700_002_001)
        );
    }
}
