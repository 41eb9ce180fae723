//! GPU memory checkpoints: a suspended job's GPU memory goes to the host's memory and back. Each operation has a
//! thread. One helper process makes the calls of the driver, and is killed when one is late.
//!
//! May use: `host`, `gpu`.
//! Used by: `controller`, `daemon`, `diagnostics`.
//!
//! ```text
//! controller ── CheckpointOp (journaled before) ──► thread ── lists the GPU processes ──► controller journals them
//!   ▲                                                 │ parked: wait for the gate; lock all, save and
//!   │                                                 │ stop each, stop the rest, list again
//!   └──────────── CheckpointReport ───────────────────┘
//! ```
//! An operation begins by reading the state of the processes, so the daemon can repeat it after any failure. It undoes
//! nothing: another operation restores what is half offloaded. `controller::memory` acts on the reports;
//! [`divvy_core::resize::memory`] decides the next step.

pub mod helper;
pub mod host_memory;
mod operation;
mod settle;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvError, SyncSender};

use divvy_core::resize::memory::ProcessState;
use divvy_core::{Bytes, GpuUuid, JobId};

use crate::gpu::Observer;
use crate::gpu::slice::GrantedSlice;
use crate::host::process::Process;
use helper::{CheckpointAction, CheckpointError};

/// The direction: offload or restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Offload,
    Restore,
}

/// What is to be done for a job.
pub struct CheckpointOp {
    pub job: JobId,
    /// Which of its runs it is for.
    pub attempt: u32,
    pub direction: Direction,
    pub supervisor: Process,
    pub slice: Arc<GrantedSlice>,
    /// By position in its slice.
    pub gpus: Vec<GpuUuid>,
    pub parts: Vec<Process>,
    /// Of a parked job, whose processes run on once the copy is over.
    pub parked: Option<ParkedOp>,
    /// The controller no longer wants the operation and has set this flag.
    pub is_withdrawn: Arc<AtomicBool>,
}

/// What an operation on a parked job needs besides.
pub struct ParkedOp {
    /// The most that it may copy to host memory.
    pub bytes: Bytes,
    /// The job's control group, if Divvy made one.
    pub group: Option<PathBuf>,
}

/// A report of a checkpoint operation.
pub struct CheckpointReport {
    pub job: JobId,
    pub attempt: u32,
    pub update: CheckpointUpdate,
}

pub enum CheckpointUpdate {
    /// These processes use a GPU and are about to be locked. The operation does nothing to them before the controller
    /// has journaled them and answered.
    LockPending(Vec<Process>, SyncSender<()>),
    Finished(CheckpointOutcome),
}

/// Why a park fails whose processes have died: an error of the driver (NVIDIA/cuda-checkpoint issue 58), or their ends.
pub const ENDED_IN_LOCK: &str = "its processes with GPU memory ended while the driver locked them";

/// What has become of it, with the reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointOutcome {
    Saved,
    /// Nothing was done.
    Refused(String),
    /// Something may have been done, and not all.
    Failed(String),
    Restored,
    NotRestored(String),
    /// The job is to end.
    Withdrawn,
}

/// Where reports go.
pub type ReportSender = Arc<dyn Fn(CheckpointReport) + Send + Sync>;

/// Makes the driver's calls for checkpoint operations and runs these: [`helper::CheckpointHelper`], or a simulation.
pub trait Checkpointer: Send + Sync {
    /// Does this to a process that has so much memory; answers how it is then.
    ///
    /// # Errors
    /// What the driver says, or that it was late.
    fn call(
        &self,
        act: CheckpointAction,
        process: Process,
        memory: Bytes,
    ) -> Result<ProcessState, CheckpointError>;

    /// Runs an operation on a thread of its own.
    ///
    /// # Errors
    /// When the thread cannot be started.
    fn start(&self, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("aside".to_owned());
        thread.spawn(run).map(drop)
    }

    /// Waits until no call of these processes is between a closed gate and the driver.
    fn settle(&self, is_gated: &dyn Fn() -> bool, processes: &[Process]) {
        settle::settle(is_gated, processes);
    }

    /// Waits until the controller has journaled what an operation has reported.
    ///
    /// # Errors
    /// When the controller gives no answer.
    fn wait(&self, answer: &Receiver<()>) -> Result<(), RecvError> {
        answer.recv()
    }
}

/// Starts checkpoint operations, each on its own thread.
pub struct CheckpointOps {
    report: ReportSender,
    observer: Arc<Observer>,
    checkpointer: Arc<dyn Checkpointer>,
}

impl CheckpointOps {
    pub fn new(
        report: ReportSender,
        observer: Arc<Observer>,
        checkpointer: Arc<dyn Checkpointer>,
    ) -> Self {
        Self {
            report,
            observer,
            checkpointer,
        }
    }

    /// Starts a checkpoint operation; `report` receives its outcome.
    pub fn start(&self, op: CheckpointOp) {
        let (job, attempt, way) = (op.job, op.attempt, op.direction);
        let op = operation::OpRunner::new(
            op,
            Arc::clone(&self.checkpointer),
            Arc::clone(&self.observer),
            Arc::clone(&self.report),
        );
        if let Err(error) = self.checkpointer.start(Box::new(move || op.run())) {
            let why = format!("cannot start a thread: {error}");
            let ended = match way {
                Direction::Offload => CheckpointOutcome::Refused(why),
                Direction::Restore => CheckpointOutcome::NotRestored(why),
            };
            self.report_not_started(job, attempt, ended);
        }
    }

    /// Reports an operation that no thread carries out.
    pub fn report_not_started(&self, job: JobId, attempt: u32, ended: CheckpointOutcome) {
        (self.report)(CheckpointReport {
            job,
            attempt,
            update: CheckpointUpdate::Finished(ended),
        });
    }
}
