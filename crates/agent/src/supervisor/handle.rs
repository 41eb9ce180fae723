//! A supervisor that this agent has started, until it has been waited for.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitStatus;

use crate::host::process::Process;
#[cfg(test)]
use crate::simulation;
use crate::supervisor::forkserver::ForkedSupervisor;

/// The process, as its parent has it.
#[derive(Debug)]
pub struct SupervisorHandle(HandleKind);

#[derive(Debug)]
enum HandleKind {
    Process(ForkedSupervisor),
    #[cfg(test)]
    Simulated(u32),
}

impl SupervisorHandle {
    /// Starts a supervisor for the job of a folder. It holds the lock from here on, and writes to the log what it has to say.
    ///
    /// # Errors
    /// Why the system could not; the lock is free again then.
    pub fn start(divvy: &Path, dir: &Path, lock: File, log: File) -> io::Result<Self> {
        #[cfg(test)]
        if let Some(pid) = simulation::kernel::supervise(dir, &lock) {
            return pid.map(|pid| Self(HandleKind::Simulated(pid)));
        }
        // Duplicates share the lock; ours closes at the end of this function, and the supervisor's holds it.
        let child = ForkedSupervisor::start(divvy, dir, &lock, &log)?;
        drop((lock, log));
        Ok(Self(HandleKind::Process(child)))
    }

    /// Its pid.
    pub fn id(&self) -> u32 {
        match &self.0 {
            HandleKind::Process(child) => child.process.pid,
            #[cfg(test)]
            HandleKind::Simulated(pid) => *pid,
        }
    }

    /// The process, also when it has ended and somebody else has its pid.
    pub fn process(&self) -> Option<Process> {
        match &self.0 {
            HandleKind::Process(child) => Some(child.process),
            #[cfg(test)]
            HandleKind::Simulated(pid) => Process::with_pid(*pid),
        }
    }

    /// How it ended, once it has.
    ///
    /// # Errors
    /// When it is not to be waited for.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match &mut self.0 {
            HandleKind::Process(child) => child.try_wait(),
            #[cfg(test)]
            HandleKind::Simulated(pid) => Ok(simulation::kernel::wait(*pid)),
        }
    }
}
