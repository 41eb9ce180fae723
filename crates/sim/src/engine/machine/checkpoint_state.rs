//! The checkpoint state of a process: whether its calls go on, and whether its memory lies on its GPUs or is offloaded
//! to host memory.
//!
//! ```text
//! running ──► locking ──► locked ──► checkpointed
//!    ▲           │        │  ▲            │
//!    └───────────┴────────┘  └────────────┘
//! ```
//! One word says it. What a process holds is not moved when it is put aside: it counts no longer, and counts again when
//! it is restored, so a process that is killed in between leaves no half state. The next process that polls takes the
//! lock, once no call is under way and all work is done; the process that asked for it may have died.

use crate::engine::machine::gpu::NoRoom;
use crate::engine::machine::settings::ComputeMode;
use crate::engine::machine::slots::ProcessSlot;
use crate::engine::machine::state::{Locked, monotonic_ns};
use crate::model::MAX_GPUS;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Running,
    /// Calls wait already; those under way and submitted work are waited for.
    Locking,
    Locked,
    Checkpointed,
}

/// Zeroed memory is a process that runs.
#[repr(C)]
pub struct CheckpointState {
    phase: AtomicU32,
    /// A restore has failed, and no other one will succeed.
    restore_failed: AtomicU32,
    /// Calls under way that change what is on a GPU.
    calls_in_flight: AtomicU64,
    /// Pieces of managed memory.
    managed: AtomicU64,
    /// How long a lock is tried, in nanoseconds; 0 is without end.
    lock_timeout: AtomicU64,
    /// When it is given up (monotonic nanoseconds); 0 until the process was seen going on.
    deadline: AtomicU64,
}

impl CheckpointState {
    pub fn phase(&self) -> Phase {
        match self.phase.load(SeqCst) {
            0 => Phase::Running,
            1 => Phase::Locking,
            2 => Phase::Locked,
            _ => Phase::Checkpointed,
        }
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, SeqCst);
    }

    pub fn is_checkpointed(&self) -> bool {
        self.phase() == Phase::Checkpointed
    }

    /// Whether nothing can come of the process's own doing: its calls wait.
    pub fn is_still(&self) -> bool {
        self.phase() != Phase::Running && self.calls_in_flight.load(SeqCst) == 0
    }

    /// A call begins, unless calls wait: then it has to be tried again.
    pub fn begin_call(&self) -> bool {
        self.calls_in_flight.fetch_add(1, SeqCst);
        self.phase() == Phase::Running || {
            self.end_call();
            false
        }
    }

    /// A call has ended. True for the last one that a lock waits for.
    pub fn end_call(&self) -> bool {
        self.calls_in_flight.fetch_sub(1, SeqCst) == 1 && self.phase() != Phase::Running
    }

    pub fn add_managed(&self) {
        self.managed.fetch_add(1, SeqCst);
    }

    pub fn remove_managed(&self) {
        let fewer = |pieces: u64| Some(pieces.saturating_sub(1));
        // The closure always gives a value.
        let _ = self.managed.fetch_update(SeqCst, SeqCst, fewer);
    }

    pub fn clear(&self) {
        self.set_phase(Phase::Running);
        for word in [
            &self.calls_in_flight,
            &self.managed,
            &self.lock_timeout,
            &self.deadline,
        ] {
            word.store(0, SeqCst);
        }
        self.restore_failed.store(0, SeqCst);
    }
}

/// Why a process is not put aside.
#[derive(Debug, PartialEq, Eq)]
pub enum CheckpointError {
    /// Managed memory, or memory that other processes know.
    Unsupported,
    /// Its devices are GPU instances.
    Divided,
}

/// Why what was put aside does not come back.
#[derive(Debug, PartialEq, Eq)]
pub enum RestoreError {
    NoRoom,
    /// A GPU's mode forbids it a context.
    NotAllowed,
    /// A GPU has been divided.
    Gone,
    Lost,
    /// An earlier attempt has failed.
    EarlierRestoreFailed,
}

impl From<NoRoom> for RestoreError {
    fn from(_: NoRoom) -> RestoreError {
        RestoreError::NoRoom
    }
}

