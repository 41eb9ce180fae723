//! GPU memory checkpoints: a suspended job's GPU memory goes to the host's memory and back. Each operation has a thread, and each call of
//! the driver a short-lived process.
//!
//! May use: `host`, `gpu`.
//! Used by: `controller`, `daemon`.
//!
//! ```text
//! cycle ── Errand (journaled before) ──► thread ── who uses a GPU? ──► cycle journals them, and says so
//!   ▲                                      │ lock all, save and stop each, stop the rest, look again
//!   └──────────── Report ──────────────────┘
//! ```
//! An errand begins with how the processes are, so that it may be carried out again after anything. It undoes nothing: what is half
//! done is brought back by another errand. What follows from a report is for `cycle::memory`, which step comes next for
//! [`divvy_core::resize::memory`].

pub mod helper;
mod host_memory;
mod operation;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::SyncSender;

use divvy_core::{GpuUuid, JobId};

use crate::gpu::Observer;
use crate::gpu::slice::GrantedSlice;
use crate::host::process::Process;
use helper::CheckpointHelper;

/// Whether memory is to leave its GPUs or to come back.
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
    /// Nobody wants it any more: set by the cycle.
    pub is_withdrawn: Arc<AtomicBool>,
}

/// What an errand says.
pub struct CheckpointReport {
    pub job: JobId,
    pub attempt: u32,
    pub update: CheckpointUpdate,
}

pub enum CheckpointUpdate {
    /// These use a GPU, and are about to be locked. Nothing is done to them before somebody answers that it is journaled.
    LockPending(Vec<Process>, SyncSender<()>),
    Finished(CheckpointOutcome),
}

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

/// Sends threads on errands.
pub struct CheckpointOps {
    report: ReportSender,
    observer: Arc<Observer>,
    helper: CheckpointHelper,
}

impl CheckpointOps {
    /// `divvy`: this program; `cuda`: the library to load, unless it is the one that the loader finds.
    pub fn new(
        report: ReportSender,
        observer: Arc<Observer>,
        divvy: PathBuf,
        cuda: Option<PathBuf>,
    ) -> Self {
        Self {
            report,
            observer,
            helper: CheckpointHelper { divvy, cuda },
        }
    }

    /// Has an errand carried out; `report` hears of its outcome.
    pub fn start(&self, errand: CheckpointOp) {
        let (job, attempt, way) = (errand.job, errand.attempt, errand.direction);
        let errand = operation::OpRunner::new(
            errand,
            self.helper.clone(),
            Arc::clone(&self.observer),
            Arc::clone(&self.report),
        );
        let run = move || errand.run();
        let started = std::thread::Builder::new()
            .name("aside".to_owned())
            .spawn(run);
        if let Err(error) = started {
            let why = format!("cannot start a thread: {error}");
            let ended = match way {
                Direction::Offload => CheckpointOutcome::Refused(why),
                Direction::Restore => CheckpointOutcome::NotRestored(why),
            };
            self.report_not_started(job, attempt, ended);
        }
    }

    /// No thread carries the errand out: this is its report.
    pub fn report_not_started(&self, job: JobId, attempt: u32, ended: CheckpointOutcome) {
        (self.report)(CheckpointReport {
            job,
            attempt,
            update: CheckpointUpdate::Finished(ended),
        });
    }
}
