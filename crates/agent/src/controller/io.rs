//! What every handler may use: the configuration, the journal, the registry of allocations and the sensors.
//!
//! None of it changes the machine: the [actuators](super::actuators) do that.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use divvy_core::JobId;

use crate::compute::{ComputeScheduler, ComputeUsage};
use crate::config::Config;
use crate::gpu::energy::GpuEnergy;
use crate::gpu::{Observer, Power};
use crate::host::clock::Instant;
use crate::host::disk::{Disk, FreeSpace};
use crate::host::process::Process;
use crate::journal::Store;
use crate::journal::secrets::Secrets;
use crate::registry::Registry;

/// Handlers share it; each part synchronises itself.
pub struct Io {
    pub config: Config,
    /// The journal.
    pub store: Store,
    /// The files with the secrets of jobs. A job's secrets are there before the journal has the job.
    pub secrets: Secrets,
    /// What other daemons of the machine hold. They learn of a grant before the journal has it.
    pub registry: Registry,
    pub sensors: Sensors,
}

/// Readings of the machine.
pub struct Sensors {
    observer: Arc<Observer>,
    compute_scheduler: Arc<ComputeScheduler>,
    /// The disk of the journal.
    disk: Disk,
}

impl Sensors {
    pub fn new(
        observer: Arc<Observer>,
        compute_scheduler: Arc<ComputeScheduler>,
        disk: Disk,
    ) -> Self {
        Self {
            observer,
            compute_scheduler,
            disk,
        }
    }

    pub fn free_space(&self) -> io::Result<FreeSpace> {
        self.disk.free_space()
    }

    pub fn job_of(&self, process: Process) -> Option<JobId> {
        self.observer.job_of(process)
    }

    pub fn last_demand(&self, job: JobId) -> Option<Instant> {
        self.compute_scheduler.last_demand(job)
    }

    pub fn power(&self) -> BTreeMap<u32, Power> {
        self.observer.power()
    }

    pub fn energy(&self) -> Vec<GpuEnergy> {
        self.observer.energy()
    }

    pub fn is_unresponsive(&self) -> bool {
        self.observer.is_unresponsive()
    }

    pub fn unresponsive_for(&self) -> Option<Duration> {
        self.observer.unresponsive_for()
    }

    pub fn usage(&self, job: JobId) -> Option<ComputeUsage> {
        self.compute_scheduler.usage(job)
    }
}
