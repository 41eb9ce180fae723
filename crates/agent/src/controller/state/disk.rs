//! The state of a full disk.

use crate::host::clock::Instant;

/// Why the daemon starts no new work, and when it last checked.
pub struct DiskFull {
    pub why: String,
    pub tried: Instant,
}

impl DiskFull {
    pub fn of(why: String) -> Self {
        Self {
            why,
            tried: Instant::now(),
        }
    }
}
