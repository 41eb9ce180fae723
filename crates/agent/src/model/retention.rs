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

pub use divvy_api::daemon::RetentionPolicy;
use jiff::{SignedDuration, Timestamp};

/// The minimum lifetime of an idempotency key, with every setting: as long as other services promise it (Stripe's API
/// keeps keys for 24 hours).
pub const MIN_KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// For how long a job is kept at least after it ended, however many its user has: its result is there the next morning.
const YOUNG: Duration = Duration::from_secs(24 * 3600);

/// How many times `max_jobs` a user's ended jobs may be within that time. By default that is 100,000, as many as may
/// wait.
const TIMES: u32 = 5;

/// Bytes of texts of one user's ended jobs: four times the budget of living ones, and 2.6 kB for each of 100,000 jobs.
const TEXTS: u64 = 256 << 20;

/// Events that are kept at most for each ended job that may be: a job has about five of its own.
const EVENTS_A_JOB: u64 = 50;

/// Rows of usage of each user that are kept at most for each ended job that may be. A job that runs for a day has one
/// for each hour and GPU.
const USAGES_A_JOB: u64 = 50;

/// Returns the limits that ended jobs exceed at `now`.
pub fn expired(policy: &RetentionPolicy, now: Timestamp) -> RetentionLimits {
    RetentionLimits {
        ended: before(now, policy.jobs_for),
        young: before(now, YOUNG),
        most: policy.max_jobs,
        most_young: policy.max_jobs.max(1).saturating_mul(TIMES),
        texts: TEXTS,
        keys: before(now, MIN_KEY_LIFETIME),
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

pub fn max_events(policy: &RetentionPolicy) -> u64 {
    u64::from(policy.max_jobs).max(1) * EVENTS_A_JOB
}

/// Usage records of each user.
pub fn max_usages(policy: &RetentionPolicy) -> u64 {
    u64::from(policy.max_jobs).max(1) * USAGES_A_JOB
}

/// So long before; the beginning of time where there is no such moment.
pub fn before(now: Timestamp, length: Duration) -> Timestamp {
    let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
    now.checked_sub(length).unwrap_or(Timestamp::MIN)
}
