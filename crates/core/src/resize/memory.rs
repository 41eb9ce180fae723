//! Memory residency: whether a suspended job's memory is on its GPUs or offloaded to host memory, as a state machine.
//!
//! ```text
//!           Release             Saved
//!   kept ────────────► leaving ───────► aside ◄─┐
//!    ▲ ▲      Refused     │               │     │ Suspend
//!    │ └──────────────────┤        Resume │     │
//!    │                    │ Failed        ▼     │
//!    │        Restored    ▼   Fits       due ───┘
//!    └──────────────── returning ◄────────┘
//! ```
//! In `aside` and `due` the memory is in host memory, and the job holds no GPU. From `due` on the planner reserves its
//! room ([`resume`](crate::resize::resume)); from `returning` on the job holds its GPUs again. A copy that is under way
//! always ends first; the last command then decides the next state.

use serde::{Deserialize, Serialize};

/// Where the GPU memory of a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryResidency {
    /// On its GPUs.
    #[default]
    Kept,
    /// It is being copied to host memory; the job still holds its GPUs.
    Leaving,
    /// In host memory.
    #[serde(rename = "aside")]
    Offloaded,
    /// In host memory, and the job resumes once its GPUs have room.
    Due,
    /// It is being copied back; the job holds its GPUs. `goes_on`: the job resumes then, and does not stay suspended.
    Returning { goes_on: bool },
}

/// A command, or the result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent {
    /// Suspend the job and release its GPUs.
    Release,
    /// Suspend the job.
    Suspend,
    /// Resume the job.
    Resume,
    /// Resume the job; its processes may be locked though their memory is on the GPUs.
    Recall,
    /// All of it is in host memory, and no process of the job runs.
    Offloaded,
    /// It stays where it is; no process was changed.
    Refused,
    /// Some processes were changed, and not all.
    Failed,
    /// Its GPUs have room for it.
    Fits,
    /// All of it is on its GPUs.
    Restored,
}

impl MemoryResidency {
    /// The one transition function. A late result changes nothing, since another command came meanwhile.
    #[must_use]
    pub fn on(self, then: MemoryEvent) -> Self {
        use MemoryResidency::{Due, Kept, Leaving, Offloaded, Returning};
        match (self, then) {
            (Kept | Returning { .. }, MemoryEvent::Release) => Leaving,
            (Due, MemoryEvent::Release | MemoryEvent::Suspend) => Offloaded,
            (Returning { .. }, MemoryEvent::Suspend) => Returning { goes_on: false },
            (Kept, MemoryEvent::Recall) => Returning { goes_on: true },
            (Leaving | Returning { .. }, MemoryEvent::Resume) => Returning { goes_on: true },
            (Offloaded, MemoryEvent::Resume) => Due,
            (Leaving, MemoryEvent::Offloaded) => Offloaded,
            (Leaving, MemoryEvent::Refused) => Kept,
            (Leaving, MemoryEvent::Failed) => Returning { goes_on: false },
            (Due, MemoryEvent::Fits) => Returning { goes_on: true },
            (Returning { .. }, MemoryEvent::Restored) => Kept,
            (memory, _) => memory,
        }
    }

    /// Whether the job holds its GPUs.
    pub fn holds_gpus(self) -> bool {
        !matches!(self, Self::Offloaded | Self::Due)
    }

    /// Whether it is being copied, or is about to be.
    pub fn is_copying(self) -> bool {
        matches!(self, Self::Leaving | Self::Returning { .. })
    }
}

/// The state of a process that uses CUDA, as the driver reports it (`CUprocessState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    Running,
    /// Its CUDA calls wait.
    Locked,
    /// Locked, with its GPU memory in host memory.
    Checkpointed,
    /// It cannot be restored.
    Failed,
}

/// The next step, for the process at this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    Lock(usize),
    Save(usize),
    Restore(usize),
    Unlock(usize),
    /// This process has failed, or its state is unknown.
    Stuck(usize),
    Done,
}

