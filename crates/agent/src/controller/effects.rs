//! Effects: what one round has decided, in the order in which [`apply`](super::apply) carries it out.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;

use divvy_api::v1::{Error, Event, GpuChanged, MigInstance};
use divvy_core::JobId;

use crate::controller::io::Io;
use crate::controller::mailbox::{Reply, StateQuery};
use crate::controller::query::summary::JobSummary;
use crate::gpu::mig::MigCommand;
use crate::host::clock::{Instant, now};
use crate::host::process::Process;
use crate::journal::StoreError;
use crate::journal::retention::PruneDone;
use crate::model::counters::Counters;

/// What one round has decided and not yet done.
#[derive(Default)]
pub struct Effects {
    /// Something changed that a plan depends on.
    pub replan: bool,
    pub events: Vec<Event>,
    pub starts: Vec<JobId>,
    pub stops: Vec<JobId>,
    /// Jobs whose limits are other ones now.
    pub resizes: Vec<JobId>,
    /// Jobs that were changed since their records were begun.
    pub changed: BTreeSet<JobId>,
    /// Jobs whose processes are all to be stopped.
    pub pauses: Vec<JobId>,
    /// Jobs whose memory is to be copied.
    pub memory_ops: Vec<JobId>,
    /// Who waits until what it says is journaled.
    pub commit_waiters: Vec<SyncSender<()>>,
    /// Processes to be killed.
    pub processes_to_kill: Vec<Process>,
    /// Jobs whose processes are all to be killed.
    pub jobs_to_kill: Vec<JobId>,
    /// Jobs that have ended, for those that run after them.
    pub ended: Vec<JobId>,
    /// Jobs whose secrets nobody needs once the round is journaled.
    pub expired_secrets: Vec<JobId>,
    /// Jobs that came to a milestone.
    pub milestones_reached: Vec<JobId>,
    pub job_replies: Vec<JobReply>,
    /// Jobs of arrays to which something was done.
    pub array_replies: Vec<ArrayReply>,
    pub queries: Vec<StateQuery>,
    /// What the threads of MIG are to do.
    pub mig_commands: Vec<MigCommand>,
    /// Points at which a test may have the daemon die once the round is journaled.
    pub failpoints: Vec<&'static str>,
    pub project_replies: Vec<(
        Reply<divvy_api::v1::Project>,
        Result<divvy_api::v1::Project, Error>,
    )>,
    /// Claims that were asked for, and that were given back.
    pub claim_replies: Vec<(Reply<JobId>, Result<JobId, Error>)>,
    pub claim_release_replies: Vec<(Reply<Option<JobId>>, Option<JobId>)>,
    /// Changed GPUs, and idle instances given back.
    pub gpu_mode_replies: Vec<(Reply<GpuChanged>, Result<GpuChanged, Error>)>,
    pub mig_gc_replies: Vec<(Reply<Vec<MigInstance>>, Vec<MigInstance>)>,
    /// Who waits for what was forgotten.
    pub prune_replies: Vec<PruneDone>,
    /// Jobs to look at once more in the next round.
    pub recheck: Vec<JobId>,
    pub stop: bool,
    /// When to look for what is left of containers.
    pub container_gc_at: Option<Instant>,
    /// Counters behind `/metrics`; they only grow.
    pub counters: Counters,
}

/// Jobs of an array to which something was done, and where they are shown.
pub type ArrayReply = (Reply<Vec<JobSummary>>, Result<Vec<JobId>, Error>);

pub struct JobReply {
    pub reply: Reply<divvy_api::v1::Job>,
    pub result: Result<JobId, Error>,
}

impl Effects {
    /// Journals an event, and sends it to clients when the round is durable.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn record_event(
        &mut self,
        io: &Io,
        job: Option<JobId>,
        kind: &str,
        text: &str,
    ) -> Result<(), StoreError> {
        let event = io.store.append_event(now(), job, kind, text)?;
        *self.counters.events.entry(kind.to_owned()).or_default() += 1;
        self.events.push(event);
        Ok(())
    }
}
