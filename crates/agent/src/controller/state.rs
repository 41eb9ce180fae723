//! The node's state: plain data that the controller owns and that handlers change.
//!
//! Nothing here starts an action on the machine; a placed job holds its slice, and `children` the supervisors to reap. A
//! handler gets the part that it may change, or the whole state if it needs several parts.

pub mod active_set;
pub mod copy_rates;
pub mod disk;
pub mod driver_limits;
pub mod estimate;
pub mod gpu_watch;
pub mod history;
pub mod job_users;
pub mod lookup;
pub mod memory_op;
pub mod mig;
pub mod notifications;
pub mod slice_usage;
pub mod text_budget;
pub mod unjournaled;
pub mod usage;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use divvy_api::front_end::WorkerHold;
use divvy_api::v1::{self, Error, ErrorCode};
use divvy_core::reconcile::{BootNanos, BypassKind, Watchlist};
use divvy_core::{GpuUuid, JobId, Project, Wait};

use crate::controller::known_gpus::StartDifferences;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::active_set::ActiveSet;
use crate::controller::state::copy_rates::CopyRates;
use crate::controller::state::disk::DiskFull;
use crate::controller::state::driver_limits::DriverLimits;
use crate::controller::state::estimate::EstimateInput;
use crate::controller::state::gpu_watch::GpuWatch;
use crate::controller::state::history::HistoryClock;
use crate::controller::state::job_users::JobUsers;
use crate::controller::state::mig::MigManager;
use crate::controller::state::notifications::Notifications;
use crate::controller::state::text_budget::TextBudget;
use crate::controller::state::unjournaled::Unknowns;
use crate::controller::state::usage::UsageClock;
use crate::gpu::Device;
use crate::gpu::mig::discover::MigCapabilities;
use crate::host::clock::Instant;
use crate::host::process::Process;
#[cfg(test)]
use crate::model::job::Job;
#[cfg(test)]
use crate::model::mig_instance::MigSlot;
use crate::model::park_record::ParkOff;
use crate::supervisor::handle::SupervisorHandle;

/// How often the controller checks every active job. So a job's end without an event is seen within it; each check
/// reads some files, so half would double that.
pub const TICK: Duration = Duration::from_millis(250);

/// Everything that the controller knows of the node.
pub struct State {
    pub jobs: Jobs,
    pub mig: MigManager,
    pub gpus: GpuState,
    pub queues: QueueState,
    pub disk: DiskState,
    pub timers: Timers,
    /// Supervisors that this daemon started and has not reaped.
    pub children: Vec<SupervisorHandle>,
    /// The input of start estimates since the last round, if a query has asked for it.
    pub estimates: OnceCell<Arc<EstimateInput>>,
}

/// The jobs that have not ended.
#[derive(Default)]
pub struct Jobs {
    /// Boxed, because the map allocates nearly twice as many entries as it has.
    pub active: BTreeMap<JobId, Box<ActiveJob>>,
    pub active_set: ActiveSet,
    /// The reasons of pending jobs in the last plan.
    pub waits: HashMap<JobId, Wait>,
    pub texts: TextBudget,
    /// Running jobs that the journal lacks.
    pub unjournaled: Unknowns,
    pub notifications: Notifications,
    pub limits: DriverLimits,
    /// How fast the driver copies memory.
    pub copy_rates: CopyRates,
    /// The driver that ended a program while it locked it.
    pub park_off: Option<ParkOff>,
    /// A job has held a GPU since energy was last divided.
    pub was_held: bool,
    /// Failed jobs that are not started again before this. A daemon that starts anew starts them at once.
    pub pauses: BTreeMap<JobId, Instant>,
    /// Number of jobs that the journal recovered from their job records at the daemon's start.
    pub recovered: u32,
}

