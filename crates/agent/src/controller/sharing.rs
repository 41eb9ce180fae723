//! The controller's side of the registry of allocations: this daemon's amounts go to the registry before the journal
//! has a grant and after it has a release, and the others' amounts come into the GPUs that the planner sees.

use std::collections::BTreeMap;

use divvy_api::v1::Runner;
use divvy_core::{Bytes, GpuUuid, Grant, HeldElsewhere, JobState};

use crate::controller::active_set;
use crate::controller::io::Io;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::unjournaled::held_by_unknown;
use crate::controller::state::{GpuState, Jobs, State};
use crate::model::job::Credentials;
use crate::registry::entry::Amount;
use crate::registry::{Contended, Held, Wanted};

/// Takes over what other daemons hold now; whether that has changed, so that a plan may be another one.
pub(in crate::controller) fn refresh(gpus: &mut GpuState, io: &Io) -> bool {
    io.registry.refresh() && take_over(gpus, io)
}

/// Takes over what the last look at the registry has found, and what the front end knows of other workers; whether that
/// is another amount.
pub(in crate::controller) fn take_over(gpus: &mut GpuState, io: &Io) -> bool {
    let mut has_changed = false;
    for device in &mut gpus.devices {
        let mut elsewhere = io.registry.elsewhere(&device.gpu.uuid);
        let of_workers = gpus.worker_holds.iter();
        let of_workers = of_workers.filter(|held| held.gpu == device.gpu.index);
        elsewhere.extend(of_workers.map(|held| {
            let share = u64::from(held.share.min(1000));
            let memory = Bytes::new(device.gpu.usable().get() / 1000 * share);
            HeldElsewhere {
                holder: held.holder.clone(),
                share,
                memory,
                // Its processes are unmanaged here, and what they use is part of its fraction.
                used: memory,
            }
        }));
        has_changed |= device.gpu.elsewhere != elsewhere;
        device.gpu.elsewhere = elsewhere;
    }
    has_changed
}

/// Publishes that these amounts are about to be granted, beside all that the daemon holds. `before`: what their job
/// holds already.
///
/// # Errors
/// [`Contended`] when another daemon has, or is about to get, too much of a GPU; the snapshots from now on say so.
pub(in crate::controller) fn acquire<'a>(
    state: &mut State,
    io: &Io,
    grants: impl Iterator<Item = &'a Grant>,
    before: &[Grant],
) -> Result<(), Contended> {
    let mut wanted: BTreeMap<GpuUuid, Wanted> = BTreeMap::new();
    for grant in grants {
        let old = before
            .iter()
            .find(|old| old.gpu == grant.gpu && old.mig == grant.mig);
        let old = old.map_or(Amount::ZERO, |old| amount(&state.gpus, old));
        let new = amount(&state.gpus, grant);
        let entry = wanted.entry(grant.gpu.clone()).or_default();
        entry.usable = usable(&state.gpus, grant);
        let more = Amount {
            share: new.share.saturating_sub(old.share),
            memory: new.memory.saturating_sub(old.memory),
        };
        // One daemon has a GPU with MIG instances whole, however many instances it holds.
        entry.amount = match grant.mig {
            Some(_) => more.without(held_of(state, &grant.gpu)),
            None => entry.amount.plus(more),
        };
    }
    wanted.retain(|_, wanted| !wanted.amount.is_zero());
    let acquired = io.registry.acquire(&wanted);
    // It has looked at the others again, so the next refresh may find no change.
    state.queues.is_contended |= take_over(&mut state.gpus, io);
    acquired
}

/// Publishes what the journal says that the daemon holds.
pub(in crate::controller) fn settle(state: &mut State, io: &Io) {
    // Each round ends here, and thousands of jobs may wait: only jobs of the active set can hold anything.
    let active = active_set::active_jobs(&mut state.jobs, io);
    let active = active.iter().filter_map(|id| state.jobs.active.get(id));
    let held = held_by(active.map(|active| &**active), &state.jobs, &state.gpus);
    // Another user's own daemon must not pass by the engine either.
    let reserved = state.gpus.devices.iter().filter(|_| io.config.claims_only);
    let reserved = reserved.filter(|device| device.is_managed).map(|device| {
        let amount = Amount::WHOLE.at_most(device.gpu.usable());
        (device.gpu.uuid.clone(), amount)
    });
    io.registry.settle(&held, &reserved.collect());
}

fn held_of(state: &State, gpu: &GpuUuid) -> Amount {
    let all = held(&state.jobs, &state.gpus);
    all.get(gpu).map_or(Amount::ZERO, |held| held.amount)
}

/// What the jobs of the journal hold of each GPU.
pub(in crate::controller) fn held(jobs: &Jobs, gpus: &GpuState) -> BTreeMap<GpuUuid, Held> {
    held_by(jobs.active.values().map(|active| &**active), jobs, gpus)
}

/// The same of these jobs, and of jobs that the journal lacks.
fn held_by<'a>(
    active: impl Iterator<Item = &'a ActiveJob>,
    jobs: &Jobs,
    gpus: &GpuState,
) -> BTreeMap<GpuUuid, Held> {
    let mut all: BTreeMap<GpuUuid, Held> = BTreeMap::new();
    let mut add = |grant: &Grant, used: Bytes, is_kept: bool| {
        let whole = usable(gpus, grant);
        let of_gpu = all.entry(grant.gpu.clone()).or_default();
        let amount = amount(gpus, grant);
        let kept = if is_kept { amount } else { Amount::ZERO };
        of_gpu.amount = of_gpu.amount.plus(amount).at_most(whole);
        of_gpu.kept = of_gpu.kept.plus(kept).at_most(whole);
        of_gpu.used = of_gpu.used.saturating_add(used);
    };
    for active in active.filter(|active| active.job.holds()) {
        let is_kept = has_no_process(active);
        let usages = active.slice_usage();
        for (nth, grant) in active.job.state.grants().iter().enumerate() {
            let used = usages.get(nth).and_then(|usage| usage.driver);
            add(grant, used.unwrap_or_default(), is_kept);
        }
    }
    for unknown in held_by_unknown(jobs) {
        for grant in &unknown.grants {
            add(grant, Bytes::ZERO, false);
        }
    }
    all
}

/// Whether no supervisor of this daemon's user may live for the job, so that its amounts have to count without one.
fn has_no_process(active: &ActiveJob) -> bool {
    let job = &active.job;
    match &job.state {
        JobState::Running { .. } => {
            let is_others = job.spec.credentials.uid != Credentials::current().uid;
            job.spec.runner == Runner::Client && is_others
        }
        JobState::Stopping { process, .. } => process.is_none(),
        _ => true,
    }
}

fn amount(gpus: &GpuState, grant: &Grant) -> Amount {
    match grant.mig {
        Some(_) => Amount {
            share: 1000,
            memory: usable(gpus, grant),
        },
        None => Amount {
            share: grant.share.thousandths().into(),
            memory: grant.memory,
        },
    }
}

fn usable(gpus: &GpuState, grant: &Grant) -> Bytes {
    let mut devices = gpus.devices.iter();
    let device = devices.find(|device| device.gpu.uuid == grant.gpu);
    device.map_or(grant.memory, |device| device.gpu.usable())
}
