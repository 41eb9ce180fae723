//! Job dependencies: a job that runs after others stays out of the plan until they have ended.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::{self, Error, ErrorCode, ReasonCode};
use divvy_core::job::{Event, Outcome};
use divvy_core::{JobId, JobState};

use crate::controller::admission::array;
use crate::controller::effects::Effects;
use crate::controller::halt::journal_error;
use crate::controller::io::Io;
use crate::controller::lifecycle::end;
use crate::controller::query::view::BlockReason;
use crate::controller::reference::JobRef;
use crate::controller::state::{DiskState, Jobs};
use crate::controller::{disk_full, reference};
use crate::host::clock::now;
use crate::journal::StoreError;
use crate::model::job::Job;
use crate::model::policy::{Dependency, Of};

/// Most dependencies of one job for which the start estimate predicts each end. More would take a round's time for one
/// question, and the latest of so many ends says enough.
const MOST_AWAITED: usize = 256;

/// The state of a dependency, for the job that depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controller) enum DependencyOutcome {
    Pending,
    Succeeded,
    Failed,
}

impl DependencyOutcome {
    fn of(job: &Job) -> Self {
        match job.state.outcome() {
            None => Self::Pending,
            Some(Outcome::Exited(0)) => Self::Succeeded,
            Some(_) => Self::Failed,
        }
    }
}

/// Outcomes that one pass has already determined: thousands of jobs may run after the same array.
#[derive(Default)]
pub(in crate::controller) struct DependencyOutcomes(BTreeMap<(JobId, bool), DependencyOutcome>);

/// The outcome of a job or an array, active or not; one that never existed is not pending. An array is pending until
/// all its jobs have ended, and has succeeded if all of them did.
fn dependency_outcome(
    jobs: &Jobs,
    io: &Io,
    after: &Dependency,
    known: &mut DependencyOutcomes,
) -> Result<DependencyOutcome, StoreError> {
    let key = (after.job, matches!(after.of, Of::Array(_)));
    if let Some(outcome) = known.0.get(&key) {
        return Ok(*outcome);
    }
    let outcome = match after.of {
        Of::Array(count) => array_outcome(jobs, io, after.job, count)?,
        Of::Job | Of::First(_) => job_outcome(jobs, io, after.job)?,
    };
    known.0.insert(key, outcome);
    Ok(outcome)
}

fn job_outcome(jobs: &Jobs, io: &Io, id: JobId) -> Result<DependencyOutcome, StoreError> {
    if let Some(active) = jobs.active.get(&id) {
        return Ok(DependencyOutcome::of(&active.job));
    }
    Ok(io
        .store
        .job(id)?
        .as_ref()
        .map_or(DependencyOutcome::Failed, DependencyOutcome::of))
}

fn array_outcome(
    jobs: &Jobs,
    io: &Io,
    array: JobId,
    count: u32,
) -> Result<DependencyOutcome, StoreError> {
    let mut active = reference::living_of_array(jobs, array);
    if active.any(|active| DependencyOutcome::of(&active.job) == DependencyOutcome::Pending) {
        return Ok(DependencyOutcome::Pending);
    }
    let ends = io.store.ends_of_array(array)?;
    // The journal no longer has some of the array's jobs, so their outcome is unknown.
    Ok(match ends.badly.is_none() && ends.ended >= count {
        true => DependencyOutcome::Succeeded,
        false => DependencyOutcome::Failed,
    })
}

/// The job that failed, for a failed job or array, if the journal knows it.
fn failed_dependency(io: &Io, after: &Dependency) -> Result<JobId, StoreError> {
    let badly = match after.of {
        Of::Array(_) => io.store.ends_of_array(after.job)?.badly,
        Of::Job | Of::First(_) => None,
    };
    Ok(badly.unwrap_or(after.job))
}

/// Releases or ends the jobs that depend on jobs which have just ended.
pub(in crate::controller) fn release_dependents(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    while !fx.jobs.ended.is_empty() {
        let ended: BTreeSet<JobId> = std::mem::take(&mut fx.jobs.ended).into_iter().collect();
        let mut outcomes = DependencyOutcomes::default();
        let mut followers = Vec::new();
        for active in jobs.active.values() {
            let job = &active.job;
            let after = &job.spec.policy.after;
            let is_ready = |after: &Dependency| {
                let has_ended = ended.range(after.numbers()).next().is_some();
                Ok(has_ended
                    && dependency_outcome(jobs, io, after, &mut outcomes)?
                        != DependencyOutcome::Pending)
            };
            if job.state == JobState::Queued && any(after, is_ready)? {
                followers.push(job.id);
            }
        }
        for id in followers {
            check_dependencies(jobs, fx, io, id, &mut outcomes)?;
        }
    }
    Ok(())
}

