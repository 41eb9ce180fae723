//! Cells of the value table: how much CPU a node has for what is free of its GPUs, and how much is free of one GPU.

use divvy_core::Bytes;

use crate::node::{GpuFree, WHOLE};

/// Classes of free CPU per free GPU.
pub(super) const CPU: usize = CPU_EDGES.len() + 1;

/// Cores per free GPU at which the next class begins.
const CPU_EDGES: [f32; 21] = [
    0.5, 1.2, 2.0, 2.6, 3.1, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 8.0, 9.0, 10.0, 11.0, 12.5,
    14.0, 17.0, 24.0,
];

/// Classes of what is free of a GPU: hundredths of a GPU in use, then how many GPUs of the node are idle.
pub(super) const FREE: usize = PARTLY + MOST_IDLE;
/// Hundredths: a coarser class would take shares of 0.05 and 0.10 for one.
const PARTLY: usize = 100;
/// Most nodes have eight GPUs, so a node with more counts as one with eight.
const MOST_IDLE: usize = 8;

/// Classes of what one axis, share or memory, has free beyond the other. Our choice: fewer would not tell a free half
/// from a free tenth, and each further one needs more observations.
pub(super) const SPARE: usize = 5;

/// Thousandths that one axis is ahead of the other at which the next class begins.
const SPARE_EDGES: [u32; 2] = [50, 250];

/// The part of a free GPU that stays unused, before anything is learned: with no CPU, and with the most.
const UNUSED: [f32; 2] = [1.0, 0.1];

/// An idle GPU serves every request, so less of it stays unused.
const IDLE_UNUSED: f32 = 0.3;

/// The class of CPU of a node with these thousandths of cores and of GPUs free.
pub(super) fn cpu_class(cpu_milli: u64, gpu_milli: u32) -> usize {
    let cores_per_gpu = cpu_milli as f32 / gpu_milli as f32;
    let reached = CPU_EDGES.iter().filter(|edge| cores_per_gpu >= **edge);
    reached.count()
}

/// The class of a GPU by what is free of its scarcer axis, in thousandths, where `idle` GPUs of its node are idle.
pub(super) fn free_class(share: u32, scarcer: u32, idle: usize) -> usize {
    if share == WHOLE {
        PARTLY - 1 + idle.clamp(1, MOST_IDLE)
    } else {
        (scarcer as usize / 10).min(PARTLY - 1)
    }
}

/// The class of a GPU by the difference between its axes; 0 where they agree.
pub(super) fn spare_class(share: u32, memory: u32) -> usize {
    let ahead = share.abs_diff(memory);
    let class = SPARE_EDGES.iter().filter(|edge| ahead >= **edge).count();
    match class {
        0 => 0,
        class if share > memory => class,
        class => class + SPARE_EDGES.len(),
    }
}

/// What is free of a GPU's memory, in thousandths; as much as of the share where the memory is unknown.
pub(super) fn memory_milli(free: GpuFree, per_byte: Option<f32>) -> u32 {
    let memory = free.memory.map_or(0, Bytes::get);
    match per_byte {
        // Rounded to the nearest, so that a share's own part of the memory is the same on both axes.
        Some(per_byte) => (memory as f32 * per_byte + 0.5) as u32,
        None => free.milli(),
    }
}

/// What stays unused of a GPU of these classes, in thousandths, before anything is learned.
pub(super) fn prior(spare: usize, cpu: usize, free: usize) -> f32 {
    let with_cpu = UNUSED[0] + (UNUSED[1] - UNUSED[0]) * cpu as f32 / (CPU - 1) as f32;
    if free >= PARTLY {
        return WHOLE as f32 * with_cpu * IDLE_UNUSED;
    }
    let scarcer = free as f32 * 10.0 + 5.0;
    // Share beyond the memory stays unused; memory beyond the share costs nothing.
    let beyond = match spare {
        1 => 150.0,
        2 => 500.0,
        _ => 0.0,
    };
    (scarcer * with_cpu + beyond).min(WHOLE as f32)
}

#[cfg(test)]
mod tests {
    use divvy_core::Share;

    use super::*;

    #[test]
    fn classes_begin_at_their_edges_and_stay_in_the_table() {
        assert_eq!(cpu_class(0, 1000), 0);
        assert_eq!(cpu_class(499, 1000), 0);
        assert_eq!(cpu_class(500, 1000), 1);
        assert_eq!(cpu_class(6200, 2000), 5);
        assert_eq!(cpu_class(u64::MAX, 1), CPU - 1);
        assert_eq!(free_class(999, 999, 3), 99);
        assert_eq!(free_class(10, 9, 0), 0);
        assert_eq!(free_class(1000, 1000, 1), 100);
        assert_eq!(free_class(1000, 1000, 16), FREE - 1);
        assert_eq!(spare_class(500, 500), 0);
        assert_eq!(spare_class(500, 450), 1);
        assert_eq!(spare_class(500, 100), 2);
        assert_eq!(spare_class(450, 500), 3);
        assert_eq!(spare_class(0, 1000), SPARE - 1);
    }

    #[test]
    fn a_share_s_own_memory_is_the_same_on_both_axes() {
        for total in [16_384_u64, 24_576, 40_960, 81_559] {
            let per_byte = Some(1000.0 / Bytes::mib(total).get() as f32);
            for thousandths in 1..=1000_u16 {
                let memory = total - total * u64::from(1000 - thousandths) / 1000;
                let free = GpuFree {
                    share: Share::from_thousandths(thousandths),
                    memory: Some(Bytes::mib(memory)),
                };
                assert_eq!(memory_milli(free, per_byte), free.milli(), "{total}");
            }
        }
    }
}
