//! The retry backoff of the publisher: it writes at once when the devices changed, and ever more slowly while another
//! writer undoes its slices or the API server refuses them.

use std::time::Duration;

use tokio::time::Instant;

/// A watch can lose an event. Short enough that the repair is quick, long enough that the list costs nothing
/// noticeable.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// From one try to the next, while writes fail or another writer keeps undoing them: doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// When to look next.
pub(super) struct Backoff {
    pub(super) due: Instant,
    /// Until then only a change of what is to be published is a reason to write.
    quiet: Instant,
    pause: Duration,
}

impl Backoff {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            due: now,
            quiet: now,
            pause: FIRST_PAUSE,
        }
    }

    /// The wanted slices have changed.
    pub(super) fn now(&mut self, now: Instant) {
        self.due = now;
    }

    /// The published slices have changed.
    pub(super) fn soon(&mut self, now: Instant) {
        self.due = self.due.min(self.quiet.max(now));
    }

    pub(super) fn settled(&mut self, now: Instant) {
        self.due = now + LOOK_AGAIN;
    }

    pub(super) fn wrote(&mut self, now: Instant) {
        self.slow_down(now);
        self.due = now + LOOK_AGAIN;
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.slow_down(now);
        self.due = self.quiet;
    }

    fn slow_down(&mut self, now: Instant) {
        let calm = self.quiet + LOOK_AGAIN < now;
        self.pause = if calm {
            FIRST_PAUSE
        } else {
            (self.pause * 2).min(LONGEST_PAUSE)
        };
        self.quiet = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_are_undone_again_and_again_are_restored_ever_more_slowly() {
        let start = Instant::now();
        let mut pace = Backoff::new(start);
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..10 {
            pace.wrote(now);
            // Undone at once.
            pace.soon(now);
            pauses.push(pace.due - now);
            now = pace.due;
        }
        assert!(pauses[0] < Duration::from_secs(1), "{pauses:?}");
        assert!(pauses.windows(2).all(|two| two[0] <= two[1]), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
        // After a while without trouble it is quick again.
        now += LOOK_AGAIN * 2;
        pace.soon(now);
        assert!(pace.due <= now);
        pace.wrote(now);
        pace.soon(now);
        assert_eq!(pace.due - now, FIRST_PAUSE);
    }

    #[test]
    fn what_is_to_be_published_does_not_wait() {
        let now = Instant::now();
        let mut pace = Backoff::new(now);
        pace.failed(now);
        assert!(pace.due > now);
        pace.now(now);
        assert_eq!(pace.due, now);
    }
}
