//! Held jobs: the planner does not place a held job, and no job behind it waits for it.
//!
//! A user's own hold can be released by the user and by operators. An operator's hold on another user's job can be
//! released by operators only.

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::{JobId, JobState};

use crate::auth::{Caller, Role};
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::reference::has_ended;
use crate::controller::state::Jobs;
use crate::host::clock::now;
use crate::journal::StoreError;
use crate::model::job::Job;
use crate::model::policy::Hold;

/// The label of a task that the front end took from a ClearML server.
pub(super) const TASK: &str = "clearml.task";

impl Hold {
    /// A hold by this caller on a job of user `owner`.
    pub(in crate::controller) fn by(caller: &Caller, owner: u32) -> Self {
        Self {
            by: caller.account.name.clone(),
            operator: caller.account.uid != owner && caller.role >= Role::Operator,
            since: now(),
        }
    }

    /// `held by ana; …`: the holder, and how to release the job.
    pub(in crate::controller) fn describe(&self, id: &str) -> String {
        let by = &self.by;
        match self.operator {
            true => {
                format!(
                    "held by {by}, an operator; an operator can release it: `divvy release {id}`"
                )
            }
            false => format!("held by {by}; `divvy release {id}` releases it"),
        }
    }

    /// Whether this caller may release it.
    fn may_release(&self, id: &str, by: &Caller) -> Result<(), Error> {
        if !self.operator || by.role >= Role::Operator {
            return Ok(());
        }
        let why = format!(
            "job {id} is held by {}, an operator; releasing it requires the role {}, but {} (uid {}) has the role {}",
            self.by,
            Role::Operator.name(),
            by.account.name,
            by.account.uid,
            by.role.name()
        );
        Err(Error::new(ErrorCode::NotAllowed, why).hint(format!(
            "ask {} or another operator, or cancel it: `divvy cancel {id}`",
            self.by
        )))
    }
}

impl Job {
    /// The hold that keeps the job from being placed.
    pub fn on_hold(&self) -> Option<&Hold> {
        (self.run_state.hold.as_ref()).filter(|_| self.state == JobState::Queued)
    }

    /// The hold in words.
    pub(in crate::controller) fn hold_description(&self) -> Option<String> {
        Some(self.on_hold()?.describe(&self.reference()))
    }
}

pub(in crate::controller) fn hold_job(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    by: &Caller,
) -> Result<JobId, Halt> {
    let job = not_elsewhere(jobs, id, "held")?;
    if job.state != JobState::Queued {
        let id = job.reference();
        let why = format!(
            "job {id} is {}, but only pending jobs can be held",
            state(job)
        );
        let hint = format!(
            "`divvy suspend {id}` stops its processes; `divvy requeue {id}` puts it back into its queue"
        );
        return Err(Error::new(ErrorCode::Conflict, why).hint(hint).into());
    }
    let hold = Hold::by(by, job.spec.credentials.uid);
    let is_held = |before: &Hold| before.operator || !hold.operator;
    if job.run_state.hold.as_ref().is_some_and(is_held) {
        return Ok(id);
    }
    let words = format!("held by {}", hold.by);
    set_hold(jobs, fx, io, id, Some(hold))?;
    fx.record_event(io, Some(id), "held", &words)?;
    Ok(id)
}

pub(in crate::controller) fn unhold_job(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    by: &Caller,
) -> Result<JobId, Halt> {
    let job = not_elsewhere(jobs, id, "released")?;
    if job.run_state.suspended {
        let id = job.reference();
        let why = format!("job {id} is suspended, not held");
        let hint = format!("resume it: divvy resume {id}");
        return Err(Error::new(ErrorCode::Conflict, why).hint(hint).into());
    }
    let Some(hold) = job.on_hold() else {
        return Ok(id);
    };
    hold.may_release(&job.reference(), by)?;
    set_hold(jobs, fx, io, id, None)?;
    let words = format!("released by {}", by.account.name);
    fx.record_event(io, Some(id), "released", &words)?;
    Ok(id)
}

fn set_hold(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    hold: Option<Hold>,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    active.job.run_state.hold = hold;
    let job = active.job.clone();
    io.store.save(&job)?;
    fx.replan = true;
    Ok(())
}

/// Whether this caller may release the job.
pub(in crate::controller) fn is_released_by(jobs: &Jobs, id: JobId, by: &Caller) -> bool {
    let job = not_elsewhere(jobs, id, "released").ok();
    job.is_some_and(|job| {
        (job.on_hold()).is_some_and(|hold| hold.may_release(&job.reference(), by).is_ok())
    })
}

/// An active job that is not stopping, in a queue that belongs to no other scheduler.
///
/// # Errors
/// [`ErrorCode::Conflict`] for any other job.
pub(in crate::controller) fn not_elsewhere<'a>(
    jobs: &'a Jobs,
    id: JobId,
    what: &str,
) -> Result<&'a Job, Error> {
    let conflict = |why: String, hint: String| Error::new(ErrorCode::Conflict, why).hint(hint);
    // A job that ended in this round is active until the replies are sent.
    let active = jobs.active.get(&id);
    let Some(active) = active.filter(|active| active.job.state.outcome().is_none()) else {
        return Err(has_ended(id));
    };
    jobs.refuse_for_claim(id, what)?;
    let job = &active.job;
    if job.spec.policy.labels.contains_key(TASK) {
        return Err(conflict(
            format!(
                "job {id} is a task of a ClearML server, which owns its queue: it cannot be {what} here"
            ),
            "move or dequeue the task on the server; `divvy cancel` stops it".to_owned(),
        ));
    }
    if matches!(job.state, JobState::Stopping { .. }) {
        return Err(conflict(
            format!("job {id} is being stopped, and cannot be {what}"),
            format!("`divvy describe {id}` shows its state"),
        ));
    }
    Ok(job)
}

fn state(job: &Job) -> &'static str {
    match job.state {
        JobState::Starting { .. } => "starting",
        _ => "running",
    }
}
