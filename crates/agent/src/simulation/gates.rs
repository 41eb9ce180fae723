//! The gates of parked jobs in a simulation. They are the real ones, and their time has passed: a call that would wait
//! returns at once, and is noted.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use divvy_core::JobId;
use divvy_core::resize::memory::ProcessState;

use super::kernel::Kind;
use super::{World, with};
use crate::compute::parked_gate::ParkedGates;

/// The gates of a daemon, and the calls that they have reported to it.
pub struct Gates {
    gates: ParkedGates,
    reported: Receiver<(JobId, String)>,
}

/// A call of a program that waits for the memory of its parked job.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitingCall {
    /// It has passed the gate without a daemon, and asks for nothing any more.
    is_in_driver: bool,
    /// The rounds of this daemon since it waits.
    pub rounds: u8,
}

impl Default for Gates {
    fn default() -> Self {
        let (reports, reported) = channel();
        let report = move |job, call| {
            // The gates of a daemon end with it.
            let _ = reports.send((job, call));
        };
        Self {
            gates: ParkedGates::new(Box::new(report)),
            reported,
        }
    }
}

/// Parks the gate of a slice.
pub fn begin(job: JobId, folder: &Path) {
    with(|world| {
        world.gates.gates.begin(job, folder);
        world.gates.gates.renew(0);
    });
}

pub fn end(job: JobId) {
    with(|world| world.gates.gates.end(job));
}

impl World {
    /// A program calls the driver. False where the call waits for the memory of a parked job.
    pub fn calls(&mut self, pid: u32) -> bool {
        let is_governed = self.daemon.is_some();
        let Some(program) = self.program(pid) else {
            return true;
        };
        let Some(slot) = &program.slot else {
            return true;
        };
        let is_in_driver = slot.wait_for_wake(c"cuMemAlloc_v2") || !is_governed;
        let runs = program.checkpoint == ProcessState::Running;
        let before = program.call.unwrap_or_default();
        program.call = (!is_in_driver || !runs).then_some(WaitingCall {
            is_in_driver,
            ..before
        });
        program.call.is_none()
    }

    /// The calls at gates ask once more, and those that may go on do so.
    fn calls_go_on(&mut self) {
        for pid in
            self.pids(|kind| matches!(kind, Kind::Program(program) if program.call.is_some()))
        {
            let is_stopped = self.processes.get(&pid).is_none_or(|one| one.stopped);
            let Some(program) = self.program(pid).filter(|_| !is_stopped) else {
                continue;
            };
            let is_in_driver = program.call.is_some_and(|call| call.is_in_driver);
            if !is_in_driver {
                self.calls(pid);
            } else if program.checkpoint == ProcessState::Running {
                program.call = None;
            }
        }
    }

    /// The calls that the gates report before a round.
    pub fn reported_calls(&mut self) -> Vec<(JobId, String)> {
        self.calls_go_on();
        self.gates.gates.check();
        self.gates.reported.try_iter().collect()
    }

    /// A round has passed, or a new daemon has its first one before it.
    pub fn count_round(&mut self, is_first: bool) {
        for proc in self.processes.values_mut() {
            if let Kind::Program(program) = &mut proc.kind
                && let Some(call) = &mut program.call
            {
                call.rounds = if is_first { 0 } else { call.rounds + 1 };
            }
        }
    }
}
