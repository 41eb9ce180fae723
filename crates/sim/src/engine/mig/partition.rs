//! Partitions: a whole GPU or one of its GPU instances, by number.
//!
//! The number of a whole GPU is that of the machine's GPU; further numbers stand for its GPU instances. What a
//! process's own modules call `gpu` is a partition; without MIG the two are the same. Memory belongs to a partition.
//! Compute time belongs to a compute unit: the whole GPU, or one compute instance. A process uses one of each GPU
//! instance (MIG user guide, "CUDA Device Enumeration", from driver 570 on), which it names when it enters.

use crate::model::MAX_GPUS;

/// A GPU instance's id is below this, and a compute instance's below [`COMPUTE_INSTANCES`]: what the driver's
/// capability files have room for (nv-caps.c of NVIDIA's open kernel modules).
pub const GPU_INSTANCES: usize = 15;

/// Of the same file of NVIDIA's kernel modules.
pub const COMPUTE_INSTANCES: usize = 8;

/// Partitions of one GPU.
pub const PARTITIONS_PER_GPU: usize = 1 + GPU_INSTANCES;

/// Partitions of a machine with as many GPUs as one can have.
pub const MAX_PARTITIONS: usize = MAX_GPUS * PARTITIONS_PER_GPU;

/// A GPU instance's partition.
pub fn of_instance(gpu: usize, gpu_instance: u32) -> usize {
    gpu + MAX_GPUS * (1 + gpu_instance as usize)
}

/// The GPU a partition is on.
pub fn gpu_of(partition: usize) -> usize {
    partition % MAX_GPUS
}

/// The GPU instance a partition is in.
pub fn instance_of(partition: usize) -> Option<u32> {
    (partition / MAX_GPUS)
        .checked_sub(1)
        .map(|instance| instance as u32)
}

/// The partitions of a GPU: itself first.
pub fn partitions_of(gpu: usize) -> impl Iterator<Item = usize> {
    (0..PARTITIONS_PER_GPU).map(move |part| gpu + MAX_GPUS * part)
}

/// The first GPU's is 0, its instances follow, then the next GPU's: without gaps, for arrays in the state file.
pub fn position(partition: usize) -> usize {
    gpu_of(partition) * PARTITIONS_PER_GPU + partition / MAX_GPUS
}

/// What has compute time of its own: a whole GPU, or a compute instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComputeUnit {
    pub partition: usize,
    /// Its id; 0 on a whole GPU.
    pub compute: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_gpus_seat_is_the_gpu_and_its_instances_come_back_from_theirs() {
        for gpu in 0..MAX_GPUS {
            assert_eq!((gpu_of(gpu), instance_of(gpu)), (gpu, None));
            for instance in 0..GPU_INSTANCES as u32 {
                let partition = of_instance(gpu, instance);
                assert_eq!(
                    (gpu_of(partition), instance_of(partition)),
                    (gpu, Some(instance))
                );
                assert!(partition < MAX_PARTITIONS);
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
