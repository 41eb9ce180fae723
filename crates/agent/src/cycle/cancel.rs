//! Stopping jobs: out of the queue at once, running ones through their supervisor.

use std::time::Instant;

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::job::Event;
use divvy_core::{Job as Life, JobId};
use rustix::process::Signal;

use super::Cycle;
use crate::clock::now;
use crate::process::{self, Process};
use crate::store::StoreError;

impl Cycle {
    pub(super) fn cancel(&mut self, reference: &str) -> Result<Result<JobId, Error>, StoreError> {
        let id = match self.find(reference)? {
            Ok(id) => id,
            Err(error) => return Ok(Err(error)),
        };
        if !self.jobs.contains_key(&id) {
            let error = Error::new(ErrorCode::Conflict, format!("job {id} has ended already"));
            return Ok(Err(error.hint(format!("`divvy describe {id}` says how"))));
        }
        self.cancel_job(id, "cancelled")?;
        Ok(Ok(id))
    }

    pub(super) fn cancel_job(&mut self, id: JobId, why: &str) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        match &living.job.life {
            Life::Ended { .. } => Ok(()),
            Life::Queued => {
                living.job.step(Event::Cancel);
                living.job.ended_at = Some(now());
                living.job.reason = Some(format!("{why} while it waited"));
                self.ended(id)
            }
            life => {
                let first = !matches!(life, Life::Stopping { .. });
                if first {
                    living.job.step(Event::Cancel);
                    living.since = Instant::now();
                    let job = living.job.clone();
                    self.store.save(&job)?;
                    self.tell(Some(id), "stopping", why)?;
                }
                self.round.stops.push(id);
                Ok(())
            }
        }
    }

    /// Tells the supervisor of a stopping job; it ends the program with the grace it was given.
    pub(super) fn stop(&mut self, id: JobId) {
        let Some(living) = self.jobs.get(&id) else {
            return;
        };
        let launched = self
            .job_dir(id)
            .launch()
            .ok()
            .flatten()
            .map(|begun| begun.process);
        let supervisor = launched.or_else(|| {
            // Not yet waited for, so the pid is still its own; killed now, it has started nothing.
            let child = living
                .supervisor
                .filter(|pid| self.children.iter().any(|child| child.id() == *pid));
            child.and_then(Process::with_pid)
        });
        match supervisor.map(|process| process.signal(Signal::TERM)) {
            // Otherwise nobody has the job: the next look settles it or ends what was orphaned.
            Some(Ok(())) => {}
            Some(Err(_)) | None => self.round.again.push(id),
        }
    }

    /// Ends what is left of a job whose supervisor did not, itself excepted: it has yet to write how the job ended.
    pub(super) fn kill(&self, id: JobId) {
        let Some(launch) = self.job_dir(id).launch().ok().flatten() else {
            return;
        };
        for process in process::descendants(launch.process.pid) {
            tracing::warn!(job = %id, pid = process.pid, "still runs after its grace; killed");
            let _ = process.signal(Signal::KILL);
        }
        // A supervisor that was stopped goes on, and reaps.
        let _ = launch.process.signal(Signal::CONT);
    }
}
