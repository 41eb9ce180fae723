//! Retention: how much of the past is kept, and what of it is beyond that. Pure.
//!
//! | of each user's ended jobs go | when |
//! |---|---|
//! | jobs that ended before `jobs_for` | at once |
//! | jobs beyond the newest `max_jobs` | a day after they ended |
//! | jobs beyond the newest five times `max_jobs`, or beyond 256 MiB of texts | at once |
//! | the logs of the oldest, beyond `logs` bytes | at once; the job stays |
//!
//! | of the events of each user's jobs go | when |
//! |---|---|
//! | events of before `jobs_for` | at once |
//! | acts of administrators | as the others, but after `usage_for` if that is longer |
//! | events beyond the newest ten times `max_jobs` | a day after they happened |
//! | events beyond the newest five times as many, or beyond 256 MiB | at once |
//!
//! The machine's events have the same bounds. One user's jobs and events push out nothing of another user. Never
//! forgotten: a job that lives; a job that a living job runs after; a job that its idempotency key still stands for.

use std::time::Duration;

pub use divvy_api::daemon::RetentionPolicy;
use jiff::{SignedDuration, Timestamp};

/// The minimum lifetime of an idempotency key, with every setting: as long as other services promise it (Stripe's API
/// keeps keys for 24 hours).
pub const MIN_KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// For how long a job is kept at least after it ended, however many its user has: its result is there the next morning.
/// So half would lose the result of a night.
const YOUNG: Duration = Duration::from_secs(24 * 3600);

/// How many times `max_jobs` a user's ended jobs may be within that time. By default that is 100,000, as many as may
/// wait.
const TIMES: u32 = 5;

/// Bytes of texts of one user's ended jobs: four times the budget of living ones, and 2.6 kB for each of 100,000 jobs.
const TEXTS: u64 = 256 << 20;

/// Events of each user that are kept for each ended job that may be: a job has about five of its own. So double that
/// leaves room for suspensions and requeues.
const EVENTS_A_JOB: u64 = 10;

/// Rows of usage of each user that are kept at most for each ended job that may be. A job that runs for a day has one
/// for each hour and GPU. So twice such a job.
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

/// Returns the limits that events exceed at `now`.
pub fn expired_events(policy: &RetentionPolicy, now: Timestamp) -> EventLimits {
    let most = u64::from(policy.max_jobs).max(1) * EVENTS_A_JOB;
    EventLimits {
        before: before(now, policy.jobs_for),
        acts_before: before(now, policy.jobs_for.max(policy.usage_for)),
        young: before(now, YOUNG),
        most,
        most_young: most * u64::from(TIMES),
        bytes: TEXTS,
    }
}

/// What is to be found: the oldest events of a user beyond one of these.
#[derive(Clone, Copy, Debug)]
pub struct EventLimits {
    /// Recorded before this; `acts_before` for acts of administrators.
    pub before: Timestamp,
    pub acts_before: Timestamp,
    /// More than this number of the user's, if they were recorded before `young`.
    pub most: u64,
    pub young: Timestamp,
    /// More than this number of them, whenever they were recorded.
    pub most_young: u64,
    /// More than so many bytes of them, whenever they were recorded.
    pub bytes: u64,
}

impl EventLimits {
    /// Whether the oldest event of a pot of this size may go.
    pub fn is_beyond(&self, is_act: bool, pot: PotSize, oldest: Timestamp) -> bool {
        let before = match is_act {
            true => self.acts_before,
            false => self.before,
        };
        let is_old = pot.events > self.most && oldest < self.young;
        oldest < before || is_old || pot.events > self.most_young || pot.bytes > self.bytes
    }
}

/// Events, and their bytes in the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PotSize {
    events: u64,
    bytes: u64,
}

impl PotSize {
    pub fn of(events: u64, bytes: u64) -> Self {
        Self { events, bytes }
    }

    pub fn add(&mut self, more: Self) {
        self.events += more.events;
        self.bytes += more.bytes;
    }

    pub fn remove(&mut self, less: Self) {
        self.events = self.events.saturating_sub(less.events);
        self.bytes = self.bytes.saturating_sub(less.bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.events == 0
    }
}

/// Usage records of each user.
pub fn max_usages(policy: &RetentionPolicy) -> u64 {
    u64::from(policy.max_jobs).max(1) * USAGES_A_JOB
}

/// The time up to which retention follows the machine's clock: a wrong clock would delete the history of all users.
///
/// The time of day may be ahead of the last pruning by as long as the machine has been up since, and by a day. The day is
/// given once an hour of the machine's being up, so that a clock that was rightly set counts after a while.
///
/// After a reboot only the time since then counts, as nothing says how long the machine was off. Retention is late then:
/// by three hours for each month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneClock {
    /// The latest time up to which a pruning went.
    pruned: Timestamp,
    /// The kernel's id of the boot, and the machine's time since then.
    boot: String,
    up: Duration,
}

