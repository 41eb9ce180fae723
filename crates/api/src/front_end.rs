//! Messages between the daemon and the front end in its process, besides calls over the socket.
//!
//! Withdrawals: a user cancels a job that stands for a task in the queue of another system, and the front end to that
//! system takes the task out of the queue first. Worker holds: the front end knows workers of other daemons on this
//! machine's GPUs.

use tokio::sync::oneshot;

use crate::v1::Error;

/// A user's wish to cancel such a job.
#[derive(Debug)]
pub struct Withdrawal {
    /// The job's number.
    pub job: String,
    /// The caller, in words: `cancelled by ana (uid 1001)`.
    pub because: String,
    pub reply: oneshot::Sender<Result<Withdrawn, Error>>,
}

/// The front end's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// The task is in no queue any more, and the job is cancelled.
    Done,
    /// The task runs here, or is about to: the job is cancelled as any other.
    Claimed,
}

/// Tells the daemon which parts of GPUs other daemons' workers use: all of them, each time.
pub type TellHolds = Box<dyn Fn(Vec<WorkerHold>) + Send>;

/// A part of a GPU that a worker of another daemon uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerHold {
    /// Index of the GPU, as the worker's name has it.
    pub gpu: u32,
    /// Thousandths of the GPU.
    pub share: u16,
    /// The worker, for messages: its name, its last sign of life and when its entry ends.
    pub holder: String,
}
