//! MIG reconciliation: the instances on a GPU are compared with the journal, after a start and at each observation
//! without commands.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_core::mig::Placement;
use divvy_core::mig::recover::{
    self, Action, ComputeInstances, InstanceHolder, InstanceRecord, InstanceState, Recovered,
};
use divvy_core::reconcile::Comparison;
use divvy_core::{Bytes, GpuUuid, JobId, JobState};

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::requeue;
use crate::controller::mig::{commands, geometry};
use crate::controller::runtime::ActiveJob;
use crate::controller::state::mig::{DestroyReason, MigManager, slot};
use crate::controller::state::{GpuState, Jobs, State};
use crate::gpu::mig::GpuMigState;
use crate::gpu::mig::discover::DiscoveredInstance;
use crate::gpu::sample::GpuSample;
use crate::host::clock::Instant;
use crate::journal::StoreError;
use crate::model::mig_instance::{InstanceInfo, MigSlot};

/// The delay between two attempts to destroy a quarantined instance. A program that leaked a handle of it releases it
/// only when it is restarted. So half would only double the driver's calls.
const QUARANTINE_RETRY: Duration = Duration::from_secs(30);

/// Whether an instance has no process, and is not divided into compute instances by another program.
pub(super) fn is_deserted(found: &DiscoveredInstance) -> bool {
    let mut devices = found.devices.iter();
    found.to_observed().compute_instances != ComputeInstances::Divided
        && devices.all(|device| device.processes.is_empty())
}

impl ActiveJob {
    /// Its program was started, or is about to be.
    pub(in crate::controller) fn is_launched(&self) -> bool {
        self.has_all_instances() && !self.job.awaits_confirmation()
    }
}

/// Applies an observation of a GPU in MIG mode.
pub(in crate::controller) fn reconcile_mig_gpu(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    seen: &GpuSample,
) -> Result<(), StoreError> {
    let uuid = seen.observed.uuid.clone();
    let Some(device) = state
        .gpus
        .devices
        .iter_mut()
        .find(|one| one.gpu.uuid == uuid)
    else {
        return Ok(());
    };
    fx.replan |= device.update(seen, &Comparison::default());
    let Some(mig_state) = seen.observed.active_mig() else {
        return Ok(());
    };
    report_trouble(&mut state.mig, &state.gpus, fx, io, &uuid, mig_state)?;
    let of_gpu = state.mig.gpu(&uuid);
    if !of_gpu.can_be_compared(mig_state) {
        return Ok(());
    }
    of_gpu.observed.clone_from(&mig_state.instances);
    remember_peaks(&mut state.jobs, &state.mig, &uuid);
    match_instances(state, fx, io, &uuid, &mig_state.instances)?;
    report_stray_processes(state, fx, io, seen)
}

/// Applies an observation of a GPU outside MIG mode: it has no instances, whatever the journal has.
pub(in crate::controller) fn reconcile_non_mig_gpu(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    seen: &GpuSample,
) -> Result<(), StoreError> {
    let uuid = &seen.observed.uuid;
    let Some(mig_state) = &seen.observed.mig else {
        return Ok(());
    };
    let has_records = state.mig.instances.keys().any(|slot| slot.gpu == *uuid);
    let of_gpu = state.mig.gpu(uuid);
    let is_known = has_records || !of_gpu.unmanaged.is_empty();
    if !is_known || !of_gpu.can_be_compared(mig_state) {
        return Ok(());
    }
    of_gpu.observed.clear();
    match_instances(state, fx, io, uuid, &[])
}

