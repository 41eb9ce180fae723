//! Requests: the acts and milestones that messages carry, and the channel of a reply.

use divvy_api::v1::{Error, JobChange, ProjectChange};
use tokio::sync::oneshot;

/// The channel for a reply; the caller may be gone.
pub type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The job has its slice, or has ended.
    Starting,
    /// The claim can be used, or will not be any more.
    Bound,
    /// The claim has ended, or orphans keep it allocated.
    Released,
    /// No checkpoint operation moves the job's memory.
    MemorySettled,
    /// The job has ended.
    Ended,
}

/// An act on every job of an array that accepts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrayAct {
    Cancel,
    Requeue,
    Suspend,
    Resume,
    Hold,
    Release,
    Change(Box<JobChange>),
}

/// An act on a project.
#[derive(Clone, Debug)]
pub enum ProjectAct {
    Add(ProjectChange),
    Set(ProjectChange),
    Remove,
}
