//! Idle jobs: jobs that hold GPUs but do not use them.
//!
//! Two sources show activity. The driver's samples show which job's kernels ran. The limiter alone sees launches, and
//! only while the daemon asks it to watch. So the daemon starts that watch once a job was idle for half of its idle
//! time. The job counts as idle after its whole idle time, if launches were watched for half of it. Time without
//! observation does not count: the daemon was stopped, or the machine slept. Neither source covers MIG instances, so no
//! idle rule applies to them.

use std::time::Duration;

use divvy_api::v1::IdleAction;
use divvy_core::job::StopReason;
use divvy_core::{JobId, JobState};

use crate::controller::active_set;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{cancel, pause};
use crate::controller::runtime::ActiveJob;
use crate::controller::state::{Jobs, TICK, Timers};
use crate::host::clock::Instant;
use crate::journal::StoreError;
use crate::model::cause::format_duration;
use crate::model::idle::{Rule, rule};
use crate::model::job::Job;

/// The longest gap between two ticks of a busy daemon. A longer gap is time without observation.
const LATE: Duration = TICK.saturating_mul(4);

impl ActiveJob {
    /// The job runs, and its activity can be observed.
    fn is_observable(&self) -> bool {
        matches!(self.job.state, JobState::Running { .. })
            && !self.job.run_state.suspended
            && !self.job.run_state.aside.is_parked()
            && self.slice().is_some()
    }

    /// How long the job has been idle, as far as this daemon has observed.
    pub(in crate::controller) fn idle_for(&self) -> Option<Duration> {
        self.is_observable()
            .then(|| self.activity.last_active.elapsed())
    }
}

/// The idle rule that applies to a job.
pub(in crate::controller) fn idle_rule(io: &Io, job: &Job) -> Option<Rule> {
    rule(job.spec.policy.idle, io.config.idle)
}

/// Applies the idle rules at a tick.
pub(in crate::controller) fn check_idle_jobs(
    jobs: &mut Jobs,
    timers: &mut Timers,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    let mut due = Vec::new();
    let daemons = io.config.idle;
    let before = std::mem::replace(&mut timers.last_idle_check, Instant::now());
    let missed = before.elapsed().saturating_sub(LATE);
    for id in active_set::active_jobs(jobs, io) {
        let Some(active) = jobs.active.get_mut(&id) else {
            continue;
        };
        let Some(rule) = rule(active.job.spec.policy.idle, daemons) else {
            continue;
        };
        active.activity.skip_unobserved(missed);
        if !active.is_observable() {
            // The job waits, starts or is suspended: its idle time begins with its next run.
            active.activity.mark_active(Instant::now());
        }
        if let Some(at) = io.sensors.last_demand(id) {
            active.activity.mark_active(at);
        }
        let idle = active.activity.last_active.elapsed();
        let after = Duration::from_secs(rule.after_s);
        let closely = active.activity.launches_watched_since;
        let was_watched = closely.is_some_and(|since| since.elapsed() >= after / 2);
        if idle >= after && was_watched && !active.activity.idle_reported && active.is_observable()
        {
            active.activity.idle_reported = true;
            due.push((id, rule));
        }
        let wanted = active.is_observable() && idle >= after / 2;
        if closely.is_some() != wanted {
            fx.jobs.launch_watches.push((id, wanted));
            active.activity.launches_watched_since = wanted.then(Instant::now);
        }
    }
    for (id, rule) in due {
        apply_idle_rule(jobs, fx, io, id, rule)?;
    }
    Ok(())
}

fn apply_idle_rule(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    rule: Rule,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get(&id) else {
        return Ok(());
    };
    let words = format!(
        "it did not use its GPUs for {}",
        format_duration(rule.after_s)
    );
    // Divvy cannot suspend a container: its engine pauses it.
    let action = match rule.action {
        IdleAction::Suspend if active.job.spec.container.is_some() => IdleAction::Notify,
        action => action,
    };
    tracing::info!(job = %id, ?action, "{words}");
    let name = active.job.reference();
    match action {
        IdleAction::Notify => fx.record_event(io, Some(id), "idle", &words),
        IdleAction::Suspend => {
            fx.record_event(
                io,
                Some(id),
                "idle",
                &format!("{words}; resume it: divvy resume {name}"),
            )?;
            pause::set_suspended(jobs, fx, io, id, true)
        }
        IdleAction::Cancel => cancel::stop_job(jobs, fx, io, id, StopReason::Idle, words),
    }
}
