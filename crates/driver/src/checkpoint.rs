//! CUDA checkpoints of a process: its GPU memory is saved to host memory and restored (CUDA driver API, group
//! CHECKPOINT; from driver 570, CUDA 12.8).
//!
//! ```text
//! running ── lock ──► locked ── save ──► checkpointed
//!    ▲                 │   ▲                  │
//!    └──── unlock ─────┘   └──── restore ─────┘
//! ```
//! Threads of the driver in that process do the work, so it must not be stopped meanwhile (inferred; reported: every
//! call then waits for ever, despite its timeout). Any of these calls may hang, so the caller has to be a process that
//! can be killed.

use std::path::Path;

use crate::Error;
use crate::cuda::checked;
use crate::load::{CUDA, Library, Lookup, library};
use crate::sys::cuda::*;

library! {
    struct Init {
        cuInit,
        cuGetErrorString,
    }
}

library! {
    /// Asked for with the version that brought them: a driver may export a function that it does not have.
    struct Calls {
        cuCheckpointProcessGetState,
        cuCheckpointProcessLock,
        cuCheckpointProcessCheckpoint,
        cuCheckpointProcessRestore,
        cuCheckpointProcessUnlock,
    }
}

/// How a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Running,
    /// Its calls wait.
    Locked,
    /// And its memory is in the host's.
    Checkpointed,
    /// Of it nothing more is to be had. Also a state that this program does not know.
    Failed,
    /// Between two of these.
    Moving,
}

/// The driver, loaded to call its checkpoints. Makes no context, so holds no GPU memory.
pub struct Checkpoints {
    init: Init,
    calls: Calls,
}

impl Checkpoints {
    /// `cuda`: the library's file, or `None` for the one that the loader finds.
    ///
    /// # Errors
    /// When the library cannot be loaded or does not start.
    pub fn load(cuda: Option<&Path>) -> Result<Self, Error> {
        let library = Library::open(cuda, CUDA)?;
        let init = Init::find(&library, Lookup::Handle);
        // SAFETY: takes no pointer.
        let start = |start: pfn::cuInit| unsafe { start(0) };
        checked(&init.cuInit, start, &init.cuGetErrorString)?;
        let calls = Calls::find(&library, Lookup::ProcAddress);
        Ok(Self { init, calls })
    }

    /// How a process is.
    ///
    /// # Errors
    /// The driver's error; `CUDA_ERROR_NOT_INITIALIZED` for a process that does not use CUDA.
    pub fn state(&self, pid: i32) -> Result<State, Error> {
        let mut state = CUprocessState::RUNNING;
        let get = &self.calls.cuCheckpointProcessGetState;
        // SAFETY: writes one state.
        let ask = |get: pfn::cuCheckpointProcessGetState| unsafe { get(pid, &raw mut state) };
        checked(get, ask, &self.init.cuGetErrorString)?;
        Ok(match state {
            CUprocessState::RUNNING => State::Running,
            CUprocessState::LOCKED => State::Locked,
            CUprocessState::CHECKPOINTED => State::Checkpointed,
            CUprocessState::CHECKPOINTING | CUprocessState::RESTORING => State::Moving,
            _ => State::Failed,
        })
    }

    /// Has its calls wait, once what it has submitted is done, if that is within so many milliseconds.
    ///
    /// # Errors
    /// The driver's error; the process then runs on.
    pub fn lock(&self, pid: i32, timeout_ms: u32) -> Result<(), Error> {
        let mut args = CUcheckpointLockArgs {
            timeoutMs: timeout_ms,
            ..CUcheckpointLockArgs::default()
        };
        // SAFETY: the arguments live as long as the call.
        let lock = |lock: pfn::cuCheckpointProcessLock| unsafe { lock(pid, &raw mut args) };
        checked(
            &self.calls.cuCheckpointProcessLock,
            lock,
            &self.init.cuGetErrorString,
        )
    }

    /// Copies the memory of a locked one to the host's, and gives back all that it has of its GPUs.
    ///
    /// # Errors
    /// The driver's error; the process then stays locked.
    pub fn save(&self, pid: i32) -> Result<(), Error> {
        // SAFETY: the arguments may be left out.
        let save =
            |save: pfn::cuCheckpointProcessCheckpoint| unsafe { save(pid, std::ptr::null_mut()) };
        checked(
            &self.calls.cuCheckpointProcessCheckpoint,
            save,
            &self.init.cuGetErrorString,
        )
    }

    /// Copies it back, to the same addresses on the same GPUs.
    ///
    /// # Errors
    /// The driver's error. On drivers 580 and 595 it reportedly never succeeds again after it failed for want of memory
    /// (NVIDIA/cuda-checkpoint, issue 44), so there has to be room before it is tried.
    pub fn restore(&self, pid: i32) -> Result<(), Error> {
        // SAFETY: the arguments may be left out.
        let restore = |restore: pfn::cuCheckpointProcessRestore| unsafe {
            restore(pid, std::ptr::null_mut())
        };
        checked(
            &self.calls.cuCheckpointProcessRestore,
            restore,
            &self.init.cuGetErrorString,
        )
    }

    /// Lets the calls of a locked one go on.
    ///
    /// # Errors
    /// The driver's error.
    pub fn unlock(&self, pid: i32) -> Result<(), Error> {
        // SAFETY: the arguments may be left out.
        let unlock =
            |unlock: pfn::cuCheckpointProcessUnlock| unsafe { unlock(pid, std::ptr::null_mut()) };
        checked(
            &self.calls.cuCheckpointProcessUnlock,
            unlock,
            &self.init.cuGetErrorString,
        )
    }
}
