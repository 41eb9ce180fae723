//! How long jobs have run, and the end of those whose time is over.
//!
//! Counted from the start of the program's process by the clock that counts since boot: neither a daemon that was not
//! there for a while nor a clock that was set changes anything.

use divvy_core::job::Stop;
use divvy_core::{Job as Life, JobId};

use super::Cycle;
use crate::job::Job;
use crate::process;
use crate::store::StoreError;

impl Job {
    /// How long its program has run, in whole seconds; nothing before it does.
    pub(super) fn ran_s(&self) -> u64 {
        let started = self.life.process().map(|process| process.start_time);
        started.map_or(0, process::seconds_since)
    }

    /// Its time is over.
    fn is_overdue(&self) -> bool {
        let limit = self.ask.terms.time_limit_s;
        matches!(self.life, Life::Running { .. })
            && limit.is_some_and(|limit| self.ran_s() >= limit)
    }
}

impl Cycle {
    pub(super) fn enforce_time_limits(&mut self) -> Result<(), StoreError> {
        let mut overdue: Vec<(JobId, u64)> = Vec::new();
        self.each_busy(|id, living| {
            if living.job.is_overdue() {
                overdue.push((id, living.job.ask.terms.time_limit_s.unwrap_or(0)));
            }
        });
        for (id, limit) in overdue {
            let words = format!("it has run for the {limit} s that it was given");
            self.stop_job(id, Stop::TimeLimit, &words)?;
        }
        Ok(())
    }
}
