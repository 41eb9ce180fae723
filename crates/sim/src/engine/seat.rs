//! Where a process's work runs and its memory lies: on a whole GPU, or in one of its GPU instances.
//!
//! A seat is a number: that of the machine's GPU for a whole GPU, and further ones for its GPU instances. What a process's own modules call `gpu` is a
//! seat; without MIG the two are the same. Memory belongs to a seat. Compute time belongs to the whole GPU, or to one compute instance: a process
//! uses one of each GPU instance (MIG user guide, "CUDA Device Enumeration", from driver 570 on), which it names when it enters.

use super::state::{Locked, State};
use crate::model::MAX_GPUS;
use std::collections::BTreeSet;

/// A GPU instance's id is below this, and a compute instance's below [`COMPUTE_INSTANCES`]: what the driver's capability files have room for
/// (nv-caps.c of NVIDIA's open kernel modules).
pub const GPU_INSTANCES: usize = 15;
pub const COMPUTE_INSTANCES: usize = 8;

/// Seats of one GPU.
pub const PARTITIONS_PER_GPU: usize = 1 + GPU_INSTANCES;
/// Seats of a machine with as many GPUs as one can have.
pub const MAX_PARTITIONS: usize = MAX_GPUS * PARTITIONS_PER_GPU;

/// A GPU instance's seat.
pub fn of_instance(gpu: usize, gpu_instance: u32) -> usize {
    gpu + MAX_GPUS * (1 + gpu_instance as usize)
}

/// The GPU a seat is on.
pub fn gpu_of(seat: usize) -> usize {
    seat % MAX_GPUS
}

/// The GPU instance a seat is in.
pub fn instance_of(seat: usize) -> Option<u32> {
    (seat / MAX_GPUS)
        .checked_sub(1)
        .map(|instance| instance as u32)
}

/// The seats of a GPU: itself first.
pub fn partitions_of(gpu: usize) -> impl Iterator<Item = usize> {
    (0..PARTITIONS_PER_GPU).map(move |part| gpu + MAX_GPUS * part)
}

/// The first GPU's is 0, its instances follow, then the next GPU's: without gaps, for arrays in the state file.
pub(super) fn position(seat: usize) -> usize {
    gpu_of(seat) * PARTITIONS_PER_GPU + seat / MAX_GPUS
}

/// What has compute time of its own: a whole GPU, or a compute instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComputeUnit {
    pub partition: usize,
    /// Its id; 0 on a whole GPU.
    pub compute: u32,
}

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
    pub(super) fn compute_units(&self) -> impl Iterator<Item = ComputeUnit> + use<> {
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
    pub(super) fn compute_units_of(
        &self,
        seat: usize,
    ) -> impl Iterator<Item = ComputeUnit> + use<> {
        let live = self.slots().iter().filter(|slot| slot.is_live());
        let computes: BTreeSet<u32> = live.filter_map(|slot| slot.entered(seat)).collect();
        computes.into_iter().map(move |compute| ComputeUnit {
            partition: seat,
            compute,
        })
    }

    /// Seats whose queues a slot may have used.
    pub(super) fn partitions_in_use(&self, slot: usize) -> impl Iterator<Item = usize> {
        let (slot, gpus) = (&self.slots()[slot], self.gpu_count());
        let in_use = move |seat: &usize| *seat < gpus || slot.entered(*seat).is_some();
        slot.partitions().filter(in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_gpus_seat_is_the_gpu_and_its_instances_come_back_from_theirs() {
        for gpu in 0..MAX_GPUS {
            assert_eq!((gpu_of(gpu), instance_of(gpu)), (gpu, None));
            for instance in 0..GPU_INSTANCES as u32 {
                let seat = of_instance(gpu, instance);
                assert_eq!((gpu_of(seat), instance_of(seat)), (gpu, Some(instance)));
                assert!(seat < MAX_PARTITIONS);
            }
        }
    }

    #[test]
    fn positions_have_no_gaps() {
        let mut positions: Vec<usize> = (0..3).flat_map(partitions_of).map(position).collect();
        positions.sort_unstable();
        assert_eq!(positions, (0..3 * PARTITIONS_PER_GPU).collect::<Vec<_>>());
    }
}
