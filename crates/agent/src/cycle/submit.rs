//! Taking in a job: everything that can be refused is refused here, before anything is stored.

use divvy_api::v1::{self, Error, ErrorCode, Submit};
use divvy_core::{Amount, JobId, QueueName};

use super::{Cycle, Living};
use crate::clock::now;
use crate::intake::{self, usage};
use crate::job::{Ask, Job, NewJob};
use crate::store::StoreError;

/// What became of a submit.
pub enum Submitted {
    Job(JobId),
    Refused(Error),
    /// A dry run: the job as it would be.
    Would(Box<v1::Job>),
}

impl Cycle {
    pub(super) fn submit(&mut self, submit: Submit) -> Result<Submitted, StoreError> {
        let (dry_run, no_wait) = (submit.dry_run, submit.no_wait);
        let new = match self.checked(submit) {
            Ok(new) => new,
            Err(error) => return Ok(Submitted::Refused(error)),
        };
        if let Some(key) = &new.key
            && let Some(before) = self.store.with_key(key)?
        {
            return Ok(repeated(&new, &before));
        }
        if dry_run || no_wait {
            let job = self.forecast(&new);
            if dry_run {
                return Ok(Submitted::Would(Box::new(job)));
            }
            if job.state == v1::JobState::Queued {
                return Ok(Submitted::Refused(would_wait(&job)));
            }
        }
        let job = self.store.insert(&new)?;
        let id = job.id;
        let text = format!(
            "{} for {} in queue {}",
            job.ask.name, job.ask.request.amount, job.ask.queue
        );
        self.tell(Some(id), "submitted", &text)?;
        self.jobs.insert(id, Living::new(job));
        if no_wait {
            // Placed before any later submit of this round is heard, as was promised.
            self.plan()?;
        } else {
            self.round.replan = true;
        }
        Ok(Submitted::Job(id))
    }

    fn checked(&self, submit: Submit) -> Result<NewJob, Error> {
        intake::check_texts(&submit)?;
        let (queue, amount) =
            self.queue_and_amount(submit.queue.as_deref(), submit.amount.clone())?;
        let gpus: Vec<_> = self
            .devices
            .iter()
            .map(|device| device.gpu.clone())
            .collect();
        let request = intake::request(amount, &submit, &gpus)?;
        Ok(NewJob {
            ask: Ask {
                name: intake::name(submit.name, &submit.command)?,
                user: self.config.user.clone(),
                project: submit.project,
                queue,
                request,
                runner: submit.runner,
                command: submit.command,
                cwd: submit.cwd,
            },
            env: submit.env,
            key: submit.idempotency_key,
            at: now(),
        })
    }

    fn queue_and_amount(
        &self,
        queue: Option<&str>,
        amount: Option<v1::Amount>,
    ) -> Result<(QueueName, Amount), Error> {
        let name = queue.map_or_else(|| Ok(QueueName::default_queue()), str::parse);
        let name: QueueName = name.map_err(|error: divvy_core::ids::IdError| {
            usage(error.to_string()).hint(error.hint())
        })?;
        let spec = self
            .config
            .queues
            .iter()
            .find(|spec| spec.name == name)
            .ok_or_else(|| {
                let there = self
                    .config
                    .queues
                    .iter()
                    .map(|spec| spec.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", ");
                Error::new(ErrorCode::NotFound, format!("there is no queue {name}"))
                    .hint(format!("the queues are {there}"))
            })?;
        let asked = amount.map(Amount::try_from).transpose()?;
        match (spec.amount, asked) {
            (Some(fixed), Some(asked)) if asked != fixed => Err(usage(format!(
                "queue {name} gives each of its jobs {fixed}, and {asked} was asked for"
            ))
            .hint("leave the amount out, or submit to the queue `default`")),
            (Some(amount), _) | (None, Some(amount)) => Ok((name, amount)),
            (None, None) => Err(usage(format!(
                "queue {name} has no amount of its own, and the job asks for none"
            ))
            .hint("say how much: -g 0.25, -g 2 or --gpu-memory 4G")),
        }
    }

    /// What would become of the job now.
    fn forecast(&self, new: &NewJob) -> v1::Job {
        let mut job = Job::queued(JobId(u64::MAX), new);
        let mut snapshot = self.snapshot();
        let waiting = divvy_core::Waiting {
            job: job.id,
            request: job.ask.request.clone(),
        };
        if let Some(queue) = snapshot
            .queues
            .iter_mut()
            .find(|queue| queue.spec.name == job.ask.queue)
        {
            queue.waiting.push(waiting);
        }
        let plan = divvy_core::plan(&snapshot);
        let start = plan.starts.into_iter().find(|start| start.job == job.id);
        let wait = plan.waits.into_iter().find(|wait| wait.job == job.id);
        if let Some(start) = start {
            job.place(start.grants);
        }
        let mut shown = self.show(&job, None, wait.as_ref());
        // It has no number and no folder, and will not get them by this.
        for text in [&mut shown.id, &mut shown.directory] {
            text.clear();
        }
        shown.slice_directory = None;
        shown
    }
}

/// The answer to a key that was seen before: the first job, if it is the same one.
fn repeated(new: &NewJob, before: &Job) -> Submitted {
    if before.ask == new.ask {
        return Submitted::Job(before.id);
    }
    let error = Error::new(
        ErrorCode::Conflict,
        format!("the idempotency key belongs to another job, #{}", before.id),
    )
    .hint("a key stands for one job: use a new one for another job")
    .details(serde_json::json!({ "job": before.id.to_string() }));
    Submitted::Refused(error)
}

fn would_wait(job: &v1::Job) -> Error {
    let reason = job.reason.clone().unwrap_or_default();
    Error::new(
        ErrorCode::WouldWait,
        format!("the job would have to wait: {reason}"),
    )
    .hint("leave --no-wait out to queue it")
}
