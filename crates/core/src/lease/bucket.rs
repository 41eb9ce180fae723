//! The token bucket of a tenant with a latency goal: how much of the GPUs it may take at once.

use std::time::Duration;

use super::TenantConfig;

/// The bucket holds a tenant's share of this time. A burst of requests is served from it; double would hold up training
/// for a second at a share of a half.
const PERIOD: Duration = Duration::from_secs(1);
/// An emptied bucket is used again once it holds this part, in thousandths. With less, each request would empty it
/// anew; with all of it, a tenant just below its share would wait for half a minute.
const USABLE: i128 = 500;

/// Nanoseconds of its GPUs' time that a tenant may take at once.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    nanos: i128,
    is_empty: bool,
}

impl Bucket {
    pub fn full(terms: &TenantConfig) -> Self {
        Self {
            nanos: Self::size(terms),
            is_empty: false,
        }
    }

    /// In nanoseconds.
    fn size(terms: &TenantConfig) -> i128 {
        PERIOD.as_nanos() as i128 * i128::from(terms.share.thousandths()) / 1000
    }

    /// Time has passed.
    pub fn refill(&mut self, passed: Duration, terms: &TenantConfig) {
        let size = Self::size(terms);
        let earned = passed.as_nanos() as i128 * i128::from(terms.share.thousandths()) / 1000;
        self.nanos = (self.nanos + earned).min(size);
        self.is_empty &= self.nanos * 1000 < size * USABLE;
    }

    /// Takes time out of it. As much again as it holds may be owed: a kernel that runs on is paid for.
    pub fn spend(&mut self, time: Duration, terms: &TenantConfig) {
        self.nanos = (self.nanos - time.as_nanos() as i128).max(-Self::size(terms));
        self.is_empty |= self.nanos <= 0;
    }

    /// Whether it was emptied and is not yet of use again.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// How long it lasts while it is spent.
    pub fn lasts(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanos.max(0)).unwrap_or(u64::MAX))
    }
}
