//! Confirmation: a job that starts only after its front end confirms it. It holds its slice meanwhile, and no process
//! of it exists.
//!
//! ```text
//! placed ──► journal ──► granted ──► confirm ──► journal ──► answer, start
//!    ▲                      │ no client waits for it or confirms it
//!    └── wait ── held ◄─────┘
//! ```
//! A confirmation is for one slice: a job that is placed again needs a new one. If the daemon is killed before it
//! starts the job, the next daemon leaves the job unconfirmed with its slice. A job that was confirmed already starts
//! in the slice that it was confirmed for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use divvy_api::v1::{Confirm, Confirmation, Error, ErrorCode, ReasonCode, Submit};
use divvy_core::{JobId, JobState};

use crate::auth::Caller;
use crate::container::options;
use crate::controller::admission::{container_access, text_budget};
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::lifecycle::{end, requeue};
use crate::controller::query::view::BlockReason;
use crate::controller::reference;
use crate::controller::reference::has_ended;
use crate::controller::runtime::{ActiveJob, Runtime};
use crate::controller::state::Jobs;
use crate::controller::state::mig::{MigManager, is_divided};
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::job::{Job, JobSpec};
use crate::model::validate::{self, budget, limits};

impl Job {
    /// The job has its slice, and its front end has not confirmed it.
    pub(in crate::controller) fn awaits_confirmation(&self) -> bool {
        let starting = matches!(self.state, JobState::Starting { .. });
        starting
            && self.spec.policy.confirm_within_s.is_some()
            && self.run_state.confirmed.is_none()
    }

    /// The job stands for work that its front end has not taken: no program of it was ever to start.
    pub(in crate::controller) fn only_stands_for_a_task(&self) -> bool {
        self.spec.policy.confirm_within_s.is_some()
            && self.run_state.confirmed.is_none()
            && self.run_state.runs == 0
            && self.started_at.is_none()
    }

    /// How long the job keeps its slice while no client asks for it.
    pub(in crate::controller) fn confirm_timeout(&self) -> Duration {
        Duration::from_secs(self.spec.policy.confirm_within_s.unwrap_or_default())
    }

    /// The state of the confirmation, if the job needs one.
    pub(in crate::controller) fn confirmation(&self) -> Option<Confirmation> {
        self.spec.policy.confirm_within_s?;
        Some(match (&self.state, &self.run_state.confirmed) {
            (JobState::Queued, _) => Confirmation::NotPlaced,
            (_, Some(_)) => Confirmation::Confirmed,
            (JobState::Starting { .. }, None) => Confirmation::Awaiting,
            (_, None) => Confirmation::NotPlaced,
        })
    }

    /// The job was confirmed for its slice, and starts there or not at all. This does not hold for MIG instances: they
    /// may be gone.
    pub(in crate::controller) fn keeps_placement(&self) -> bool {
        let starting = matches!(self.state, JobState::Starting { .. });
        starting && self.run_state.confirmed.is_some() && !is_divided(self.state.grants())
    }
}

/// Everything that the job runs on exists: it starts, or waits for its confirmation.
pub(in crate::controller) fn ready(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    fx.replies.milestones.push(id);
    active.mark_client_seen();
    if !active.job.awaits_confirmation() {
        fx.jobs.starts.push(id);
        return Ok(());
    }
    fx.failpoints.push("confirm.granted");
    let text = format!(
        "{} reserved; the front end has {} s to confirm the job",
        active.job.grant_labels(),
        active.job.confirm_timeout().as_secs()
    );
    fx.record_event(io, Some(id), "granted", &text)
}