/// Records once why the instances cannot be read.
fn report_trouble(
    mig: &mut MigManager,
    gpus: &GpuState,
    fx: &mut Effects,
    io: &Io,
    uuid: &GpuUuid,
    mig_state: &GpuMigState,
) -> Result<(), StoreError> {
    let of_gpu = mig.gpu(uuid);
    if of_gpu.trouble == mig_state.error {
        return Ok(());
    }
    of_gpu.trouble.clone_from(&mig_state.error);
    fx.replan = true;
    let Some(why) = &mig_state.error else {
        return Ok(());
    };
    let text = format!(
        "cannot read the MIG instances of GPU {}: {why}",
        geometry::index(gpus, uuid)
    );
    tracing::error!("{text}");
    fx.record_event(io, None, "mig_error", &text)
}

fn match_instances(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    uuid: &GpuUuid,
    there: &[DiscoveredInstance],
) -> Result<(), StoreError> {
    let here = |slot: &MigSlot| slot.gpu == *uuid;
    let instances = state.mig.instances.values();
    let records: Vec<InstanceRecord> = instances
        .filter(|instance| here(&instance.slot))
        .map(|instance| instance.record())
        .collect();
    let seen: Vec<recover::ObservedInstance> =
        there.iter().map(DiscoveredInstance::to_observed).collect();
    let Recovered {
        actions,
        unmanaged: foreign,
    } = recover::recover(
        &records,
        &seen,
        &state.mig.boot,
        &holders(&state.jobs, uuid),
    );
    for (placement, action) in actions {
        let slot = MigSlot {
            gpu: uuid.clone(),
            placement,
        };
        let found = there.iter().find(|found| found.placement == placement);
        apply_action(state, fx, io, &slot, action, found)?;
    }
    report_unmanaged(&mut state.mig, &state.gpus, fx, io, uuid, &foreign, there)
}

/// The jobs that hold placements of a GPU.
fn holders(jobs: &Jobs, uuid: &GpuUuid) -> BTreeMap<Placement, InstanceHolder> {
    let mut holders = BTreeMap::new();
    for active in jobs.active.values() {
        for grant in active.job.state.grants() {
            if let Some(slot) = slot(grant).filter(|slot| slot.gpu == *uuid) {
                let holder = InstanceHolder {
                    job: active.job.id,
                    launched: active.is_launched(),
                };
                holders.insert(slot.placement, holder);
            }
        }
    }
    holders
}

fn apply_action(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    action: Action,
    found: Option<&DiscoveredInstance>,
) -> Result<(), StoreError> {
    let Some(instance) = state.mig.instances.get_mut(slot) else {
        return Ok(());
    };
    let label = instance.label();
    match action {
        Action::Adopt => Ok(()),
        Action::Finish(recover::CreatedInstance { id, uuid }) => {
            let device = found.and_then(|found| found.devices.first());
            let Some(device) = device else { return Ok(()) };
            instance.state = InstanceState::Ready;
            instance.info = Some(InstanceInfo {
                id,
                compute_id: device.id,
                uuid,
                // Divvy did not start a process that is in it now: so the instance is not clean until it is recreated.
                baseline: match device.processes.is_empty() {
                    true => device.used,
                    false => Bytes::ZERO,
                },
            });
            let job = instance.job;
            io.store.save_mig(instance)?;
            fx.replan = true;
            let text = format!(
                "{label} of GPU {} was created before the restart",
                geometry::index(&state.gpus, &slot.gpu)
            );
            fx.record_event(io, job, "mig_adopted", &text)
        }
        Action::Remove => {
            fx.replan = true;
            // A job that waits for other instances or for its confirmation has not started, so it gets a new instance.
            let holder = instance.job.and_then(|job| state.jobs.active.get_mut(&job));
            let holder = holder.filter(|one| !one.is_launched());
            if let Some(placed) = holder.and_then(|one| one.placed_mut()) {
                placed.start.pending_instances.insert(slot.clone());
            }
            commands::destroy(&mut state.mig, fx, io, slot, DestroyReason::Leftover)
        }
        Action::Drop => forget_instance(
            &mut state.mig,
            &state.gpus,
            fx,
            io,
            slot,
            None,
            "no longer exists",
        ),
        Action::Recreate(job) => {
            forget_instance(
                &mut state.mig,
                &state.gpus,
                fx,
                io,
                slot,
                Some(job),
                "does not exist, and the job has not started",
            )?;
            let waits = state.jobs.active.get(&job);
            if waits.is_some_and(|one| matches!(one.job.state, JobState::Starting { .. })) {
                requeue::requeue_unstarted(
                    &mut state.jobs,
                    &mut state.mig,
                    fx,
                    io,
                    job,
                    &format!("{label} does not exist"),
                )?;
            }
            Ok(())
        }
        Action::Lost(job) => forget_instance(
            &mut state.mig,
            &state.gpus,
            fx,
            io,
            slot,
            Some(job),
            "was destroyed while the job's program used it",
        ),
        Action::Quarantine(recover::Anomaly::Known) => {
            retry_quarantined(&mut state.mig, fx, io, slot, found)
        }
        Action::Quarantine(anomaly) => {
            fx.replan = true;
            quarantine(
                &mut state.mig,
                &state.gpus,
                fx,
                io,
                slot,
                anomaly.describe(),
            )
        }
    }
}

