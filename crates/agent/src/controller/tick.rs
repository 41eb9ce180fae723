//! What is done every tick, whatever has happened or not.
//!
//! A running job whose record is watched and whose supervisor's end is told needs no look to be seen to end: it is looked at now and then all
//! the same, as what is told is no more than a hint.

use std::time::Duration;

use divvy_api::v1::Runner;
use divvy_core::JobState as Life;
use divvy_core::job::StopReason;

use super::Controller;
use super::lifecycle::job_sync::CLIENT_START;
use crate::host::clock::Instant;
use crate::journal::StoreError;

/// How long a client may be silent while its job waits.
const CLIENT_SILENCE: Duration = Duration::from_secs(30);

/// Between two looks at a job of which it would be told that something has happened.
pub(super) const ATTENDED: Duration = Duration::from_secs(2);

impl Controller {
    /// Looks at every active job, at silent clients, at supervisors that have ended.
    pub(super) fn sweep(&mut self) -> Result<(), StoreError> {
        self.reap_supervisors();
        self.expire_backoffs();
        self.check_driver_timeout()?;
        self.enforce_time_limits()?;
        self.flush_usage()?;
        self.check_idle_jobs()?;
        self.retry_memory_ops();
        self.run_container_gc()?;
        self.check_unknown()?;
        // Somebody has run for its minimum by now.
        self.effects.replan |= self.replan_at.is_some_and(|at| at <= Instant::now());
        let mut silent = Vec::new();
        let mut unconfirmed = Vec::new();
        let mut active = Vec::new();
        let mut overdue = Vec::new();
        let mut hung = Vec::new();
        for id in self.active_jobs() {
            let Some(living) = self.jobs.get_mut(&id) else {
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
                    if process.is_none() && living.since.elapsed() > self.config.grace {
                        hung.push(id);
                    }
                    // The supervisor has had its time; perhaps it is stopped itself.
                    if living.since.elapsed() > self.config.grace + CLIENT_START {
                        overdue.push(id);
                    }
                }
                Life::Running { .. } if !living.needs_check() => {}
                Life::Starting { .. } | Life::Running { .. } | Life::Lent { .. } => active.push(id),
            }
        }
        for id in silent {
            self.stop_job(
                id,
                StopReason::Cancel,
                "its client has been silent for 30 s",
            )?;
        }
        for id in unconfirmed {
            self.expire_confirmation(id)?;
        }
        for id in overdue {
            self.kill(id);
        }
        for id in hung {
            self.kill_unstarted(id);
        }
        for id in active {
            self.sync_job(id)?;
        }
        Ok(())
    }
}
