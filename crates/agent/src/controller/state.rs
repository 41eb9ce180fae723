//! The node's state: plain data that the controller owns and that handlers change.
//!
//! Nothing here reaches the machine. A handler gets the part that it may change, or the whole where it needs several.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use divvy_core::reconcile::{BypassKind, Watchlist};
use divvy_core::{GpuUuid, JobId, Project, Wait};

use crate::controller::active_set::ActiveSet;
use crate::controller::admission::text_budget::TextBudget;
use crate::controller::disk_full::DiskFull;
use crate::controller::lifecycle::notifications::Notifications;
use crate::controller::lifecycle::offload::MemoryOp;
use crate::controller::lifecycle::start::Shortage;
use crate::controller::mailbox::{Milestone, Reply};
use crate::controller::mig::MigManager;
use crate::controller::observe::reconcile::SliceUsage;
use crate::controller::observe::unjournaled::Unknowns;
use crate::controller::observe::usage::{GpuActivity, UsageClock};
use crate::gpu::Device;
use crate::gpu::mig::MigSlot;
use crate::gpu::slice::HeldSlice;
use crate::host::clock::Instant;
use crate::host::process::Process;
use crate::job_dir::ExitRecord;
use crate::model::job::Job;
use crate::model::policy::Dependency;
use crate::supervisor::handle::SupervisorHandle;

/// Everything that the controller knows of the node.
pub struct State {
    pub jobs: Jobs,
    pub mig: MigManager,
    pub gpus: GpuState,
    pub queues: QueueState,
    pub disk: DiskState,
    pub timers: Timers,
    /// Supervisors that this daemon started and has not waited for.
    pub children: Vec<SupervisorHandle>,
}

/// The jobs that have not ended.
#[derive(Default)]
pub struct Jobs {
    /// Boxed, as the map keeps room for nearly as many again.
    pub active: BTreeMap<JobId, Box<ActiveJob>>,
    pub active_set: ActiveSet,
    /// The last plan's reasons, by job.
    pub waits: HashMap<JobId, Wait>,
    pub texts: TextBudget,
    /// Jobs that run and that the journal does not have.
    pub unjournaled: Unknowns,
    pub notifications: Notifications,
    /// How many jobs the journal got from their records when the daemon started.
    pub recovered: u32,
}

/// What the last observations showed of the GPUs.
pub struct GpuState {
    pub devices: Vec<Device>,
    /// GPUs that jobs hold and that were lost at the last observation.
    pub lost: BTreeSet<GpuUuid>,
    /// GPUs that jobs hold and whose processes the last observation does not show. `None` before the first one.
    pub unobserved: Option<BTreeSet<GpuUuid>>,
    /// Why the GPUs cannot be observed; an event has reported it.
    pub observation_error: Option<String>,
    /// Processes that may be past the limiter.
    pub watchlist: Watchlist,
    /// Bypasses so far, by kind.
    pub bypasses: [u64; BypassKind::ALL.len()],
    /// GPUs whose driver does not report memory by process; an event has reported it.
    pub accounts_only: HashSet<GpuUuid>,
}

/// The order of the queues, and projects.
pub struct QueueState {
    /// With fairness, the queue that is next.
    pub cursor: usize,
    /// The head of the last plan.
    pub head: Option<JobId>,
    pub projects: Vec<Project>,
    /// When a plan may differ although nothing has changed.
    pub replan_at: Option<Instant>,
}

/// Whether the journal's disk has room.
#[derive(Default)]
pub struct DiskState {
    /// The disk has no room.
    pub full: Option<DiskFull>,
    /// The journal has a reserve for a full disk.
    pub has_reserve: bool,
}

/// When periodic work was last done.
pub struct Timers {
    pub usage_clock: UsageClock,
    pub last_idle_check: Instant,
}

/// A job that has not ended, and what belongs to it while the agent lives.
pub struct ActiveJob {
    pub job: Job,
    /// Bytes of its texts ([`crate::model::validate::budget`]).
    pub texts: u64,
    pub slice: Option<Box<HeldSlice>>,
    pub waiters: Vec<Waiter>,
    /// Whom it runs after and who has not ended.
    pub after: Vec<Dependency>,
    /// When it came into its present state, as far as this agent knows.
    pub since: Instant,
    /// When its client was last heard of, for a job that its client runs.
    pub client_seen: Instant,
    /// The process that this agent started to supervise it.
    pub supervisor: Option<u32>,
    /// How that one ended, once it has.
    pub supervisor_end: Option<String>,
    /// Since when it is lost, and how that one ended not said.
    pub lost_since: Option<Instant>,
    /// When its container was last given another supervisor.
    pub supervisor_replaced: Option<Instant>,
    /// When it was last looked at, while an end of its supervisor is told ([`Watch::watch_supervisor`]).
    pub last_checked: Option<Instant>,
    /// Since when it has ended and is waited for.
    pub orphans_since: Option<Instant>,
    /// How often that process ended before it had started anything.
    pub false_starts: u32,
    /// MIG instances that it is to have and that are not ready.
    pub pending_instances: BTreeSet<MigSlot>,
    /// How often they were refused.
    pub refusals: u32,
    /// Why its start has to wait.
    pub shortage: Option<Shortage>,
    /// How its start failed, where its folder could not tell.
    pub start_failure: Option<ExitRecord>,
    /// What a claim is used through is there.
    pub has_claim_files: bool,
    /// Nobody confirmed it or waited for it while it held its slice; it is not placed before somebody does.
    pub confirmation_expired: bool,
    /// Its slice could not be read, which was said.
    pub damaged: bool,
    /// Another process than the daemon changed its slice's control file, and an event has told it.
    pub tampered: bool,
    /// Its limiter could not count something, which was said.
    pub alarm_reported: bool,
    /// By position in its holdings.
    pub slice_usage: Vec<SliceUsage>,
    /// Processes of it that the driver listed last.
    pub members: Vec<Process>,
    pub activity: GpuActivity,
    /// What is under way for its memory.
    pub memory_op: MemoryOp,
}

pub struct Waiter {
    pub milestone: Milestone,
    pub reply: Reply<divvy_api::v1::Job>,
}

impl ActiveJob {
    pub fn new(job: Job) -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            job,
            texts: 0,
            slice: None,
            waiters: Vec::new(),
            after: Vec::new(),
            since: now,
            client_seen: now,
            supervisor: None,
            supervisor_end: None,
            lost_since: None,
            supervisor_replaced: None,
            last_checked: None,
            orphans_since: None,
            false_starts: 0,
            pending_instances: BTreeSet::new(),
            refusals: 0,
            shortage: None,
            start_failure: None,
            has_claim_files: false,
            confirmation_expired: false,
            damaged: false,
            tampered: false,
            alarm_reported: false,
            slice_usage: Vec::new(),
            members: Vec::new(),
            activity: GpuActivity::new(),
            memory_op: MemoryOp::default(),
        })
    }
}

#[cfg(test)]
impl super::Controller {
    pub fn known_jobs(&self) -> impl Iterator<Item = &Job> {
        self.state.jobs.active.values().map(|active| &active.job)
    }

    /// The daemon's own MIG instances.
    pub fn instances(&self) -> &BTreeMap<MigSlot, crate::gpu::mig::ManagedInstance> {
        self.state.mig.instances()
    }

    /// The place in its queue of a job that waits for its turn.
    pub fn queue_position(&self, id: JobId) -> Option<usize> {
        self.state.jobs.waits.get(&id).map(|wait| wait.place)
    }

    pub fn journal(&self) -> &crate::journal::Store {
        &self.io.store
    }
}
