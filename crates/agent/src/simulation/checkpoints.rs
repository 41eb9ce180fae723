//! Checkpoints in a simulation: the real operations, each on a thread of its own that moves only while it has the
//! machine. It gives the machine back before each call of the driver and at each failpoint, so that anything may
//! happen in between.

use std::cell::RefCell;
use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use divvy_core::resize::memory::ProcessState;
use divvy_core::{Bytes, JobId};

use super::gpus::Health;
use super::kernel::{Kind, Proc};
use super::{WORLD, World, clock, with};
use crate::checkpoint::helper::{CheckpointAction, CheckpointError};
use crate::checkpoint::{CheckpointOutcome, CheckpointReport, CheckpointUpdate, Checkpointer};
use crate::host::process::Process;

/// One in so many calls of the driver fails: an operation on one process has three calls, so half of them come to
/// their end.
const UNWILLING: u64 = 6;

/// The machine, for a while, with the time of the simulation.
struct Turn(World, clock::Time);

/// The side of the simulation.
struct Operation {
    turns: Sender<Turn>,
    /// The machine comes back, with the word whether the operation is over.
    back: Receiver<(World, bool)>,
    thread: JoinHandle<()>,
}

/// The side of the operation's thread.
struct Seat {
    turns: Receiver<Turn>,
    back: Sender<(World, bool)>,
}

thread_local! {
    /// The operations of this simulation's daemon.
    static OPERATIONS: RefCell<Vec<Operation>> = const { RefCell::new(Vec::new()) };
    /// What an operation's thread waits at.
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

/// Unwinds an operation whose daemon is dead.
struct Killed;

/// Gives the machine back until the next turn, on the thread of an operation; false on any other.
pub fn pause() -> bool {
    SEAT.with_borrow(|seat| {
        let Some(seat) = seat else { return false };
        if let Some(world) = WORLD.take() {
            clock::stop();
            // The thread that gave the machine waits for it.
            let _ = seat.back.send((world, false));
        }
        match seat.turns.recv() {
            Ok(turn) => turn.take(),
            Err(_) => resume_unwind(Box::new(Killed)),
        }
        true
    })
}

impl Turn {
    fn take(self) {
        WORLD.set(Some(self.0));
        clock::resume(self.1);
    }
}

/// Gives one of the operations a turn. False where there is none.
pub fn turn(which: u64) -> bool {
    OPERATIONS.with_borrow_mut(|operations| {
        let count = u64::try_from(operations.len()).unwrap_or(0);
        let Some(at) = which
            .checked_rem(count)
            .and_then(|at| usize::try_from(at).ok())
        else {
            return false;
        };
        let world = WORLD.take().expect("only a simulation has operations");
        let time = clock::time().expect("a simulation has a time");
        let operation = &operations[at];
        let sent = operation.turns.send(Turn(world, time));
        sent.unwrap_or_else(|_| panic!("an operation is over, and was not taken away"));
        let (world, is_over) = operation
            .back
            .recv()
            .expect("an operation lost the machine");
        WORLD.set(Some(world));
        if is_over {
            let operation = operations.remove(at);
            let _ = operation.thread.join();
        }
        true
    })
}

/// The daemon is dead, and its threads with it.
pub fn die() {
    for operation in OPERATIONS.take() {
        drop((operation.turns, operation.back));
        let _ = operation.thread.join();
    }
}

/// The reports that the daemon has not got yet.
pub fn reports() -> Vec<CheckpointReport> {
    with(|world| std::mem::take(&mut world.reports)).unwrap_or_default()
}

/// Where operations report to.
pub fn report(report: CheckpointReport) {
    with(|world| {
        if let CheckpointUpdate::Finished(outcome) = &report.update {
            world.trace(|| format!("  checkpoint of job {}: {outcome:?}", report.job));
            if let CheckpointOutcome::Failed(why) | CheckpointOutcome::NotRestored(why) = outcome
                && why.contains("internal error")
            {
                world.broken(format!("an operation of job {} panicked", report.job));
            }
        }
        world.reports.push(report);
    });
}

/// The driver of this thread's simulation, in the helper's place.
pub struct SimulatedCheckpoints;

impl Checkpointer for SimulatedCheckpoints {
    fn call(
        &self,
        act: CheckpointAction,
        process: Process,
        _: Bytes,
    ) -> Result<ProcessState, CheckpointError> {
        pause();
        with(|world| world.checkpoint(act, process)).expect("an operation has the machine")
    }

    fn start(&self, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let (turns, turned) = channel::<Turn>();
        let (back, came_back) = channel();
        let work = move || {
            let Ok(turn) = turned.recv() else { return };
            turn.take();
            SEAT.set(Some(Seat {
                turns: turned,
                back,
            }));
            run();
            if let (Some(world), Some(seat)) = (WORLD.take(), SEAT.take()) {
                clock::stop();
                let _ = seat.back.send((world, true));
            }
        };
        let thread = std::thread::Builder::new().spawn(work)?;
        OPERATIONS.with_borrow_mut(|operations| {
            operations.push(Operation {
                turns,
                back: came_back,
                thread,
            });
        });
        Ok(())
    }

    /// The programs of a simulation make no calls.
    fn settle(&self, _: &dyn Fn() -> bool, _: &[Process]) {}

    fn wait(&self, answer: &Receiver<()>) -> Result<(), RecvError> {
        loop {
            match answer.try_recv() {
                Ok(()) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) => pause(),
            };
        }
    }
}