/// The dependencies of a submission, each once. One that is named both with and without `ok` has to succeed.
///
/// # Errors
/// [`ErrorCode::NotFound`] for a job that does not exist, [`ErrorCode::Conflict`] for one that has already failed, and
/// the errors of [`reference::resolve_reference`].
pub(in crate::controller) fn resolve_dependencies(
    jobs: &Jobs,
    io: &Io,
    requested: &[v1::After],
) -> Result<Vec<Dependency>, Error> {
    let mut followed: Vec<Dependency> = Vec::new();
    let mut places = BTreeMap::new();
    let mut outcomes = DependencyOutcomes::default();
    for v1::After { job, ok } in requested {
        let meant = reference::resolve_reference(jobs, io, job)?;
        let count = match meant {
            JobRef::Array(array) => reference::count_of_array(io, array).map_err(journal_error)?,
            JobRef::Job { .. } => 1,
        };
        let (job, of) = meant.of(count);
        let after = Dependency { job, ok: *ok, of };
        if *ok
            && dependency_outcome(jobs, io, &after, &mut outcomes).map_err(journal_error)?
                == DependencyOutcome::Failed
        {
            let whole = match meant {
                JobRef::Array(_) => "array",
                JobRef::Job { .. } => "job",
            };
            let why =
                format!("{whole} {meant} did not succeed, so no job can wait for its success");
            return Err(Error::new(ErrorCode::Conflict, why).hint(format!(
                "`divvy describe {meant}` shows how it ended; --after accepts every end"
            )));
        }
        match places.get(&meant) {
            Some(place) => {
                let before: &mut Dependency = &mut followed[*place];
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

/// The dependencies that have not ended.
pub(in crate::controller) fn unfinished_dependencies(
    jobs: &Jobs,
    after: &[Dependency],
) -> Vec<Dependency> {
    let lives = |after: &&Dependency| match after.of {
        Of::Array(_) => reference::living_of_array(jobs, after.job).next().is_some(),
        Of::Job | Of::First(_) => jobs.active.contains_key(&after.job),
    };
    after.iter().filter(lives).copied().collect()
}

/// The unfinished jobs that a job depends on; `None` if there are too many to check them for each pending job.
pub(in crate::controller) fn awaited(jobs: &Jobs, after: &[Dependency]) -> Option<Vec<JobId>> {
    let mut awaited = Vec::new();
    for after in after {
        match after.of {
            Of::Job | Of::First(_) => awaited.push(after.job),
            Of::Array(_) => {
                let active = reference::living_of_array(jobs, after.job);
                awaited.extend(active.take(MOST_AWAITED + 1).map(|active| active.job.id));
            }
        }
        if awaited.len() > MOST_AWAITED {
            return None;
        }
    }
    Some(awaited)
}

/// Why a job is not even considered in its queue.
pub(in crate::controller) fn block_reason(
    jobs: &Jobs,
    disk: &DiskState,
    job: &Job,
) -> Option<BlockReason> {
    let waits = job.state == JobState::Queued;
    let after = &jobs.active.get(&job.id).filter(|_| waits)?.after;
    let by = |code: ReasonCode| {
        move |words: String| BlockReason {
            code: Some(code),
            message: words,
        }
    };
    let held = job.hold_description().filter(|_| waits);
    let held = held.map(by(ReasonCode::Held));
    held.or_else(|| describe_dependencies(after).map(by(ReasonCode::Dependency)))
        .or_else(|| array::array_block_reason(jobs, job).map(by(ReasonCode::ArrayLimit)))
        .or_else(|| disk_full::disk_is_full(disk).map(by(ReasonCode::DiskFull)))
}

/// Updates a job's open dependencies, and ends the job if one that has to succeed has failed.
pub(in crate::controller) fn check_dependencies(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    outcomes: &mut DependencyOutcomes,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get(&id) else {
        return Ok(());
    };
    let mut open = Vec::new();
    let mut failed = None;
    for after in &active.job.spec.policy.after {
        match dependency_outcome(jobs, io, after, outcomes)? {
            DependencyOutcome::Pending => open.push(*after),
            DependencyOutcome::Failed if after.ok => failed = failed.or(Some(*after)),
            DependencyOutcome::Succeeded | DependencyOutcome::Failed => {}
        }
    }
    let culprit = failed
        .map(|after| failed_dependency(io, &after))
        .transpose()?;
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    active.after = open;
    let failed = failed.zip(culprit);
    let Some((after, on)) = failed.filter(|_| active.job.state == JobState::Queued) else {
        fx.replan = true;
        return Ok(());
    };
    active.job.apply_event(Event::DependencyFailed(on));
    active.job.ended_at = Some(now());
    let dependency = describe_dependency(&after);
    let by = match on == after.job {
        true => String::new(),
        false => format!(" (#{on})"),
    };
    active.job.reason = Some(format!("its dependency {dependency} did not succeed{by}"));
    end::journal_end(jobs, fx, io, id)
}

/// `#3`, `array #12`.
fn describe_dependency(after: &Dependency) -> String {
    match after.of {
        Of::Array(_) => format!("array #{after}"),
        Of::Job | Of::First(_) => format!("#{after}"),
    }
}

/// Whether `holds` is true for an element.
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

/// `runs after #3 and #4`; `None` for a job without dependencies.
pub(in crate::controller) fn describe_dependencies(after: &[Dependency]) -> Option<String> {
    let (last, rest) = after.split_last()?;
    let rest: Vec<String> = rest.iter().map(describe_dependency).collect();
    let last = describe_dependency(last);
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
        assert_eq!(describe_dependencies(&[]), None);
        let after = |job, of| Dependency {
            job: JobId(job),
            ok: true,
            of,
        };
        let [third, fourth] = [3, 4].map(|job| after(job, Of::Job));
        assert_eq!(
            describe_dependencies(&[third]).unwrap(),
            "runs after #3, which has not ended"
        );
        assert_eq!(
            describe_dependencies(&[third, fourth, after(9, Of::First(2))]).unwrap(),
            "runs after #3, #4 and #9_2, which have not ended"
        );
        assert_eq!(
            describe_dependencies(&[after(12, Of::Array(4))]).unwrap(),
            "runs after array #12, which has not ended"
        );
    }
}
