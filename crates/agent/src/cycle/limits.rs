//! How long jobs have run, and the end of those whose time is over.
//!
//! Counted from the start of the program's process by the clock that counts since boot: neither a daemon that was not
//! there for a while nor a clock that was set changes anything. Every rounding makes a run shorter, so no job ends early.

use std::time::Duration;

use divvy_core::job::Stop;
use divvy_core::{Job as Life, JobId};

use super::Cycle;
use crate::cause::length;
use crate::clock::boot_ns;
use crate::job::Job;
use crate::process;
use crate::store::StoreError;

impl Job {
    /// How long its program has run, in whole seconds; nothing before it does.
    pub(super) fn ran_s(&self) -> u64 {
        self.ran(boot_ns()).as_secs()
    }

    /// How long its process has been there at least, at this moment of CLOCK_BOOTTIME (nanoseconds).
    fn ran(&self, now_ns: u64) -> Duration {
        let started = self.life.process().map(|process| process.start_time);
        started.map_or(Duration::ZERO, |start_time| {
            process::age(start_time, now_ns)
        })
    }

    /// The limit, in seconds, that its process has reached.
    fn limit_reached(&self, now_ns: u64) -> Option<u64> {
        let limit = self.ask.terms.time_limit_s?;
        let is_over = matches!(self.life, Life::Running { .. })
            && self.ran(now_ns) >= Duration::from_secs(limit);
        is_over.then_some(limit)
    }
}

impl Cycle {
    pub(super) fn enforce_time_limits(&mut self) -> Result<(), StoreError> {
        let now_ns = boot_ns();
        let mut overdue: Vec<(JobId, u64)> = Vec::new();
        self.each_busy(|id, living| {
            if let Some(limit) = living.job.limit_reached(now_ns) {
                overdue.push((id, limit));
            }
        });
        for (id, limit) in overdue {
            // The process is there before its program is: a supervisor on a busy machine takes its time in between.
            let started = self.job_dir(id).started().ok().flatten();
            let started_ns = started.and_then(|begun| begun.boot_ns).unwrap_or(0);
            if Duration::from_nanos(now_ns.saturating_sub(started_ns)) < Duration::from_secs(limit)
            {
                continue;
            }
            let cause = format!("its time limit of {} was reached", length(limit));
            self.stop_job(id, Stop::TimeLimit, cause)?;
        }
        Ok(())
    }
}
