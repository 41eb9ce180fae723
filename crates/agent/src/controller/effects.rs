//! Effects: what one round has decided, in the order in which [`apply`](super::apply) carries it out.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;

use divvy_api::v1::{Error, GpuChanged, MigInstance};
use divvy_core::{GpuUuid, JobId};

use crate::controller::io::Io;
use crate::controller::query::job_summary::JobSummary;
use crate::controller::request::{ActOutcome, Reply};
use crate::controller::state::State;
use crate::gpu::mig::MigCommand;
use crate::gpu::slice::HeldSlice;
use crate::history::Sample;
use crate::host::clock::{Instant, now};
use crate::host::process::Process;
use crate::job_dir::JobDir;
use crate::journal::StoreError;
use crate::journal::retention::PruneDone;
use crate::model::counters::Counters;
use crate::model::event::JobEvent;

/// What one round has decided and not yet done.
#[derive(Default)]
pub struct Effects {
    /// Something changed that a plan depends on.
    pub replan: bool,
    /// Effects on jobs.
    pub jobs: JobEffects,
    /// Processes past the limiter that will be killed.
    pub processes_to_kill: Vec<Process>,
    /// Commands for the threads of MIG.
    pub mig_commands: Vec<MigCommand>,
    /// Replies to clients and to waiting threads.
    pub replies: Replies,
    /// Journaled events, for the clients that follow them.
    pub events: Vec<JobEvent>,
    /// Points at which a test may end the daemon once the round is journaled.
    pub failpoints: Vec<&'static str>,
    /// What the round has the actuators do besides.
    pub machine: MachineEffects,
    /// When the garbage collection of containers has to run.
    pub container_gc_at: Option<Instant>,
    /// Counters behind `/metrics`; they only grow.
    pub counters: Counters,
    /// The operator or administrator on whose call a handler acts now.
    pub by: Option<u32>,
    /// The daemon stops after this round.
    pub stop: bool,
}

/// Work of the actuators that is of no job, or of jobs that have ended.
#[derive(Default)]
pub struct MachineEffects {
    /// The observer takes the next sample soon.
    pub sample_soon: bool,
    /// GPUs to probe.
    pub probes: Vec<GpuUuid>,
    /// The utilization of GPUs, for the compute scheduler: index, percent.
    pub utilization: Option<Vec<(u32, u32)>>,
    /// Samples for the history.
    pub samples: Vec<Sample>,
    /// Jobs that the history forgets.
    pub forgotten: Vec<JobId>,
    /// Control groups of ended jobs, from which the driver has taken its limits off.
    pub groups: Vec<PathBuf>,
}

/// What the round does to jobs.
#[derive(Default)]
pub struct JobEffects {
    /// Jobs that ended, for their dependents.
    pub ended: Vec<JobId>,
    /// Slices that no job holds any longer. Their ledgers have the only copy of peaks and refusals until the journal has
    /// them, so they stay until then.
    pub freed: Vec<FreedSlice>,
    /// Folders of runs that are over.
    pub over: Vec<RunOver>,
    /// Jobs that run since this round: the observer learns the roots of their processes.
    pub roots: Vec<JobId>,
    /// Running jobs with a supervisor, whose end the watch reports from now on.
    pub attended: Vec<JobId>,
    /// Containers that lost their supervisors, and get new ones.
    pub adoptions: Vec<JobId>,
    /// Jobs of which the compute scheduler watches launches, or no longer does.
    pub launch_watches: Vec<(JobId, bool)>,
    /// Jobs with a new control file, which the compute scheduler has to open.
    pub reopened: Vec<JobId>,
    /// Lent claims that miss files.
    pub claim_files: Vec<JobId>,
    /// Jobs that lose their secrets once the round is journaled.
    pub expired_secrets: Vec<JobId>,
    /// Jobs with changed limits.
    pub resizes: Vec<JobId>,
    /// Jobs that changed since their records were begun.
    pub changed: BTreeSet<JobId>,
    /// Jobs to kill, with all their processes.
    pub kills: Vec<JobId>,
    /// Jobs to suspend: all their processes are stopped.
    pub pauses: Vec<JobId>,
    /// Jobs with a checkpoint operation to start.
    pub memory_ops: Vec<JobId>,
    /// Placed jobs to start.
    pub starts: Vec<JobId>,
    /// Jobs with another limit of the driver's in force.
    pub walled: Vec<JobId>,
    /// Jobs with a slice that have waited for the driver's limit, to start.
    pub limited: Vec<JobId>,
    /// Stopping jobs, to signal their supervisors.
    pub stops: Vec<JobId>,
    /// Jobs to check again in the next round.
    pub recheck: Vec<JobId>,
}

