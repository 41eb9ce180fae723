//! Alarms of the limiter: calls that it had to pass on without counting them or holding them up, and errors of its own. A job is
//! told of once; how many there are is shown with it.

use divvy_core::JobId;

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::state::Jobs;
use crate::gpu::sample::{NodeSample, SliceReading};
use crate::journal::{StoreError, UNCOUNTED};

/// Takes over what a look found in the accounts.
pub(in crate::controller) fn apply_alarms(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    look: &NodeSample,
) -> Result<(), StoreError> {
    let count =
        |(id, book): (&JobId, &SliceReading)| Some((*id, book.snapshots.as_ref().ok()?.alarms()));
    let heard: Vec<(JobId, u64)> = look.ledgers.iter().filter_map(count).collect();
    heard
        .into_iter()
        .try_for_each(|(id, count)| record_alarms(jobs, fx, io, id, count))
}

/// A job's slice counts so many.
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
    // What an earlier agent has started, that one may have told of.
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
