//! Waiting for a condition.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before the run is called stuck. Generous, because the machine may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Asks `look` until it answers something, and returns that.
///
/// # Panics
/// When nothing came within a minute; says what was waited for.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            started.elapsed() < DEADLINE,
            "waited {} s in vain: {what}",
            DEADLINE.as_secs()
        );
        thread::sleep(Duration::from_millis(5));
    }
}
