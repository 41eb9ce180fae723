//! Partitions of the machine: the memory of each, and the compute units that processes use.

use crate::engine::machine::state::{Locked, State};
use crate::engine::mig::partition::{ComputeUnit, gpu_of, instance_of, partitions_of};
use crate::model::MAX_GPUS;
use std::collections::BTreeSet;

impl State {
    /// Bytes that programs can take on a seat.
    pub fn memory_at(&self, seat: usize) -> u64 {
        match instance_of(seat) {
            Some(instance) => self.mig_memory(gpu_of(seat), instance),
            None => self.model(seat).memory_usable(),
        }
    }

    /// A name for a seat that no other seat of any machine has: the GPU's UUID, and the GPU instance's id.
    pub fn name_of(&self, seat: usize) -> String {
        let uuid = self.gpu(seat).uuid_text();
        match instance_of(seat) {
            Some(instance) => format!("{uuid}:{instance}"),
            None => uuid,
        }
    }

    /// All seats of the machine.
    pub fn partitions(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.gpu_count()).flat_map(partitions_of)
    }
}

impl Locked<'_> {
    /// Everything with compute time of its own that anybody may use: all whole GPUs, and the compute instances that live processes have entered.
    pub fn compute_units(&self) -> impl Iterator<Item = ComputeUnit> + use<> {
        let whole = (0..self.gpu_count()).map(|seat| ComputeUnit {
            partition: seat,
            compute: 0,
        });
        let mut instances = BTreeSet::new();
        for slot in self.slots().iter().filter(|slot| slot.is_live()) {
            let entered = slot.partitions().skip(MAX_GPUS).filter_map(|seat| {
                let compute = slot.entered(seat)?;
                Some(ComputeUnit {
                    partition: seat,
                    compute,
                })
            });
            instances.extend(entered);
        }
        whole.chain(instances)
    }

    /// The compute instances of a GPU instance that live processes have entered.
    pub fn compute_units_of(&self, seat: usize) -> impl Iterator<Item = ComputeUnit> + use<> {
        let live = self.slots().iter().filter(|slot| slot.is_live());
        let computes: BTreeSet<u32> = live.filter_map(|slot| slot.entered(seat)).collect();
        computes.into_iter().map(move |compute| ComputeUnit {
            partition: seat,
            compute,
        })
    }

    /// Seats whose queues a slot may have used.
    pub fn partitions_in_use(&self, slot: usize) -> impl Iterator<Item = usize> {
        let (slot, gpus) = (&self.slots()[slot], self.gpu_count());
        let in_use = move |seat: &usize| *seat < gpus || slot.entered(*seat).is_some();
        slot.partitions().filter(in_use)
    }
}
