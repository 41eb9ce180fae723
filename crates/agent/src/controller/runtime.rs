//! Runtime state of active jobs: what the daemon knows of a job that has not ended, besides the journal.
//!
//! The journal's [`JobState`] has the finer states; a second copy of them here could contradict it. The runtime state
//! has two: a job waits, or it has been placed. Requeuing a job sets [`Runtime::Waiting`], which drops all data of the
//! run.

use std::collections::BTreeSet;
use std::time::Duration;

use divvy_core::reconcile::BootNanos;
use divvy_core::{GpuUuid, Grant, JobState};

use crate::controller::request::{Milestone, Reply};
use crate::controller::state::memory_op::MemoryOp;
use crate::controller::state::slice_usage::SliceUsage;
use crate::controller::state::usage::GpuActivity;
use crate::gpu::sample;
use crate::gpu::slice::HeldSlice;
use crate::host::clock::Instant;
use crate::host::process::Process;
use crate::job_dir::ExitRecord;
use crate::model::job::Job;
use crate::model::mig_instance::MigSlot;
use crate::model::policy::Dependency;

/// A job that has not ended: its record in the journal, and its runtime state.
pub struct ActiveJob {
    pub job: Job,
    pub runtime: Runtime,
    /// Bytes of its texts ([`crate::model::validate::budget`]).
    pub texts: u64,
    pub waiters: Vec<Waiter>,
    /// Its dependencies that have not ended.
    pub after: Vec<Dependency>,
    pub activity: GpuActivity,
    /// The checkpoint operation on its GPU memory. It may outlast the run in which it began.
    pub memory_op: MemoryOp,
    /// A process other than the daemon changed its slice's control file; an event has reported it.
    pub tampered: bool,
    /// Its limiter left calls uncounted; an event has reported it.
    pub alarm_reported: bool,
}

/// Whether a job waits or has been placed.
pub enum Runtime {
    Waiting(Waiting),
    /// Boxed: most jobs wait.
    Placed(Box<Placed>),
}

/// A job in its queue.
pub struct Waiting {
    pub attempts: StartAttempts,
    /// When its client last called, for a job that its client runs or confirms.
    pub client_seen: Instant,
    /// Its processes that the driver listed last: orphans of an earlier run.
    pub members: Vec<Process>,
    /// It was not confirmed while it held its slice; the planner skips it until a client waits for it.
    pub confirmation_expired: bool,
}

/// A job from its placement to the end of its run.
pub struct Placed {
    pub attempts: StartAttempts,
    pub client_seen: Instant,
    /// When it entered its present [`JobState`], as far as this daemon knows.
    pub since: Instant,
    pub start: StartProgress,
    pub slice: Option<Box<HeldSlice>>,
    /// Usage of the slice, by position in its allocations.
    pub slice_usage: Vec<SliceUsage>,
    /// Its slice could not be read; the daemon has logged it.
    pub damaged: bool,
    pub supervisor: SupervisorStatus,
    /// Its processes that the driver listed last.
    pub members: Vec<Process>,
    /// Since when its run is over and orphans hold its slice.
    pub orphans_since: Option<Instant>,
    /// When this daemon closed its slice: only a later observation shows all processes that hold memory.
    pub closed_at: Option<BootNanos>,
}

/// Failed start attempts; they are kept while the job returns to its queue unstarted.
#[derive(Clone, Copy, Default)]
pub struct StartAttempts {
    /// Supervisors that ended before they had started the program.
    pub false_starts: u32,
    /// Starts that found no account for its uid.
    pub absences: u32,
    /// How often its MIG instances were refused.
    pub refusals: u32,
}

/// How far the start of a placed job has come.
#[derive(Default)]
pub struct StartProgress {
    /// Its MIG instances that are not ready.
    pub pending_instances: BTreeSet<MigSlot>,
    /// GPUs on which the driver has not set its limit.
    pub pending_limits: BTreeSet<GpuUuid>,
    /// Why its start has to wait.
    pub shortage: Option<Shortage>,
    /// How its start failed, if that could not be written into the job's folder.
    pub failure: Option<ExitRecord>,
    /// The slice, files and CDI device of a claim exist.
    pub has_claim_files: bool,
}

/// The supervisor of a placed job.
#[derive(Default)]
pub struct SupervisorStatus {
    /// The process that this daemon started.
    pub pid: Option<u32>,
    /// How that process ended.
    pub end: Option<String>,
    /// Since when it is lost without a report of how it ended.
    pub lost_since: Option<Instant>,
    /// When a container last got another supervisor.
    pub replaced_at: Option<Instant>,
    /// When its records were last checked, while a pidfd reports its end
    /// ([`Watch::watch_supervisor`](crate::supervisor::watch::Watch::watch_supervisor)).
    pub last_checked: Option<Instant>,
}

/// A client that waits for a milestone of a job.
pub struct Waiter {
    pub milestone: Milestone,
    pub reply: Reply<divvy_api::v1::Job>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            attempts: StartAttempts::default(),
            client_seen: Instant::now(),
            members: Vec::new(),
            confirmation_expired: false,
        }
    }
}