pub(super) fn forget_instance(
    mig: &mut MigManager,
    gpus: &GpuState,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    job: Option<JobId>,
    what: &str,
) -> Result<(), StoreError> {
    let Some(instance) = mig.instances.remove(slot) else {
        return Ok(());
    };
    io.store.forget_mig(slot)?;
    fx.replan = true;
    let text = format!(
        "{} of GPU {} {what}",
        instance.label(),
        geometry::index(gpus, &slot.gpu)
    );
    tracing::warn!(?job, "{text}");
    fx.record_event(io, job, "mig_lost", &text)
}

/// Tries again to destroy a quarantined instance that no process and no job uses.
fn retry_quarantined(
    mig: &mut MigManager,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    found: Option<&DiscoveredInstance>,
) -> Result<(), StoreError> {
    let held = mig.instances.get(slot).is_some_and(|one| one.job.is_some());
    let deserted = found.is_some_and(is_deserted);
    let of_gpu = mig.gpu(&slot.gpu);
    let due = of_gpu
        .last_destroy_attempt
        .get(&slot.placement)
        .is_none_or(|tried| tried.elapsed() >= QUARANTINE_RETRY);
    if held || !deserted || !due {
        return Ok(());
    }
    of_gpu
        .last_destroy_attempt
        .insert(slot.placement, Instant::now());
    commands::destroy(mig, fx, io, slot, DestroyReason::Leftover)
}

fn report_unmanaged(
    mig: &mut MigManager,
    gpus: &GpuState,
    fx: &mut Effects,
    io: &Io,
    uuid: &GpuUuid,
    foreign: &[Placement],
    there: &[DiscoveredInstance],
) -> Result<(), StoreError> {
    let mut now: Vec<(Placement, u8)> = there
        .iter()
        .map(|found| (found.placement, found.size))
        .collect();
    now.retain(|(placement, _)| foreign.contains(placement));
    let of_gpu = mig.gpu(uuid);
    let before = std::mem::replace(&mut of_gpu.unmanaged, now.clone());
    if before == now {
        return Ok(());
    }
    fx.replan = true;
    let changes = [
        (
            &now,
            &before,
            "was created outside Divvy, which leaves it unchanged",
        ),
        (
            &before,
            &now,
            "was created outside Divvy, and no longer exists",
        ),
    ];
    for (present, absent, what) in changes {
        for (placement, _) in present.iter().filter(|one| !absent.contains(one)) {
            let text = format!(
                "{} of GPU {} {what}",
                label(gpus, uuid, *placement),
                geometry::index(gpus, uuid)
            );
            tracing::info!("{text}");
            fx.record_event(io, None, "mig_unmanaged", &text)?;
        }
    }
    Ok(())
}

