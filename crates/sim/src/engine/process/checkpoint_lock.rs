//! The checkpoint lock: calls of a locked process wait. Each call that changes what is on a GPU is counted while it is
//! under way.
//!
//! cuda-checkpoint's README: locked are "any CUDA driver APIs which launch work, manage resources, or otherwise impact
//! GPU state". Which those are one by one is documented nowhere; [`is_locked_out`] is a guess, and so is that the calls
//! that wait for work are among them.

use crate::engine::machine::checkpoint_state::Phase;
use crate::engine::process::{Process, process};
use divvy_driver::sys::symbols::begins_with_any;
use std::cell::Cell;

/// Longest sleep between two polls: a lock is taken within it even if the process that asked for it has died. A shorter
/// one would take processor time from the tests' programs.
const LOOK_AGAIN_NS: u64 = 10_000_000;

/// Beginnings of the names of functions that answer in a locked process too.
const ANSWERS: [&str; 10] = [
    "cuInit",
    "cuGet",
    "cuDriverGet",
    "cuDeviceGet",
    "cuDeviceTotalMem",
    "cuCtxGet",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCheckpoint",
];

thread_local! {
    /// Calls of this thread's that are under way: one that a call makes belongs to it.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether calls of a function wait in a locked process.
pub const fn is_locked_out(name: &str) -> bool {
    // NVML's functions are another library's.
    begins_with_any(name, &["cu"]) && !begins_with_any(name, &ANSWERS)
}

/// A call that is under way.
pub struct CallGuard(Option<&'static Process>);

/// Begins a call: at once, or when the process is unlocked. Before `cuInit` there is nothing to wait for.
pub fn enter() -> CallGuard {
    let Ok(process) = process() else {
        return CallGuard(None);
    };
    let depth = DEPTH.get();
    DEPTH.set(depth + 1);
    if depth == 0 {
        process.wait_until_unlocked();
    }
    CallGuard(Some(process))
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let Some(process) = self.0 else {
            return;
        };
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 && process.checkpoint_state().end_call() {
            process.state().notify();
        }
    }
}

impl Process {
    fn wait_until_unlocked(&self) {
        let (state, checkpoint) = (self.state(), self.checkpoint_state());
        loop {
            let epoch = state.epoch();
            if checkpoint.begin_call() {
                return;
            }
            if checkpoint.phase() == Phase::Locking {
                state.lock().advance_lock(self.slot, true);
            }
            state.sleep(epoch, LOOK_AGAIN_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_locked_out;

    #[test]
    fn what_touches_a_gpu_waits_and_what_only_answers_does_not() {
        for name in [
            "cuMemAlloc_v2",
            "cuLaunchKernel",
            "cuMemGetInfo_v2",
            "cuCtxSynchronize",
            "cuCtxCreate_v4",
            "cuDevicePrimaryCtxRetain",
        ] {
            assert!(is_locked_out(name), "{name}");
        }
        for name in [
            "cuInit",
            "cuGetProcAddress_v2",
            "cuDriverGetVersion",
            "cuDeviceGetCount",
            "cuCtxGetCurrent",
            "cuCheckpointProcessUnlock",
            "nvmlInit_v2",
        ] {
            assert!(!is_locked_out(name), "{name}");
        }
    }
}
