//! Usage accounting: GPU time of jobs, measured from each sample, journaled periodically, and split into rows by the
//! hour.

use std::collections::BTreeSet;
use std::time::Duration;

use divvy_core::{GpuUuid, JobId};

use crate::controller::io::Io;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::usage::{UsageClock, hour};
use crate::controller::state::{GpuState, Jobs, Timers};
use crate::controller::{active_set, query};
use crate::gpu::energy::GpuEnergy;
use crate::gpu::sample::{GpuSample, NodeSample};
use crate::host::clock::{Instant, now};
use crate::journal::StoreError;
use crate::model::usage::meter::{Holder, metered};

/// How often measurements are journaled. A crash may lose that much of what was used, and nothing of what was held.
/// Half would double the writes of an otherwise idle disk.
const FLUSH_INTERVAL: Duration = Duration::from_secs(10);

/// How often energy is divided while no job holds a GPU. Each time writes to the disk of an idle machine, so not more
/// often; an hour would leave reports that far behind.
const IDLE_ENERGY_INTERVAL: Duration = Duration::from_secs(600);

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
    let most = highest_use(active);
    let is_higher = most != active.activity.most;
    let metered = std::mem::take(&mut active.activity.metered);
    active.activity.most.clone_from(&most);
    if metered.is_empty() && !is_higher {
        Ok(())
    } else {
        io.store.add_metered(id, &metered, &most)
    }
}

/// The highest use of memory so far, by position in the job's allocations; `None` where nothing measures it. It counts
/// what the driver reports beyond the ledger as well, as the limit does.
fn highest_use(active: &ActiveJob) -> Vec<Option<u64>> {
    let ledger = query::snapshot(active);
    let seen = active.slice_usage();
    let allocations = active.job.allocations.iter().enumerate();
    let most = allocations.map(|(gpu, held)| match (&held.grant.mig, &ledger) {
        (Some(_), _) => Some(held.stats.peak.get()).filter(|peak| *peak > 0),
        (None, Some(ledger)) => {
            let unaccounted = seen.get(gpu).map_or(0, |seen| seen.unaccounted.get());
            Some(ledger.usage(gpu).peak.saturating_add(unaccounted))
        }
        (None, None) => None,
    });
    most.collect()
}

/// Divides the energy of these GPUs up to their last readings.
pub(in crate::controller) fn divide_energy(
    jobs: &mut Jobs,
    io: &Io,
    gpus: &BTreeSet<GpuUuid>,
) -> Result<(), StoreError> {
    for GpuEnergy {
        uuid,
        index,
        reading,
    } in io.sensors.energy()
    {
        if !gpus.contains(&uuid) {
            continue;
        }
        for (job, part) in io.store.divide_energy(&uuid, index, &reading)? {
            if let Some(active) = jobs.active.get_mut(&job) {
                let all = &mut active.activity.millijoules;
                *all = all.saturating_add(part);
            }
        }
    }
    Ok(())
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
    gpus: &GpuState,
    io: &Io,
) -> Result<(), StoreError> {
    let hour = hour();
    let is_new = timers.usage_clock.hour != hour;
    // The first reading is where counting begins.
    let has_readings = || !io.sensors.energy().is_empty();
    let is_first = timers.usage_clock.divided.is_none() && has_readings();
    if !is_new && !is_first && timers.usage_clock.journaled.elapsed() < FLUSH_INTERVAL {
        return Ok(());
    }
    timers.usage_clock = UsageClock {
        journaled: Instant::now(),
        hour,
        ..timers.usage_clock
    };
    let mut is_held = false;
    for id in active_set::active_jobs(jobs, io) {
        let active = jobs.active.get(&id);
        if active.is_none_or(|active| active.job.state.grants().is_empty()) {
            continue;
        }
        is_held = true;
        match is_new {
            true => start_usage_span(jobs, io, id)?,
            false => journal_metered(jobs, io, id)?,
        }
    }
    let clock = &mut timers.usage_clock;
    let was_held = std::mem::replace(&mut jobs.was_held, is_held);
    let is_due = (clock.divided).is_none_or(|at| at.elapsed() >= IDLE_ENERGY_INTERVAL);
    if is_held || was_held || is_due {
        clock.divided = has_readings().then(Instant::now);
        let served = gpus.devices.iter().filter(|device| device.is_managed);
        let served = served.map(|device| device.gpu.uuid.clone()).collect();
        divide_energy(jobs, io, &served)?;
    }
    Ok(())
}
