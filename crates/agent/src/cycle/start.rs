//! Doing what was planned: the slice, the spec, the supervisor.

use std::fs::File;
use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use divvy_api::v1::Runner;
use divvy_core::{Bytes, JobId};

use super::Cycle;
use crate::clock::now;
use crate::environment::{Surroundings, for_job};
use crate::gpu::slice::{Cut, HeldSlice, SliceError};
use crate::process::Process;
use crate::records::{Exit, JobDir, Outcome, RecordError, Spec};
use crate::store::StoreError;
use crate::supervise::chain;

/// Why a job that has its grants could not be started.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Slice(#[from] SliceError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("its submitted environment is not in the journal")]
    NoEnvironment,
    #[error("another process supervises it already")]
    Locked,
    #[error("cannot start its supervisor")]
    Spawn(#[source] io::Error),
}

impl Cycle {
    pub(super) fn job_dir(&self, id: JobId) -> JobDir {
        JobDir::new(self.config.home.job(&id.to_string()))
    }

    pub(super) fn runs_on_client(&self, id: JobId) -> bool {
        self.jobs
            .get(&id)
            .is_some_and(|living| living.job.ask.runner == Runner::Client)
    }

    /// Makes the slice and writes the spec of a job that is starting.
    pub(super) fn prepare(&mut self, id: JobId) {
        if let Err(error) = self.try_prepare(id) {
            self.withdraw(id, &chain(&error));
        }
    }

    fn try_prepare(&mut self, id: JobId) -> Result<(), StartError> {
        let dir = self.job_dir(id);
        let folder = self.config.home.slice(&id.to_string());
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let job = &living.job;
        let grants = job.life.grants();
        let overheads: Vec<Bytes> = grants
            .iter()
            .map(|grant| {
                self.devices
                    .iter()
                    .find(|device| device.gpu.uuid == grant.gpu)
            })
            .map(|device| device.map_or(Bytes::ZERO, |device| device.overhead))
            .collect();
        let (generation, compute) = (u64::from(job.attempt), job.compute());
        let slice = HeldSlice::create(
            &folder,
            &Cut {
                job: &id.to_string(),
                generation,
                compute,
                grants,
                overheads: &overheads,
            },
        )?;
        let env = self.store.env(id)?.ok_or(StartError::NoEnvironment)?;
        let around = Surroundings {
            job: &id.to_string(),
            queue: &job.ask.queue,
            grants,
            slice: &folder,
            preload: &self.config.programs.preload,
            simulated: self.config.simulated.as_ref(),
        };
        let spec = Spec {
            job: id.to_string(),
            command: job.ask.command.clone(),
            cwd: job.ask.cwd.clone().into(),
            env: for_job(env, &around),
            grace_ms: u64::try_from(self.config.grace.as_millis()).unwrap_or(u64::MAX),
            limiter: self
                .config
                .programs
                .wish(&folder, self.config.simulated.as_ref()),
        };
        dir.write_spec(&spec)?;
        self.observer.enlist(id, slice.entry(Vec::new()));
        // It may have been resized to less between its grants and its slice.
        let limits = living.job.limits();
        slice.resize(&limits, compute);
        self.keeper.keep(id, &folder, &limits, compute);
        living.slice = Some(slice);
        living.ledgers.clear();
        living.since = Instant::now();
        living.heard = Instant::now();
        self.watch_job(id);
        Ok(())
    }

    /// Starts the supervisor of a job whose slice and spec are there, and hands it the lock.
    pub(super) fn spawn(&mut self, id: JobId) {
        if self
            .jobs
            .get(&id)
            .is_none_or(|living| living.failed.is_some())
        {
            return;
        }
        if let Err(error) = self.try_spawn(id) {
            self.withdraw(id, &chain(&error));
        }
    }

    fn try_spawn(&mut self, id: JobId) -> Result<(), StartError> {
        let dir = self.job_dir(id);
        let lock = dir.lock()?.ok_or(StartError::Locked)?;
        let log = dir.open_log()?;
        let child = Command::new(&self.config.programs.divvy)
            .arg("supervise")
            .arg(dir.path())
            .env_clear()
            .current_dir(dir.path())
            // Duplicates share the lock; ours closes at the end of this function, and the supervisor's holds it.
            .stdin(Stdio::from(lock))
            .stderr(log.try_clone().map_err(StartError::Spawn)?)
            .stdout(log)
            .spawn()
            .map_err(StartError::Spawn)?;
        if let Some(living) = self.jobs.get_mut(&id) {
            living.supervisor = Some(child.id());
            living.supervisor_end = None;
        }
        if let Some(supervisor) = Process::with_pid(child.id()) {
            self.observer.root(id, supervisor);
        }
        self.children.push(child);
        Ok(())
    }

    /// Gives up a job that could not be started; the next round journals it.
    fn withdraw(&mut self, id: JobId, why: &str) {
        tracing::error!(job = %id, why, "a job could not be started");
        let exit = Exit {
            outcome: not_started(why),
            at: now(),
        };
        if let Ok(Some(lock)) = self.job_dir(id).lock() {
            self.mark_spent(id, &exit, &lock);
        }
        if let Some(living) = self.jobs.get_mut(&id) {
            living.failed = Some(exit);
        }
        self.round.again.push(id);
    }

    /// Writes into the folder of a job that nobody has started, under its lock, that nobody shall: whoever comes late
    /// finds it spent.
    pub(super) fn mark_spent(&self, id: JobId, exit: &Exit, _lock: &File) {
        if let Err(error) = self.job_dir(id).write_exit(exit) {
            tracing::error!(job = %id, error = chain(&error), "a withdrawn job's folder cannot be written");
        }
    }

    pub(super) fn watch_job(&self, id: JobId) {
        if let Some(watch) = &self.watch
            && let Err(error) = watch.add(id, self.job_dir(id).path())
        {
            tracing::warn!(job = %id, %error, "its folder cannot be watched; it is looked at with every tick");
        }
    }
}

/// Our own failure to start a job.
pub(super) fn not_started(why: &str) -> Outcome {
    Outcome::Launch {
        launch_error: format!("divvy could not start it: {why}"),
        exit_code: 125,
    }
}