impl Locked<'_> {
    pub fn checkpoint_state(&self, slot: usize) -> &CheckpointState {
        &self.slots()[slot].checkpoint_state
    }

    /// From now on the process's calls wait. The lock is given up `patience` nanoseconds after the process was first
    /// seen going on; 0 is never.
    pub fn begin_lock(&self, slot: usize, patience: u64) {
        let checkpoint = self.checkpoint_state(slot);
        checkpoint.lock_timeout.store(patience, SeqCst);
        checkpoint.deadline.store(0, SeqCst);
        checkpoint.set_phase(Phase::Locking);
    }

    /// A lock that is asked for comes about, or is given up. `goes_on` is false for a stopped process, to which neither
    /// happens.
    pub fn advance_lock(&self, slot: usize, goes_on: bool) -> Phase {
        let checkpoint = self.checkpoint_state(slot);
        if checkpoint.phase() != Phase::Locking || !goes_on {
            return checkpoint.phase();
        }
        let now = monotonic_ns();
        let patience = checkpoint.lock_timeout.load(SeqCst);
        if checkpoint.deadline.load(SeqCst) == 0 && patience != 0 {
            checkpoint
                .deadline
                .store(now.saturating_add(patience), SeqCst);
        }
        self.advance_all();
        let deadline = checkpoint.deadline.load(SeqCst);
        if checkpoint.is_still() && self.unfinished(slot).is_none() {
            checkpoint.set_phase(Phase::Locked);
        } else if deadline != 0 && now >= deadline {
            checkpoint.set_phase(Phase::Running);
        } else {
            return Phase::Locking;
        }
        self.notify();
        checkpoint.phase()
    }

    /// A partition where a process has work that is not done; work of a lost GPU is never done, and no call waits for
    /// it.
    pub fn unfinished(&self, slot: usize) -> Option<usize> {
        let mut partitions = self.partitions_in_use(slot);
        partitions.find(|partition| {
            let queue = self.queue(slot, *partition);
            !queue.is_done(queue.newest()) && !self.gpu(*partition).health.is_lost()
        })
    }

    /// What a locked process holds counts no longer.
    pub fn checkpoint(&self, slot: usize) -> Result<(), CheckpointError> {
        let (held, checkpoint) = (&self.slots()[slot], self.checkpoint_state(slot));
        if held.is_in_instances() {
            return Err(CheckpointError::Divided);
        }
        if checkpoint.managed.load(SeqCst) != 0 || self.shares_anything(slot) {
            return Err(CheckpointError::Unsupported);
        }
        checkpoint.set_phase(Phase::Checkpointed);
        self.sum_up();
        self.notify();
        Ok(())
    }

    /// What was put aside counts again, all of it or nothing. With `once` a failure for want of room is the last word.
    pub fn restore(&self, slot: usize, once: bool) -> Result<(), RestoreError> {
        self.reap();
        let (held, checkpoint) = (&self.slots()[slot], self.checkpoint_state(slot));
        if checkpoint.restore_failed.load(SeqCst) != 0 {
            return Err(RestoreError::EarlierRestoreFailed);
        }
        let partitions = 0..self.gpu_count().min(MAX_GPUS);
        for partition in partitions.filter(|partition| held.has_checkpointed(*partition)) {
            if let Err(stuck) = self.check_restore(slot, held, partition) {
                checkpoint
                    .restore_failed
                    .store(u32::from(once && stuck == RestoreError::NoRoom), SeqCst);
                return Err(stuck);
            }
        }
        checkpoint.set_phase(Phase::Locked);
        self.sum_up();
        self.notify();
        Ok(())
    }

    fn check_restore(
        &self,
        slot: usize,
        held: &ProcessSlot,
        partition: usize,
    ) -> Result<(), RestoreError> {
        let gpu = &self.gpus()[partition];
        if gpu.health.is_lost() {
            return Err(RestoreError::Lost);
        }
        if gpu.mig.is_on() {
            return Err(RestoreError::Gone);
        }
        match gpu.settings.compute_mode() {
            ComputeMode::Prohibited => return Err(RestoreError::NotAllowed),
            ComputeMode::ExclusiveProcess if self.has_others(slot, partition) => {
                return Err(RestoreError::NotAllowed);
            }
            _ => {}
        }
        if held.checkpointed_bytes(partition) > self.free(partition)
            || !self.fits_groups(slot, partition)
        {
            return Err(NoRoom.into());
        }
        Ok(())
    }

    /// The process's calls go on.
    pub fn end_lock(&self, slot: usize) {
        self.checkpoint_state(slot).set_phase(Phase::Running);
        self.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zeroed memory, as in a new state file.
    fn fresh() -> CheckpointState {
        CheckpointState {
            phase: AtomicU32::new(0),
            restore_failed: AtomicU32::new(0),
            calls_in_flight: AtomicU64::new(0),
            managed: AtomicU64::new(0),
            lock_timeout: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
        }
    }

    #[test]
    fn every_phase_is_read_as_it_was_written() {
        let checkpoint = fresh();
        assert_eq!(checkpoint.phase(), Phase::Running);
        for phase in [
            Phase::Locking,
            Phase::Locked,
            Phase::Checkpointed,
            Phase::Running,
        ] {
            checkpoint.set_phase(phase);
            assert_eq!(checkpoint.phase(), phase);
        }
    }

    #[test]
    fn a_call_steps_in_while_the_process_runs_and_the_last_one_out_is_waited_for() {
        let checkpoint = fresh();
        assert!(checkpoint.begin_call() && checkpoint.begin_call());
        assert!(!checkpoint.is_still(), "it runs");
        checkpoint.set_phase(Phase::Locking);
        assert!(!checkpoint.begin_call(), "calls wait");
        assert!(!checkpoint.end_call() && !checkpoint.is_still());
        assert!(checkpoint.end_call() && checkpoint.is_still());
    }
}
