//! The broad mix: requests of a large shared cluster, of which every training sees some.

use divvy_core::{Bytes, Share};

use super::mix::Mix;
use crate::node::{ModelSet, Shape, WHOLE};

/// GPUs, thousandths of each, cores, GiB of memory, and requests in 10,000.
///
/// Counted from the tasks of Alibaba's cluster-trace-gpu-v2023, list `default` (Weng et al., "Beware of Fragmentation",
/// USENIX ATC 2023): shares rounded to 50 thousandths, CPU to cores, memory to GiB, rare shapes joined to the nearest.
const REQUESTS: [(u32, u16, u64, u64, u64); 33] = [
    (0, 0, 4, 16, 160),
    (0, 0, 8, 30, 250),
    (0, 0, 13, 56, 500),
    (0, 0, 32, 48, 400),
    (1, 100, 4, 15, 60),
    (1, 150, 4, 15, 130),
    (1, 250, 4, 30, 200),
    (1, 300, 4, 22, 350),
    (1, 300, 8, 30, 120),
    (1, 350, 4, 10, 80),
    (1, 450, 6, 10, 150),
    (1, 450, 8, 30, 450),
    (1, 450, 12, 46, 500),
    (1, 550, 4, 10, 110),
    (1, 600, 3, 6, 110),
    (1, 650, 12, 46, 320),
    (1, 800, 3, 6, 1350),
    (1, 1000, 3, 6, 620),
    (1, 1000, 4, 24, 250),
    (1, 1000, 8, 30, 350),
    (1, 1000, 10, 41, 330),
    (1, 1000, 11, 48, 1750),
    (1, 1000, 12, 24, 650),
    (1, 1000, 16, 57, 500),
    (1, 1000, 19, 63, 350),
    (1, 1000, 24, 91, 160),
    (2, 1000, 16, 65, 16),
    (2, 1000, 30, 157, 4),
    (4, 1000, 32, 129, 14),
    (4, 1000, 60, 313, 4),
    (8, 1000, 64, 257, 26),
    (8, 1000, 88, 320, 22),
    (8, 1000, 120, 640, 6),
];

pub(super) fn mix() -> Mix {
    let requests = REQUESTS.iter();
    let counts = requests.map(|(gpus, share, cores, gib, count)| {
        let shape = Shape {
            cpu_milli: cores * u64::from(WHOLE),
            memory: Bytes::gib(*gib),
            gpus: *gpus,
            share: Share::from_thousandths(*share),
            gpu_memory: None,
            models: ModelSet::ANY,
        };
        (shape, *count)
    });
    counts.collect()
}
