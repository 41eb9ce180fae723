//! Checkpoints of another process by its id: lock, checkpoint, restore, unlock (CUDA driver API, "CUDA Checkpointing";
//! cuda-checkpoint's README).
//!
//! In the real driver a thread of the target's does it. So a target that is stopped (SIGSTOP) keeps its callers waiting
//! as long as it is stopped, whatever a lock's timeout says (measured by others on drivers 580 and 595,
//! github.com/VivianSobers/gpunap).

use crate::engine::machine::checkpoint_state::{CheckpointError, Phase, RestoreError};
use crate::engine::machine::pids;
use crate::engine::machine::slots::QueuePosition;
use crate::engine::machine::state::Locked;
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUprocessState, CUresult};

/// The interval at which the caller polls a target: no event says that it goes on after a stop, or that its work is
/// done. A longer one would show in a test's time, and a shorter one would be busy waiting.
const LOOK_AGAIN_NS: u64 = 2_000_000;

/// A process with CUDA that is not ours to run: its identity, and its slot.
#[derive(Clone, Copy)]
struct Target {
    slot: usize,
    pid: u32,
    start_time: u64,
}

impl Target {
    /// Whether it is stopped, by a signal or by a debugger.
    fn is_stopped(&self) -> bool {
        matches!(pids::state_of(self.pid), Some('T' | 't'))
    }

    fn lives(&self, locked: &Locked<'_>) -> bool {
        let slot = &locked.slots()[self.slot];
        slot.is_live() && slot.start_time() == self.start_time
    }
}

