//! Stopping jobs: out of the queue at once, running ones through their supervisor.

use divvy_api::v1::{Error, ErrorCode, Runner};
use divvy_core::job::Stop;
use divvy_core::{Job as Life, JobId};
use rustix::process::Signal;

use super::left::its_own;
use super::{Cycle, container};
use crate::access::Caller;
use crate::cause::Cause;
use crate::clock::{Instant, now};
use crate::failpoint::reach;
use crate::process::Process;
use crate::records::JobDir;
use crate::store::StoreError;
use crate::supervise::started::Started;
use crate::supervise::{below, chain};

impl Cycle {
    pub(super) fn cancel(
        &mut self,
        reference: &str,
        by: &Caller,
    ) -> Result<Result<JobId, Error>, StoreError> {
        match self.find(reference)? {
            Ok(id) => self.cancel_job(id, by),
            Err(error) => Ok(Err(error)),
        }
    }

    pub(super) fn cancel_job(
        &mut self,
        id: JobId,
        by: &Caller,
    ) -> Result<Result<JobId, Error>, StoreError> {
        if let Some(error) = self.not_of_claims(id, "cancelled") {
            return Ok(Err(error));
        }
        let living = self.jobs.get(&id).map(|living| &living.job.life);
        if living.is_none_or(|life| life.outcome().is_some()) {
            let error = Error::new(ErrorCode::Conflict, format!("job {id} has ended already"));
            return Ok(Err(
                error.hint(format!("`divvy describe {id}` shows how it ended"))
            ));
        }
        self.stop_job(id, Stop::Cancel, Cause::asked("cancelled", by))?;
        Ok(Ok(id))
    }

    /// Puts a job that holds something back into its queue, once its program is gone.
    pub(super) fn requeue(
        &mut self,
        reference: &str,
        by: &Caller,
    ) -> Result<Result<JobId, Error>, StoreError> {
        match self.find(reference)? {
            Ok(id) => self.requeue_job(id, by),
            Err(error) => Ok(Err(error)),
        }
    }

    pub(super) fn requeue_job(
        &mut self,
        id: JobId,
        by: &Caller,
    ) -> Result<Result<JobId, Error>, StoreError> {
        if let Some(error) = self.not_of_claims(id, "requeued") {
            return Ok(Err(error));
        }
        let conflict =
            |why: String, hint: String| Ok(Err(Error::new(ErrorCode::Conflict, why).hint(hint)));
        let Some(living) = self.jobs.get(&id) else {
            return conflict(
                format!("job {id} has ended, and its environment is deleted"),
                format!("submit it again; `divvy describe {id}` shows its command"),
            );
        };
        match &living.job.life {
            Life::Queued => conflict(
                format!("job {id} is already queued"),
                format!("`divvy why {id}` shows what it waits for"),
            ),
            Life::Stopping { why, .. } if !why.comes_back() => conflict(
                format!("job {id} is being stopped, and cannot be requeued"),
                "submit it again".to_owned(),
            ),
            _ if living.job.ask.runner == Runner::Client => conflict(
                format!("job {id} runs on its client's terminal, so the daemon cannot restart it"),
                "use `divvy submit`: the daemon starts such jobs, and can restart them".to_owned(),
            ),
            _ => {
                self.stop_job(id, Stop::Requeue, Cause::asked("requeued", by))?;
                Ok(Ok(id))
            }
        }
    }

    /// Tells a job to stop; whoever waits is only taken out of its queue by a cancel.
    pub(super) fn stop_job(
        &mut self,
        id: JobId,
        why: Stop,
        cause: impl Into<Cause>,
    ) -> Result<(), StoreError> {
        let cause = cause.into();
        let words = cause.words.clone();
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let news = match &living.job.life {
            Life::Ended { .. } => return Ok(()),
            Life::Queued if why != Stop::Cancel => return Ok(()),
            Life::Queued => {
                living.job.stop(why);
                living.job.course.cause = Some(cause);
                living.job.ended_at = Some(now());
                living.job.reason = Some(format!("{words} while it waited"));
                return self.ended(id);
            }
            Life::Stopping { why: before, .. } => why > *before,
            Life::Starting { .. } | Life::Running { .. } | Life::Lent { .. } => {
                living.since = Instant::now();
                true
            }
        };
        if news {
            let goes_on = living.job.course.suspended;
            living.trip.withdraw();
            living.job.stop(why);
            living.job.course.cause = Some(cause);
            // Nobody waits any more until its memory is elsewhere.
            self.round.reached.push(id);
            let job = living.job.clone();
            if goes_on {
                self.turn_page(id)?;
            }
            self.store.save(&job)?;
            self.tell(Some(id), "stopping", &words)?;
        }
        self.round.stops.push(id);
        Ok(())
    }

