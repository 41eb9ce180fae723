//! Usage accounting: GPU time of jobs, measured from each sample, journaled periodically, and split into rows by the
//! hour.

use std::time::Duration;

use divvy_core::JobId;

use crate::controller::active_set;
use crate::controller::io::Io;
use crate::controller::state::usage::{UsageClock, hour};
use crate::controller::state::{Jobs, Timers};
use crate::gpu::sample::{GpuSample, NodeSample};
use crate::host::clock::{Instant, now};
use crate::journal::StoreError;
use crate::model::usage::meter::{Holder, metered};

/// How often measurements are journaled. A crash may lose that much of what was used, and nothing of what was held.
/// Half would double the writes of an otherwise idle disk.
const FLUSH_INTERVAL: Duration = Duration::from_secs(10);

/// Applies the GPU use of a sample.
pub(in crate::controller) fn meter(
    jobs: &mut Jobs,
    timers: &mut Timers,
    io: &Io,
    sample: &NodeSample,
) {
    count_time(jobs, timers, io);
    for seen in &sample.gpus {
        meter_gpu(jobs, io, sample, seen);
    }
}

/// Counts held time for the metrics; the journal has the exact figures.
fn count_time(jobs: &mut Jobs, timers: &mut Timers, io: &Io) {
    let now = Instant::now();
    let passed = now.saturating_duration_since(timers.usage_clock.counted);
    timers.usage_clock.counted = now;
    let micros = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
    for id in active_set::active_jobs(jobs, io) {
        let Some(active) = jobs.active.get_mut(&id) else {
            continue;
        };
        if !active.job.holds() {
            continue;
        }
        let grants = active.job.state.grants();
        let shares: u64 = grants
            .iter()
            .map(|grant| u64::from(grant.share.thousandths()))
            .sum();
        if shares == 0 {
            continue;
        }
        let held = micros.saturating_mul(shares);
        active.activity.allocated_ns = active.activity.allocated_ns.saturating_add(held);
    }
}

fn meter_gpu(jobs: &mut Jobs, io: &Io, sample: &NodeSample, seen: &GpuSample) {
    let Some(worked) = &seen.observed.utilization else {
        return;
    };
    let gpu = &seen.observed.uuid;
    // Positions in the allocations, parallel to `holders`.
    let mut places = Vec::new();
    let mut holders = Vec::new();
    for id in active_set::active_jobs(jobs, io) {
        let Some(active) = jobs.active.get(&id).filter(|one| one.job.holds()) else {
            continue;
        };
        let grants = active.job.state.grants();
        if let Some(place) = grants.iter().position(|grant| grant.gpu == *gpu) {
            places.push(place);
            holders.push(Holder {
                job: id,
                share: grants[place].share.thousandths(),
            });
        }
    }
    if holders.is_empty() {
        return;
    }
    let of = |pid: u32| {
        sample
            .processes
            .get(&pid)
            .and_then(|process| process.ownership.job())
    };
    let listed: Vec<(u32, Option<JobId>)> = seen
        .observed
        .processes
        .iter()
        .map(|process| (process.pid, of(process.pid)))
        .collect();
    for (job, metered) in metered(worked, &holders, &listed) {
        let at = holders.iter().position(|holder| holder.job == job);
        let place = at.and_then(|at| places.get(at));
        if let (Some(place), Some(active)) = (place, jobs.active.get_mut(&job)) {
            let work = &mut active.activity;
            if metered.used > 0 {
                work.mark_active(Instant::now());
            }
            work.measure(*place, metered);
        }
    }
}

/// Journals the measurements of a job: before its allocation changes, and periodically.
pub(in crate::controller) fn journal_metered(
    jobs: &mut Jobs,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let metered = std::mem::take(&mut active.activity.metered);
    match metered.is_empty() {
        true => Ok(()),
        false => io.store.add_metered(id, &metered),
    }
}

/// Counts what a job held up to now, and begins a new row, because its amount or its suspension changes now.
pub(in crate::controller) fn start_usage_span(
    jobs: &mut Jobs,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    journal_metered(jobs, io, id)?;
    match jobs.active.get(&id) {
        Some(active) if !active.job.allocations.is_empty() => {
            io.store.split_usage(&active.job, now())
        }
        _ => Ok(()),
    }
}

/// Journals usage at a tick.
pub(in crate::controller) fn flush_usage(
    jobs: &mut Jobs,
    timers: &mut Timers,
    io: &Io,
) -> Result<(), StoreError> {
    let hour = hour();
    let is_new = timers.usage_clock.hour != hour;
    if !is_new && timers.usage_clock.journaled.elapsed() < FLUSH_INTERVAL {
        return Ok(());
    }
    timers.usage_clock = UsageClock {
        journaled: Instant::now(),
        hour,
        ..timers.usage_clock
    };
    for id in active_set::active_jobs(jobs, io) {
        let active = jobs.active.get(&id);
        if active.is_none_or(|active| active.job.state.grants().is_empty()) {
            continue;
        }
        match is_new {
            true => start_usage_span(jobs, io, id)?,
            false => journal_metered(jobs, io, id)?,
        }
    }
    Ok(())
}
