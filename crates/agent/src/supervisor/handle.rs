//! The handle of a supervisor that this daemon has started, until it is reaped, and the launcher that starts it.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::OnceLock;

use crate::host::process::Process;
use crate::supervisor::forkserver::ForkedSupervisor;

/// Starts supervisors.
pub trait SupervisorLauncher: Sync {
    /// Starts a supervisor for the job of a folder. It holds the lock from here on, and writes its messages to the log.
    ///
    /// # Errors
    /// Why the system could not; the lock is free again then.
    fn start(
        &self,
        divvy: &Path,
        dir: &Path,
        lock: File,
        log: File,
    ) -> io::Result<SupervisorHandle>;
}

/// A supervisor, as its parent has it.
pub trait SupervisorProcess: Debug + Send {
    /// Its pid.
    fn id(&self) -> u32;

    /// The process, also when it has ended and another has its pid.
    fn process(&self) -> Option<Process>;

    /// How it ended, once it has.
    ///
    /// # Errors
    /// When it is not to be waited for.
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>>;
}

/// The launcher that tests have installed.
pub static INSTALLED: OnceLock<&'static dyn SupervisorLauncher> = OnceLock::new();

/// Starts supervisors through the fork server.
#[derive(Debug)]
pub struct ForkServerLauncher;

impl SupervisorLauncher for ForkServerLauncher {
    fn start(
        &self,
        divvy: &Path,
        dir: &Path,
        lock: File,
        log: File,
    ) -> io::Result<SupervisorHandle> {
        // Duplicates share the lock; ours closes at the end of this function, and the supervisor's holds it.
        let child = ForkedSupervisor::start(divvy, dir, &lock, &log)?;
        drop((lock, log));
        Ok(SupervisorHandle::new(child))
    }
}

impl SupervisorProcess for ForkedSupervisor {
    fn id(&self) -> u32 {
        self.process.pid
    }

    fn process(&self) -> Option<Process> {
        Some(self.process)
    }

    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        ForkedSupervisor::try_wait(self)
    }
}

/// A supervisor that was started.
#[derive(Debug)]
pub struct SupervisorHandle(Box<dyn SupervisorProcess>);

impl SupervisorHandle {
    pub fn new(child: impl SupervisorProcess + 'static) -> Self {
        Self(Box::new(child))
    }

    /// Starts a supervisor for the job of a folder, as [`SupervisorLauncher::start`].
    ///
    /// # Errors
    /// As [`SupervisorLauncher::start`].
    pub fn start(divvy: &Path, dir: &Path, lock: File, log: File) -> io::Result<Self> {
        let launcher = INSTALLED.get().copied().unwrap_or(&ForkServerLauncher);
        launcher.start(divvy, dir, lock, log)
    }

    /// As [`SupervisorProcess::id`].
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// As [`SupervisorProcess::process`].
    pub fn process(&self) -> Option<Process> {
        self.0.process()
    }

    /// As [`SupervisorProcess::try_wait`].
    ///
    /// # Errors
    /// As [`SupervisorProcess::try_wait`].
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }
}
