//! The checkpoint operation of a job, with its backoff.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use divvy_core::JobId;
use divvy_core::resize::resume::ResumeBlocked;

use crate::host::clock::Instant;

/// Backoff after a failed operation: it doubles with each failure, up to a limit.
pub const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// A copy that fails takes seconds of the bus, so not oftener; longer would leave a suspended job waiting after its
/// obstacle has gone.
pub const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// The checkpoint operation on a job's memory.
#[derive(Default)]
pub struct MemoryOp {
    /// Set to cancel the running operation.
    pub cancelled: Option<Arc<AtomicBool>>,
    /// Failed attempts in a row.
    pub failures: u32,
    pub retry_after: Option<Instant>,
    /// The error of the last failure.
    pub last_error: Option<String>,
    /// What keeps a resumed job from its GPUs.
    pub blocked_by: Option<ResumeBlocked>,
    /// The jobs that are being parked for this one, which waits for its memory.
    pub parking: Vec<JobId>,
    /// The job for which this one is being parked.
    pub parked_for: Option<JobId>,
    /// The cause of a wake during the park: `by cuMemcpyDtoH_v2`.
    pub woken: Option<String>,
}

impl MemoryOp {
    /// Cancels the operation, which then ends by itself.
    pub fn cancel(&self) {
        if let Some(cancelled) = &self.cancelled {
            cancelled.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the planner keeps room for the resumed job. It does not if the job waits for its quota or for an
    /// unavailable GPU, perhaps for ever.
    pub fn keeps_reservation(&self) -> bool {
        self.blocked_by
            .as_ref()
            .is_none_or(ResumeBlocked::keeps_room)
    }

    pub fn record_failure(&mut self, why: String) {
        let pause = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(6));
        self.retry_after = Some(Instant::now() + pause.min(MAX_BACKOFF));
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some(why);
    }
}
