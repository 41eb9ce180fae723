//! GPU volume by kind of request.

use divvy_packing::{Cluster, Shape};

/// Sums over requests, in thousandths of a GPU; requests without GPUs by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volumes {
    /// Parts of one GPU.
    pub fraction: u64,
    /// One whole GPU.
    pub one: u64,
    /// Several GPUs.
    pub several: u64,
    /// The number of requests without GPUs.
    pub cpu_only: u64,
}

impl Volumes {
    /// Counts a request in. Its volume is that of [`Cluster::asked_milli`].
    pub fn add(&mut self, cluster: &Cluster, shape: &Shape) {
        let milli = cluster.asked_milli(shape);
        match (shape.gpus, shape.is_whole()) {
            (0, _) => self.cpu_only += 1,
            (1, false) => self.fraction += milli,
            (1, true) => self.one += milli,
            _ => self.several += milli,
        }
    }

    /// Over all kinds.
    pub fn total(&self) -> u64 {
        self.fraction + self.one + self.several
    }
}
