//! Observation: the controller applies samples of the driver and the ledgers to jobs, GPUs and MIG instances.

pub(in crate::controller) mod history;
mod leftovers;
pub(in crate::controller) mod limiter_alarms;
pub(in crate::controller) mod reconcile;
pub(in crate::controller) mod unjournaled;
pub(in crate::controller) mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use divvy_core::job::StopReason;
use divvy_core::{GpuUuid, Grant, JobId, JobState, Mode};

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{cancel, driver_limit, notifications, resize};
use crate::controller::mig::mode;
use crate::controller::runtime::ActiveJob;
use crate::controller::service::faults;
use crate::controller::state::{GpuState, Jobs, State};
use crate::controller::{active_set, claims};
use crate::gpu::FaultyGpu;
use crate::gpu::sample::{NodeSample, SliceReading};
use crate::gpu::slice::Tampering;
use crate::host::error::error_chain;
use crate::journal::StoreError;

/// How long one observation may take. It takes milliseconds, or seconds if a GPU has to be woken.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Applies a sample: maintains the slices, compares the ledgers with the driver, and updates the GPUs.
///
/// # Errors
/// When the journal fails.
pub fn apply_sample(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
) -> Result<(), StoreError> {
    state.gpus.observation_error = None;
    state.gpus.observed_at = sample.at;
    state.gpus.unobserved = Some(unobserved_held_gpus(&mut state.jobs, io, sample));
    for (id, reading) in &sample.ledgers {
        if let Some(active) = state.jobs.active.get_mut(id) {
            maintain_slice(*id, active, sample, reading);
            repair_control_file(&mut state.jobs, fx, io, *id)?;
        }
    }
    limiter_alarms::apply_alarms(&mut state.jobs, fx, io, sample)?;
    reconcile::reconcile(state, fx, io, sample)?;
    leftovers::end_leftovers(&mut state.gpus, fx, io, sample)?;
    notifications::end_gpu_use(&mut state.jobs, fx, io, sample)?;
    driver_limit::follow(&mut state.jobs, fx, io);
    usage::meter(&mut state.jobs, &mut state.timers, io, sample);
    resize::reclaim_released(state, fx, io)?;
    faults::watch_contexts(&mut state.jobs, &mut state.gpus, fx, sample);
    faults::watch_driver(&mut state.gpus, fx, io, sample)?;
    let away = state.gpus.devices.iter().filter(|device| device.gpu.away);
    let returns: Vec<GpuUuid> = away
        .map(|device| device.gpu.uuid.clone())
        .filter(|gpu| answers(sample, gpu))
        .collect();
    update_gpu_health(&mut state.jobs, &mut state.gpus, fx, io, sample)?;
    for seen in &sample.gpus {
        mode::assign(&mut state.gpus, fx, io, &seen.observed.uuid)?;
    }
    mode::finish_switches(state, fx, io, |gpu| returns.contains(gpu))?;
    record_profiles(&mut state.gpus, io)?;
    history::record(state, fx, io);
    // A claim that is being released waits for a sample.
    active_set::for_each_active(&mut state.jobs, io, |id, active| {
        let is_stopping = matches!(active.job.state, JobState::Stopping { .. });
        if is_stopping && active.job.claim().is_some() {
            fx.jobs.recheck.push(id);
        }
    });
    Ok(())
}

/// Restores a slice's control file that another process has changed, and records that once.
fn repair_control_file(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let active = jobs.active.get_mut(&id);
    let Some(slice) = active.and_then(|active| active.placed_mut()?.slice.as_mut()) else {
        return Ok(());
    };
    let (found, then) = match slice.repair() {
        Ok(None) => match io.sensors.usage(id).and_then(|usage| usage.forged) {
            Some(gate) => (Tampering::Forged(gate), "the daemon restored it".to_owned()),
            None => return Ok(()),
        },
        Ok(Some(found)) => {
            if found == Tampering::Replaced {
                // The compute scheduler still has the other file open.
                fx.jobs.reopened.push(id);
            }
            (found, "the daemon restored it".to_owned())
        }
        Err(error) => {
            let why = format!("the daemon cannot restore it: {}", error_chain(&error));
            (Tampering::Replaced, why)
        }
    };
    if let Some(active) = jobs.active.get_mut(&id)
        && !std::mem::replace(&mut active.tampered, true)
    {
        let text = format!(
            "a process other than the daemon changed the slice's control file: {found}; {then}"
        );
        tracing::warn!(job = %id, "{text}");
        fx.record_event(io, Some(id), "tampered", &text)?;
    }
    Ok(())
}

