//! What is done every tick, whatever has happened or not.
//!
//! A running job whose record is watched and whose supervisor's end is told needs no look to be seen to end: it is looked at now and then all
//! the same, as what is told is no more than a hint.

use std::time::Duration;

use divvy_api::v1::Runner;
use divvy_core::Job as Life;
use divvy_core::job::Stop;

use super::Cycle;
use super::follow::CLIENT_START;
use crate::clock::Instant;
use crate::store::StoreError;

/// How long a client may be silent while its job waits.
const CLIENT_SILENCE: Duration = Duration::from_secs(30);

/// Between two looks at a job of which it would be told that something has happened.
pub(super) const ATTENDED: Duration = Duration::from_secs(2);

impl Cycle {
    /// Looks at every active job, at silent clients, at supervisors that have ended.
    pub(super) fn sweep(&mut self) -> Result<(), StoreError> {
        self.reap_supervisors();
        self.unbar();
        self.look_for_silence()?;
        self.enforce_time_limits()?;
        self.keep_books()?;
        self.look_for_idle()?;
        self.look_for_trips();
        self.clear_leftovers()?;
        self.look_at_unknown()?;
        // Somebody has run for its minimum by now.
        self.round.replan |= self.again_at.is_some_and(|at| at <= Instant::now());
        let mut silent = Vec::new();
        let mut unconfirmed = Vec::new();
        let mut active = Vec::new();
        let mut overdue = Vec::new();
        let mut hung = Vec::new();
        for id in self.busy() {
            let Some(living) = self.jobs.get_mut(&id) else {
                continue;
            };
            match &living.job.life {
                Life::Queued if living.job.ask.runner == Runner::Client => {
                    living.waiters.retain(|waiter| !waiter.reply.is_closed());
                    if !living.waiters.is_empty() {
                        living.heard = Instant::now();
                    } else if living.heard.elapsed() > CLIENT_SILENCE {
                        silent.push(id);
                    }
                }
                Life::Queued | Life::Ended { .. } => {}
                Life::Starting { .. } if living.job.awaits_confirmation() => {
                    living.waiters.retain(|waiter| !waiter.reply.is_closed());
                    if !living.waiters.is_empty() || !living.awaits.is_empty() {
                        living.heard = Instant::now();
                    } else if living.heard.elapsed() > living.job.patience() {
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
                Life::Running { .. } if !living.is_due() => {}
                Life::Starting { .. } | Life::Running { .. } | Life::Lent { .. } => active.push(id),
            }
        }
        for id in silent {
            self.stop_job(id, Stop::Cancel, "its client has been silent for 30 s")?;
        }
        for id in unconfirmed {
            self.give_up_waiting(id)?;
        }
        for id in overdue {
            self.kill(id);
        }
        for id in hung {
            self.give_up(id);
        }
        for id in active {
            self.look(id)?;
        }
        Ok(())
    }
}