/// Confirms a job that has its slice. The confirmation may change what the job runs.
pub(in crate::controller) fn confirm(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    reference: &str,
    confirm: &Confirm,
    by: &Caller,
) -> Result<JobId, Halt> {
    let id = reference::find(jobs, io, reference)?;
    let digest = digest(confirm);
    let Some(active) = jobs.active.get(&id) else {
        return Err(has_ended(id).into());
    };
    match confirmation_state(&active.job, confirm, &digest, by) {
        Err(error) => return Err(error.into()),
        Ok(ConfirmationState::AlreadyConfirmed) => return Ok(id),
        Ok(ConfirmationState::Pending) => {}
    }
    let env = io.store.env(id)?.unwrap_or_default();
    let before = budget::ended_job_size(&active.job.spec) + budget::written(&env);
    let submit = amended(io, &active.job, env, confirm, by)?;
    let ready = active.has_all_instances();
    let mut spec = JobSpec::clone(&active.job.spec);
    spec.command = submit.command;
    spec.container = submit.container;
    spec.policy.labels = submit.labels;
    let after = budget::ended_job_size(&spec) + budget::written(&submit.env);
    let texts = (active.texts + after).saturating_sub(before);
    text_budget::check_job(jobs, io, id, texts, "the confirmation would make it")?;
    let Some(ActiveJob { job, .. }) = jobs.active.get_mut(&id).map(Box::as_mut) else {
        return Ok(id);
    };
    job.spec = Arc::new(spec);
    job.run_state.confirmed = Some(digest);
    let job = job.clone();
    io.store.save_amended(&job, &submit.env)?;
    io.store.save(&job)?;
    text_budget::set_texts(jobs, id, texts);
    fx.record_event(io, Some(id), "confirmed", &job.grant_labels())?;
    reach("confirm.intent");
    fx.failpoints.push("confirm.kept");
    if ready {
        fx.jobs.starts.push(id);
    }
    Ok(id)
}

/// The submission as the confirmation changes it.
fn amended(
    io: &Io,
    job: &Job,
    env: BTreeMap<String, String>,
    confirm: &Confirm,
    by: &Caller,
) -> Result<Submit, Error> {
    let mut submit = Submit {
        command: confirm
            .command
            .clone()
            .unwrap_or_else(|| job.spec.command.clone()),
        container: confirm
            .container
            .clone()
            .or_else(|| job.spec.container.clone()),
        cwd: job.spec.cwd.clone(),
        env,
        labels: job.spec.policy.labels.clone(),
        ..Submit::default()
    };
    submit.env.extend(confirm.env.clone());
    submit.labels.extend(confirm.labels.clone());
    limits::submit(&submit)?;
    match confirm.container {
        Some(_) => container_access::validate(io, &mut submit, None, by)?,
        // The job's own was judged with its submission.
        None => options::validate(&mut submit, None, None)?,
    }
    // An administrator who confirms a user's job gives it no other rights.
    let own = job.spec.container.as_ref();
    if let Some(container) = &mut submit.container {
        container.as_submitter |= own.is_some_and(|own| own.as_submitter);
    }
    validate::check_texts(&submit)?;
    Ok(submit)
}

/// Takes the slice of a job that no client has confirmed or waited for. The planner places it again once a client waits
/// for it.
pub(in crate::controller) fn expire_confirmation(
    jobs: &mut Jobs,
    mig: &mut MigManager,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get(&id) else {
        return Ok(());
    };
    let within = active.job.confirm_timeout().as_secs();
    requeue::requeue_unstarted(
        jobs,
        mig,
        fx,
        io,
        id,
        &format!("not confirmed within {within} s"),
    )?;
    let active = jobs.active.get_mut(&id);
    if let Some(Runtime::Waiting(waiting)) = active.map(|active| &mut active.runtime) {
        waiting.confirmation_expired = true;
    }
    Ok(())
}

/// Starts a confirmed job again, after its daemon or its supervisor was killed.
pub(in crate::controller) fn start_in_place(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    why: &str,
) -> Result<(), StoreError> {
    end::free_slice(jobs, fx, id);
    fx.jobs.starts.push(id);
    fx.record_event(io, Some(id), "starting", &format!("starting again: {why}"))
}