    /// Tells the supervisor of a stopping job; it ends the program with the grace it was given.
    pub(super) fn stop(&mut self, id: JobId) {
        let Some(living) = self.jobs.get(&id) else {
            return;
        };
        let dir = self.job_dir(id);
        if living.job.ask.container.is_some()
            && dir.path().is_dir()
            && let Err(error) = dir.mark_to_stop()
        {
            tracing::warn!(job = %id, error = chain(&error), "cannot write the mark to stop; the supervisor gets only a signal");
        }
        // Its client may outlive this daemon.
        if living.job.ask.runner == Runner::Client
            && let Some(stopped) = living.job.stopped()
            && let Err(error) = dir.write_stopped(&stopped)
        {
            tracing::warn!(job = %id, error = chain(&error), "cannot write for its client why the job is stopped");
        }
        let launched = dir.launch().ok().flatten().map(|begun| begun.process);
        let supervisor = launched.or_else(|| {
            // Killed now, it has started nothing.
            let mut children = self.children.iter();
            let child = children.find(|child| living.supervisor == Some(child.id()));
            child.and_then(Started::process)
        });
        let told = supervisor.map(|process| {
            process.signal(Signal::TERM)?;
            // One that was stopped hears nothing until it goes on.
            process.signal(Signal::CONT)
        });
        reach("stop.told");
        match told {
            // Otherwise nobody has the job: the next look settles it or ends what was orphaned.
            Some(Ok(())) => {}
            Some(Err(_)) | None => self.round.again.push(id),
        }
    }

    /// Ends what is left of a job whose supervisor did not, itself excepted: it has yet to write how the job ended.
    pub(super) fn kill(&self, id: JobId) {
        let dir = self.job_dir(id);
        let Some(launch) = dir.launch().ok().flatten() else {
            return;
        };
        if let Some(group) = dir.group() {
            // The supervisor is not in it.
            let _ = group.kill();
        }
        let all = self.all_of(id, &dir, launch.process);
        for process in all.into_iter().chain(container::processes(&dir)) {
            tracing::warn!(job = %id, pid = process.pid, "the process still runs after the grace period; killing it");
            let _ = process.signal(Signal::KILL);
        }
        // A supervisor that was stopped goes on, and reaps.
        let _ = launch.process.signal(Signal::CONT);
    }

    /// All processes of a job but its supervisor; without that one also those that have left its session and use what the job holds.
    pub(super) fn all_of(&self, id: JobId, dir: &JobDir, supervisor: Process) -> Vec<Process> {
        let mut all = below(dir, supervisor);
        if let Some(living) = self.jobs.get(&id).filter(|_| !supervisor.is_alive()) {
            all.extend(its_own(living));
            all.sort_unstable_by_key(|process| process.pid);
            all.dedup();
        }
        all
    }

    /// Ends a job whose program was to be stopped before anybody heard of it, its supervisor included: that one may wait for a file
    /// system of the user's that never answers, and hears of nothing. A container's supervisor waits for the engine, and hears.
    pub(super) fn give_up(&self, id: JobId) {
        self.kill(id);
        let dir = self.job_dir(id);
        let is_container = self
            .jobs
            .get(&id)
            .is_some_and(|one| one.job.ask.container.is_some());
        if let Ok(Some(launch)) = dir.launch()
            && !is_container
            && matches!((dir.started(), dir.exit()), (Ok(None), Ok(None)))
        {
            tracing::warn!(job = %id, pid = launch.process.pid, "the start hangs; killing the supervisor");
            let _ = launch.process.signal(Signal::KILL);
        }
    }
}
