//! Partitions of the machine: the memory of each, and the compute units that processes use.

use crate::engine::machine::state::{Locked, State};
use crate::engine::mig::partition::{ComputeUnit, gpu_of, instance_of, partitions_of};
use crate::model::MAX_GPUS;
use std::collections::BTreeSet;

impl State {
    /// Bytes that programs can take on a partition.
    pub fn memory_at(&self, partition: usize) -> u64 {
        match instance_of(partition) {
            Some(instance) => self.mig_memory(gpu_of(partition), instance),
            None => self.model(partition).memory_usable(),
        }
    }

    /// A name for a partition that no other partition of any machine has: the GPU's UUID, and the GPU instance's id.
    pub fn name_of(&self, partition: usize) -> String {
        let uuid = self.gpu(partition).uuid_text();
        match instance_of(partition) {
            Some(instance) => format!("{uuid}:{instance}"),
            None => uuid,
        }
    }

    /// All partitions of the machine.
    pub fn partitions(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.gpu_count()).flat_map(partitions_of)
    }
}

impl Locked<'_> {
    /// All compute units in use: all whole GPUs, and the compute instances that live processes have entered.
    pub fn compute_units(&self) -> impl Iterator<Item = ComputeUnit> + use<> {
        let whole = (0..self.gpu_count()).map(|partition| ComputeUnit {
            partition,
            compute: 0,
        });
        let mut instances = BTreeSet::new();
        for slot in self.slots().iter().filter(|slot| slot.is_live()) {
            let entered = slot.partitions().skip(MAX_GPUS).filter_map(|partition| {
                let compute = slot.entered(partition)?;
                Some(ComputeUnit { partition, compute })
            });
            instances.extend(entered);
        }
        whole.chain(instances)
    }

    /// The compute instances of a GPU instance that live processes have entered.
    pub fn compute_units_of(&self, partition: usize) -> impl Iterator<Item = ComputeUnit> + use<> {
        let live = self.slots().iter().filter(|slot| slot.is_live());
        let computes: BTreeSet<u32> = live.filter_map(|slot| slot.entered(partition)).collect();
        computes
            .into_iter()
            .map(move |compute| ComputeUnit { partition, compute })
    }

    /// Partitions with queues that a slot may have used.
    pub fn partitions_in_use(&self, slot: usize) -> impl Iterator<Item = usize> {
        let (slot, gpus) = (&self.slots()[slot], self.gpu_count());
        let in_use =
            move |partition: &usize| *partition < gpus || slot.entered(*partition).is_some();
        slot.partitions().filter(in_use)
    }
}
