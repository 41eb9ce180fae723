//! Grant history: recent memory limits of a slice, since the driver's figure can date from before a resize.

use super::watchlist::{BootNanos, CALM};
use crate::units::Bytes;

/// What one slice was granted of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantHistory {
    now: Bytes,
    /// What it was before it was made smaller, and when that was seen.
    before: Option<(Bytes, BootNanos)>,
}

impl GrantHistory {
    /// Takes over what is granted at `now`; answers with the most that was granted in the two seconds before.
    pub fn record(&mut self, now: BootNanos, granted: Bytes) -> Bytes {
        if self
            .before
            .is_some_and(|(_, since)| now.saturating_sub(since) >= CALM)
        {
            self.before = None;
        }
        if granted < self.now {
            let most = self.before.map_or(self.now, |(most, _)| most.max(self.now));
            self.before = Some((most, now));
        }
        self.now = granted;
        self.before.map_or(granted, |(most, _)| most.max(granted))
    }
}
