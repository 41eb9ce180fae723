//! Time limits: how long jobs have run, and the end of jobs that reach their limit.
//!
//! The time counts from the start of the program's process, by the clock since boot. So neither a daemon's downtime nor
//! a changed wall clock matters. All rounding makes a run shorter, so no job ends early.

use std::time::Duration;

use divvy_core::job::StopReason;
use divvy_core::{JobId, JobState};

use crate::controller::active_set;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::cancel;
use crate::controller::state::Jobs;
use crate::host::clock::boot_ns;
use crate::host::process;
use crate::journal::StoreError;
use crate::model::cause::format_duration;
use crate::model::job::Job;

impl Job {
    /// How long its program has run, in whole seconds; 0 before its start.
    pub(in crate::controller) fn ran_s(&self) -> u64 {
        // The clock is a call of the kernel, and most jobs of a long queue have no process.
        self.state
            .process()
            .map_or(0, |_| self.ran(boot_ns()).as_secs())
    }

    /// The minimum age of its process, at this time of CLOCK_BOOTTIME (nanoseconds).
    fn ran(&self, now_ns: u64) -> Duration {
        let started = self.state.process().map(|process| process.start_time);
        started.map_or(Duration::ZERO, |start_time| {
            process::age(start_time, now_ns)
        })
    }

    /// The time limit in seconds, if its process has reached it.
    fn limit_reached(&self, now_ns: u64) -> Option<u64> {
        let limit = self.spec.policy.time_limit_s?;
        let is_over = matches!(self.state, JobState::Running { .. })
            && self.ran(now_ns) >= Duration::from_secs(limit);
        is_over.then_some(limit)
    }
}

pub(in crate::controller) fn enforce_time_limits(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    let now_ns = boot_ns();
    let mut overdue: Vec<(JobId, u64)> = Vec::new();
    active_set::for_each_active(jobs, io, |id, active| {
        if let Some(limit) = active.job.limit_reached(now_ns) {
            overdue.push((id, limit));
        }
    });
    for (id, limit) in overdue {
        // The process exists before the program runs in it: on a busy machine the supervisor takes a while in between.
        let started = jobs.dir(&io.config.home, id).started().ok().flatten();
        let started_ns = started.and_then(|begun| begun.boot_ns).unwrap_or(0);
        if Duration::from_nanos(now_ns.saturating_sub(started_ns)) < Duration::from_secs(limit) {
            continue;
        }
        let cause = format!("its time limit of {} was reached", format_duration(limit));
        cancel::stop_job(jobs, fx, io, id, StopReason::TimeLimit, cause)?;
    }
    Ok(())
}