/// Handles a failed observation: no job starts on the GPUs, and jobs keep what they hold.
pub(super) fn observation_failed(
    jobs: &mut Jobs,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    why: String,
) -> Result<(), StoreError> {
    if gpus.observation_error.as_ref() != Some(&why) {
        tracing::error!(%why, "the GPUs cannot be observed");
        fx.record_event(io, None, "gpu_error", &why)?;
        let trouble = FaultyGpu {
            index: 0,
            uuid: None,
            message: why.clone(),
            is_lost: false,
        };
        gpus.observation_error = Some(why);
        update_gpu_health(
            jobs,
            gpus,
            fx,
            io,
            &NodeSample {
                troubles: vec![trouble],
                ..NodeSample::default()
            },
        )?;
    }
    Ok(())
}

/// Handles a driver that does not respond: the daemon does not wait for it.
///
/// # Errors
/// When the journal fails.
pub(super) fn check_driver_timeout(
    jobs: &mut Jobs,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    match io.sensors.unresponsive_for() {
        Some(silent) if silent > DRIVER_TIMEOUT => {
            let seconds = DRIVER_TIMEOUT.as_secs();
            observation_failed(
                jobs,
                gpus,
                fx,
                io,
                format!("the driver has not responded for {seconds} s"),
            )
        }
        _ => Ok(()),
    }
}

/// Updates which GPUs respond; no job starts on one that does not. Jobs on a lost GPU are stopped; jobs on a GPU that
/// only has trouble keep it.
fn update_gpu_health(
    jobs: &mut Jobs,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
) -> Result<(), StoreError> {
    let mut changes = Vec::new();
    for device in &mut gpus.devices {
        let uuid = &device.gpu.uuid.clone();
        let answers = answers(sample, uuid);
        device.is_lost = is_lost(sample, uuid);
        if device.gpu.away == answers {
            device.gpu.away = !answers;
            device.apply_mode();
            let index = device.gpu.index;
            let why = match trouble(sample, uuid) {
                Some(trouble) => format!(": {}", trouble.message),
                None => String::new(),
            };
            changes.push(match answers {
                    true => (
                        "gpu_recovered",
                        format!("GPU {index} ({uuid}) responds again"),
                    ),
                    false => (
                        "gpu_lost",
                        format!(
                            "GPU {index} ({uuid}) does not respond and is no longer available to jobs{why}"
                        ),
                    ),
                });
        }
    }
    for (kind, text) in changes {
        tracing::warn!("{text}");
        fx.record_event(io, None, kind, &text)?;
        fx.replan = true;
    }
    stop_jobs_on_lost_gpus(jobs, gpus, fx, io, sample)
}

/// Held GPUs without a list of their processes in a sample. A lost GPU has no processes.
fn unobserved_held_gpus(jobs: &mut Jobs, io: &Io, sample: &NodeSample) -> BTreeSet<GpuUuid> {
    let mut unseen = BTreeSet::new();
    if sample.troubles.is_empty()
        && !sample
            .gpus
            .iter()
            .any(|seen| seen.observed.hides_processes())
    {
        return unseen;
    }
    active_set::for_each_active(jobs, io, |_, active| {
        let held = active.job.state.grants().iter().map(|grant| &grant.gpu);
        let held = held.filter(|gpu| !lists_processes(sample, gpu) && !is_lost(sample, gpu));
        unseen.extend(held.cloned());
    });
    unseen
}

/// Stops jobs on lost GPUs, as their processes would wait for ever. Two samples in a row have to show the loss.
fn stop_jobs_on_lost_gpus(
    jobs: &mut Jobs,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
) -> Result<(), StoreError> {
    let busy = active_set::active_jobs(jobs, io);
    let active = || busy.iter().filter_map(|id| jobs.active.get(id));
    // An offloaded job is on no GPU, and waits until its GPU is back.
    let held = active().filter(|one| one.job.holds());
    let held = held.flat_map(|one| one.job.state.grants());
    let lost: BTreeMap<GpuUuid, u32> = held
        .filter(|grant| is_lost(sample, &grant.gpu))
        .map(|grant| (grant.gpu.clone(), grant.index))
        .collect();
    if lost.is_empty() && gpus.lost.is_empty() {
        return claims::report_claims_on_lost_gpus(jobs, fx, io, &lost);
    }
    let before = std::mem::replace(&mut gpus.lost, lost.keys().cloned().collect());
    let on = |active: &ActiveJob| {
        let mut grants = active.job.state.grants().iter();
        let is_on = |grant: &&Grant| lost.contains_key(&grant.gpu) && before.contains(&grant.gpu);
        grants.find(is_on).map(|grant| grant.index)
    };
    let ended: Vec<(JobId, u32)> = jobs
        .active
        .iter()
        .filter(|(_, active)| !matches!(active.job.state, JobState::Stopping { .. }))
        .filter(|(_, active)| active.job.claim().is_none() && active.job.holds())
        .filter_map(|(id, active)| Some((*id, on(active)?)))
        .collect();
    let mut still = lost;
    still.retain(|gpu, _| before.contains(gpu));
    claims::report_claims_on_lost_gpus(jobs, fx, io, &still)?;
    for (id, index) in ended {
        cancel::stop_job(
            jobs,
            fx,
            io,
            id,
            StopReason::GpuLost,
            format!("GPU {index} is lost"),
        )?;
    }
    Ok(())
}

