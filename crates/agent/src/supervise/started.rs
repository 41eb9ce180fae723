//! A supervisor that this agent has started, until it has been waited for.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitStatus;

use crate::nursery::Fledgling;
use crate::process::Process;
#[cfg(test)]
use crate::simulation;

/// The process, as its parent has it.
#[derive(Debug)]
pub struct Started(Kind);

#[derive(Debug)]
enum Kind {
    Process(Fledgling),
    #[cfg(test)]
    Simulated(u32),
}

impl Started {
    /// Starts a supervisor for the job of a folder. It holds the lock from here on, and writes to the log what it has to say.
    ///
    /// # Errors
    /// Why the system could not; the lock is free again then.
    pub fn start(divvy: &Path, dir: &Path, lock: File, log: File) -> io::Result<Self> {
        #[cfg(test)]
        if let Some(pid) = simulation::kernel::supervise(dir, &lock) {
            return pid.map(|pid| Self(Kind::Simulated(pid)));
        }
        // Duplicates share the lock; ours closes at the end of this function, and the supervisor's holds it.
        let child = Fledgling::start(divvy, dir, &lock, &log)?;
        drop((lock, log));
        Ok(Self(Kind::Process(child)))
    }

    /// Its pid.
    pub fn id(&self) -> u32 {
        match &self.0 {
            Kind::Process(child) => child.process.pid,
            #[cfg(test)]
            Kind::Simulated(pid) => *pid,
        }
    }

    /// The process, also when it has ended and somebody else has its pid.
    pub fn process(&self) -> Option<Process> {
        match &self.0 {
            Kind::Process(child) => Some(child.process),
            #[cfg(test)]
            Kind::Simulated(pid) => Process::with_pid(*pid),
        }
    }

    /// How it ended, once it has.
    ///
    /// # Errors
    /// When it is not to be waited for.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match &mut self.0 {
            Kind::Process(child) => child.try_wait(),
            #[cfg(test)]
            Kind::Simulated(pid) => Ok(simulation::kernel::wait(*pid)),
        }
    }
}
