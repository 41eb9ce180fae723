//! A start: the journal is compared with the world, and whoever still runs is taken over.

use divvy_core::{JobId, JobState as Life};

use super::Controller;
use super::admission::dependencies::DependencyOutcomes;
use super::lifecycle::start::{overheads, records, slice_layout};
use super::mig::is_divided;
use crate::gpu::slice;
use crate::gpu::watched_jobs::WatchedJob;
use crate::host::error::error_chain;
use crate::journal::StoreError;

/// What a restart found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumeSummary {
    pub queued: usize,
    /// Run on, with the slices they had.
    pub adopted: usize,
    /// Ended while no agent ran, or were never started.
    pub finalized: usize,
}

impl Controller {
    /// A job that a build with other records has started, and that still runs.
    pub fn job_of_earlier_build(&self) -> Option<JobId> {
        let mut jobs = self.jobs.keys().copied();
        jobs.find(|id| self.job_dir(*id).has_earlier_supervisor())
    }

    /// Compares the journal with the world after a start: adopts, settles, puts back.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn resume(&mut self) -> Result<ResumeSummary, StoreError> {
        let before: Vec<JobId> = self.jobs.keys().copied().collect();
        self.find_unknown()?;
        self.remove_orphaned_slices();
        self.remove_stale_cdi_files();
        let lives = |job: JobId| self.jobs.contains_key(&job) || self.unknown.contains_key(&job);
        self.secrets.sweep(lives);
        crate::job_dir::erase_leftover_specs(&self.config.home.jobs(), lives);
        self.store.begin()?;
        let mut fates = DependencyOutcomes::default();
        for id in &before {
            let Some(living) = self.jobs.get_mut(id) else {
                continue;
            };
            if living.job.state == Life::Queued {
                self.end_spent(*id)?;
                self.check_dependencies(*id, &mut fates)?;
                continue;
            }
            if living.job.claim().is_some() {
                self.resume_claim(*id)?;
                continue;
            }
            if living.job.awaits_confirmation() {
                // Of its slice there is only what the journal says. Instances may not have been made.
                if is_divided(living.job.state.grants()) {
                    self.requeue_unstarted(
                        *id,
                        "the daemon was killed before the job was confirmed",
                    )?;
                }
                continue;
            }
            let memory = living.job.run_state.aside.memory;
            if living.job.run_state.suspended && !memory.is_copying() {
                // It may not have been stopped.
                self.effects.pauses.push(*id);
            }
            if memory.is_copying() {
                // Nobody knows how far it came.
                self.effects.memory_ops.push(*id);
            }
            if matches!(living.job.state, Life::Stopping { .. }) {
                // It may not have been told.
                self.effects.stops.push(*id);
            }
            // Killed right after it was placed, it has neither, and is put back.
            let dir = records(&self.config.home, *id, &living.job);
            if dir.path().is_dir() {
                if is_divided(living.job.state.grants()) {
                    self.observer.register(*id, WatchedJob::without_ledger());
                } else {
                    let (name, job) = (id.to_string(), &living.job);
                    let overheads = overheads(&self.devices, job.state.grants());
                    let cut = slice_layout(&name, job, &overheads);
                    match slice::HeldSlice::adopt(&self.config.home.slice(&name), &cut) {
                        Ok(slice) => {
                            self.observer
                                .register(*id, slice.to_watched_job(Vec::new()));
                            living.slice = Some(slice);
                        }
                        // Of a job that has ended the slice may be gone: the daemon was killed between that and its commit.
                        Err(_) if matches!(dir.exit(), Ok(Some(_))) => {}
                        Err(error) => {
                            tracing::warn!(job = %id, error = error_chain(&error), "cannot adopt the job's slice");
                        }
                    }
                }
                self.watch_job(*id);
                self.register_process_roots(*id);
                // An agent may have been killed between the journal and the slice.
                self.apply_limits(*id);
            }
            self.sync_job(*id)?;
        }
        self.release_stray_instances()?;
        self.restore_bypasses();
        // Who is whose is known from here on, and what strangers hold before the first plan.
        match self.observer.observe() {
            Ok(look) => self.apply_sample(&look)?,
            Err(error) => self.observation_failed(error_chain(&error))?,
        }
        self.finish_switches()?;
        self.reserve_for_unknown()?;
        let count = |wanted: fn(&Life) -> bool| {
            before
                .iter()
                .filter(|id| {
                    self.jobs
                        .get(id)
                        .is_some_and(|living| wanted(&living.job.state))
                })
                .count()
        };
        let resumed = ResumeSummary {
            queued: count(|life| *life == Life::Queued),
            adopted: count(|life| !life.grants().is_empty()),
            finalized: count(|life| life.outcome().is_some()),
        };
        self.counters.adopted = u64::try_from(resumed.adopted).unwrap_or(u64::MAX);
        self.counters.finalized = u64::try_from(resumed.finalized).unwrap_or(u64::MAX);
        self.commit_and_apply()?;
        Ok(resumed)
    }

    /// Slice folders without a job: an agent was killed between removing the last trace of a job and its folder.
    fn remove_orphaned_slices(&self) {
        let folders = std::fs::read_dir(self.config.home.slices())
            .into_iter()
            .flatten()
            .flatten();
        for folder in folders {
            let job = folder
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let holds = |id: &JobId| {
                self.jobs
                    .get(id)
                    .is_some_and(|living| !living.job.state.grants().is_empty())
            };
            let is_unknown = |id: &JobId| self.unknown.contains_key(id);
            if job.as_ref().is_none_or(|id| !holds(id) && !is_unknown(id))
                && let Err(error) = slice::remove(&folder.path())
            {
                tracing::warn!(
                    error = error_chain(&error),
                    "cannot remove a slice without a job"
                );
            }
        }
    }
}
