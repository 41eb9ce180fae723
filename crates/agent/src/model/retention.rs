//! Retention: how much of the past is kept, and what of it is beyond that. Pure.
//!
//! | of each user's ended jobs go | when |
//! |---|---|
//! | jobs that ended before `jobs_for` | at once |
//! | jobs beyond the newest `max_jobs` | a day after they ended |
//! | jobs beyond the newest five times `max_jobs`, or beyond 256 MiB of texts | at once |
//! | the logs of the oldest, beyond `logs` bytes | at once; the job stays |
//!
//! One user's jobs push out nothing of another user. Never forgotten: a job that lives; a job that a living job runs
//! after; a job that its idempotency key still stands for.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// For how long a key stands for its job at least, whatever else is said: as long as other services promise it (Stripe's API
/// keeps keys for 24 hours).
pub const MIN_KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// For how long a job is kept at least after it ended, however many its user has: its result is there the next morning.
const YOUNG: Duration = Duration::from_secs(24 * 3600);

/// How many times `max_jobs` a user's ended jobs may be within that time. By default that is 100,000, as many as may
/// wait.
const TIMES: u32 = 5;

/// Bytes of texts of one user's ended jobs: four times the budget of living ones, and 2.6 kB for each of 100,000 jobs.
const TEXTS: u64 = 256 << 20;

/// Bytes of the logs of one user's ended jobs, unless a daemon says otherwise: 16 logs of the size that is usual.
pub const DEFAULT_MAX_LOG_BYTES: u64 = 4 << 30;

/// Events that are kept at most for each ended job that may be: a job has about five of its own.
const EVENTS_A_JOB: u64 = 50;

/// Rows of usage of each user that are kept at most for each ended job that may be. A job that runs for a day has one
/// for each hour and GPU.
const USAGES_A_JOB: u64 = 50;

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Ended jobs, with their folders, and events.
    pub jobs_for: Duration,
    /// The newest so many ended jobs of each user.
    pub max_jobs: u32,
    /// Bytes of the logs of each user's ended jobs, as blocks of the file system.
    pub max_log_bytes: u64,
    /// What was held and used.
    pub usage_for: Duration,
}

impl Default for RetentionPolicy {
    /// As the command line has it: a quarter of a year of jobs, of which 20,000 take about half a gigabyte besides their logs,
    /// and a year of usage with a month to look back at it.
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        Self {
            jobs_for: days(90),
            max_jobs: 20_000,
            max_log_bytes: DEFAULT_MAX_LOG_BYTES,
            usage_for: days(400),
        }
    }
}

/// What is to be found: ended jobs of a user beyond one of these.
#[derive(Clone, Copy, Debug)]
pub struct RetentionLimits {
    /// Ended before this.
    pub ended: Timestamp,
    /// More than this number of the user's, if they ended before `young`.
    pub most: u32,
    pub young: Timestamp,
    /// More than this number of them, whenever they ended.
    pub most_young: u32,
    /// More than so many bytes of texts, whenever they ended.
    pub texts: u64,
    /// Jobs with idempotency keys that ended after this are not found.
    pub keys: Timestamp,
}

impl RetentionPolicy {
    /// What of the ended jobs is beyond this at a moment.
    pub fn expired(&self, now: Timestamp) -> RetentionLimits {
        RetentionLimits {
            ended: before(now, self.jobs_for),
            young: before(now, YOUNG),
            most: self.max_jobs,
            most_young: self.max_jobs.max(1).saturating_mul(TIMES),
            texts: TEXTS,
            keys: before(now, MIN_KEY_LIFETIME),
        }
    }

    pub fn most_events(&self) -> u64 {
        u64::from(self.max_jobs).max(1) * EVENTS_A_JOB
    }

    /// Of each user.
    pub fn most_usages(&self) -> u64 {
        u64::from(self.max_jobs).max(1) * USAGES_A_JOB
    }
}

/// So long before; the beginning of time where there is no such moment.
pub fn before(now: Timestamp, length: Duration) -> Timestamp {
    let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
    now.checked_sub(length).unwrap_or(Timestamp::MIN)
}
