//! Requests: the acts and milestones that messages carry, and the channel of a reply.

use std::collections::BTreeSet;
use std::sync::Arc;

use divvy_api::v1::{CancelJob, Error, JobAction, JobChange, ProjectChange};
use divvy_core::JobId;
use tokio::sync::oneshot;

use crate::model::job_filter::JobFilter;

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
    /// The same; the job was to be parked.
    Parked,
    /// The job has ended.
    Ended,
}

/// The jobs that one act is for.
#[derive(Clone, Debug)]
pub enum Selection {
    /// Jobs of this array.
    Array(JobId),
    /// Jobs that match.
    Matching(MatchingJobs),
}

/// Jobs that match a filter and have not ended.
#[derive(Clone, Debug)]
pub struct MatchingJobs {
    pub filter: Arc<JobFilter>,
    /// Other jobs are not selected.
    pub only: Option<BTreeSet<JobId>>,
}

/// How a job is cancelled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cancellation {
    pub asked: CancelJob,
    /// The front end has agreed: the work that the job stands for is in no other system's queue.
    pub agreed: bool,
}

/// An act on every job of a selection that accepts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Cancel,
    Requeue,
    Suspend,
    Resume,
    Hold,
    Release,
    Change(Box<JobChange>),
}

/// What an act did to the jobs of a selection.
#[derive(Debug)]
pub struct ActOutcome<T> {
    /// The jobs that accepted it, oldest first.
    pub done: Vec<T>,
    /// Why each other job refused it, the oldest job first.
    pub refused: Vec<Error>,
}

/// An act on a project.
#[derive(Clone, Debug)]
pub enum ProjectAct {
    Add(ProjectChange),
    Set(ProjectChange),
    Remove,
}

impl From<JobAction> for Act {
    fn from(action: JobAction) -> Self {
        match action {
            JobAction::Cancel => Self::Cancel,
            JobAction::Requeue => Self::Requeue,
            JobAction::Suspend => Self::Suspend,
            JobAction::Resume => Self::Resume,
            JobAction::Hold => Self::Hold,
            JobAction::Release => Self::Release,
        }
    }
}