impl Waiting {
    /// The placed state of the same job.
    fn place(&mut self) -> Placed {
        Placed {
            attempts: self.attempts,
            client_seen: self.client_seen,
            since: Instant::now(),
            start: StartProgress::default(),
            slice: None,
            slice_usage: Vec::new(),
            damaged: false,
            supervisor: SupervisorStatus::default(),
            members: std::mem::take(&mut self.members),
            orphans_since: None,
            closed_at: None,
        }
    }
}

impl Placed {
    /// Closes the slice, before the look for processes that decides its release.
    pub fn close(&mut self) {
        if let Some(slice) = &self.slice {
            slice.close();
        }
        self.closed_at.get_or_insert_with(sample::now);
    }
}

impl ActiveJob {
    /// The runtime state of a job as the journal has it.
    pub fn new(job: Job) -> Box<Self> {
        let mut waiting = Waiting::default();
        let runtime = match job.state {
            JobState::Queued => Runtime::Waiting(waiting),
            _ => Runtime::Placed(Box::new(waiting.place())),
        };
        Box::new(Self {
            job,
            runtime,
            texts: 0,
            waiters: Vec::new(),
            after: Vec::new(),
            activity: GpuActivity::new(),
            memory_op: MemoryOp::default(),
            tampered: false,
            alarm_reported: false,
        })
    }

    /// Takes what the planner granted to a waiting job.
    pub fn place(&mut self, grants: Vec<Grant>) {
        self.job.place(grants);
        if let Runtime::Waiting(waiting) = &mut self.runtime {
            self.runtime = Runtime::Placed(Box::new(waiting.place()));
        }
    }

    /// Returns a placed job that was not started to its queue; its attempts are kept.
    pub fn return_unstarted(&mut self) {
        if let Runtime::Placed(placed) = &self.runtime {
            self.runtime = Runtime::Waiting(Waiting {
                attempts: placed.attempts,
                client_seen: placed.client_seen,
                ..Waiting::default()
            });
        }
    }

    pub fn placed(&self) -> Option<&Placed> {
        match &self.runtime {
            Runtime::Waiting(_) => None,
            Runtime::Placed(placed) => Some(placed),
        }
    }

    pub fn placed_mut(&mut self) -> Option<&mut Placed> {
        match &mut self.runtime {
            Runtime::Waiting(_) => None,
            Runtime::Placed(placed) => Some(placed),
        }
    }

    /// The slice that a placed job holds.
    pub fn slice(&self) -> Option<&HeldSlice> {
        self.placed()?.slice.as_deref()
    }

    /// What the last observation found of its slice, by position in its allocations.
    pub fn slice_usage(&self) -> &[SliceUsage] {
        self.placed().map_or(&[], |placed| &placed.slice_usage)
    }

    /// Its processes that the driver listed last.
    pub fn members(&self) -> &[Process] {
        match &self.runtime {
            Runtime::Waiting(waiting) => &waiting.members,
            Runtime::Placed(placed) => &placed.members,
        }
    }

    pub fn members_mut(&mut self) -> &mut Vec<Process> {
        match &mut self.runtime {
            Runtime::Waiting(waiting) => &mut waiting.members,
            Runtime::Placed(placed) => &mut placed.members,
        }
    }

    /// Notes that its client has just called.
    pub fn mark_client_seen(&mut self) {
        match &mut self.runtime {
            Runtime::Waiting(waiting) => waiting.client_seen = Instant::now(),
            Runtime::Placed(placed) => placed.client_seen = Instant::now(),
        }
    }

    /// How long its client has not called.
    pub fn client_silence(&self) -> Duration {
        match &self.runtime {
            Runtime::Waiting(waiting) => waiting.client_seen.elapsed(),
            Runtime::Placed(placed) => placed.client_seen.elapsed(),
        }
    }

    /// How long it has been in its present state; zero for a job that waits.
    pub fn state_age(&self) -> Duration {
        self.placed()
            .map_or(Duration::ZERO, |placed| placed.since.elapsed())
    }

    /// It waits, and the planner skips it until a client waits for it.
    pub fn has_expired_confirmation(&self) -> bool {
        matches!(&self.runtime, Runtime::Waiting(waiting) if waiting.confirmation_expired)
    }

    /// All of its MIG instances are ready, and the driver has set its limits.
    pub fn has_all_instances(&self) -> bool {
        self.placed().is_none_or(|placed| {
            placed.start.pending_instances.is_empty() && placed.start.pending_limits.is_empty()
        })
    }

    /// Whether the journal and the runtime state agree on whether the job waits.
    pub fn is_consistent(&self) -> bool {
        match self.job.state {
            JobState::Queued => matches!(self.runtime, Runtime::Waiting(_)),
            JobState::Ended { .. } => true,
            _ => matches!(self.runtime, Runtime::Placed(_)),
        }
    }
}

/// A start that failed because the machine had no resources.
pub struct Shortage {
    pub why: String,
    pub since: Instant,
}

impl Shortage {
    /// The delay between two attempts, as each is journaled. Half would double what is journaled while memory is short,
    /// and a user notices no second.
    pub const REST: Duration = Duration::from_secs(2);

    pub fn is_resting(&self) -> bool {
        self.since.elapsed() < Self::REST
    }
}
