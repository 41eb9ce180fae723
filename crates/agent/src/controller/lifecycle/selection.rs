//! Selections: one act on the jobs of an array, or on the jobs that match a filter, decided in one round.
//!
//! | selection | jobs | a job that refuses | no job |
//! |---|---|---|---|
//! | array | those that have not ended | counts only if every job refuses | conflict |
//! | filter with states | those that match | is reported | no error |
//! | filter without states | those that match and that the act can change | is reported | no error |
//!
//! A job that ended before the round is in no selection, so the end of a job is never an error of an act by filter.

use divvy_api::v1::{Error, ErrorCode, JobState};
use divvy_core::JobId;

use super::{cancel, change, hold, pause};
use crate::auth::{Caller, Verb};
use crate::controller::effects::Effects;
use crate::controller::halt::{Halt, answer};
use crate::controller::io::Io;
use crate::controller::query::{job_page, view};
use crate::controller::reference::{JobRef, living_of_array};
use crate::controller::request::{Act, ActOutcome, Cancellation, MatchingJobs, Selection};
use crate::controller::runtime::ActiveJob;
use crate::controller::state::State;
use crate::model::job::Job;

/// Applies an act to every job of a selection that accepts it.
///
/// # Errors
/// [`ErrorCode::Usage`] for a filter by a GPU that this node does not have. Of an array [`ErrorCode::Conflict`] if all
/// its jobs have ended, and the error of the first job if every job refuses the act.
pub(in crate::controller) fn act(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    selection: &Selection,
    act: &Act,
    by: &Caller,
) -> Result<ActOutcome<JobId>, Halt> {
    let selected = select(state, selection, act)?;
    let mut outcome = ActOutcome {
        done: Vec::new(),
        refused: Vec::new(),
    };
    for (id, owner) in selected {
        let result = authorize(selection, id, owner, by).map_err(Halt::from);
        let result = result.and_then(|()| act_on_job(state, fx, io, id, act, by));
        answer(result, |result| match result {
            Ok(id) => outcome.done.push(id),
            Err(error) => outcome.refused.push(error),
        })?;
    }
    match selection {
        Selection::Array(array) if outcome.done.is_empty() => {
            Err(none_of_array(*array, outcome).into())
        }
        _ => Ok(outcome),
    }
}

fn act_on_job(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    act: &Act,
    by: &Caller,
) -> Result<JobId, Halt> {
    match act {
        Act::Cancel => {
            let plain = Cancellation::default();
            cancel::cancel_job(&mut state.jobs, fx, io, id, &plain, by)
        }
        Act::Requeue => cancel::requeue_job(&mut state.jobs, fx, io, id, by),
        Act::Suspend => pause::pause_job(&mut state.jobs, fx, io, id, true),
        Act::Resume => pause::pause_job(&mut state.jobs, fx, io, id, false),
        Act::Hold => hold::hold_job(&mut state.jobs, fx, io, id, by),
        Act::Release => hold::unhold_job(&mut state.jobs, fx, io, id, by),
        Act::Change(change) => change::change_job(state, fx, io, id, change, by),
    }
}

/// Whether the caller may change a selected job. The gate has checked the owner of an array, who owns each of its jobs.
fn authorize(selection: &Selection, id: JobId, owner: u32, by: &Caller) -> Result<(), Error> {
    let allowed = match selection {
        Selection::Array(_) => Ok(()),
        Selection::Matching(_) => by.authorize(Verb::Change, by.whose(owner)),
    };
    allowed.map_err(|error| Error {
        message: format!("job {id}: {}", error.message),
        ..error
    })
}

/// The selected jobs with the uid of each job's owner, oldest first.
fn select(state: &State, selection: &Selection, act: &Act) -> Result<Vec<(JobId, u32)>, Error> {
    let selected = selected(state, selection, act)?;
    let job = |active: &ActiveJob| (active.job.id, active.job.spec.credentials.uid);
    Ok(selected.into_iter().map(job).collect())
}

/// The jobs of a selection, oldest first.
///
/// # Errors
/// [`ErrorCode::Usage`] for a GPU that this node does not have.
pub(in crate::controller) fn selected<'a>(
    state: &'a State,
    selection: &Selection,
    act: &Act,
) -> Result<Vec<&'a ActiveJob>, Error> {
    let lives = |active: &&ActiveJob| active.job.state.outcome().is_none();
    let MatchingJobs { filter, only } = match selection {
        Selection::Array(array) => {
            let jobs = living_of_array(&state.jobs, *array);
            return Ok(jobs.filter(lives).collect());
        }
        Selection::Matching(matching) => matching,
    };
    job_page::check_gpu(&state.gpus, filter)?;
    let is_selected = |active: &&ActiveJob| {
        let job = &active.job;
        filter.matches(job)
            && only.as_ref().is_none_or(|only| only.contains(&job.id))
            && (filter.states.is_some() || can_change(job, act))
    };
    let jobs = state.jobs.active.values().map(|active| &**active);
    Ok(jobs.filter(lives).filter(is_selected).collect())
}

/// Whether the act would change a job in this state.
fn can_change(job: &Job, act: &Act) -> bool {
    let state = view::state(&job.state);
    let is_held = job.run_state.hold.is_some();
    match act {
        Act::Cancel => true,
        Act::Requeue => matches!(state, JobState::Starting | JobState::Running),
        Act::Suspend => state == JobState::Running && !job.run_state.suspended,
        Act::Resume => state == JobState::Running && job.run_state.suspended,
        Act::Hold => state == JobState::Queued && !is_held,
        Act::Release => state == JobState::Queued && is_held,
        Act::Change(_) => state == JobState::Queued,
    }
}

/// The jobs of a selection whose memory is to be offloaded, by one message for each, and why the caller may not offload
/// others. Of an array those that run.
///
/// # Errors
/// As [`selected`].
pub(in crate::controller) fn offloaded(
    state: &State,
    selection: &Selection,
    by: &Caller,
) -> Result<ActOutcome<JobRef>, Error> {
    let selected = selected(state, selection, &Act::Suspend)?;
    let is_meant = |active: &&ActiveJob| match selection {
        Selection::Array(_) => matches!(active.job.state, divvy_core::JobState::Running { .. }),
        Selection::Matching(_) => true,
    };
    let mut outcome = ActOutcome {
        done: Vec::new(),
        refused: Vec::new(),
    };
    for active in selected.into_iter().filter(is_meant) {
        let job = &active.job;
        match authorize(selection, job.id, job.spec.credentials.uid, by) {
            Ok(()) => outcome.done.push(JobRef::job(job)),
            Err(error) => outcome.refused.push(error),
        }
    }
    Ok(outcome)
}

fn none_of_array(array: JobId, outcome: ActOutcome<JobId>) -> Error {
    match outcome.refused.into_iter().next() {
        Some(error) => Error {
            message: format!("no job of array {array} was changed: {}", error.message),
            ..error
        },
        None => Error::new(
            ErrorCode::Conflict,
            format!("all jobs of array {array} have ended already"),
        )
        .hint(format!("`divvy describe {array}` shows how they ended")),
    }
}