type Answer = Result<ProcessState, CheckpointError>;

fn refused(what: &str) -> CheckpointError {
    CheckpointError {
        what: what.to_owned(),
        unsupported: false,
    }
}

impl World {
    /// A call of the driver about a process, or a fault in its place.
    fn checkpoint(&mut self, act: CheckpointAction, process: Process) -> Answer {
        let pid = process.pid;
        let there = self.processes.get(&pid);
        let Some(proc) = there.filter(|one| one.process == process) else {
            return Err(refused("the process has ended"));
        };
        if proc.stopped {
            self.broken(format!(
                "{act:?} of pid {pid}, which is stopped: it would wait for ever"
            ));
        }
        if self.driver_is_ill {
            return Err(refused("CUDA_ERROR_UNKNOWN"));
        }
        if self.has_fault(UNWILLING) {
            self.trace(|| format!("  {act:?} of pid {pid} meets a fault"));
            return self.faulty(act, pid);
        }
        self.carry_out(act, pid)
    }

    fn faulty(&mut self, act: CheckpointAction, pid: u32) -> Answer {
        match self.luck.below(5) {
            // What was submitted is not done in time.
            0 if act == CheckpointAction::Lock => Err(refused("CUDA_ERROR_NOT_READY")),
            0 | 1 => Err(CheckpointError {
                what: "CUDA_ERROR_NOT_SUPPORTED".to_owned(),
                unsupported: act == CheckpointAction::State,
            }),
            2 => {
                self.kill(pid);
                Err(refused("the helper gave no result"))
            }
            3 if act == CheckpointAction::Restore => {
                self.set_checkpoint(pid, ProcessState::Failed);
                Err(refused("CUDA_ERROR_OUT_OF_MEMORY"))
            }
            // The helper was killed in the middle: it is done, or it is not.
            _ => {
                if self.luck.once_in(2) {
                    let _ = self.carry_out(act, pid);
                }
                Err(refused("the helper did not answer in time"))
            }
        }
    }

    fn carry_out(&mut self, act: CheckpointAction, pid: u32) -> Answer {
        let now = self.checkpoint_of(pid);
        let (from, to) = match act {
            CheckpointAction::State => return Ok(now),
            CheckpointAction::Lock => (ProcessState::Running, ProcessState::Locked),
            CheckpointAction::Save => (ProcessState::Locked, ProcessState::Checkpointed),
            CheckpointAction::Restore => (ProcessState::Checkpointed, ProcessState::Locked),
            CheckpointAction::Unlock => (ProcessState::Locked, ProcessState::Running),
        };
        if now != from {
            return Err(refused("CUDA_ERROR_ILLEGAL_STATE"));
        }
        if act == CheckpointAction::Restore {
            self.check_room(pid)?;
        }
        if let Some(program) = self.program(pid) {
            match act {
                CheckpointAction::Save => program.saved = std::mem::take(&mut program.held),
                CheckpointAction::Restore => program.held = std::mem::take(&mut program.saved),
                _ => {}
            }
        }
        self.set_checkpoint(pid, to);
        Ok(to)
    }

    /// A restore that finds no room fails for good.
    fn check_room(&mut self, pid: u32) -> Result<(), CheckpointError> {
        let saved = self.program(pid).map(|program| program.saved.clone());
        for (gpu, bytes) in saved.unwrap_or_default() {
            if self.gpus[gpu] != Health::Well {
                return Err(refused("CUDA_ERROR_UNKNOWN"));
            }
            let left = self.left(gpu);
            if bytes > left {
                if self.foreign(gpu) == 0 {
                    self.broken(format!(
                        "pid {pid} is restored to GPU {gpu} with {bytes} bytes, and {left} are left"
                    ));
                }
                self.set_checkpoint(pid, ProcessState::Failed);
                return Err(refused("CUDA_ERROR_OUT_OF_MEMORY"));
            }
        }
        Ok(())
    }

    /// Jobs with processes that hold something of a GPU, or that have it in host memory.
    pub fn with_gpu_memory(&self, is_saved: bool) -> Vec<JobId> {
        let holder = |proc: &Proc| match &proc.kind {
            Kind::Program(program) => {
                let bytes = if is_saved {
                    &program.saved
                } else {
                    &program.held
                };
                (!bytes.is_empty()).then_some(JobId(program.job))
            }
            _ => None,
        };
        self.processes.values().filter_map(holder).collect()
    }

    /// How a process is.
    pub fn checkpoint_of(&self, pid: u32) -> ProcessState {
        match self.processes.get(&pid).map(|one| &one.kind) {
            Some(Kind::Program(program)) => program.checkpoint,
            _ => ProcessState::Running,
        }
    }

    fn set_checkpoint(&mut self, pid: u32, to: ProcessState) {
        if let Some(program) = self.program(pid) {
            program.checkpoint = to;
        }
        self.trace(|| format!("  pid {pid} is {to:?}"));
    }
}