impl Process {
    /// The CUDA process with this id. One that is not there is an error of the system's, and one without CUDA is not
    /// initialised (both measured on drivers 580 and 595). A thread's id means its process.
    fn target_of(&self, pid: i32) -> Done<Target> {
        let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0);
        let pid = pid.ok_or(CUresult::INVALID_VALUE)?;
        let pid = pids::leader_of(pid).ok_or(CUresult::OPERATING_SYSTEM)?;
        let locked = self.state().lock();
        locked.reap();
        let mut slots = locked.slots().iter().enumerate();
        let found = slots.find(|(_, slot)| slot.is_live() && slot.pid_here() == Some(pid));
        let (slot, found) = found.ok_or(CUresult::NOT_INITIALIZED)?;
        let start_time = found.start_time();
        Ok(Target {
            slot,
            pid,
            start_time,
        })
    }

    /// Looks at a target until `act` gives an answer: `None` is to look again, as there is no answer yet. `act` learns
    /// whether the target goes on, and how it stands. A target that dies meanwhile is an error of the system's
    /// (inferred).
    fn drive<T>(
        &self,
        target: Target,
        mut act: impl FnMut(&Locked<'_>, bool, Phase) -> Option<Done<T>>,
    ) -> Done<T> {
        loop {
            let epoch = self.state().epoch();
            let goes_on = !target.is_stopped();
            let locked = self.state().lock();
            locked.reap();
            if !target.lives(&locked) {
                return Err(CUresult::OPERATING_SYSTEM);
            }
            let phase = locked.advance_lock(target.slot, goes_on);
            if let Some(answer) = act(&locked, goes_on, phase) {
                locked.slots()[self.slot].set_awaited(None);
                return answer;
            }
            let jumped = locked.has_virtual_clock() && self.let_time_pass(&locked, target);
            drop(locked);
            if jumped {
                self.state().notify()
            } else {
                self.state().sleep(epoch, LOOK_AGAIN_NS)
            }
        }
    }

    /// On a virtual clock: this process waits for the target's work. True if the clock has jumped.
    fn let_time_pass(&self, locked: &Locked<'_>, target: Target) -> bool {
        let Target { slot, .. } = target;
        let awaited = locked.unfinished(slot).map(|gpu| {
            let ticket = locked.queue(slot, gpu).newest();
            QueuePosition { slot, gpu, ticket }
        });
        locked.slots()[self.slot].set_awaited(awaited);
        awaited.is_some() && locked.jump()
    }

    /// Drives a target once it goes on and no lock of it is under way: `act` if it stands as wanted, an illegal state
    /// else (documented).
    fn drive_from(
        &self,
        pid: i32,
        wanted: Phase,
        act: impl Fn(&Locked<'_>, usize) -> Done,
    ) -> Done {
        let target = self.target_of(pid)?;
        self.drive(target, |locked, goes_on, phase| match phase {
            Phase::Locking => None,
            _ if !goes_on => None,
            phase if phase == wanted => Some(act(locked, target.slot)),
            _ => Some(Err(CUresult::ILLEGAL_STATE)),
        })
    }

    /// Waits for a stopped process, and for a lock under way, as measured.
    pub fn state_of(&self, pid: i32) -> Done<CUprocessState> {
        self.drive(self.target_of(pid)?, |_, goes_on, phase| match phase {
            Phase::Locking => None,
            _ if !goes_on => None,
            Phase::Running => Some(Ok(CUprocessState::RUNNING)),
            Phase::Locked => Some(Ok(CUprocessState::LOCKED)),
            Phase::Checkpointed => Some(Ok(CUprocessState::CHECKPOINTED)),
        })
    }

    /// There is no thread for it here; the first one of the process stands for it. CRIU asks stopped processes for it,
    /// so it does not wait.
    pub fn restore_thread_of(&self, pid: i32) -> Done<i32> {
        self.target_of(pid).map(|target| target.pid as i32)
    }

    /// A lock that does not succeed within `timeout_ms` milliseconds (0: without end) leaves the process running
    /// (documented) and is "not ready" (measured).
    pub fn lock_process(&self, pid: i32, timeout_ms: u32) -> Done {
        let target = self.target_of(pid)?;
        if self.machine.config.checkpoint.lock_kills {
            // SAFETY: a signal to the process that the caller has named.
            unsafe { libc::kill(target.pid as i32, libc::SIGSEGV) };
        }
        let patience = u64::from(timeout_ms) * 1_000_000;
        let mut asked = false;
        self.drive(target, |locked, goes_on, phase| match phase {
            Phase::Running if asked => Some(Err(CUresult::NOT_READY)),
            Phase::Running => {
                locked.begin_lock(target.slot, patience);
                asked = true;
                match locked.advance_lock(target.slot, goes_on) {
                    Phase::Locked => Some(Ok(())),
                    _ => None,
                }
            }
            Phase::Locking => None,
            Phase::Locked if asked => Some(Ok(())),
            _ if !goes_on => None,
            _ => Some(Err(CUresult::ILLEGAL_STATE)),
        })
    }

    /// Managed memory and memory of several processes are not supported (documented), nor are GPU instances, where the
    /// real driver is out of memory (NVIDIA/cuda-checkpoint issue 42). The process stays locked then.
    pub fn checkpoint_process(&self, pid: i32) -> Done {
        self.drive_from(pid, Phase::Locked, |locked, slot| {
            locked.checkpoint(slot).map_err(|kept| match kept {
                CheckpointError::Unsupported => CUresult::NOT_SUPPORTED,
                CheckpointError::Divided => CUresult::OUT_OF_MEMORY,
            })
        })
    }

    /// Takes what was put aside again, on the same GPUs.
    pub fn restore_process(&self, pid: i32) -> Done {
        let once = self.machine.config.checkpoint.failed_restore_is_final;
        self.drive_from(pid, Phase::Checkpointed, |locked, slot| {
            locked.restore(slot, once).map_err(|stuck| match stuck {
                RestoreError::NoRoom => CUresult::OUT_OF_MEMORY,
                RestoreError::NotAllowed => CUresult::DEVICE_UNAVAILABLE,
                RestoreError::Gone => CUresult::INVALID_DEVICE,
                RestoreError::Lost => CUresult::UNKNOWN,
                RestoreError::EarlierRestoreFailed => CUresult::OPERATING_SYSTEM,
            })
        })
    }

    pub fn unlock_process(&self, pid: i32) -> Done {
        self.drive_from(pid, Phase::Locked, |locked, slot| {
            locked.end_lock(slot);
            Ok(())
        })
    }
}
