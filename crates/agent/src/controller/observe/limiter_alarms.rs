//! Limiter alarms: calls that the limiter passed on uncounted, and its internal errors. An event reports a job once;
//! the API shows their number.

use divvy_core::JobId;

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::state::Jobs;
use crate::gpu::sample::{NodeSample, SliceReading};
use crate::journal::{StoreError, UNCOUNTED};

/// Applies the alarm counters of a sample.
pub(in crate::controller) fn apply_alarms(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
) -> Result<(), StoreError> {
    let count = |(id, reading): (&JobId, &SliceReading)| {
        Some((*id, reading.snapshots.as_ref().ok()?.alarms()))
    };
    let counts: Vec<(JobId, u64)> = sample.ledgers.iter().filter_map(count).collect();
    counts
        .into_iter()
        .try_for_each(|(id, count)| record_alarms(jobs, fx, io, id, count))
}

/// Records the alarm counter of a job's slice.
pub(in crate::controller) fn record_alarms(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    count: u64,
) -> Result<(), StoreError> {
    let active = jobs.active.get_mut(&id);
    let Some(active) = active.filter(|active| count > 0 && !active.alarm_reported) else {
        return Ok(());
    };
    active.alarm_reported = true;
    // A job that an earlier daemon started may already have this event.
    let is_news = active
        .placed()
        .is_some_and(|one| one.supervisor.pid.is_some())
        || !io.store.has_uncounted_event(id)?;
    if !is_news {
        return Ok(());
    }
    let text = format!(
        "its limiter did not account for some calls ({count} so far: unsupported calls or internal errors); \
             only the driver reports their memory"
    );
    tracing::warn!(job = %id, "{text}");
    fx.record_event(io, Some(id), UNCOUNTED, &text)
}