/// How far the time of day may be ahead of the time that has passed. A wrong time zone is at most 14 hours off, so it
/// holds nothing up; a clock that is wrong by years gains a day each hour.
const AHEAD: SignedDuration = SignedDuration::from_hours(24);

/// How often it may be. So a clock that was rightly set by a month counts after a day or so, and a wrong one leaves
/// time to be seen.
const AGAIN: Duration = Duration::from_secs(3600);

impl PruneClock {
    /// The time up to which a pruning may go now, by a machine that is `up` for so long. The first pruning of a journal
    /// believes the clock.
    pub fn horizon(
        last: &mut Option<Self>,
        wall: Timestamp,
        boot: &str,
        up: Duration,
    ) -> Timestamp {
        let clock = last.get_or_insert_with(|| Self {
            pruned: wall,
            boot: boot.to_owned(),
            up,
        });
        if clock.boot != boot {
            boot.clone_into(&mut clock.boot);
            clock.up = Duration::ZERO;
        }
        let passed = up.saturating_sub(clock.up);
        let since = SignedDuration::try_from(passed).unwrap_or(SignedDuration::MAX);
        let most = since
            .checked_add(AHEAD)
            .and_then(|most| clock.pruned.checked_add(most).ok());
        let horizon = wall.min(most.unwrap_or(Timestamp::MAX));
        if passed >= AGAIN {
            clock.pruned = clock.pruned.max(horizon);
            clock.up = up;
        }
        horizon
    }

    /// The time up to which a pruning went, to be compared with what is on disk.
    pub fn pruned(&self) -> Timestamp {
        self.pruned
    }

    /// As a setting of the journal.
    pub fn to_setting(&self) -> String {
        let Self { pruned, boot, up } = self;
        format!("{} {} {boot}", pruned.as_second(), up.as_secs())
    }

    /// `None` for what no daemon has written.
    pub fn parse(setting: &str) -> Option<Self> {
        let mut words = setting.splitn(3, ' ');
        let pruned = Timestamp::from_second(words.next()?.parse().ok()?).ok()?;
        let up = Duration::from_secs(words.next()?.parse().ok()?);
        let boot = words.next()?.to_owned();
        Some(Self { pruned, boot, up })
    }
}

/// So long before; the beginning of time where there is no such moment.
pub fn before(now: Timestamp, length: Duration) -> Timestamp {
    let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
    now.checked_sub(length).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + hours * 3600).unwrap()
    }

    fn up(hours: u64) -> Duration {
        Duration::from_secs(hours * HOUR)
    }

    #[test]
    fn retention_follows_a_wrong_clock_by_a_day_an_hour_at_most() {
        let mut clock = None;
        let mut horizon = |wall, boot, up| PruneClock::horizon(&mut clock, wall, boot, up);
        assert_eq!(horizon(at(0), "a", up(5)), at(0));
        assert_eq!(horizon(at(1), "a", up(6)), at(1));
        // A year ahead for some minutes, each of which is a round.
        for minute in 0..60 {
            let up = up(6) + Duration::from_secs(minute * 60);
            let most = at(25) + SignedDuration::from_mins(i64::try_from(minute).unwrap());
            assert_eq!(horizon(at(8766), "a", up), most);
        }
        assert_eq!(horizon(at(2), "a", up(7)), at(2), "and right again");
        // It was rightly set: after ten hours it may be ten days and ten hours ahead of the hour before.
        for hours in 1..=10 {
            let most = at(2 + 25 * i64::try_from(hours).unwrap());
            assert_eq!(horizon(at(8766), "a", up(7 + hours)), most);
        }
        assert_eq!(horizon(at(-9000), "a", up(18)), at(-9000), "less goes");
    }

    #[test]
    fn after_a_reboot_retention_counts_the_time_since_then() {
        let mut clock = PruneClock::parse(&format!("{} 18000 a", at(0).as_second()));
        let kept = clock.clone().unwrap();
        assert_eq!(PruneClock::parse(&kept.to_setting()), Some(kept));
        let horizon = PruneClock::horizon(&mut clock, at(8766), "b", up(1));
        assert_eq!(horizon, at(25));
        assert_eq!(clock.unwrap().pruned(), at(25));
        for text in ["", "1", "1 2", "x 2 a", "1 -2 a"] {
            assert_eq!(PruneClock::parse(text), None, "{text}");
        }
    }
}
