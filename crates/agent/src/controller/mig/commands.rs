//! What the workers are to do: journaled first, given to them when that is durable.

use divvy_core::mig::MigProfile;
use divvy_core::mig::recover::InstanceState;
use divvy_core::{GpuUuid, JobId};

use super::DestroyReason;
use crate::controller::Controller;
use crate::gpu::mig::{MigCommand, MigTask};
use crate::host::clock::now;
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::mig_instance::{ManagedInstance, MigSlot};

impl Controller {
    /// Journals that an instance is to be made for a job, and orders it.
    pub(super) fn make(
        &mut self,
        slot: &MigSlot,
        name: MigProfile,
        job: JobId,
    ) -> Result<(), StoreError> {
        let generation = self.migs.generation;
        self.migs.generation += 1;
        let instance = ManagedInstance {
            slot: slot.clone(),
            profile: name,
            state: InstanceState::Creating,
            generation,
            boot: self.migs.boot.clone(),
            job: Some(job),
            last_user: None,
            info: None,
            since: now(),
            reason: None,
        };
        self.store.save_mig(&instance)?;
        self.migs.instances.insert(slot.clone(), instance);
        let task = MigTask::Create {
            slot: slot.clone(),
            generation,
            size: self.size(slot),
        };
        self.enqueue_command(&slot.gpu, task);
        Ok(())
    }

    /// Journals that an instance is to go, and orders it. For a job that waits for it another is made once it is gone.
    pub(super) fn destroy(&mut self, slot: &MigSlot, why: DestroyReason) -> Result<(), StoreError> {
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        self.migs.destroy_reasons.insert(instance.generation, why);
        instance.state = InstanceState::Destroying;
        instance.since = now();
        self.store.save_mig(instance)?;
        let task = MigTask::Destroy {
            slot: slot.clone(),
            generation: instance.generation,
            made: instance.info.clone(),
        };
        self.enqueue_command(&slot.gpu, task);
        Ok(())
    }

    pub(super) fn enqueue_command(&mut self, gpu: &GpuUuid, task: MigTask) {
        self.migs.gpu(gpu).outstanding += 1;
        if let Some(slot) = task.slot() {
            let free = self.migs.busy_slots.insert(slot.clone());
            debug_assert!(free, "two orders for {slot} at once");
        }
        self.effects.mig_commands.push(MigCommand {
            gpu: gpu.clone(),
            task,
        });
    }

    /// Gives the workers what this round has journaled.
    pub(in crate::controller) fn dispatch_mig_commands(&mut self) {
        for point in std::mem::take(&mut self.effects.failpoints) {
            reach(point);
        }
        for order in std::mem::take(&mut self.effects.mig_commands) {
            reach(match &order.task {
                MigTask::Create { .. } => "mig.create.intent",
                MigTask::Check { .. } => "mig.reuse.intent",
                MigTask::Destroy { .. } => "mig.destroy.intent",
                MigTask::SetMode { .. } => "mig.mode.intent",
            });
            self.migs.workers.dispatch(order);
        }
    }
}