/// A client waits for the job. If it lost its slice because no client did, the planner considers it again.
pub(in crate::controller) fn clear_confirmation_expiry(
    jobs: &mut Jobs,
    fx: &mut Effects,
    id: JobId,
) {
    if let Some(active) = jobs.active.get_mut(&id) {
        active.mark_client_seen();
        if let Runtime::Waiting(waiting) = &mut active.runtime {
            fx.replan |= std::mem::take(&mut waiting.confirmation_expired);
        }
    }
}

/// A failpoint on the way of a job that was confirmed.
pub(in crate::controller) fn pass(jobs: &Jobs, id: JobId, point: &str) {
    let active = jobs.active.get(&id);
    if active.is_some_and(|active| active.job.run_state.confirmed.is_some()) {
        reach(point);
    }
}

/// The reason of a job that waits for its confirmation, or was not confirmed in time.
pub(in crate::controller) fn confirmation_block_reason(
    jobs: &Jobs,
    job: &Job,
) -> Option<BlockReason> {
    let is_expired = jobs
        .active
        .get(&job.id)
        .is_some_and(|active| active.has_expired_confirmation());
    let words = if job.awaits_confirmation() {
        "waits for its confirmation".to_owned()
    } else if is_expired && job.state == JobState::Queued {
        let within = job.confirm_timeout().as_secs();
        format!("not confirmed within {within} s; waits until its front end asks for it again")
    } else {
        return None;
    };
    Some(BlockReason {
        code: Some(ReasonCode::Confirmation),
        message: words,
    })
}

enum ConfirmationState {
    Pending,
    /// It was confirmed before, with the same body.
    AlreadyConfirmed,
}

/// Whether this confirmation can be applied now.
fn confirmation_state(
    job: &Job,
    confirm: &Confirm,
    digest: &str,
    by: &Caller,
) -> Result<ConfirmationState, Error> {
    let id = job.id;
    let conflict = |why: String, hint: &str| Err(Error::new(ErrorCode::Conflict, why).hint(hint));
    if job.spec.policy.confirm_within_s.is_none() {
        let why = format!("job {id} needs no confirmation: it was submitted without `confirm`");
        return conflict(why, "submit it with `confirm`");
    }
    let changes = confirm.command.is_some()
        || confirm.container.is_some()
        || !confirm.env.is_empty()
        || !confirm.labels.is_empty();
    if changes && by.account.uid != job.spec.credentials.uid {
        let why = format!(
            "job {id} belongs to another user, so the confirmation cannot change what it runs"
        );
        return Err(Error::new(ErrorCode::NotAllowed, why).hint("confirm it with an empty body"));
    }
    if let Some(attempt) = confirm.attempt.filter(|attempt| *attempt != job.attempt) {
        let why = format!(
            "the confirmation is for attempt {attempt} of job {id}, but its current attempt is {}",
            job.attempt
        );
        return conflict(why, "read the job again, and confirm its current attempt");
    }
    match (&job.state, &job.run_state.confirmed) {
        (JobState::Queued, _) => conflict(
            format!("job {id} has no slice yet"),
            "confirm it after its event `granted`",
        ),
        (_, Some(before)) if before == digest => Ok(ConfirmationState::AlreadyConfirmed),
        (_, Some(_)) => conflict(
            format!("job {id} was already confirmed with other values"),
            "cancel it, and submit a new job",
        ),
        (JobState::Starting { .. }, None) => Ok(ConfirmationState::Pending),
        (
            JobState::Running { .. }
            | JobState::Bound { .. }
            | JobState::Stopping { .. }
            | JobState::Ended { .. },
            None,
        ) => conflict(format!("job {id} is being stopped"), "submit it again"),
    }
}

