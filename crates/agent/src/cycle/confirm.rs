//! Jobs that start once somebody confirms it: they hold their slice meanwhile, and nothing of them exists.
//!
//! ```text
//! placed ──► journal ──► granted ──► confirm ──► journal ──► answer, start
//!    ▲                      │ nobody waits for it or confirms it
//!    └── wait ── held ◄─────┘
//! ```
//! A confirmation is for one slice: whoever is placed again is confirmed again. Where the daemon is killed before anything of a
//! job was started, the next one leaves it where it was: unconfirmed, with its slice, or to be started in the slice that it was
//! confirmed for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use divvy_api::v1::{Confirm, Confirmation, Error, ErrorCode, ReasonCode, Submit};
use divvy_core::{Job as Life, JobId};

use super::after::HeldUp;
use super::mig::is_divided;
use super::{Cycle, Living, place};
use crate::access::Caller;
use crate::clock::Instant;
use crate::container::asked;
use crate::failpoint::reach;
use crate::intake::{self, bounds, budget};
use crate::job::{Ask, Job};
use crate::store::StoreError;

impl Job {
    /// It has its slice, and is to be confirmed.
    pub(super) fn awaits_confirmation(&self) -> bool {
        let starting = matches!(self.life, Life::Starting { .. });
        starting && self.ask.terms.confirm_within_s.is_some() && self.course.confirmed.is_none()
    }

    /// How long it keeps its slice while nobody asks for it.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.ask.terms.confirm_within_s.unwrap_or_default())
    }

    /// Where it stands, if it is to be confirmed at all.
    pub(super) fn confirmation(&self) -> Option<Confirmation> {
        self.ask.terms.confirm_within_s?;
        Some(match (&self.life, &self.course.confirmed) {
            (Life::Queued, _) => Confirmation::NotPlaced,
            (_, Some(_)) => Confirmation::Confirmed,
            (Life::Starting { .. }, None) => Confirmation::Awaiting,
            (_, None) => Confirmation::NotPlaced,
        })
    }

    /// It was confirmed for what it holds, and starts there or not at all. What an instance is made of is not there to be relied on.
    pub(super) fn starts_where_it_is(&self) -> bool {
        let starting = matches!(self.life, Life::Starting { .. });
        starting && self.course.confirmed.is_some() && !is_divided(self.life.grants())
    }
}

impl Cycle {
    /// Everything that a job runs on is there: it starts, or is confirmed first.
    pub(super) fn ready(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        self.round.reached.push(id);
        living.heard = Instant::now();
        if !living.job.awaits_confirmation() {
            self.round.starts.push(id);
            return Ok(());
        }
        self.round.points.push("confirm.granted");
        let text = format!(
            "{} reserved; the front end has {} s to confirm the job",
            place::labels(&living.job),
            living.job.patience().as_secs()
        );
        self.tell(Some(id), "granted", &text)
    }

    /// Starts a job that has its slice, perhaps as something else than was submitted.
    pub(super) fn confirm(
        &mut self,
        reference: &str,
        confirm: &Confirm,
        by: &Caller,
    ) -> Result<Result<JobId, Error>, StoreError> {
        let id = match self.find(reference)? {
            Ok(id) => id,
            Err(error) => return Ok(Err(error)),
        };
        let digest = digest(confirm);
        let Some(living) = self.jobs.get(&id) else {
            let error = Error::new(ErrorCode::Conflict, format!("job {id} has ended already"));
            return Ok(Err(
                error.hint(format!("`divvy describe {id}` shows how it ended"))
            ));
        };
        match standing(&living.job, confirm, &digest, by) {
            Err(error) => return Ok(Err(error)),
            Ok(Standing::Done) => return Ok(Ok(id)),
            Ok(Standing::Wanted) => {}
        }
        let env = self.store.env(id)?.unwrap_or_default();
        let before = budget::of(&living.job.ask) + budget::written(&env);
        let submit = match self.amended(&living.job, env, confirm, by) {
            Ok(submit) => submit,
            Err(error) => return Ok(Err(error)),
        };
        let ready = living.awaits.is_empty();
        let mut ask = Ask::clone(&living.job.ask);
        ask.command = submit.command;
        ask.container = submit.container;
        ask.terms.labels = submit.labels;
        let after = budget::of(&ask) + budget::written(&submit.env);
        let texts = (living.texts + after).saturating_sub(before);
        if let Err(error) = self.check_amended(id, texts) {
            return Ok(Err(error));
        }
        let Some(Living { job, .. }) = self.jobs.get_mut(&id).map(Box::as_mut) else {
            return Ok(Ok(id));
        };
        job.ask = Arc::new(ask);
        job.course.confirmed = Some(digest);
        let job = job.clone();
        self.store.save_amended(&job, &submit.env)?;
        self.store.save(&job)?;
        self.set_texts(id, texts);
        self.tell(Some(id), "confirmed", &place::labels(&job))?;
        reach("confirm.intent");
        self.round.points.push("confirm.kept");
        if ready {
            self.round.starts.push(id);
        }
        Ok(Ok(id))
    }

    /// What the job would have been submitted as.
    fn amended(
        &self,
        job: &Job,
        env: BTreeMap<String, String>,
        confirm: &Confirm,
        by: &Caller,
    ) -> Result<Submit, Error> {
        if confirm.container.is_some() {
            self.config.rules.may_contain(by)?;
        }
        let mut submit = Submit {
            command: confirm
                .command
                .clone()
                .unwrap_or_else(|| job.ask.command.clone()),
            container: confirm
                .container
                .clone()
                .or_else(|| job.ask.container.clone()),
            cwd: job.ask.cwd.clone(),
            env,
            labels: job.ask.terms.labels.clone(),
            ..Submit::default()
        };
        submit.env.extend(confirm.env.clone());
        submit.labels.extend(confirm.labels.clone());
        bounds::submit(&submit)?;
        asked::asked(&mut submit, None)?;
        intake::check_texts(&submit)?;
        Ok(submit)
    }

