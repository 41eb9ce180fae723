//! The way into the cycle: every request, observation and sign of life is a message to the one owner of the state.

use std::sync::mpsc::Sender;

use divvy_api::v1::{
    Claim, Confirm, Error, ErrorCode, GpuChange, GpuChanged, Job, MigGc, MigInstance, Project,
    ProjectChange, Resize, Submit,
};
use divvy_core::JobId;
use tokio::sync::oneshot;

use crate::access::Caller;
use crate::aside;
use crate::cycle::Cycle;
use crate::gpu::look::Look;
use crate::mig::Report;
use crate::pruner::{Forgotten, Past};
use crate::watch::News;

/// Where an answer goes; whoever asked may be gone.
pub type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// A question to the state.
pub type Read = Box<dyn FnOnce(&mut Cycle) + Send>;

/// What a waiting client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// It holds its slice, or has ended.
    Starting,
    /// It is a claim that can be used, or is one no more.
    Lent,
    /// It is a claim that has ended, or of which something is left.
    Released,
    /// Its memory is not on its way anywhere.
    Settled,
    Ended,
}

/// What is to be done to a project.
#[derive(Clone, Debug)]
pub enum ProjectAct {
    Add(ProjectChange),
    Set(ProjectChange),
    Remove,
}

pub enum Message {
    Submit {
        submit: Box<Submit>,
        by: Box<Caller>,
        reply: Reply<Job>,
    },
    /// Stops all of a job's processes, or lets them go on.
    Pause {
        reference: String,
        suspend: bool,
        reply: Reply<Job>,
    },
    /// Stops all of a job's processes and has its GPU memory put aside; answers once that is so, or is not to be.
    Release {
        reference: String,
        reply: Reply<Job>,
    },
    Requeue {
        reference: String,
        reply: Reply<Job>,
    },
    Project {
        name: String,
        act: ProjectAct,
        reply: Reply<Project>,
    },
    Cancel {
        reference: String,
        reply: Reply<Job>,
    },
    /// Starts a job that has its slice and was to be confirmed.
    Confirm {
        reference: String,
        confirm: Box<Confirm>,
        by: Box<Caller>,
        reply: Reply<Job>,
    },
    /// Holds what another scheduler has given away; answers the job that it is.
    HoldClaim {
        uid: String,
        claim: Box<Claim>,
        by: Box<Caller>,
        reply: Reply<JobId>,
    },
    /// Takes it back; answers nothing for one that is not held.
    ReleaseClaim {
        uid: String,
        reply: Reply<Option<JobId>>,
    },
    Resize {
        reference: String,
        resize: Resize,
        reply: Reply<Job>,
    },
    /// Changes how a GPU, named by index or UUID, may be used.
    GpuMode {
        gpu: String,
        change: GpuChange,
        reply: Reply<GpuChanged>,
    },
    /// Gives idle MIG instances back; answers which.
    MigGc {
        gc: MigGc,
        reply: Reply<Vec<MigInstance>>,
    },
    Wait {
        reference: String,
        milestone: Milestone,
        reply: Reply<Job>,
    },
    /// Asks the state as it is after everything before was made durable.
    Read(Read),
    /// Puts this into the journal's events.
    Tell {
        job: JobId,
        kind: &'static str,
        text: String,
    },
    /// Something has happened to a job.
    News(News),
    Looked(Box<Look>),
    /// What has become of an errand about a job's memory.
    Aside(Box<aside::Report>),
    /// What has become of an order about MIG.
    Mig(Box<Report>),
    /// The GPUs could not be observed.
    Blind(String),
    /// What is beyond what is kept.
    Forget {
        past: Past,
        done: Forgotten,
    },
    Stop,
}

impl Message {
    /// Whether something begins that the journal has to hold. Ends, and what gives back, are none of it.
    pub fn begins_something(&self) -> bool {
        match self {
            Self::Submit { .. }
            | Self::Pause { .. }
            | Self::Release { .. }
            | Self::Requeue { .. }
            | Self::Project { .. }
            | Self::Confirm { .. }
            | Self::HoldClaim { .. }
            | Self::Resize { .. }
            | Self::GpuMode { .. }
            | Self::MigGc { .. } => true,
            Self::Cancel { .. }
            | Self::ReleaseClaim { .. }
            | Self::Wait { .. }
            | Self::Read(_)
            | Self::Tell { .. }
            | Self::News(_)
            | Self::Looked(_)
            | Self::Aside(_)
            | Self::Mig(_)
            | Self::Blind(_)
            | Self::Forget { .. }
            | Self::Stop => false,
        }
    }

    /// Answers that it is not done; nothing for what has no answer.
    pub fn refuse(self, error: Error) {
        match self {
            Self::Submit { reply, .. }
            | Self::Pause { reply, .. }
            | Self::Release { reply, .. }
            | Self::Requeue { reply, .. }
            | Self::Cancel { reply, .. }
            | Self::Confirm { reply, .. }
            | Self::Resize { reply, .. }
            | Self::Wait { reply, .. } => drop(reply.send(Err(error))),
            Self::Project { reply, .. } => drop(reply.send(Err(error))),
            Self::HoldClaim { reply, .. } => drop(reply.send(Err(error))),
            Self::ReleaseClaim { reply, .. } => drop(reply.send(Err(error))),
            Self::GpuMode { reply, .. } => drop(reply.send(Err(error))),
            Self::MigGc { reply, .. } => drop(reply.send(Err(error))),
            Self::Read(_)
            | Self::Tell { .. }
            | Self::News(_)
            | Self::Looked(_)
            | Self::Aside(_)
            | Self::Mig(_)
            | Self::Blind(_)
            | Self::Forget { .. }
            | Self::Stop => {}
        }
    }
}

/// Sends messages to the cycle; cheap to clone.
#[derive(Clone)]
pub struct Mailbox(Sender<Message>);

impl Mailbox {
    pub fn new(sender: Sender<Message>) -> Self {
        Self(sender)
    }

    /// Sends without waiting for anything; lost when the cycle has stopped.
    pub fn post(&self, message: Message) {
        let _ = self.0.send(message);
    }

    /// Sends a message that has a reply, and waits for it.
    ///
    /// # Errors
    /// What the cycle answers; [`ErrorCode::NoDaemon`] when it has stopped.
    pub async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.post(message(reply));
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Reads from the cycle's state.
    ///
    /// # Errors
    /// As [`Mailbox::ask`].
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Cycle) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.ask(|reply| {
            Message::Read(Box::new(move |cycle| {
                let _ = reply.send(read(cycle));
            }))
        })
        .await
    }
}

fn stopping() -> Error {
    Error::new(ErrorCode::NoDaemon, "the daemon is stopping")
        .hint("running jobs go on; start it again with `divvy daemon`")
}