/// What the last observations showed of the GPUs.
pub struct GpuState {
    pub devices: Vec<Device>,
    /// Parts of them that workers of other daemons use, as the front end knows.
    pub worker_holds: Vec<WorkerHold>,
    /// What the start found different from the one before.
    pub start: StartDifferences,
    /// The MIG profiles that the journal has of GPUs in MIG mode.
    pub recorded: BTreeMap<GpuUuid, Arc<MigCapabilities>>,
    /// Held GPUs that were lost at the last observation.
    pub lost: BTreeSet<GpuUuid>,
    /// Held GPUs without a list of their processes in the last observation. `None` before the first one.
    pub unobserved: Option<BTreeSet<GpuUuid>>,
    /// When the driver was asked for the last observation.
    pub observed_at: BootNanos,
    /// Processes of released slices that held memory at the last observation; an event has reported each.
    pub leftovers: Vec<Process>,
    /// Why the driver cannot be queried; an event has reported it.
    pub observation_error: Option<String>,
    /// Processes that may bypass the limiter.
    pub watchlist: Watchlist,
    /// Bypasses so far, by kind.
    pub bypasses: [u64; BypassKind::ALL.len()],
    /// GPUs on which the driver does not report memory by process; an event has reported it.
    pub accounts_only: HashSet<GpuUuid>,
    /// What is watched of GPUs, to find faults.
    pub watch: BTreeMap<GpuUuid, GpuWatch>,
}

impl GpuState {
    /// The managed GPU with this index or UUID.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`].
    pub fn managed(&self, name: &str) -> Result<&Device, Error> {
        let is_it = |device: &&Device| {
            device.is_managed
                && (device.gpu.uuid.as_str() == name || device.gpu.index.to_string() == name)
        };
        self.devices.iter().find(is_it).ok_or_else(|| {
            let what = format!("there is no managed GPU {name} here");
            Error::new(ErrorCode::NotFound, what).hint("list the GPUs: divvy gpus")
        })
    }

    /// What a job may hold of a GPU that the driver lists for no process.
    pub fn unlisted_of(&self, gpu: &GpuUuid, job: JobId) -> Option<v1::UnlistedHolder> {
        let mut devices = self.devices.iter();
        let device = devices.find(|device| device.gpu.uuid == *gpu)?;
        let holder = device.unlisted_holder.filter(|holder| holder.job == job)?;
        Some(holder.to_api(device.gpu.unlisted_outside()))
    }

    pub fn device_mut(&mut self, gpu: &GpuUuid) -> Option<&mut Device> {
        self.devices
            .iter_mut()
            .find(|device| device.gpu.uuid == *gpu)
    }
}

/// The order of the queues, the projects, and the users of jobs.
pub struct QueueState {
    /// With the order `fairness`, the queue that is next.
    pub cursor: usize,
    /// The job at the head of the last plan.
    pub head: Option<JobId>,
    pub projects: Vec<Project>,
    /// Names that jobs had as their project, up to [`MOST_LABELS`](crate::controller::admission::user_rules::MOST_LABELS).
    pub labels: BTreeSet<String>,
    pub users: JobUsers,
    /// When a plan may change without an event.
    pub replan_at: Option<Instant>,
    /// Other daemons' amounts have changed since the last plan, or kept it from starting jobs; the next tick plans again.
    pub is_contended: bool,
}

/// The state of the journal's disk.
#[derive(Default)]
pub struct DiskState {
    /// Set while the disk is full.
    pub full: Option<DiskFull>,
    /// The journal has a reserve for a full disk.
    pub has_reserve: bool,
}

/// When periodic work was last done.
pub struct Timers {
    pub usage_clock: UsageClock,
    pub last_idle_check: Instant,
    pub history: HistoryClock,
}

#[cfg(test)]
impl super::Controller {
    pub fn known_jobs(&self) -> impl Iterator<Item = &Job> {
        self.state.jobs.active.values().map(|active| &active.job)
    }

    /// The daemon's own MIG instances.
    pub fn instances(&self) -> &BTreeMap<MigSlot, crate::model::mig_instance::ManagedInstance> {
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
