//! The simulated machine behind the seams of the daemon. A thread without a simulation gets the real machine.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use divvy_core::JobId;
use jiff::Timestamp;
use rustix::process::Signal;

use super::{checkpoints, clock, daemon, engine, gates, kernel, slices, wanted, watch};
use crate::compute::{ComputeUsage, Scheduler, SchedulerCommand};
use crate::container::engine::{Engine, LocalEngine, NoEngine};
use crate::container::gc::ContainerGc;
use crate::host::clock::Instant as Moment;
use crate::host::disk::FreeSpace;
use crate::host::machine::{Linux, Machine};
use crate::host::process::Process;
use crate::supervisor::handle::{
    ForkServerLauncher, SupervisorHandle, SupervisorLauncher, SupervisorProcess,
};

/// Puts the simulated machine into the seams of this process.
pub fn install() {
    // Every simulation installs the same.
    let _ = crate::host::machine::INSTALLED.set(&Simulated);
    let _ = crate::container::engine::INSTALLED.set(&Simulated);
    let _ = crate::supervisor::handle::INSTALLED.set(&Simulated);
}

struct Simulated;

impl Machine for Simulated {
    fn monotonic(&self) -> Instant {
        clock::monotonic().unwrap_or_else(|| Linux.monotonic())
    }

    fn wall(&self) -> Timestamp {
        clock::wall().unwrap_or_else(|| Linux.wall())
    }

    fn boot_ns(&self) -> u64 {
        match clock::boot() {
            Some(boot) => u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX),
            None => Linux.boot_ns(),
        }
    }

    /// In a simulation no time passes, but an operation lets others go on.
    fn sleep(&self, time: Duration) {
        if !checkpoints::pause() && clock::boot().is_none() {
            Linux.sleep(time);
        }
    }

    fn proc(&self) -> PathBuf {
        kernel::proc().unwrap_or_else(|| Linux.proc())
    }

    fn signal(&self, to: Process, signal: Signal) -> io::Result<()> {
        kernel::signal(to, signal).unwrap_or_else(|| Linux.signal(to, signal))
    }

    fn free_space(&self, folder: &Path, is_root: bool) -> io::Result<FreeSpace> {
        daemon::room().map_or_else(|| Linux.free_space(folder, is_root), Ok)
    }

    fn cgroup_id(&self, folder: &Path) -> io::Result<Option<u64>> {
        slices::cgroup_id(folder).unwrap_or_else(|| Linux.cgroup_id(folder))
    }

    fn reach(&self, point: &str) {
        if !checkpoints::pause() {
            daemon::reach(point);
        }
    }

    fn write(&self) -> io::Result<()> {
        daemon::write()
    }
}

impl Engine for Simulated {
    fn socket(&self) -> Result<PathBuf, NoEngine> {
        engine::socket().map_or_else(|| LocalEngine.socket(), Ok)
    }

    fn collect(&self, socket: PathBuf, instance: String, gc: ContainerGc) -> io::Result<()> {
        match engine::is_swept(&gc) {
            true => Ok(()),
            false => LocalEngine.collect(socket, instance, gc),
        }
    }
}

impl SupervisorLauncher for Simulated {
    fn start(
        &self,
        divvy: &Path,
        dir: &Path,
        lock: File,
        log: File,
    ) -> io::Result<SupervisorHandle> {
        match kernel::supervise(dir, &lock) {
            Some(pid) => pid.map(|pid| SupervisorHandle::new(SimulatedChild(pid))),
            None => ForkServerLauncher.start(divvy, dir, lock, log),
        }
    }
}

#[derive(Debug)]
struct SimulatedChild(u32);

impl SupervisorProcess for SimulatedChild {
    fn id(&self) -> u32 {
        self.0
    }

    fn process(&self) -> Option<Process> {
        Process::with_pid(self.0)
    }

    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        Ok(kernel::wait(self.0))
    }
}

/// A compute scheduler without turns: it notes the jobs with watched launches, and has the gates of parked ones.
pub struct NoTurns;

impl Scheduler for NoTurns {
    fn send(&self, command: SchedulerCommand) {
        match command {
            SchedulerCommand::Watch { job, .. } => watch(job, true),
            SchedulerCommand::Unwatch { job, .. } => watch(job, false),
            SchedulerCommand::Park { job, folder } => gates::begin(job, &folder),
            SchedulerCommand::AddSlice { job, .. } | SchedulerCommand::RemoveSlice { job } => {
                gates::end(job);
            }
            SchedulerCommand::Utilization(_) => {}
        }
    }

    fn last_demand(&self, job: JobId) -> Option<Moment> {
        wanted(job)
    }

    fn usage(&self, _: JobId) -> Option<ComputeUsage> {
        None
    }
}