/// The driver's error for a GPU that does not respond.
fn trouble<'a>(sample: &'a NodeSample, uuid: &GpuUuid) -> Option<&'a FaultyGpu> {
    let mut troubles = sample.troubles.iter();
    troubles.find(|trouble| trouble.uuid.as_ref() == Some(uuid))
}

fn answers(sample: &NodeSample, uuid: &GpuUuid) -> bool {
    sample.gpus.iter().any(|seen| seen.observed.uuid == *uuid)
}

fn lists_processes(sample: &NodeSample, uuid: &GpuUuid) -> bool {
    let mut there = sample.gpus.iter().map(|seen| &seen.observed);
    there.any(|gpu| gpu.uuid == *uuid && !gpu.hides_processes())
}

/// Whether a GPU is gone: it does not respond, and the driver does not expect it back.
fn is_lost(sample: &NodeSample, uuid: &GpuUuid) -> bool {
    // A GPU that has not responded since the daemon's start has no UUID. It may be any GPU without an error of its own.
    let nameless = |trouble: &FaultyGpu| !trouble.is_lost && trouble.uuid.is_none();
    let may_again = match trouble(sample, uuid) {
        Some(trouble) => !trouble.is_lost,
        None => sample.troubles.iter().any(nameless),
    };
    !answers(sample, uuid) && !may_again
}

/// Reclaims the memory of a slice's dead processes.
fn maintain_slice(id: JobId, active: &mut ActiveJob, sample: &NodeSample, reading: &SliceReading) {
    let Some(placed) = active.placed_mut() else {
        return;
    };
    let Some(held) = &placed.slice else { return };
    let tended = match &reading.snapshots {
        Ok(pages) if pages.has_dead => held
            .reap(&|owner| sample.is_listed(owner))
            .map_err(|error| error.to_string()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.clone()),
    };
    if let Err(error) = tended
        && !std::mem::replace(&mut placed.damaged, true)
    {
        tracing::error!(job = %id, error, "cannot read the job's slice");
    }
}

/// Stores what a GPU in MIG mode can be cut into, once the driver has reported it: Hopper and newer GPUs lose the mode
/// with a reboot, and the next daemon judges requests before it is back.
///
/// # Errors
/// When the journal fails.
fn record_profiles(gpus: &mut GpuState, io: &Io) -> Result<(), StoreError> {
    for device in gpus.devices.iter().filter(|device| device.is_managed) {
        let offer =
            (device.mode.mig_capabilities.as_ref()).filter(|_| device.gpu.mode == Mode::Mig);
        let Some(offer) = offer else { continue };
        let recorded = gpus.recorded.get(&device.gpu.uuid);
        if recorded.is_none_or(|recorded| !Arc::ptr_eq(recorded, offer)) {
            io.store.record_gpu(&device.record())?;
            gpus.recorded
                .insert(device.gpu.uuid.clone(), Arc::clone(offer));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_gpu_decides_and_otherwise_a_nameless_one_may_be_it() {
        let gpu: GpuUuid = "GPU-00000000-0000-0000-0000-000000000001".parse().unwrap();
        let trouble = |uuid: Option<&GpuUuid>, lost| FaultyGpu {
            index: 0,
            uuid: uuid.cloned(),
            message: "unknown error".to_owned(),
            is_lost: lost,
        };
        let lost = |troubles: &[FaultyGpu]| {
            let sample = NodeSample {
                troubles: troubles.to_vec(),
                ..NodeSample::default()
            };
            is_lost(&sample, &gpu)
        };
        assert!(lost(&[]), "the driver lists it no more");
        assert!(lost(&[trouble(Some(&gpu), true)]));
        assert!(!lost(&[trouble(Some(&gpu), false)]));
        assert!(!lost(&[trouble(None, false)]));
        assert!(lost(&[trouble(None, true)]));
        let other_is_ill = trouble(None, false);
        assert!(lost(&[other_is_ill, trouble(Some(&gpu), true)]));
    }
}
