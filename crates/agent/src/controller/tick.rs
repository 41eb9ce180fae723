//! What is done every tick, whatever has happened or not.
//!
//! A running job whose record is watched and whose supervisor's end is told needs no look to be seen to end: it is looked at now and then all
//! the same, as what is told is no more than a hint.

use std::time::Duration;

use divvy_api::v1::Runner;
use divvy_core::JobState as Life;
use divvy_core::job::StopReason;

use super::lifecycle::job_sync::CLIENT_START;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{cancel, confirm, container, idle, offload, time_limits};
use crate::controller::mig::backoff;
use crate::controller::observe::{unjournaled, usage};
use crate::controller::state::State;
use crate::controller::{active_set, observe};
use crate::host::clock::Instant;
use crate::journal::StoreError;

/// How long a client may be silent while its job waits.
const CLIENT_SILENCE: Duration = Duration::from_secs(30);

/// Between two looks at a job of which it would be told that something has happened.
pub(super) const ATTENDED: Duration = Duration::from_secs(2);

/// Looks at every active job, at silent clients, at supervisors that have ended.
pub(super) fn sweep(state: &mut State, fx: &mut Effects, io: &Io) -> Result<(), StoreError> {
    crate::controller::lifecycle::job_sync::reap_supervisors(&mut state.jobs, &mut state.children);
    backoff::expire_backoffs(&mut state.mig, fx);
    observe::check_driver_timeout(&mut state.jobs, &mut state.gpus, fx, io)?;
    time_limits::enforce_time_limits(&mut state.jobs, fx, io)?;
    usage::flush_usage(&mut state.jobs, &mut state.timers, io)?;
    idle::check_idle_jobs(&mut state.jobs, &mut state.timers, fx, io)?;
    offload::retry_memory_ops(&mut state.jobs, fx, io);
    container::run_container_gc(&state.jobs, fx, io)?;
    unjournaled::check_unknown(state, fx, io)?;
    // Somebody has run for its minimum by now.
    fx.replan |= state
        .queues
        .replan_at
        .is_some_and(|at| at <= Instant::now());
    let mut silent = Vec::new();
    let mut unconfirmed = Vec::new();
    let mut active = Vec::new();
    let mut overdue = Vec::new();
    let mut hung = Vec::new();
    for id in active_set::active_jobs(&mut state.jobs, io) {
        let Some(living) = state.jobs.active.get_mut(&id) else {
            continue;
        };
        match &living.job.state {
            Life::Queued if living.job.spec.runner == Runner::Client => {
                living.waiters.retain(|waiter| !waiter.reply.is_closed());
                if !living.waiters.is_empty() {
                    living.client_seen = Instant::now();
                } else if living.client_seen.elapsed() > CLIENT_SILENCE {
                    silent.push(id);
                }
            }
            Life::Queued | Life::Ended { .. } => {}
            Life::Starting { .. } if living.job.awaits_confirmation() => {
                living.waiters.retain(|waiter| !waiter.reply.is_closed());
                if !living.waiters.is_empty() || !living.pending_instances.is_empty() {
                    living.client_seen = Instant::now();
                } else if living.client_seen.elapsed() > living.job.confirm_timeout() {
                    unconfirmed.push(id);
                }
            }
            Life::Stopping { process, .. } => {
                active.push(id);
                if process.is_none() && living.since.elapsed() > io.config.grace {
                    hung.push(id);
                }
                // The supervisor has had its time; perhaps it is stopped itself.
                if living.since.elapsed() > io.config.grace + CLIENT_START {
                    overdue.push(id);
                }
            }
            Life::Running { .. } if !living.needs_check() => {}
            Life::Starting { .. } | Life::Running { .. } | Life::Lent { .. } => active.push(id),
        }
    }
    for id in silent {
        cancel::stop_job(
            &mut state.jobs,
            fx,
            io,
            id,
            StopReason::Cancel,
            "its client has been silent for 30 s",
        )?;
    }
    for id in unconfirmed {
        confirm::expire_confirmation(&mut state.jobs, &mut state.mig, fx, io, id)?;
    }
    for id in overdue {
        cancel::kill(&state.jobs, io, id);
    }
    for id in hung {
        cancel::kill_unstarted(&state.jobs, io, id);
    }
    for id in active {
        crate::controller::lifecycle::job_sync::sync_job(state, fx, io, id)?;
    }
    Ok(())
}
