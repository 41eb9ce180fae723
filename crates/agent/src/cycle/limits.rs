//! How long jobs have run, and the end of those whose time is over.
//!
//! Counted from the start of the program's process by the clock that counts since boot: neither a daemon that was not
//! there for a while nor a clock that was set changes anything.

use std::collections::BTreeMap;

use divvy_core::forecast::starts_in;
use divvy_core::job::Stop;
use divvy_core::{Job as Life, JobId, Snapshot};
use jiff::{SignedDuration, Timestamp};

use super::Cycle;
use crate::clock::now;
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
    /// When a waiting job of this snapshot starts at the latest, if nobody else comes: everybody before it runs for as long
    /// as it may. `None` where somebody's time has no limit.
    pub(super) fn expected_start(&self, snapshot: &Snapshot, id: JobId) -> Option<Timestamp> {
        let left = |job: &Job| {
            job.ask
                .terms
                .time_limit_s
                .map(|limit| limit.saturating_sub(job.ran_s()))
        };
        let left: BTreeMap<JobId, u64> = self
            .jobs
            .values()
            .filter_map(|living| Some((living.job.id, left(&living.job)?)))
            .collect();
        let seconds = i64::try_from(starts_in(snapshot, id, &left)?).ok()?;
        now().checked_add(SignedDuration::from_secs(seconds)).ok()
    }

    pub(super) fn enforce_time_limits(&mut self) -> Result<(), StoreError> {
        let overdue: Vec<(JobId, u64)> = self
            .jobs
            .values()
            .filter(|living| living.job.is_overdue())
            .map(|living| {
                (
                    living.job.id,
                    living.job.ask.terms.time_limit_s.unwrap_or(0),
                )
            })
            .collect();
        for (id, limit) in overdue {
            let words = format!("it has run for the {limit} s that it was given");
            self.stop_job(id, Stop::TimeLimit, &words)?;
        }
        Ok(())
    }
}
