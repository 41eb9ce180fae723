//! Suspending jobs and letting them go on: every process of the job is stopped, and its memory stays its own.
//!
//! A job that is to be suspended is journaled first and stopped then, and after a crash stopped again; one that is to go on
//! goes on first. So a crash in between leaves it suspended, and its user asks again.

use std::collections::BTreeSet;

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::{JobId, JobState as Life};
use rustix::process::Signal;

use crate::controller::Controller;
use crate::controller::query::reference::has_ended;
use crate::host::clock::Instant;
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::gpu_memory::GpuMemoryState;

/// How often processes are looked for that were started while others were being stopped.
const PASSES: usize = 16;

impl Controller {
    pub(in crate::controller) fn pause(
        &mut self,
        reference: &str,
        suspend: bool,
    ) -> Result<Result<JobId, Error>, StoreError> {
        match self.find(reference)? {
            Ok(id) => self.pause_job(id, suspend),
            Err(error) => Ok(Err(error)),
        }
    }

    pub(in crate::controller) fn pause_job(
        &mut self,
        id: JobId,
        suspend: bool,
    ) -> Result<Result<JobId, Error>, StoreError> {
        if let Err(error) = self.check_pausable(id) {
            return Ok(Err(error));
        }
        let suspended = self
            .jobs
            .get(&id)
            .map(|living| living.job.run_state.suspended);
        if !self.pause_memory(id, suspend)? && suspended != Some(suspend) {
            if !suspend {
                self.signal_all(id, Signal::CONT);
            }
            self.set_suspended(id, suspend)?;
        }
        Ok(Ok(id))
    }

    /// A job that can be suspended, or let go on.
    pub(in crate::controller) fn pausable(
        &self,
        reference: &str,
    ) -> Result<Result<JobId, Error>, StoreError> {
        Ok(match self.find(reference)? {
            Ok(id) => self.check_pausable(id).map(|()| id),
            Err(error) => Err(error),
        })
    }

    fn check_pausable(&self, id: JobId) -> Result<(), Error> {
        let conflict =
            |why: String, hint: String| Err(Error::new(ErrorCode::Conflict, why).hint(hint));
        if let Some(error) = self.refuse_for_claim(id, "suspended or resumed") {
            return Err(error);
        }
        let job = self.jobs.get(&id).map(|living| &living.job);
        let Some(job) = job.filter(|job| job.state.outcome().is_none()) else {
            return Err(has_ended(id));
        };
        if !matches!(job.state, Life::Running { .. }) {
            let state = job.state.state();
            return conflict(
                format!("job {id} is {state}, but only running jobs can be suspended or resumed"),
                format!("`divvy describe {id}` shows its state"),
            );
        }
        if job.spec.container.is_some() {
            return conflict(
                format!("job {id} runs in a container, which Divvy cannot suspend"),
                "pause the container with its engine: docker pause".to_owned(),
            );
        }
        Ok(())
    }

    pub(in crate::controller) fn set_suspended(
        &mut self,
        id: JobId,
        suspended: bool,
    ) -> Result<(), StoreError> {
        self.mark(id, suspended)?;
        if suspended {
            self.effects.pauses.push(id);
            self.record_event(Some(id), "suspended", "it keeps its GPU memory")
        } else {
            self.record_event(Some(id), "resumed", "")
        }
    }

    /// Journals that a job is suspended; its processes are stopped by somebody else.
    pub(in crate::controller) fn mark_suspended(&mut self, id: JobId) -> Result<(), StoreError> {
        self.mark(id, true)
    }

    fn mark(&mut self, id: JobId, suspended: bool) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.job.run_state.suspended = suspended;
        if !suspended {
            living.job.run_state.aside = GpuMemoryState::default();
        }
        living.activity.mark_active(Instant::now());
        let job = living.job.clone();
        self.effects.changed.insert(id);
        self.start_usage_span(id)?;
        self.store.save(&job)
    }

    /// Stops every process of a suspended job, those included that it starts meanwhile. One that was let go on since is none, and nobody
    /// whose memory is being copied can be stopped.
    pub(in crate::controller) fn stop_all_processes(&self, id: JobId) {
        let living = self.jobs.get(&id);
        if !living.is_some_and(|living| living.job.run_state.suspended && living.is_memory_idle()) {
            return;
        }
        let mut before = BTreeSet::new();
        for _ in 0..PASSES {
            let stopped = self.signal_all(id, Signal::STOP);
            if stopped == before {
                reach("pause.held");
                return;
            }
            before = stopped;
        }
    }

    /// The pids of all processes of a job, after they have been sent this; its supervisor is spared.
    pub(in crate::controller) fn signal_all(&self, id: JobId, signal: Signal) -> BTreeSet<u32> {
        let dir = self.job_dir(id);
        let Some(launch) = dir.launch().ok().flatten() else {
            return BTreeSet::new();
        };
        let processes = self.job_processes(id, &dir, launch.process);
        for process in &processes {
            // Gone by itself is just as well.
            let _ = process.signal(signal);
        }
        processes.iter().map(|process| process.pid).collect()
    }
}