/// A digest of a confirmation. It has the names of the variables but not their values, which may be secret.
fn digest(confirm: &Confirm) -> String {
    let names = confirm.env.keys();
    let said = Confirm {
        attempt: None,
        env: names.map(|name| (name.clone(), String::new())).collect(),
        ..confirm.clone()
    };
    let said = serde_json::to_string(&said).expect("a confirmation can be written");
    sha1_smol::Sha1::from(said).digest().to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use divvy_api::v1::Runner;
    use divvy_core::{Amount, QueueName};

    use super::*;
    use crate::auth::Role;
    use crate::host::account::UserAccount;
    use crate::host::clock::now;
    use crate::model::job::{Credentials, JobSpec, NewJob};
    use crate::model::policy::JobPolicy;

    /// A job of uid 1000 that has its slice.
    fn granted() -> Job {
        let spec = JobSpec {
            name: "train".into(),
            user: "ana".into(),
            credentials: Credentials {
                uid: 1000,
                gid: 1000,
            },
            project: None,
            queue: QueueName::default_queue(),
            request: Amount::ONE_GPU.into(),
            runner: Runner::Supervisor,
            command: vec!["true".into()],
            container: None,
            cwd: "/".into(),
            policy: JobPolicy {
                confirm_within_s: Some(60),
                ..JobPolicy::default()
            },
            secrets: Vec::new(),
        };
        let new = NewJob {
            spec,
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            key: None,
            at: now(),
            hold: None,
        };
        let mut job = Job::queued(JobId(1), &new);
        job.place(Vec::new());
        job
    }

    fn caller(uid: u32) -> Caller {
        Caller {
            account: UserAccount {
                uid,
                gid: uid,
                name: format!("u{uid}"),
                groups: Vec::new(),
                home: None,
            },
            role: Role::Operator,
            can_see_all: false,
            is_engine: false,
        }
    }

    #[test]
    fn an_operator_confirms_anothers_job_as_it_was_submitted_and_never_as_something_else() {
        let command = Confirm {
            command: Some(vec!["sh".into()]),
            ..Confirm::default()
        };
        let env = Confirm {
            env: BTreeMap::from([("LD_PRELOAD".into(), "/x.so".into())]),
            ..Confirm::default()
        };
        for confirm in [command, env] {
            let own = confirmation_state(&granted(), &confirm, &digest(&confirm), &caller(1000));
            assert!(matches!(own, Ok(ConfirmationState::Pending)));
            let others = confirmation_state(&granted(), &confirm, &digest(&confirm), &caller(1001));
            assert_eq!(
                others.err().map(|error| error.code),
                Some(ErrorCode::NotAllowed)
            );
        }
        let plain = Confirm::default();
        let others = confirmation_state(&granted(), &plain, &digest(&plain), &caller(1001));
        assert!(matches!(others, Ok(ConfirmationState::Pending)));
    }

    #[test]
    fn a_job_is_confirmed_for_one_slice_and_asked_for_again_with_the_next() {
        let mut job = granted();
        assert_eq!(job.confirmation(), Some(Confirmation::Awaiting));
        job.run_state.confirmed = Some("digest".into());
        assert!(!job.awaits_confirmation() && job.keeps_placement());
        job.apply_event(divvy_core::job::Event::NeverStarted);
        assert_eq!(job.confirmation(), Some(Confirmation::NotPlaced));
        job.place(Vec::new());
        assert_eq!(job.confirmation(), Some(Confirmation::Awaiting));
    }

    #[test]
    fn a_digest_tells_confirmations_apart_and_says_nothing_of_secrets() {
        let confirm = |value: &str| Confirm {
            env: BTreeMap::from([("KEY".into(), value.into())]),
            ..Confirm::default()
        };
        assert_eq!(digest(&confirm("a")), digest(&confirm("b")));
        assert_ne!(digest(&confirm("a")), digest(&Confirm::default()));
        let again = Confirm {
            attempt: Some(2),
            ..confirm("a")
        };
        assert_eq!(digest(&again), digest(&confirm("a")));
    }
}
