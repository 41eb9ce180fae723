//! Jobs that run after others: they wait outside the planner's sight until those have ended.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::{self, Error, ErrorCode, ReasonCode};
use divvy_core::job::{Event, Outcome};
use divvy_core::{Job as Life, JobId};

use super::Cycle;
use super::reference::Meant;
use crate::clock::now;
use crate::job::Job;
use crate::store::StoreError;
use crate::supervise::chain;
use crate::terms::{After, Of};

/// So many ends are foreseen one by one of each job that waits for them.
const MOST_AWAITED: usize = 256;

/// Why a job does not go on that stands in no queue's turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldUp {
    /// `None` for one that holds something, and waits for no turn.
    pub code: Option<ReasonCode>,
    pub words: String,
}

/// What became of a job that another runs after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    Well,
    Badly,
}

impl Fate {
    fn of(job: &Job) -> Self {
        match job.life.outcome() {
            None => Self::Open,
            Some(Outcome::Exited(0)) => Self::Well,
            Some(_) => Self::Badly,
        }
    }
}

/// What became of the jobs and arrays that were looked at in one go: thousands of jobs may run after the same array.
#[derive(Default)]
pub(super) struct Fates(BTreeMap<(JobId, bool), Fate>);

impl Cycle {
    /// What became of a job or an array, living or not; one that was never there is not waited for. An array is open until all of
    /// its jobs have ended, and has ended well if all of them did.
    fn fate(&self, after: &After, known: &mut Fates) -> Result<Fate, StoreError> {
        let key = (after.job, matches!(after.of, Of::Array(_)));
        if let Some(fate) = known.0.get(&key) {
            return Ok(*fate);
        }
        let fate = match after.of {
            Of::Array(count) => self.fate_of_array(after.job, count)?,
            Of::Job | Of::First(_) => self.fate_of_job(after.job)?,
        };
        known.0.insert(key, fate);
        Ok(fate)
    }

    fn fate_of_job(&self, id: JobId) -> Result<Fate, StoreError> {
        if let Some(living) = self.jobs.get(&id) {
            return Ok(Fate::of(&living.job));
        }
        Ok(self.store.job(id)?.as_ref().map_or(Fate::Badly, Fate::of))
    }

    fn fate_of_array(&self, array: JobId, count: u32) -> Result<Fate, StoreError> {
        let mut living = self.living_of_array(array);
        if living.any(|living| Fate::of(&living.job) == Fate::Open) {
            return Ok(Fate::Open);
        }
        let ends = self.store.ends_of_array(array)?;
        // How those ended that are not there is not known.
        Ok(match ends.badly.is_none() && ends.ended >= count {
            true => Fate::Well,
            false => Fate::Badly,
        })
    }

    /// The job by which a job or an array did not end well, where one is known.
    fn culprit(&self, after: &After) -> Result<JobId, StoreError> {
        let badly = match after.of {
            Of::Array(_) => self.store.ends_of_array(after.job)?.badly,
            Of::Job | Of::First(_) => None,
        };
        Ok(badly.unwrap_or(after.job))
    }

    /// Lets go on, or gives up, whoever runs after jobs that have just ended.
    pub(super) fn release_followers(&mut self) -> Result<(), StoreError> {
        while !self.round.ended.is_empty() {
            let ended: BTreeSet<JobId> =
                std::mem::take(&mut self.round.ended).into_iter().collect();
            let mut fates = Fates::default();
            let mut followers = Vec::new();
            for living in self.jobs.values() {
                let job = &living.job;
                let after = &job.ask.terms.after;
                let goes_on = |after: &After| {
                    let has_ended = ended.range(after.numbers()).next().is_some();
                    Ok(has_ended && self.fate(after, &mut fates)? != Fate::Open)
                };
                if job.life == Life::Queued && any(after, goes_on)? {
                    followers.push(job.id);
                }
            }
            for id in followers {
                self.follow(id, &mut fates)?;
            }
        }
        Ok(())
    }

    /// The jobs and arrays that a submit says it is to run after, each once: who is named in both ways has to end well.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] for one that is not there, [`ErrorCode::Conflict`] for one that has ended badly already, and what
    /// [`Cycle::meant`] has.
    pub(super) fn followed(&self, asked: &[v1::After]) -> Result<Vec<After>, Error> {
        let internal = |error: StoreError| Error::new(ErrorCode::Internal, chain(&error));
        let mut followed: Vec<After> = Vec::new();
        let mut places = BTreeMap::new();
        let mut fates = Fates::default();
        for v1::After { job, ok } in asked {
            let meant = self.meant(job).map_err(internal)??;
            let count = match meant {
                Meant::Array(array) => self.count_of_array(array).map_err(internal)?,
                Meant::Job { .. } => 1,
            };
            let (job, of) = meant.of(count);
            let after = After { job, ok: *ok, of };
            if *ok && self.fate(&after, &mut fates).map_err(internal)? == Fate::Badly {
                let whole = match meant {
                    Meant::Array(_) => "array",
                    Meant::Job { .. } => "job",
                };
                let why =
                    format!("{whole} {meant} did not succeed, so no job can wait for its success");
                return Err(Error::new(ErrorCode::Conflict, why).hint(format!(
                    "`divvy describe {meant}` shows how it ended; --after accepts every end"
                )));
            }
            match places.get(&meant) {
                Some(place) => {
                    let before: &mut After = &mut followed[*place];
                    before.ok |= *ok;
                }
                None => {
                    places.insert(meant, followed.len());
                    followed.push(after);
                }
            }
        }
        Ok(followed)
    }

