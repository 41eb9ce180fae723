//! Jobs that run after others: they wait outside the planner's sight until those have ended.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::{self, Error, ErrorCode, ReasonCode};
use divvy_core::job::{Event, Outcome};
use divvy_core::{Job as Life, JobId};

use super::Cycle;
use crate::clock::now;
use crate::job::Job;
use crate::store::StoreError;
use crate::supervise::chain;
use crate::terms::After;

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

impl Cycle {
    /// What became of a job, living or not; one that was never there is not waited for.
    pub(super) fn fate(&self, id: JobId) -> Result<Fate, StoreError> {
        if let Some(living) = self.jobs.get(&id) {
            return Ok(Fate::of(&living.job));
        }
        Ok(self.store.job(id)?.as_ref().map_or(Fate::Badly, Fate::of))
    }

    /// Lets go on, or gives up, whoever runs after jobs that have just ended.
    pub(super) fn release_followers(&mut self) -> Result<(), StoreError> {
        while !self.round.ended.is_empty() {
            let ended: BTreeSet<JobId> =
                std::mem::take(&mut self.round.ended).into_iter().collect();
            let follows = |job: &Job| {
                job.life == Life::Queued
                    && job
                        .ask
                        .terms
                        .after
                        .iter()
                        .any(|after| ended.contains(&after.job))
            };
            let followers: Vec<JobId> = self
                .jobs
                .values()
                .filter(|living| follows(&living.job))
                .map(|living| living.job.id)
                .collect();
            for id in followers {
                self.follow(id)?;
            }
        }
        Ok(())
    }

    /// The jobs that a submit says it is to run after, each once: who is named in both ways has to end well.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] for one that is not there, [`ErrorCode::Conflict`] for one that has ended badly already.
    pub(super) fn followed(&self, asked: &[v1::After]) -> Result<Vec<After>, Error> {
        let internal = |error: StoreError| Error::new(ErrorCode::Internal, chain(&error));
        let mut followed: Vec<After> = Vec::new();
        let mut places = BTreeMap::new();
        for v1::After { job, ok } in asked {
            let id = self.find(job).map_err(internal)??;
            if *ok && self.fate(id).map_err(internal)? == Fate::Badly {
                let why = format!("job {id} did not end well, so nothing runs after it");
                return Err(Error::new(ErrorCode::Conflict, why).hint(format!(
                    "`divvy describe {id}` says how it ended; --after takes any end"
                )));
            }
            match places.get(&id) {
                Some(place) => {
                    let before: &mut After = &mut followed[*place];
                    before.ok |= *ok;
                }
                None => {
                    places.insert(id, followed.len());
                    followed.push(After { job: id, ok: *ok });
                }
            }
        }
        Ok(followed)
    }

    /// Which of these have not ended.
    pub(super) fn open(&self, after: &[After]) -> Vec<JobId> {
        let lives = |after: &&After| self.jobs.contains_key(&after.job);
        after.iter().filter(lives).map(|after| after.job).collect()
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
        held.or_else(|| words(after).map(by(ReasonCode::After)))
            .or_else(|| self.held_by_its_array(job).map(by(ReasonCode::Array)))
            .or_else(|| self.disk_is_full().map(by(ReasonCode::DiskFull)))
    }

    /// Compares what a job runs after with what has become of that.
    pub(super) fn follow(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let mut open = Vec::new();
        let mut failed = None;
        for After { job, ok } in living.job.ask.terms.after.clone() {
            match self.fate(job)? {
                Fate::Open => open.push(job),
                Fate::Badly if ok => failed = failed.or(Some(job)),
                Fate::Well | Fate::Badly => {}
            }
        }
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.after = open;
        let Some(on) = failed.filter(|_| living.job.life == Life::Queued) else {
            self.round.replan = true;
            return Ok(());
        };
        living.job.step(Event::DependencyFailed(on));
        living.job.ended_at = Some(now());
        living.job.reason = Some(format!("it was to run after #{on}, which did not end well"));
        self.ended(id)
    }
}

/// `runs after #3 and #4`; nothing for a job that waits for no other.
pub(super) fn words(after: &[JobId]) -> Option<String> {
    let (last, rest) = after.split_last()?;
    let rest: Vec<String> = rest.iter().map(|job| format!("#{job}")).collect();
    Some(match rest[..] {
        [] => format!("runs after #{last}, which has not ended"),
        _ => format!(
            "runs after {} and #{last}, which have not ended",
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
        assert_eq!(
            words(&[JobId(3)]).unwrap(),
            "runs after #3, which has not ended"
        );
        assert_eq!(
            words(&[JobId(3), JobId(4), JobId(9)]).unwrap(),
            "runs after #3, #4 and #9, which have not ended"
        );
    }
}
