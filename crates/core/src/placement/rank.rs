//! Best fit among GPUs: one ranking for the jobs of a node and for the requests of a cluster.

/// What would be left of a GPU, in order of preference: the least share, then the least memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOver {
    /// Thousandths of the GPU.
    pub share: u64,
    /// In a unit that all ranked GPUs have in common.
    pub memory: u64,
}

/// Sorts GPUs in order of index by what would be left of each. Equal ones keep their order: the lowest index first.
pub fn tightest_first<T>(gpus: &mut [T], left_over: impl Fn(&T) -> LeftOver) {
    gpus.sort_by_key(left_over);
}
