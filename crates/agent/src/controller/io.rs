//! Handles to the machine: the journal, the observer of GPUs, the compute scheduler, checkpoints, and the disk.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::checkpoint::CheckpointOps;
use crate::compute::ComputeScheduler;
use crate::config::Config;
use crate::gpu::Observer;
use crate::gpu::mig::Workers;
use crate::gpu::probe::Prober;
use crate::history::History;
use crate::host::disk::Disk;
use crate::journal::Store;
use crate::journal::secrets::Secrets;
use crate::model::event::JobEvent;
use crate::registry::Registry;
use crate::supervisor::watch::Watch;

/// The controller's configuration and its handles. Handlers share it; each handle synchronises itself.
pub struct Io {
    pub config: Config,
    /// The journal.
    pub store: Store,
    /// The files with the secrets of jobs.
    pub secrets: Secrets,
    /// The disk of the journal, for its free space.
    pub disk: Disk,
    /// `None` where the kernel gives no inotify instance.
    pub watch: Option<Watch>,
    /// The stream of events for clients.
    pub events: broadcast::Sender<Arc<JobEvent>>,
    /// The thread that samples the driver and the ledgers.
    pub observer: Arc<Observer>,
    /// The thread that gives slices their turns on the GPUs.
    pub compute_scheduler: ComputeScheduler,
    /// Starts checkpoint operations.
    pub checkpoint_ops: CheckpointOps,
    /// Starts probes of GPUs with a fault.
    pub prober: Prober,
    /// The ring of past figures; `None` if none is kept.
    pub history: Option<Arc<History>>,
    /// The threads that carry out MIG commands.
    pub workers: Workers,
    /// What other daemons of the machine hold, and what this one tells them.
    pub registry: Registry,
}
