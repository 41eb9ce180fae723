//! When waiting jobs start: what the cycle knows is copied out of it, and the answer is worked out elsewhere, however long that takes.

use divvy_api::v1::{self, JobState};
use divvy_core::forecast::starts_in;
use divvy_core::latest::{Known, starts_by};
use divvy_core::memory::Memory;
use divvy_core::{Job as Life, JobId, Snapshot};
use jiff::{SignedDuration, Timestamp};

use super::Cycle;
use crate::clock::now;
use crate::job::Job;

/// When a waiting job starts: what there is to know.
pub struct Foresight {
    pub(super) id: JobId,
    at: Timestamp,
    /// As the planner has it, with how long each job runs if it runs as long as it may.
    pub(super) snapshot: Snapshot,
    pub(super) runs: Known,
    /// With everybody who will stand in a queue, and by when each is gone whatever happens.
    everybody: Snapshot,
    pub(super) known: Known,
    /// Nobody who holds nothing now can come and take what he had.
    is_certain: bool,
}

impl Foresight {
    /// Tells of a job that waits when it starts. Takes up to seconds.
    pub fn tell(&self, job: &mut v1::Job) {
        if job.state != JobState::Queued {
            return;
        }
        let expected = starts_in(&self.snapshot, self.id, &self.runs.left);
        let latest = (self.is_certain).then(|| starts_by(&self.everybody, self.id, &self.known));
        job.expected_start = expected.and_then(|seconds| self.after(seconds));
        job.latest_start = latest.flatten().and_then(|seconds| self.after(seconds));
    }

    /// So many seconds from now.
    pub(super) fn after(&self, seconds: u64) -> Option<Timestamp> {
        let seconds = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        self.at.checked_add(seconds).ok()
    }

    /// So many seconds ago.
    pub(super) fn before(&self, seconds: u64) -> Option<Timestamp> {
        let seconds = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        self.at.checked_sub(seconds).ok()
    }
}

impl Cycle {
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
            // One that waits for itself makes it too much to work out.
            let after = self.awaited(&living.after);
            let mut after = after.unwrap_or_else(|| vec![job.id]);
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
            is_certain: self
                .jobs
                .values()
                .all(|living| living.job.course.aside.memory != Memory::Aside),
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
