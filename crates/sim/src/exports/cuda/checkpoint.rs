//! Process checkpoints. Custom storage is not among them: its handles do not exist, and `cuCheckpointOperationComplete`
//! stays unsupported.

use super::out;
use crate::engine::objects::result::Done;
use crate::engine::process::{Process, process};
use divvy_driver::sys::cuda::{
    CUcheckpointCheckpointArgs, CUcheckpointLockArgs, CUcheckpointRestoreArgs,
    CUcheckpointUnlockArgs, CUprocessState, CUresult,
};

exports! { cuda {
    cuCheckpointProcessGetRestoreThreadId: (pid, tid) => restore_thread;
    cuCheckpointProcessGetState: (pid, state) => state;
    cuCheckpointProcessLock: (pid, args) => lock;
    cuCheckpointProcessCheckpoint: (pid, args) => checkpoint;
    cuCheckpointProcessRestore: (pid, args) => restore;
    cuCheckpointProcessUnlock: (pid, args) => unlock;
} }

/// This process, if its driver knows checkpoints. That the caller must have initialised CUDA is a guess.
fn knowing() -> Done<&'static Process> {
    let process = process()?;
    if process.machine.config.checkpoint.unknown {
        Err(CUresult::NOT_SUPPORTED)
    } else {
        Ok(process)
    }
}

/// Reserved fields "must be zero" (cuda.h).
fn zero(reserved: bool) -> Done {
    if reserved {
        Ok(())
    } else {
        Err(CUresult::INVALID_VALUE)
    }
}

fn restore_thread(pid: i32, tid: *mut i32) -> Done {
    let (process, tid) = (knowing()?, out(tid)?);
    tid.set(process.restore_thread_of(pid)?)
}

fn state(pid: i32, state: *mut CUprocessState) -> Done {
    let (process, state) = (knowing()?, out(state)?);
    state.set(process.state_of(pid)?)
}

unsafe fn lock(pid: i32, args: *mut CUcheckpointLockArgs) -> Done {
    let process = knowing()?;
    // SAFETY: null or the caller's structure.
    let timeout_ms = match unsafe { args.as_ref() } {
        None => 0,
        Some(args) => {
            zero(args.reserved0 == 0 && args.reserved1 == [0; 7])?;
            args.timeoutMs
        }
    };
    process.lock_process(pid, timeout_ms)
}

unsafe fn checkpoint(pid: i32, args: *mut CUcheckpointCheckpointArgs) -> Done {
    let process = knowing()?;
    // SAFETY: null or the caller's structure.
    if let Some(args) = unsafe { args.as_ref() } {
        zero(args.reserved == [0; 56])?;
        stored_by_the_driver(args.customStorageInfo_out.is_null())?;
    }
    process.checkpoint_process(pid)
}

unsafe fn restore(pid: i32, args: *mut CUcheckpointRestoreArgs) -> Done {
    let process = knowing()?;
    // SAFETY: null or the caller's structure.
    if let Some(args) = unsafe { args.as_ref() } {
        zero(args.padding0 == 0 && args.reserved == [0; 40])?;
        stored_by_the_driver(args.customStorageInfo_out.is_null())?;
        // SAFETY: as many pairs as the caller says there are.
        unsafe { on_the_same_gpus(args) }?;
    }
    process.restore_process(pid)
}

unsafe fn unlock(pid: i32, args: *mut CUcheckpointUnlockArgs) -> Done {
    let process = knowing()?;
    // SAFETY: null or the caller's structure.
    if let Some(args) = unsafe { args.as_ref() } {
        zero(args.reserved == [0; 8])?;
    }
    process.unlock_process(pid)
}

fn stored_by_the_driver(is: bool) -> Done {
    if is {
        Ok(())
    } else {
        Err(CUresult::NOT_SUPPORTED)
    }
}

/// Going to other GPUs is not modelled: pairs may only say that each GPU stays what it is.
unsafe fn on_the_same_gpus(args: &CUcheckpointRestoreArgs) -> Done {
    if args.gpuPairsCount == 0 {
        return Ok(());
    }
    if args.gpuPairs.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller says how many there are.
    let pairs = unsafe { std::slice::from_raw_parts(args.gpuPairs, args.gpuPairsCount as usize) };
    let mut moved = pairs
        .iter()
        .map(|pair| pair.oldUuid.bytes != pair.newUuid.bytes);
    if moved.any(|moved| moved) {
        Err(CUresult::NOT_SUPPORTED)
    } else {
        Ok(())
    }
}
