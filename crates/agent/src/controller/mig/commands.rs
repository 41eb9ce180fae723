//! MIG commands: work for the MIG workers, journaled first and dispatched once that is durable.

use divvy_core::mig::MigProfile;
use divvy_core::mig::recover::InstanceState;
use divvy_core::{GpuUuid, JobId};

use crate::controller::actuators::Actuators;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::mig::geometry;
use crate::controller::state::GpuState;
use crate::controller::state::mig::{DestroyReason, MigManager};
use crate::gpu::mig::{MigCommand, MigTask};
use crate::host::clock::now;
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::mig_instance::{ManagedInstance, MigSlot};

/// Journals a new instance for a job, and enqueues its creation.
pub(super) fn make(
    mig: &mut MigManager,
    gpus: &GpuState,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    name: MigProfile,
    job: JobId,
) -> Result<(), StoreError> {
    let generation = mig.generation;
    mig.generation += 1;
    let instance = ManagedInstance {
        slot: slot.clone(),
        profile: name,
        state: InstanceState::Creating,
        generation,
        boot: mig.boot.clone(),
        job: Some(job),
        last_user: None,
        info: None,
        since: now(),
        reason: None,
    };
    io.store.save_mig(&instance)?;
    mig.instances.insert(slot.clone(), instance);
    let task = MigTask::Create {
        slot: slot.clone(),
        generation,
        size: geometry::size(gpus, slot),
    };
    enqueue_command(mig, fx, &slot.gpu, task);
    Ok(())
}

/// Journals that an instance is destroyed, and enqueues that. If a job waits for the slot, a new instance follows.
pub(super) fn destroy(
    mig: &mut MigManager,
    fx: &mut Effects,
    io: &Io,
    slot: &MigSlot,
    why: DestroyReason,
) -> Result<(), StoreError> {
    let Some(instance) = mig.instances.get_mut(slot) else {
        return Ok(());
    };
    mig.destroy_reasons.insert(instance.generation, why);
    instance.state = InstanceState::Destroying;
    instance.since = now();
    io.store.save_mig(instance)?;
    let task = MigTask::Destroy {
        slot: slot.clone(),
        generation: instance.generation,
        made: instance.info.clone(),
    };
    enqueue_command(mig, fx, &slot.gpu, task);
    Ok(())
}

pub(super) fn enqueue_command(
    mig: &mut MigManager,
    fx: &mut Effects,
    gpu: &GpuUuid,
    task: MigTask,
) {
    mig.gpu(gpu).outstanding += 1;
    if let Some(slot) = task.slot() {
        let free = mig.busy_slots.insert(slot.clone());
        debug_assert!(free, "two orders for {slot} at once");
    }
    fx.mig_commands.push(MigCommand {
        gpu: gpu.clone(),
        task,
    });
}

/// Dispatches the commands that this round has journaled.
pub(in crate::controller) fn dispatch_mig_commands(fx: &mut Effects, actuators: &Actuators) {
    for point in std::mem::take(&mut fx.failpoints) {
        reach(point);
    }
    for command in std::mem::take(&mut fx.mig_commands) {
        reach(match &command.task {
            MigTask::Create { .. } => "mig.create.intent",
            MigTask::Check { .. } => "mig.reuse.intent",
            MigTask::Destroy { .. } => "mig.destroy.intent",
            MigTask::SetMode { .. } => "mig.mode.intent",
            MigTask::Limit(_) => "limit.intent",
        });
        actuators.workers.dispatch(command);
    }
}
