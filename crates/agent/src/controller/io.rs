//! Handles to the machine: the journal, the observer of GPUs, the compute scheduler, checkpoints, and the disk.

use std::sync::Arc;

use divvy_api::v1::Event;
use tokio::sync::broadcast;

use crate::checkpoint::CheckpointOps;
use crate::compute::ComputeScheduler;
use crate::config::Config;
use crate::gpu::Observer;
use crate::host::disk::Disk;
use crate::journal::Store;
use crate::journal::secrets::Secrets;
use crate::supervisor::watch::Watch;

/// The controller's configuration and its handles. Handlers share it; each handle synchronises itself.
pub struct Io {
    pub config: Config,
    pub store: Store,
    pub secrets: Secrets,
    pub disk: Disk,
    /// `None` where the kernel gives no inotify instance.
    pub watch: Option<Watch>,
    /// The stream of events for clients.
    pub events: broadcast::Sender<Event>,
    pub observer: Arc<Observer>,
    pub compute_scheduler: ComputeScheduler,
    pub checkpoint_ops: CheckpointOps,
}
