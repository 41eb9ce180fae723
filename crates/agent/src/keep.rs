//! How much of the past is kept, and what of it is beyond that. Pure.
//!
//! What is never forgotten: a job that lives; one that a living job runs after; one whose idempotency key still stands for it.

use std::time::Duration;

/// For how long a key stands for its job at least, whatever else is said: as long as other services promise it (Stripe's API
/// keeps keys for 24 hours).
pub const KEY: Duration = Duration::from_secs(24 * 3600);

/// Events that are kept at most for each ended job that may be: a job has about five of its own.
const EVENTS_A_JOB: u64 = 50;

/// Rows of usage that are kept at most for each ended job that may be: a job that runs for a day has one for each hour and GPU.
const USAGES_A_JOB: u64 = 50;

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Ended jobs, with their folders, and events.
    pub jobs_for: Duration,
    /// The newest so many ended jobs.
    pub most_jobs: u32,
    /// What was held and used.
    pub usage_for: Duration,
}

impl Default for Keep {
    /// As the command line has it: a quarter of a year of jobs, of which 20,000 take about half a gigabyte besides their logs,
    /// and a year of usage with a month to look back at it.
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        Self {
            jobs_for: days(90),
            most_jobs: 20_000,
            usage_for: days(400),
        }
    }
}

impl Keep {
    pub fn most_events(&self) -> u64 {
        u64::from(self.most_jobs).max(1) * EVENTS_A_JOB
    }

    pub fn most_usages(&self) -> u64 {
        u64::from(self.most_jobs).max(1) * USAGES_A_JOB
    }
}