/// A slice to remove.
pub struct FreedSlice {
    pub job: JobId,
    /// `None` if this daemon has no handle of it: its folder may exist all the same.
    pub slice: Option<Box<HeldSlice>>,
}

/// The folder of a run that is over, with the files that no later run needs.
pub struct RunOver {
    pub job: JobId,
    pub dir: JobDir,
    /// The job has ended with this run.
    pub is_last: bool,
}

/// A reply to the release of a claim, with the claim's job where there was one.
pub type ClaimReleaseReply = (Reply<Option<JobId>>, Result<Option<JobId>, Error>);

/// Answers to callers, sent once the round is durable.
#[derive(Default)]
pub struct Replies {
    /// Threads that wait until what they reported is journaled.
    pub commits: Vec<SyncSender<()>>,
    /// Jobs that reached a milestone, for their waiters.
    pub milestones: Vec<JobId>,
    /// Replies with one job.
    pub jobs: Vec<JobReply>,
    /// Replies with the jobs of a selection.
    pub acts: Vec<ActReply>,
    /// Replies with a project.
    pub projects: Vec<ProjectReply>,
    /// Replies to held or refused claims.
    pub claims: Vec<(Reply<JobId>, Result<JobId, Error>)>,
    /// Replies to releases of claims.
    pub claim_releases: Vec<ClaimReleaseReply>,
    /// Replies to changes of a GPU's mode.
    pub gpu_modes: Vec<(Reply<GpuChanged>, Result<GpuChanged, Error>)>,
    /// Replies with GPUs that went out of service, or returned.
    pub gpus: Vec<GpusReply>,
    /// Idle MIG instances that will be destroyed.
    pub mig_gcs: Vec<(Reply<Vec<MigInstance>>, Vec<MigInstance>)>,
    /// The retention thread, which waits for a batch to be deleted.
    pub prunes: Vec<PruneDone>,
    /// Queries, which read the state at the end of the round.
    pub queries: Vec<StateQuery>,
}

/// A query of the state. It runs after the round, and sends its own reply.
pub type StateQuery = Box<dyn FnOnce(&State, &Io, &Effects) + Send>;

/// A reply with GPUs, and which they are or why there are none.
pub type GpusReply = (Reply<Vec<GpuUuid>>, Result<Vec<GpuUuid>, Error>);

/// A changed project, and its caller.
pub type ProjectReply = (
    Reply<divvy_api::v1::Project>,
    Result<divvy_api::v1::Project, Error>,
);

/// What an act did to a selection, and its caller.
pub type ActReply = (
    Reply<ActOutcome<JobSummary>>,
    Result<ActOutcome<JobId>, Error>,
);

/// A job, or why there is none, for its caller.
pub struct JobReply {
    pub reply: Reply<divvy_api::v1::Job>,
    pub result: Result<JobId, Error>,
    /// For the job's `warnings`.
    pub warning: Option<String>,
}

impl Replies {
    /// Replies with a job, or why there is none, once the round is durable.
    pub fn job(&mut self, reply: Reply<divvy_api::v1::Job>, result: Result<JobId, Error>) {
        self.jobs.push(JobReply {
            reply,
            result,
            warning: None,
        });
    }
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
        let event = io.store.append(now(), job, kind, text, self.by)?;
        *self.counters.events.entry(kind.to_owned()).or_default() += 1;
        self.events.push(event);
        Ok(())
    }
}
