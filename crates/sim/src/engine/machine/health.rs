//! The health of a GPU: whether contexts can be made on it, errors in its memory, and the Xid events that its driver
//! raises.

use crate::engine::machine::state::Locked;
use divvy_driver::sys::cuda::CUresult;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// "GPU has fallen off the bus", in NVIDIA's list of Xid errors.
const FALLEN_OFF_THE_BUS: u64 = 79;

/// So many Xid events are kept for those that have not asked for them yet.
pub const KEPT_XIDS: usize = 16;

/// Zeroed memory is a GPU that is well.
#[repr(C)]
pub struct Health {
    lost: AtomicU32,
    /// The CUresult of every attempt to make a context; 0 while they can be made.
    context_error: AtomicU32,
    remapped_rows: AtomicU32,
    has_pending_remap: AtomicU32,
    has_failed_remap: AtomicU32,
    uncorrected_ecc: AtomicU64,
    /// How many Xid events there were, and the last of them in turn. Changed under the machine's lock.
    xid_count: AtomicU64,
    xids: [AtomicU64; KEPT_XIDS],
}

/// What the driver tells of remapped rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemappedRows {
    pub uncorrectable: u32,
    pub is_pending: bool,
    pub has_failed: bool,
}

impl Health {
    /// Whether the GPU has fallen off the bus. It does not come back.
    pub fn is_lost(&self) -> bool {
        self.lost.load(SeqCst) != 0
    }

    /// What an attempt to make a context answers, if it fails.
    pub fn context_error(&self) -> Option<CUresult> {
        let code = self.context_error.load(SeqCst);
        (code != 0).then_some(CUresult(code))
    }

    /// 0 is success: contexts can be made again.
    pub fn set_context_error(&self, code: u32) {
        self.context_error.store(code, SeqCst);
    }

    pub fn uncorrected_ecc(&self) -> u64 {
        self.uncorrected_ecc.load(SeqCst)
    }

    pub fn set_uncorrected_ecc(&self, errors: u64) {
        self.uncorrected_ecc.store(errors, SeqCst);
    }

    pub fn remapped(&self) -> RemappedRows {
        RemappedRows {
            uncorrectable: self.remapped_rows.load(SeqCst),
            is_pending: self.has_pending_remap.load(SeqCst) != 0,
            has_failed: self.has_failed_remap.load(SeqCst) != 0,
        }
    }

    pub fn set_remapped(&self, rows: RemappedRows) {
        self.remapped_rows.store(rows.uncorrectable, SeqCst);
        let flags = [
            (&self.has_pending_remap, rows.is_pending),
            (&self.has_failed_remap, rows.has_failed),
        ];
        for (flag, is) in flags {
            flag.store(u32::from(is), SeqCst);
        }
    }

    /// A reset: counts begin anew, a pending row is remapped, and contexts can be made again. A failed remap stays.
    pub fn restart(&self) {
        self.set_context_error(0);
        self.set_uncorrected_ecc(0);
        self.has_pending_remap.store(0, SeqCst);
    }

    /// How many Xid events there were.
    pub fn xid_count(&self) -> u64 {
        self.xid_count.load(SeqCst)
    }
}

impl Locked<'_> {
    /// Raises an Xid event of a GPU, for all that watch it.
    pub fn raise_xid(&self, gpu: usize, xid: u64) {
        let health = &self.gpus()[gpu].health;
        let count = health.xid_count();
        health.xids[count as usize % KEPT_XIDS].store(xid, SeqCst);
        health.xid_count.store(count + 1, SeqCst);
    }

    /// The first kept Xid event after `told` events: its number, counted from 1, and its Xid.
    pub fn xid_after(&self, gpu: usize, told: u64) -> Option<(u64, u64)> {
        let health = &self.gpus()[gpu].health;
        let count = health.xid_count();
        let oldest = count.saturating_sub(KEPT_XIDS as u64);
        let at = told.max(oldest);
        (at < count).then(|| (at + 1, health.xids[at as usize % KEPT_XIDS].load(SeqCst)))
    }

    /// The GPU falls off the bus.
    pub fn lose(&self, gpu: usize) {
        if self.gpus()[gpu].health.lost.swap(1, SeqCst) == 0 {
            self.raise_xid(gpu, FALLEN_OFF_THE_BUS);
        }
    }
}
