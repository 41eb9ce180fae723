//! Limits of a context: their values, and the device memory that goes with them.
//!
//! From cuda.h: a stack size takes effect at once, and the driver blocks until earlier work is done; reservations that
//! do not fit are out of memory. From the CUDA programming guide: local memory is at most 512 KiB a thread. Inferred: a
//! stack is there for every thread that the GPU can hold at one time; heap and printf buffer are taken when they are
//! set too, not when code that uses them is loaded; what is set lower is given back; what a context costs anyway
//! includes the defaults.

use crate::engine::objects::memory::LARGE;
use crate::engine::objects::result::Done;
use crate::model::Model;
use divvy_driver::sys::cuda::{CUlimit, CUresult};

/// Limits and their initial values: CUDA's documented defaults, sizes in bytes.
const LIMITS: [(CUlimit, usize); 7] = [
    (CUlimit::STACK_SIZE, 1024),
    (CUlimit::PRINTF_FIFO_SIZE, 7_340_032),
    (CUlimit::MALLOC_HEAP_SIZE, 8 << 20),
    (CUlimit::DEV_RUNTIME_SYNC_DEPTH, 2),
    (CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048),
    (CUlimit::MAX_L2_FETCH_GRANULARITY, 64),
    (CUlimit::PERSISTING_L2_CACHE_SIZE, 0),
];

/// The most local memory of a thread. CUDA's bound for a thread (programming guide, technical specifications).
const MOST_STACK: usize = 512 << 10;

/// Stacks are multiples of this, the largest alignment of a variable. So smaller units would leave variables unaligned.
const STACK_UNIT: usize = 16;

/// Levels of grids that launch grids. CUDA's bound (programming guide, dynamic parallelism).
const MOST_DEPTH: usize = 24;

/// CUDA's bound for `CU_LIMIT_MAX_L2_FETCH_GRANULARITY`, in bytes (cuda.h).
const MOST_FETCH: usize = 128;

#[derive(Clone, Copy)]
pub struct Limits([usize; LIMITS.len()]);

impl Default for Limits {
    fn default() -> Self {
        Limits(LIMITS.map(|(_, value)| value))
    }
}

/// Where a limit is kept; those this compute capability does not have are not there.
pub fn index(model: &Model, limit: CUlimit) -> Done<usize> {
    let has = limit != CUlimit::DEV_RUNTIME_SYNC_DEPTH || model.compute_capability < (9, 0);
    let known = LIMITS.iter().position(|(known, _)| *known == limit);
    known.filter(|_| has).ok_or(CUresult::UNSUPPORTED_LIMIT)
}

impl Limits {
    pub fn get(&self, model: &Model, limit: CUlimit) -> Done<usize> {
        Ok(self.0[index(model, limit)?])
    }

    /// The limits with one changed, as the hardware can meet it.
    pub fn with(mut self, model: &Model, limit: CUlimit, value: usize) -> Done<Limits> {
        let index = index(model, limit)?;
        let within = |most: usize| {
            if value > most {
                Err(CUresult::INVALID_VALUE)
            } else {
                Ok(value)
            }
        };
        self.0[index] = match limit {
            CUlimit::STACK_SIZE => within(MOST_STACK)?.next_multiple_of(STACK_UNIT),
            CUlimit::DEV_RUNTIME_SYNC_DEPTH => within(MOST_DEPTH)?,
            CUlimit::MAX_L2_FETCH_GRANULARITY => value.min(MOST_FETCH),
            CUlimit::PERSISTING_L2_CACHE_SIZE => value.min(model.persisting_l2_bytes()),
            _ => value,
        };
        Ok(self)
    }

    /// Bytes of the GPU beyond what a context with the defaults costs; `None` for more than there are.
    pub fn cost(&self, model: &Model) -> Option<u64> {
        let threads = model.multiprocessors as u64 * model.threads_per_multiprocessor as u64;
        let more = |index: usize| self.0[index].saturating_sub(LIMITS[index].1) as u64;
        let pieces = [more(0).checked_mul(threads)?, more(1), more(2)];
        pieces.into_iter().try_fold(0u64, |sum, piece| {
            sum.checked_add(piece.checked_next_multiple_of(LARGE)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    fn cost(limit: CUlimit, value: usize) -> Option<u64> {
        let model = model::find("h100-80gb").expect("a model");
        let limits = Limits::default().with(&model, limit, value);
        limits.expect("allowed").cost(&model)
    }

    #[test]
    fn a_stack_is_there_for_every_thread_that_fits_on_the_gpu() {
        assert_eq!(cost(CUlimit::STACK_SIZE, 1024), Some(0), "in the context");
        assert_eq!(cost(CUlimit::STACK_SIZE, 16), Some(0), "no less than it");
        assert_eq!(cost(CUlimit::STACK_SIZE, 2048), Some(1024 * 2048 * 132));
        assert_eq!(
            cost(CUlimit::MALLOC_HEAP_SIZE, 1 << 30),
            Some((1 << 30) - (8 << 20))
        );
        assert!(cost(CUlimit::MALLOC_HEAP_SIZE, usize::MAX) > Some(1 << 63));
    }

    #[test]
    fn values_are_what_the_hardware_can_meet() {
        let model = model::find("a100-80gb").expect("a model");
        let set = |limit, value| {
            let limits = Limits::default().with(&model, limit, value)?;
            limits.get(&model, limit)
        };
        assert_eq!(set(CUlimit::STACK_SIZE, 1001), Ok(1008));
        assert_eq!(
            set(CUlimit::STACK_SIZE, MOST_STACK + 1),
            Err(CUresult::INVALID_VALUE)
        );
        assert_eq!(set(CUlimit::MAX_L2_FETCH_GRANULARITY, 1000), Ok(128));
        assert_eq!(
            set(CUlimit::PERSISTING_L2_CACHE_SIZE, usize::MAX),
            Ok(30 << 20)
        );
        assert_eq!(
            set(CUlimit::DEV_RUNTIME_SYNC_DEPTH, 25),
            Err(CUresult::INVALID_VALUE)
        );
        assert_eq!(set(CUlimit(99), 1), Err(CUresult::UNSUPPORTED_LIMIT));
        let hopper = model::find("h100-80gb").expect("a model");
        let depth = Limits::default().get(&hopper, CUlimit::DEV_RUNTIME_SYNC_DEPTH);
        assert_eq!(depth, Err(CUresult::UNSUPPORTED_LIMIT));
    }
}