    /// Takes the slice of a job that nobody has confirmed or waited for; it is placed again once somebody waits for it.
    pub(super) fn give_up_waiting(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.unasked = true;
        let within = living.job.patience().as_secs();
        self.put_back(id, &format!("not confirmed within {within} s"))
    }

    /// Has a job started that was confirmed before its daemon was killed, or before its supervisor was.
    pub(super) fn start_where_it_is(&mut self, id: JobId, why: &str) -> Result<(), StoreError> {
        self.free_slice(id);
        self.round.starts.push(id);
        self.tell(Some(id), "starting", &format!("starting again: {why}"))
    }

    /// Somebody waits for the job: if it lost its slice because nobody did, it is in its queue's turn again.
    pub(super) fn asked_for(&mut self, id: JobId) {
        if let Some(living) = self.jobs.get_mut(&id) {
            living.heard = Instant::now();
            self.round.replan |= std::mem::take(&mut living.unasked);
        }
    }

    /// A point on the way of a job that was confirmed.
    pub(super) fn pass(&self, id: JobId, point: &str) {
        let living = self.jobs.get(&id);
        if living.is_some_and(|living| living.job.course.confirmed.is_some()) {
            reach(point);
        }
    }

    /// What is said of one that waits for its confirmation, or was not confirmed.
    pub(super) fn unconfirmed(&self, job: &Job) -> Option<HeldUp> {
        let unasked = self.jobs.get(&job.id).is_some_and(|living| living.unasked);
        let words = if job.awaits_confirmation() {
            "waits for its confirmation".to_owned()
        } else if unasked && job.life == Life::Queued {
            let within = job.patience().as_secs();
            format!("not confirmed within {within} s; waits until its front end asks for it again")
        } else {
            return None;
        };
        Some(HeldUp {
            code: Some(ReasonCode::Confirmation),
            words,
        })
    }
}

enum Standing {
    Wanted,
    /// It was confirmed before, and in the same words.
    Done,
}

/// Whether a job can be confirmed like this now.
fn standing(job: &Job, confirm: &Confirm, digest: &str, by: &Caller) -> Result<Standing, Error> {
    let id = job.id;
    let conflict = |why: String, hint: &str| Err(Error::new(ErrorCode::Conflict, why).hint(hint));
    if job.ask.terms.confirm_within_s.is_none() {
        let why = format!("job {id} needs no confirmation: it was submitted without `confirm`");
        return conflict(why, "submit it with `confirm`");
    }
    let changes = confirm.command.is_some()
        || confirm.container.is_some()
        || !confirm.env.is_empty()
        || !confirm.labels.is_empty();
    if changes && by.account.uid != job.ask.by.uid {
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
    match (&job.life, &job.course.confirmed) {
        (Life::Queued, _) => conflict(
            format!("job {id} has no slice yet"),
            "confirm it after its event `granted`",
        ),
        (_, Some(before)) if before == digest => Ok(Standing::Done),
        (_, Some(_)) => conflict(
            format!("job {id} was already confirmed with other values"),
            "cancel it, and submit a new job",
        ),
        (Life::Starting { .. }, None) => Ok(Standing::Wanted),
        (
            Life::Running { .. } | Life::Lent { .. } | Life::Stopping { .. } | Life::Ended { .. },
            None,
        ) => conflict(format!("job {id} is being stopped"), "submit it again"),
    }
}

/// What a confirmation says, but for values that may be secrets.
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
    use crate::access::Role;
    use crate::account::Account;
    use crate::clock::now;
    use crate::job::{Ask, NewJob, Submitter};
    use crate::terms::Terms;

    /// One that uid 1000 submitted, and that has its slice.
    fn granted() -> Job {
        let ask = Ask {
            name: "train".into(),
            user: "ana".into(),
            by: Submitter {
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
            terms: Terms {
                confirm_within_s: Some(60),
                ..Terms::default()
            },
            secrets: Vec::new(),
        };
        let new = NewJob {
            ask,
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
            account: Account {
                uid,
                gid: uid,
                name: format!("u{uid}"),
                groups: Vec::new(),
            },
            role: Role::Operator,
            sees_all: false,
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
            let own = standing(&granted(), &confirm, &digest(&confirm), &caller(1000));
            assert!(matches!(own, Ok(Standing::Wanted)));
            let others = standing(&granted(), &confirm, &digest(&confirm), &caller(1001));
            assert_eq!(
                others.err().map(|error| error.code),
                Some(ErrorCode::NotAllowed)
            );
        }
        let plain = Confirm::default();
        let others = standing(&granted(), &plain, &digest(&plain), &caller(1001));
        assert!(matches!(others, Ok(Standing::Wanted)));
    }

    #[test]
    fn a_job_is_confirmed_for_one_slice_and_asked_for_again_with_the_next() {
        let mut job = granted();
        assert_eq!(job.confirmation(), Some(Confirmation::Awaiting));
        job.course.confirmed = Some("digest".into());
        assert!(!job.awaits_confirmation() && job.starts_where_it_is());
        job.step(divvy_core::job::Event::NeverStarted);
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