    /// Which of these have not ended.
    pub(super) fn open(&self, after: &[After]) -> Vec<After> {
        let lives = |after: &&After| match after.of {
            Of::Array(_) => self.living_of_array(after.job).next().is_some(),
            Of::Job | Of::First(_) => self.jobs.contains_key(&after.job),
        };
        after.iter().filter(lives).copied().collect()
    }

    /// The jobs whose ends a job waits for, one by one; `None` where they are too many to be looked at for each that waits.
    pub(super) fn awaited(&self, after: &[After]) -> Option<Vec<JobId>> {
        let mut jobs = Vec::new();
        for after in after {
            match after.of {
                Of::Job | Of::First(_) => jobs.push(after.job),
                Of::Array(_) => {
                    let living = self.living_of_array(after.job);
                    jobs.extend(living.take(MOST_AWAITED + 1).map(|living| living.job.id));
                }
            }
            if jobs.len() > MOST_AWAITED {
                return None;
            }
        }
        Some(jobs)
    }

    /// Why a job is not even in its queue's turn.
    pub(super) fn held_up(&self, job: &Job) -> Option<HeldUp> {
        let waits = job.life == Life::Queued;
        let after = &self.jobs.get(&job.id).filter(|_| waits)?.after;
        let by = |code: ReasonCode| {
            move |words: String| HeldUp {
                code: Some(code),
                words,
            }
        };
        let held = job.held_words().filter(|_| waits);
        let held = held.map(by(ReasonCode::Held));
        held.or_else(|| words(after).map(by(ReasonCode::Dependency)))
            .or_else(|| self.held_by_its_array(job).map(by(ReasonCode::ArrayLimit)))
            .or_else(|| self.disk_is_full().map(by(ReasonCode::DiskFull)))
    }

    /// Compares what a job runs after with what has become of that.
    pub(super) fn follow(&mut self, id: JobId, fates: &mut Fates) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let mut open = Vec::new();
        let mut failed = None;
        for after in &living.job.ask.terms.after {
            match self.fate(after, fates)? {
                Fate::Open => open.push(*after),
                Fate::Badly if after.ok => failed = failed.or(Some(*after)),
                Fate::Well | Fate::Badly => {}
            }
        }
        let culprit = failed.map(|after| self.culprit(&after)).transpose()?;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.after = open;
        let failed = failed.zip(culprit);
        let Some((after, on)) = failed.filter(|_| living.job.life == Life::Queued) else {
            self.round.replan = true;
            return Ok(());
        };
        living.job.step(Event::DependencyFailed(on));
        living.job.ended_at = Some(now());
        let dependency = whom(&after);
        let by = match on == after.job {
            true => String::new(),
            false => format!(" (#{on})"),
        };
        living.job.reason = Some(format!("its dependency {dependency} did not succeed{by}"));
        self.ended(id)
    }
}

/// `#3`, `array #12`.
fn whom(after: &After) -> String {
    match after.of {
        Of::Array(_) => format!("array #{after}"),
        Of::Job | Of::First(_) => format!("#{after}"),
    }
}

/// Whether this holds for one of them.
fn any<T>(
    all: &[T],
    mut holds: impl FnMut(&T) -> Result<bool, StoreError>,
) -> Result<bool, StoreError> {
    for one in all {
        if holds(one)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `runs after #3 and #4`; nothing for a job that waits for no other.
pub(super) fn words(after: &[After]) -> Option<String> {
    let (last, rest) = after.split_last()?;
    let rest: Vec<String> = rest.iter().map(whom).collect();
    let last = whom(last);
    Some(match rest[..] {
        [] => format!("runs after {last}, which has not ended"),
        _ => format!(
            "runs after {} and {last}, which have not ended",
            rest.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_job_waits_for_is_said_in_words() {
        assert_eq!(words(&[]), None);
        let after = |job, of| After {
            job: JobId(job),
            ok: true,
            of,
        };
        let [third, fourth] = [3, 4].map(|job| after(job, Of::Job));
        assert_eq!(
            words(&[third]).unwrap(),
            "runs after #3, which has not ended"
        );
        assert_eq!(
            words(&[third, fourth, after(9, Of::First(2))]).unwrap(),
            "runs after #3, #4 and #9_2, which have not ended"
        );
        assert_eq!(
            words(&[after(12, Of::Array(4))]).unwrap(),
            "runs after array #12, which has not ended"
        );
    }
}