/// `1g.5gb@3`
pub(super) fn label(gpus: &GpuState, uuid: &GpuUuid, placement: Placement) -> String {
    let device = gpus.devices.iter().find(|device| device.gpu.uuid == *uuid);
    match device.and_then(crate::gpu::Device::profile_table) {
        Some(table) => table.label(placement),
        None => placement.to_string(),
    }
}

/// Records the peak memory of jobs' instances, which no ledger measures.
fn remember_peaks(jobs: &mut Jobs, mig: &MigManager, uuid: &GpuUuid) {
    let Some(of_gpu) = mig.gpus.get(uuid) else {
        return;
    };
    let holdings = jobs
        .active
        .values_mut()
        .flat_map(|active| &mut active.job.allocations);
    for holding in holdings.filter(|holding| holding.grant.gpu == *uuid) {
        let Some(mig) = holding.grant.mig else {
            continue;
        };
        let mut found = of_gpu.observed.iter();
        if let Some(found) = found.find(|found| found.placement == mig.placement) {
            holding.stats.peak = holding.stats.peak.max(found.used());
        }
    }
}

/// Records processes in instances where they do not belong.
fn report_stray_processes(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    seen: &GpuSample,
) -> Result<(), StoreError> {
    let uuid = &seen.observed.uuid;
    let holders = self::holders(&state.jobs, uuid);
    let here: Vec<(MigSlot, u32)> = seen
        .mig_processes
        .iter()
        .map(|tenant| {
            let slot = MigSlot {
                gpu: uuid.clone(),
                placement: tenant.placement,
            };
            (slot, tenant.pid)
        })
        .collect();
    state
        .mig
        .reported_processes
        .retain(|reported| reported.0.gpu != *uuid || here.contains(reported));
    for (tenant, key) in seen.mig_processes.iter().zip(here) {
        let holder = holders.get(&tenant.placement).map(|holder| holder.job);
        let ours = state.mig.instances.contains_key(&key.0);
        let belongs = tenant.job == holder && holder.is_some();
        // Processes outside Divvy in instances outside Divvy are no concern of Divvy.
        if belongs || (tenant.job.is_none() && !ours) || !state.mig.reported_processes.insert(key) {
            continue;
        }
        let holder_text = match holder {
            Some(holder) => format!("which job {holder} holds"),
            None if ours => "which no job holds".to_owned(),
            None => "which was created outside Divvy".to_owned(),
        };
        let label = self::label(&state.gpus, uuid, tenant.placement);
        let place = format!("{label} of GPU {}, {holder_text}", seen.observed.index);
        let pid = tenant.pid;
        let (job, kind, text) = match tenant.job {
            Some(job) => (
                Some(job),
                "mig_wrong_instance",
                format!("pid {pid} of the job uses {place}"),
            ),
            None => (
                holder,
                "mig_foreign_process",
                format!("pid {pid}, which belongs to no job, uses {place}"),
            ),
        };
        tracing::warn!(?job, "{text}");
        fx.record_event(io, job, kind, &text)?;
    }
    Ok(())
}

/// Quarantines an instance: no job gets it until it is gone or in order again.
pub(super) fn quarantine(
    mig: &mut MigManager,
    gpus: &GpuState,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    why: &str,
) -> Result<(), StoreError> {
    let Some(instance) = mig.instances.get_mut(slot) else {
        return Ok(());
    };
    instance.state = InstanceState::Quarantined;
    let former_reason = instance.reason.replace(why.to_owned());
    io.store.save_mig(instance)?;
    let (label, job) = (instance.label(), instance.job);
    let of_gpu = mig.gpu(&slot.gpu);
    of_gpu
        .last_destroy_attempt
        .insert(slot.placement, Instant::now());
    if former_reason.as_deref() == Some(why) {
        return Ok(());
    }
    mig.counts.quarantined.add(Duration::ZERO);
    let text = format!("{label} of GPU {}: {why}", geometry::index(gpus, &slot.gpu));
    tracing::warn!("{text}");
    fx.record_event(io, job, "mig_quarantined", &text)
}