/// The next step to offload all processes. All are locked before one is saved, as they may wait for each other. `None`:
/// the state is unknown.
pub fn next_offload_step(states: &[Option<ProcessState>]) -> CheckpointStep {
    let at = |state| states.iter().position(|one| *one == state);
    let stuck = at(None).or(at(Some(ProcessState::Failed)));
    let lock = || at(Some(ProcessState::Running)).map(CheckpointStep::Lock);
    let save = || at(Some(ProcessState::Locked)).map(CheckpointStep::Save);
    (stuck.map(CheckpointStep::Stuck).or_else(lock).or_else(save)).unwrap_or(CheckpointStep::Done)
}

/// The next step to restore and unlock all processes. All known memory is restored before one is unlocked. A process in
/// an unknown state may wait for a locked one, so it comes last.
pub fn next_restore_step(states: &[Option<ProcessState>]) -> CheckpointStep {
    let at = |state| states.iter().position(|one| *one == state);
    let restore = at(Some(ProcessState::Checkpointed)).map(CheckpointStep::Restore);
    let unlock = || at(Some(ProcessState::Locked)).map(CheckpointStep::Unlock);
    let stuck = || (at(None).or(at(Some(ProcessState::Failed)))).map(CheckpointStep::Stuck);
    (restore.or_else(unlock).or_else(stuck)).unwrap_or(CheckpointStep::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [MemoryResidency; 6] = [
        MemoryResidency::Kept,
        MemoryResidency::Leaving,
        MemoryResidency::Offloaded,
        MemoryResidency::Due,
        MemoryResidency::Returning { goes_on: false },
        MemoryResidency::Returning { goes_on: true },
    ];

    const MOVES: [MemoryEvent; 9] = [
        MemoryEvent::Release,
        MemoryEvent::Suspend,
        MemoryEvent::Resume,
        MemoryEvent::Recall,
        MemoryEvent::Offloaded,
        MemoryEvent::Refused,
        MemoryEvent::Failed,
        MemoryEvent::Fits,
        MemoryEvent::Restored,
    ];

    #[test]
    fn memory_goes_aside_and_comes_back_by_room() {
        let way = [
            MemoryEvent::Release,
            MemoryEvent::Offloaded,
            MemoryEvent::Resume,
            MemoryEvent::Fits,
        ];
        let met: Vec<MemoryResidency> = way
            .iter()
            .scan(MemoryResidency::Kept, |memory, then| {
                *memory = memory.on(*then);
                Some(*memory)
            })
            .collect();
        let back = MemoryResidency::Returning { goes_on: true };
        assert_eq!(
            met,
            [
                MemoryResidency::Leaving,
                MemoryResidency::Offloaded,
                MemoryResidency::Due,
                back
            ]
        );
        assert_eq!(back.on(MemoryEvent::Restored), MemoryResidency::Kept);
        let undone = MemoryResidency::Leaving.on(MemoryEvent::Failed);
        assert_eq!(undone, MemoryResidency::Returning { goes_on: false });
        assert_eq!(
            MemoryResidency::Leaving.on(MemoryEvent::Refused),
            MemoryResidency::Kept
        );
    }

    #[test]
    fn nothing_is_held_again_but_where_there_is_room_and_given_up_only_once_it_is_saved() {
        for memory in ALL {
            for then in MOVES {
                let after = memory.on(then);
                if !memory.holds_gpus() && after.holds_gpus() {
                    assert_eq!((memory, then), (MemoryResidency::Due, MemoryEvent::Fits));
                }
                if memory.holds_gpus() && !after.holds_gpus() {
                    assert_eq!(
                        (memory, then),
                        (MemoryResidency::Leaving, MemoryEvent::Offloaded)
                    );
                }
            }
        }
    }

    #[test]
    fn what_comes_to_its_end_after_another_wish_changes_nothing() {
        let resumed = MemoryResidency::Leaving.on(MemoryEvent::Resume);
        assert_eq!(resumed, MemoryResidency::Returning { goes_on: true });
        for late in [
            MemoryEvent::Offloaded,
            MemoryEvent::Refused,
            MemoryEvent::Failed,
        ] {
            assert_eq!(resumed.on(late), resumed);
        }
        let released = resumed.on(MemoryEvent::Release);
        assert_eq!(released, MemoryResidency::Leaving);
        assert_eq!(released.on(MemoryEvent::Restored), MemoryResidency::Leaving);
        assert_eq!(
            MemoryResidency::Due.on(MemoryEvent::Suspend),
            MemoryResidency::Offloaded
        );
    }

    #[test]
    fn a_wish_can_be_had_from_everywhere() {
        for memory in ALL {
            let mut going = memory.on(MemoryEvent::Resume);
            for then in [MemoryEvent::Fits, MemoryEvent::Restored] {
                going = going.on(then);
            }
            assert_eq!(going, MemoryResidency::Kept, "{memory:?}");
            assert_eq!(
                memory.on(MemoryEvent::Release).on(MemoryEvent::Offloaded),
                MemoryResidency::Offloaded
            );
        }
    }

    /// What the driver makes of a step (CUDA driver API, group CHECKPOINT).
    fn carry_out(states: &mut [Option<ProcessState>], step: CheckpointStep) {
        let (at, from, to) = match step {
            CheckpointStep::Lock(at) => (at, ProcessState::Running, ProcessState::Locked),
            CheckpointStep::Save(at) => (at, ProcessState::Locked, ProcessState::Checkpointed),
            CheckpointStep::Restore(at) => (at, ProcessState::Checkpointed, ProcessState::Locked),
            CheckpointStep::Unlock(at) => (at, ProcessState::Locked, ProcessState::Running),
            CheckpointStep::Stuck(_) | CheckpointStep::Done => panic!("{step:?}"),
        };
        assert_eq!(states[at], Some(from), "{step:?} is refused by the driver");
        states[at] = Some(to);
    }

    /// Three processes in every way there is.
    fn everywhere() -> Vec<[Option<ProcessState>; 3]> {
        let one = [
            None,
            Some(ProcessState::Running),
            Some(ProcessState::Locked),
            Some(ProcessState::Checkpointed),
            Some(ProcessState::Failed),
        ];
        let mut all = Vec::new();
        for a in one {
            for b in one {
                all.extend(one.map(|c| [a, b, c]));
            }
        }
        all
    }

    fn to_the_end(
        mut states: [Option<ProcessState>; 3],
        next: fn(&[Option<ProcessState>]) -> CheckpointStep,
    ) -> ([Option<ProcessState>; 3], Vec<CheckpointStep>) {
        let mut steps = Vec::new();
        loop {
            let step = next(&states);
            steps.push(step);
            if matches!(step, CheckpointStep::Stuck(_) | CheckpointStep::Done) {
                return (states, steps);
            }
            assert!(steps.len() < 20, "{steps:?}");
            carry_out(&mut states, step);
        }
    }

    #[test]
    fn wherever_a_crash_has_left_them_all_are_put_aside_or_brought_back() {
        for states in everywhere() {
            let is_stuck =
                |one: &Option<ProcessState>| matches!(one, None | Some(ProcessState::Failed));
            let stuck = states.iter().any(is_stuck);
            let (saved, steps) = to_the_end(states, next_offload_step);
            if stuck {
                assert_eq!((saved, steps.len()), (states, 1), "nothing is begun")
            } else {
                assert_eq!(saved, [Some(ProcessState::Checkpointed); 3])
            }
            let last_lock = steps
                .iter()
                .rposition(|one| matches!(one, CheckpointStep::Lock(_)));
            let first_save = steps
                .iter()
                .position(|one| matches!(one, CheckpointStep::Save(_)));
            if let (Some(lock), Some(save)) = (last_lock, first_save) {
                assert!(lock < save, "{steps:?}");
            }
            let (back, steps) = to_the_end(states, next_restore_step);
            let healthy = back.iter().filter(|one| !is_stuck(one));
            assert!(
                healthy
                    .clone()
                    .all(|one| *one == Some(ProcessState::Running))
            );
            assert_eq!(steps.last() == Some(&CheckpointStep::Done), !stuck);
            let restored = steps
                .iter()
                .rposition(|one| matches!(one, CheckpointStep::Restore(_)));
            let unlocked = steps
                .iter()
                .position(|one| matches!(one, CheckpointStep::Unlock(_)));
            if let (Some(restored), Some(unlocked)) = (restored, unlocked) {
                assert!(restored < unlocked, "{steps:?}");
            }
        }
    }
}
