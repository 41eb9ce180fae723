//! What the workers are to do: journaled first, given to them when that is durable.

use divvy_core::mig::MigProfile;
use divvy_core::mig::recover::Stage;
use divvy_core::{GpuUuid, JobId};

use super::Why;
use crate::clock::now;
use crate::cycle::Cycle;
use crate::failpoint::reach;
use crate::mig::{Instance, Order, Slot, Task};
use crate::store::StoreError;

impl Cycle {
    /// Journals that an instance is to be made for a job, and orders it.
    pub(super) fn make(
        &mut self,
        slot: &Slot,
        name: MigProfile,
        job: JobId,
    ) -> Result<(), StoreError> {
        let generation = self.migs.generation;
        self.migs.generation += 1;
        let instance = Instance {
            slot: slot.clone(),
            name,
            stage: Stage::Creating,
            generation,
            boot: self.migs.boot.clone(),
            job: Some(job),
            user: None,
            made: None,
            since: now(),
            reason: None,
        };
        self.store.save_mig(&instance)?;
        self.migs.instances.insert(slot.clone(), instance);
        let task = Task::Make {
            slot: slot.clone(),
            generation,
            size: self.size(slot),
        };
        self.order(&slot.gpu, task);
        Ok(())
    }

    /// Journals that an instance is to go, and orders it. For a job that waits for it another is made once it is gone.
    pub(super) fn destroy(&mut self, slot: &Slot, why: Why) -> Result<(), StoreError> {
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        self.migs.leaving.insert(instance.generation, why);
        instance.stage = Stage::Destroying;
        instance.since = now();
        self.store.save_mig(instance)?;
        let task = Task::Unmake {
            slot: slot.clone(),
            generation: instance.generation,
            made: instance.made.clone(),
        };
        self.order(&slot.gpu, task);
        Ok(())
    }

    pub(super) fn order(&mut self, gpu: &GpuUuid, task: Task) {
        self.migs.gpu(gpu).outstanding += 1;
        if let Some(slot) = task.slot() {
            let free = self.migs.busy.insert(slot.clone());
            debug_assert!(free, "two orders for {slot} at once");
        }
        self.round.orders.push(Order {
            gpu: gpu.clone(),
            task,
        });
    }

    /// Gives the workers what this round has journaled.
    pub(in crate::cycle) fn give_orders(&mut self) {
        for point in std::mem::take(&mut self.round.points) {
            reach(point);
        }
        for order in std::mem::take(&mut self.round.orders) {
            reach(match &order.task {
                Task::Make { .. } => "mig.create.intent",
                Task::Check { .. } => "mig.reuse.intent",
                Task::Unmake { .. } => "mig.destroy.intent",
                Task::Mode { .. } => "mig.mode.intent",
            });
            self.migs.workers.give(order);
        }
    }
}
