//! Jobs that hold GPUs and do nothing with them.
//!
//! Who does something is known from two sides. The driver's samples say whose kernels ran. A launch itself is seen only by the
//! limiter, and only while it is told to look: so a job that has done nothing for half of its time is looked at more closely
//! from then on, and is idle when it was for as long. Time in which nobody looked, as the agent was stopped or the machine
//! slept, counts for nothing. What is in a MIG instance is seen by neither, and nothing is done about it.

use std::time::Duration;

use divvy_api::v1::IdleAction;
use divvy_core::job::Stop;
use divvy_core::{Job as Life, JobId};

use super::{Cycle, Living, TICK};
use crate::cause::length;
use crate::clock::Instant;
use crate::idle::{Rule, rule};
use crate::job::Job;
use crate::store::StoreError;

/// What passes between two looks of an agent that has much to do: longer than that, nobody looked.
const LATE: Duration = TICK.saturating_mul(4);

impl Living {
    /// It runs, and whether it does anything can be seen.
    fn is_seen(&self) -> bool {
        matches!(self.job.life, Life::Running { .. })
            && !self.job.course.suspended
            && self.slice.is_some()
    }

    /// For how long it has done nothing, as far as this agent has seen.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        self.is_seen().then(|| self.work.last.elapsed())
    }
}

impl Cycle {
    /// The rule that a job is under.
    pub(super) fn idle_rule(&self, job: &Job) -> Option<Rule> {
        rule(job.ask.terms.idle, self.config.idle)
    }

    /// What the tick does about it.
    pub(super) fn look_for_idle(&mut self) -> Result<(), StoreError> {
        let mut due = Vec::new();
        let daemons = self.config.idle;
        let before = std::mem::replace(&mut self.idle_looked, Instant::now());
        let missed = before.elapsed().saturating_sub(LATE);
        for id in self.busy() {
            let Some(living) = self.jobs.get_mut(&id) else {
                continue;
            };
            let Some(rule) = rule(living.job.ask.terms.idle, daemons) else {
                continue;
            };
            living.work.skips(missed);
            if !living.is_seen() {
                // It waits, is being started, or is suspended: its time begins with its next run.
                living.work.wants(Instant::now());
            }
            if let Some(at) = self.keeper.wanted(id) {
                living.work.wants(at);
            }
            let idle = living.work.last.elapsed();
            let after = Duration::from_secs(rule.after_s);
            let closely = living.work.closely;
            let was_watched = closely.is_some_and(|since| since.elapsed() >= after / 2);
            if idle >= after && was_watched && !living.work.told && living.is_seen() {
                living.work.told = true;
                due.push((id, rule));
            }
            let wanted = living.is_seen() && idle >= after / 2;
            if closely.is_some() != wanted {
                let folder = self.config.home.slice(&id.to_string());
                match wanted {
                    true => self.keeper.watch(id, &folder),
                    false => self.keeper.unwatch(id, &folder),
                }
                living.work.closely = wanted.then(Instant::now);
            }
        }
        for (id, rule) in due {
            self.is_idle(id, rule)?;
        }
        Ok(())
    }

    /// Its slice is going away.
    pub(super) fn watch_no_more(&mut self, id: JobId) {
        if let Some(living) = self.jobs.get_mut(&id)
            && living.work.closely.take().is_some()
        {
            let folder = self.config.home.slice(&id.to_string());
            self.keeper.unwatch(id, &folder);
        }
    }

    fn is_idle(&mut self, id: JobId, rule: Rule) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let words = format!("it did not use its GPUs for {}", length(rule.after_s));
        // The engine pauses containers, not we.
        let action = match rule.action {
            IdleAction::Suspend if living.job.ask.container.is_some() => IdleAction::Notify,
            action => action,
        };
        tracing::info!(job = %id, ?action, "{words}");
        let name = living.job.reference();
        match action {
            IdleAction::Notify => self.tell(Some(id), "idle", &words),
            IdleAction::Suspend => {
                self.tell(
                    Some(id),
                    "idle",
                    &format!("{words}; resume it: divvy resume {name}"),
                )?;
                self.set_suspended(id, true)
            }
            IdleAction::Cancel => self.stop_job(id, Stop::Idle, words),
        }
    }
}
