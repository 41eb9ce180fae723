//! Idle jobs: jobs that hold GPUs but do not use them.
//!
//! Two sources show activity. The driver's samples show which job's kernels ran. The limiter alone sees launches, and
//! only while the daemon asks it to watch. So the daemon starts that watch once a job was idle for half of its idle
//! time. The job counts as idle after its whole idle time, if launches were watched for half of it. Time without
//! observation does not count: the daemon was stopped, or the machine slept. Neither source covers MIG instances, so no
//! idle rule applies to them.

use std::time::Duration;

use divvy_api::daemon::ParkWhen;
use divvy_api::v1::IdleAction;
use divvy_core::job::StopReason;
use divvy_core::{JobId, JobState};

use crate::controller::active_set;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{cancel, park_policy, pause};
use crate::controller::runtime::ActiveJob;
use crate::controller::state::usage::Woken;
use crate::controller::state::{State, TICK};
use crate::host::clock::Instant;
use crate::journal::StoreError;
use crate::model::cause::format_duration;
use crate::model::idle::{Rule, rule};
use crate::model::job::Job;

/// The longest gap between two ticks of a busy daemon. A longer gap is time without observation.
const LATE: Duration = TICK.saturating_mul(4);

/// A woken job that has launched nothing for so long was woken in vain (P2). The call that woke it comes first; a launch
/// follows within a second in a notebook, and half of this would be near the load of a busy host.
const IN_VAIN_AFTER: Duration = Duration::from_secs(5);

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
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    let State { jobs, timers, .. } = &mut *state;
    let mut due = Vec::new();
    let daemons = io.config.idle;
    let parks_at_once = io.config.park.when == ParkWhen::Idle;
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
        fx.replan |= check_wake(active, fx, io, id)?;
        let idle = active.activity.last_active.elapsed();
        let after = Duration::from_secs(idle_time(&active.job, rule));
        let closely = active.activity.launches_watched_since;
        // The choice of victims spares a job that was woken just now, and so does this.
        let stays = rule.action == IdleAction::Park && parks_at_once;
        let stays = stays && active.activity.woken.is_some();
        let was_watched = closely.is_some_and(|since| since.elapsed() >= after / 2);
        if idle >= after
            && !stays
            && was_watched
            && !active.activity.idle_reported
            && active.is_observable()
        {
            active.activity.idle_reported = true;
            due.push((id, rule));
        }
        let is_judged = active.activity.woken.is_none_or(|woken| woken.is_judged);
        let aside = &active.job.run_state.aside;
        let is_waking = aside.is_parked() && aside.memory.is_copying();
        let is_quiet = idle >= after / 2 || !is_judged;
        let wanted = is_waking || active.is_observable() && is_quiet;
        if closely.is_some() != wanted {
            fx.jobs.launch_watches.push((id, wanted));
            active.activity.launches_watched_since = wanted.then(Instant::now);
        }
    }
    for (id, rule) in due {
        apply_idle_rule(state, fx, io, id, rule)?;
    }
    Ok(())
}

/// How long a job may be idle before its rule applies, in seconds.
fn idle_time(job: &Job, rule: Rule) -> u64 {
    match rule.action {
        IdleAction::Park => job.run_state.park.idle_time(rule.after_s),
        IdleAction::Notify | IdleAction::Suspend | IdleAction::Cancel => rule.after_s,
    }
}

/// Decides what a wake was good for. True once the job has been awake for long enough to be parked again.
fn check_wake(
    active: &mut ActiveJob,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<bool, StoreError> {
    let Some(woken) = active.activity.woken else {
        return Ok(false);
    };
    if !woken.is_judged && woken.at.elapsed() >= IN_VAIN_AFTER {
        active.activity.woken = Some(Woken {
            is_judged: true,
            ..woken
        });
        // A launch may come before the report of the copy that lets it run.
        let last = io.sensors.last_demand(id);
        let launched = last.is_some_and(|last| last + woken.took >= woken.at);
        let has_worked = active.activity.last_active > woken.at;
        park_policy::judge_wake(active, fx, io, launched || has_worked)?;
    }
    let is_over = woken.is_judged && woken.at.elapsed() >= woken.stays;
    if is_over {
        active.activity.woken = None;
    }
    Ok(is_over)
}

fn apply_idle_rule(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    rule: Rule,
) -> Result<(), StoreError> {
    let Some(active) = state.jobs.active.get(&id) else {
        return Ok(());
    };
    let words = format!(
        "it did not use its GPUs for {}",
        format_duration(idle_time(&active.job, rule))
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
        IdleAction::Park => park_policy::on_idle(state, fx, io, id, &words),
        IdleAction::Suspend => {
            fx.record_event(
                io,
                Some(id),
                "idle",
                &format!("{words}; resume it: divvy resume {name}"),
            )?;
            pause::set_suspended(&mut state.jobs, fx, io, id, true)
        }
        IdleAction::Cancel => {
            cancel::stop_job(&mut state.jobs, fx, io, id, StopReason::Idle, words)
        }
    }
}
