//! Questions about waiting jobs: what the cycle knows is copied out of it, and the answer is worked out elsewhere, however long
//! that takes.

use divvy_api::v1::{self, Error, JobState};
use divvy_core::forecast::starts_in;
use divvy_core::latest::{Known, starts_by};
use divvy_core::{Job as Life, JobId, Snapshot};
use jiff::{SignedDuration, Timestamp};

use super::Cycle;
use super::read::journal;
use crate::clock::now;
use crate::job::Job;

/// When a waiting job starts: what there is to know.
pub struct Foresight {
    id: JobId,
    at: Timestamp,
    /// As the planner has it, with how long each job runs if it runs as long as it may.
    snapshot: Snapshot,
    runs: Known,
    /// With everybody who will stand in a queue, and by when each is gone whatever happens.
    everybody: Snapshot,
    known: Known,
}

impl Foresight {
    /// Tells of a job that waits when it starts. Takes up to seconds.
    pub fn tell(&self, job: &mut v1::Job) {
        if job.state != JobState::Queued {
            return;
        }
        let moment = |seconds: u64| {
            let seconds = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
            self.at.checked_add(seconds).ok()
        };
        let expected = starts_in(&self.snapshot, self.id, &self.runs.left);
        let latest = starts_by(&self.everybody, self.id, &self.known);
        (job.expected_start, job.latest_start) =
            (expected.and_then(moment), latest.and_then(moment));
    }
}

/// Why a job waits: what there is to know.
pub struct Inquiry {
    id: JobId,
    job: v1::Job,
    snapshot: Snapshot,
    held_up: Option<String>,
    after: Vec<JobId>,
    is_ready: bool,
}

impl Inquiry {
    /// Takes up to seconds.
    pub fn answer(self) -> v1::Why {
        let why = divvy_core::why(&self.snapshot, self.id).unwrap_or_default();
        let gpu = |gpu: divvy_core::WhyGpu| v1::WhyGpu {
            gpu_uuid: gpu.uuid.to_string(),
            gpu_index: gpu.index,
            failed: gpu.failed,
            holders: gpu.holders,
        };
        let job = self.job;
        let ended = || (job.reason.clone()).unwrap_or_else(|| "it has ended".to_owned());
        v1::Why {
            summary: match (job.state, self.held_up) {
                (JobState::Ended, _) => ended(),
                (_, Some(words)) => words,
                (_, None) if self.is_ready => why.summary,
                (_, None) => format!("{}, which is not ready yet", why.summary),
            },
            gpus: why.gpus.into_iter().map(gpu).collect(),
            behind: (self.after.iter().chain(&why.behind))
                .map(JobId::to_string)
                .collect(),
            sooner: why.sooner,
            state: job.state,
            queue: job.queue,
            place: job.place,
            job: job.id,
        }
    }
}

impl Cycle {
    /// Why a job waits.
    ///
    /// # Errors
    /// As [`Cycle::job`].
    pub fn why(&mut self, reference: &str) -> Result<Inquiry, Error> {
        let id = self.find(reference).map_err(journal)??;
        let living = self.jobs.get(&id);
        let held_up = living.and_then(|living| {
            let job = &living.job;
            self.held_up(job).or_else(|| self.unconfirmed(job))
        });
        Ok(Inquiry {
            id,
            job: self.show_any(id)?,
            snapshot: self.snapshot(),
            held_up,
            after: living.map_or_else(Vec::new, |living| living.after.clone()),
            is_ready: self.awaits_nothing(id),
        })
    }

    /// What is needed to say when a waiting job starts. `add`: puts a job there that has not been submitted.
    pub(super) fn foresee(&self, id: JobId, add: impl Fn(&mut Snapshot)) -> Foresight {
        let [mut snapshot, mut everybody] = [self.snapshot(), self.everybody()];
        add(&mut snapshot);
        add(&mut everybody);
        let [mut runs, mut known] = [Known::default(), Known::default()];
        for living in self.jobs.values() {
            let job = &living.job;
            let limit = job.ask.terms.time_limit_s;
            if let Some(left) = limit.map(|limit| limit.saturating_sub(job.ran_s())) {
                runs.left.insert(job.id, left);
            }
            if let Some(left) = self.left(job) {
                known.left.insert(job.id, left);
            }
            let mut after = living.after.clone();
            after.extend(self.ahead_in_its_array(job));
            if job.life == Life::Queued && !after.is_empty() {
                known.after.insert(job.id, after);
            }
        }
        Foresight {
            id,
            at: now(),
            snapshot,
            runs,
            everybody,
            known,
        }
    }

    /// In how many seconds a job is gone at the latest once it holds something; `None` where nobody knows, as with one that may
    /// be started again.
    fn left(&self, job: &Job) -> Option<u64> {
        // What ends it comes after its time, and it has the grace to go.
        let grace = self.config.grace.as_secs() + 1;
        if matches!(job.life, Life::Stopping { .. }) {
            return Some(grace);
        }
        let comes_back = job.ask.terms.retries > job.course.failures || job.ask.terms.preemptible;
        let is_asked_for = job.ask.terms.confirm_within_s.is_some();
        let is_sure = !comes_back && (!is_asked_for || job.life.process().is_some());
        let limit = job.ask.terms.time_limit_s.filter(|_| is_sure)?;
        Some(limit.saturating_sub(job.ran_s()).saturating_add(grace))
    }
}
