//! Slice usage: what the last observations showed of one slice on one GPU.

use divvy_core::Bytes;
use divvy_core::reconcile::{GrantHistory, SliceComparison};
use divvy_ledger::ContextCounts;

use crate::gpu::slice::HeldSlice;

/// What the last sample showed of one slice on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceUsage {
    /// Memory of its processes, as the driver reports it.
    pub driver: Option<Bytes>,
    /// The ledger's error.
    pub mismatch: Option<i64>,
    /// The largest error that lasted from one sample to the next.
    pub mismatch_max: Bytes,
    /// Memory that the limit has to count besides the ledger.
    pub unaccounted: Bytes,
    /// The value that the slice's processes have.
    pub published: Bytes,
    pub granted: GrantHistory,
    /// What became of its processes' contexts, up to the last look.
    pub contexts: ContextCounts,
}

impl SliceUsage {
    pub fn update(&mut self, found: &SliceComparison) {
        self.driver = found.driver;
        let (before, now) = (self.mismatch, found.mismatch());
        // A figure that could not be compared this time stays as it was; one that the driver does not report is
        // unknown.
        self.mismatch = found.driver.and(now.or(before));
        // A single sample may fall between the end of a process and the driver's update.
        if let (Some(before), Some(now)) = (before, now)
            && before.signum() == now.signum()
        {
            let lasted = Bytes::new(before.unsigned_abs().min(now.unsigned_abs()));
            self.mismatch_max = self.mismatch_max.max(lasted);
        }
        self.unaccounted = match found.steady {
            true => found.uncounted,
            false => found.uncounted.max(self.unaccounted),
        };
    }

    /// Suspends the comparison, because the memory is offloaded or an operation moves it.
    pub fn suspend_accounting(&mut self, found: &SliceComparison) {
        self.driver = found.driver;
        self.mismatch = None;
    }

    /// Publishes to the slice's processes what else counts; if allocations are denied, the whole limit.
    pub fn publish(&mut self, slice: &HeldSlice, gpu: usize, limit: Bytes, denied: bool) {
        let unseen = if denied {
            self.unaccounted.max(limit)
        } else {
            self.unaccounted
        };
        if std::mem::replace(&mut self.published, unseen) != unseen {
            slice.set_unaccounted(gpu, unseen);
        }
    }
}
