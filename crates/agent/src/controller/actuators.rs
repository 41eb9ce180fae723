//! Actuators: the handles that change the machine. [`apply`](super::apply) and [`startup`](super::startup) alone get
//! them; a handler leaves such work in [`Effects`](super::Effects).

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::checkpoint::CheckpointOps;
use crate::compute::ComputeScheduler;
use crate::gpu::Observer;
use crate::gpu::mig::Workers;
use crate::gpu::probe::Prober;
use crate::history::History;
use crate::model::event::JobEvent;
use crate::supervisor::watch::Watch;

/// Each handle synchronises itself.
pub struct Actuators {
    /// `None` where the kernel gives no inotify instance.
    pub watch: Option<Watch>,
    /// The stream of events for clients.
    pub events: broadcast::Sender<Arc<JobEvent>>,
    /// The thread that samples the driver and the ledgers.
    pub observer: Arc<Observer>,
    /// The thread that gives slices their turns on the GPUs.
    pub compute_scheduler: Arc<ComputeScheduler>,
    /// Starts checkpoint operations.
    pub checkpoint_ops: CheckpointOps,
    /// Starts probes of GPUs with a fault.
    pub prober: Prober,
    /// The ring of past figures; `None` if none is kept.
    pub history: Option<Arc<History>>,
    /// The threads that carry out MIG commands.
    pub workers: Workers,
}
