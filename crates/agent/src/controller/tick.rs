//! Tick: the periodic work of the controller.
//!
//! For most running jobs, inotify reports new records and a pidfd reports the supervisor's end. The tick checks such a
//! job too, but less often, because such reports are only hints.

use std::time::Duration;

use divvy_api::v1::Runner;
use divvy_core::JobState;
use divvy_core::job::StopReason;

use super::lifecycle::job_sync::CLIENT_START;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{
    cancel, client_tie, confirm, container_gc, idle, job_sync, offload, time_limits,
};
use crate::controller::mig::backoff;
use crate::controller::observe::{unjournaled, usage};
use crate::controller::service::{self, faults};
use crate::controller::state::State;
use crate::controller::{active_set, observe, sharing};
use crate::host::clock::Instant;
use crate::journal::StoreError;

/// How long a client of a pending job may be silent. Clients call each 20 s or less, so one call may be late; longer
/// would keep a place for a client that is gone.
const CLIENT_SILENCE: Duration = Duration::from_secs(30);

/// Checks active jobs, silent clients and ended supervisors, and tells each job's processes that the daemon lives.
pub(super) fn sweep(state: &mut State, fx: &mut Effects, io: &Io) -> Result<(), StoreError> {
    job_sync::reap_supervisors(&mut state.jobs, &mut state.children);
    backoff::expire_backoffs(&mut state.mig, fx);
    observe::check_driver_timeout(&mut state.jobs, &mut state.gpus, fx, io)?;
    service::expire(&mut state.gpus, fx, io)?;
    faults::start_probes(&mut state.gpus, fx);
    client_tie::cancel_without_client(state, fx, io)?;
    time_limits::enforce_time_limits(&mut state.jobs, fx, io)?;
    usage::flush_usage(&mut state.jobs, &mut state.timers, &state.gpus, io)?;
    idle::check_idle_jobs(state, fx, io)?;
    fx.replan |= sharing::refresh(&mut state.gpus, io);
    fx.replan |= std::mem::take(&mut state.queues.is_contended);
    offload::retry_memory_ops(&mut state.jobs, fx, io);
    container_gc::run_container_gc(&state.jobs, fx, io)?;
    unjournaled::check_unknown(state, fx, io)?;
    // A running job may have reached its minimum runtime, so that it can be preempted.
    fx.replan |= state
        .queues
        .replan_at
        .is_some_and(|at| at <= Instant::now());
    let paused = state.jobs.pauses.len();
    state.jobs.pauses.retain(|_, until| *until > Instant::now());
    fx.replan |= state.jobs.pauses.len() < paused;
    let mut silent = Vec::new();
    let mut unconfirmed = Vec::new();
    let mut to_sync = Vec::new();
    let mut overdue = Vec::new();
    let mut hung = Vec::new();
    for id in active_set::active_jobs(&mut state.jobs, io) {
        let Some(active) = state.jobs.active.get_mut(&id) else {
            continue;
        };
        // Jobs read the heartbeat. Written with each observation, it would tell them when the daemon has looked.
        if let Some(slice) = active.slice() {
            slice.heartbeat();
        }
        match &active.job.state {
            JobState::Queued if active.job.spec.runner == Runner::Client => {
                active.waiters.retain(|waiter| !waiter.reply.is_closed());
                if !active.waiters.is_empty() {
                    active.mark_client_seen();
                } else if active.client_silence() > CLIENT_SILENCE {
                    silent.push(id);
                }
            }
            JobState::Queued | JobState::Ended { .. } => {}
            JobState::Starting { .. } if active.job.awaits_confirmation() => {
                active.waiters.retain(|waiter| !waiter.reply.is_closed());
                if !active.waiters.is_empty() || !active.has_all_instances() {
                    active.mark_client_seen();
                } else if active.client_silence() > active.job.confirm_timeout() {
                    unconfirmed.push(id);
                }
            }
            JobState::Stopping { process, .. } => {
                to_sync.push(id);
                if process.is_none() && active.state_age() > io.config.grace {
                    hung.push(id);
                }
                // The supervisor had its time; it may be stopped itself.
                if active.state_age() > io.config.grace + CLIENT_START {
                    overdue.push(id);
                }
            }
            JobState::Running { .. } if !active.needs_check() => {}
            JobState::Starting { .. } | JobState::Running { .. } | JobState::Bound { .. } => {
                to_sync.push(id)
            }
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
    for id in to_sync {
        job_sync::sync_job(state, fx, io, id)?;
    }
    Ok(())
}
