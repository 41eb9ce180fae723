//! A start: the journal is compared with the world, and whoever still runs is taken over.

use divvy_core::{Job as Life, JobId};

use super::Cycle;
use super::after::Fates;
use super::mig::is_divided;
use super::start::{cut, overheads, records};
use crate::gpu::roster::Entry;
use crate::gpu::slice;
use crate::store::StoreError;
use crate::supervise::chain;

/// What a restart found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    pub queued: usize,
    /// Run on, with the slices they had.
    pub adopted: usize,
    /// Ended while no agent ran, or were never started.
    pub settled: usize,
}

impl Cycle {
    /// A job that a build with other records has started, and that still runs.
    pub fn earlier(&self) -> Option<JobId> {
        let mut jobs = self.jobs.keys().copied();
        jobs.find(|id| self.job_dir(*id).is_attended_earlier())
    }

    /// Compares the journal with the world after a start: adopts, settles, puts back.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn resume(&mut self) -> Result<Resumed, StoreError> {
        let before: Vec<JobId> = self.jobs.keys().copied().collect();
        self.find_unknown()?;
        self.remove_orphaned_slices();
        self.sweep_devices();
        let lives = |job: JobId| self.jobs.contains_key(&job) || self.unknown.contains_key(&job);
        self.secrets.sweep(lives);
        crate::records::sweep(&self.config.home.jobs(), lives);
        self.store.begin()?;
        let mut fates = Fates::default();
        for id in &before {
            let Some(living) = self.jobs.get_mut(id) else {
                continue;
            };
            if living.job.life == Life::Queued {
                self.end_spent(*id)?;
                self.follow(*id, &mut fates)?;
                continue;
            }
            if living.job.claim().is_some() {
                self.resume_claim(*id)?;
                continue;
            }
            if living.job.awaits_confirmation() {
                // Of its slice there is only what the journal says. Instances may not have been made.
                if is_divided(living.job.life.grants()) {
                    self.put_back(*id, "the daemon was killed before the job was confirmed")?;
                }
                continue;
            }
            let memory = living.job.course.aside.memory;
            if living.job.course.suspended && !memory.moves() {
                // It may not have been stopped.
                self.round.pauses.push(*id);
            }
            if memory.moves() {
                // Nobody knows how far it came.
                self.round.trips.push(*id);
            }
            if matches!(living.job.life, Life::Stopping { .. }) {
                // It may not have been told.
                self.round.stops.push(*id);
            }
            // Killed right after it was placed, it has neither, and is put back.
            let dir = records(&self.config.home, *id, &living.job);
            if dir.path().is_dir() {
                if is_divided(living.job.life.grants()) {
                    self.observer.enlist(*id, Entry::without_account());
                } else {
                    let (name, job) = (id.to_string(), &living.job);
                    let overheads = overheads(&self.devices, job.life.grants());
                    let cut = cut(&name, job, &overheads);
                    match slice::HeldSlice::adopt(&self.config.home.slice(&name), &cut) {
                        Ok(slice) => {
                            self.observer.enlist(*id, slice.entry(Vec::new()));
                            living.slice = Some(slice);
                        }
                        // Of a job that has ended the slice may be gone: the daemon was killed between that and its commit.
                        Err(_) if matches!(dir.exit(), Ok(Some(_))) => {}
                        Err(error) => {
                            tracing::warn!(job = %id, error = chain(&error), "cannot adopt the job's slice");
                        }
                    }
                }
                self.watch_job(*id);
                self.take_roots(*id);
                // An agent may have been killed between the journal and the slice.
                self.apply_limits(*id);
            }
            self.look(*id)?;
        }
        self.let_go_of_strays()?;
        self.remember_bypasses();
        // Who is whose is known from here on, and what strangers hold before the first plan.
        match self.observer.look() {
            Ok(look) => self.observed(&look)?,
            Err(error) => self.blinded(chain(&error))?,
        }
        self.finish_switches()?;
        self.reserve_for_unknown()?;
        let count = |wanted: fn(&Life) -> bool| {
            before
                .iter()
                .filter(|id| {
                    self.jobs
                        .get(id)
                        .is_some_and(|living| wanted(&living.job.life))
                })
                .count()
        };
        let resumed = Resumed {
            queued: count(|life| *life == Life::Queued),
            adopted: count(|life| !life.grants().is_empty()),
            settled: count(|life| life.outcome().is_some()),
        };
        self.counted.adopted = u64::try_from(resumed.adopted).unwrap_or(u64::MAX);
        self.counted.settled = u64::try_from(resumed.settled).unwrap_or(u64::MAX);
        self.finish_round()?;
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
                    .is_some_and(|living| !living.job.life.grants().is_empty())
            };
            let is_unknown = |id: &JobId| self.unknown.contains_key(id);
            if job.as_ref().is_none_or(|id| !holds(id) && !is_unknown(id))
                && let Err(error) = slice::remove(&folder.path())
            {
                tracing::warn!(error = chain(&error), "cannot remove a slice without a job");
            }
        }
    }
}
