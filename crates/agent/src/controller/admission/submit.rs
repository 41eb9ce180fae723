//! Taking in a job: everything that can be refused is refused here, before anything is stored.

use divvy_api::v1::{self, Error, ErrorCode, ReasonCode, Submit};
use divvy_core::ids::IdError;
use divvy_core::{Amount, Gpu, JobId, Mode, PendingJob, QueueName, Snapshot};

use super::{array, dependencies, idempotency, on_behalf, text_budget};
use crate::auth::Caller;
use crate::container::options;
use crate::controller::Controller;
use crate::controller::query::estimate::StartEstimator;
use crate::controller::query::journal_error;
use crate::gpu::Device;
use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::journal::StoreError;
use crate::journal::secrets::SecretsError;
use crate::model::idle;
use crate::model::job::{Credentials, Job, JobSpec, NewJob};
use crate::model::policy::{Hold, JobPolicy};
use crate::model::validate::{self, budget, usage};
use crate::supervisor::output;
use crate::supervisor::script;

/// What became of a submit.
pub enum SubmitOutcome {
    Job(JobId),
    Refused(Error),
    /// A dry run: the job as it would be.
    DryRun(Box<v1::Job>, Box<StartEstimator>),
}

impl Controller {
    pub(in crate::controller) fn submit(
        &mut self,
        submit: Submit,
        by: &Caller,
    ) -> Result<SubmitOutcome, StoreError> {
        let (dry_run, no_wait) = (submit.dry_run, submit.no_wait);
        let array = submit.array.clone();
        let key = submit.idempotency_key.as_ref();
        let before = match key.map(|key| idempotency::scoped_key(key, by)) {
            Some(key) => self.store.with_key(&key)?,
            None => None,
        };
        let digest = key.map(|_| idempotency::digest(&submit));
        // First of all: what a key stands for has nothing to do with what has happened since.
        if let Some(before) = &before
            && before.spec.policy.digest.is_some()
        {
            return Ok(idempotency::replay(
                before,
                before.spec.policy.digest == digest,
            ));
        }
        if let Some(error) = self.disk_full_error_for(&submit).filter(|_| !dry_run) {
            return Ok(SubmitOutcome::Refused(error));
        }
        let new = match self.validate(submit, by) {
            Ok(new) => new,
            Err(error) => return Ok(SubmitOutcome::Refused(error)),
        };
        let count = array.as_ref().map_or(1, |array| array.indices.len());
        if let Err(error) = self.check_count(by, count) {
            return Ok(SubmitOutcome::Refused(error));
        }
        let alike = array.map(|array| (new.clone(), array));
        let mut new = match &alike {
            Some((alike, array)) => array::task(alike, array, array.indices[0], None),
            None => new,
        };
        if let Some(before) = before {
            return Ok(idempotency::replay(&before, *before.spec == new.spec));
        }
        new.spec.policy.digest = digest;
        let more = match &alike {
            Some((alike, array)) => {
                let last = array.indices.iter().max().copied().unwrap_or_default();
                let largest = array::task(alike, array, last, Some(JobId(u64::MAX)));
                text_budget::of_array(&largest, &new, count)
            }
            None => budget::new_job_size(&new),
        };
        if let Err(error) = self.check_texts(by, more) {
            return Ok(SubmitOutcome::Refused(error));
        }
        if dry_run || no_wait {
            let (job, foresight) = self.dry_run(&new);
            if dry_run {
                return Ok(SubmitOutcome::DryRun(Box::new(job), Box::new(foresight)));
            }
            if job.state == v1::JobState::Queued {
                return Ok(SubmitOutcome::Refused(would_wait(&job)));
            }
        }
        let rest = move |first: JobId| {
            alike.into_iter().flat_map(move |(alike, array)| {
                let indices = array.indices.clone().into_iter().skip(1);
                indices.map(move |index| array::task(&alike, &array, index, Some(first)))
            })
        };
        let id = match self.admit(&new, rest)? {
            Ok(id) => id,
            Err(error) => return Ok(SubmitOutcome::Refused(error)),
        };
        if no_wait {
            // Placed before any later submit of this round is heard, as was promised.
            self.plan()?;
        } else {
            self.effects.replan = true;
        }
        Ok(SubmitOutcome::Job(id))
    }

    /// Whether this user may have so many more jobs.
    fn check_count(&self, by: &Caller, more: usize) -> Result<(), Error> {
        let most = usize::try_from(self.config.max_jobs).unwrap_or(usize::MAX);
        // Nobody has more than there are; counting is for the day when it matters.
        if self.jobs.len() + more <= most {
            return Ok(());
        }
        let uid = by.account.uid;
        let living = self.jobs.values();
        let has = living
            .filter(|living| living.job.spec.credentials.uid == uid)
            .count();
        if has + more <= most {
            return Ok(());
        }
        let name = &by.account.name;
        let why = format!(
            "{name} has {has} jobs that have not ended, and this submission would make it {}",
            has + more
        );
        Err(Error::new(ErrorCode::NotAllowed, why).hint(format!(
            "the limit is {most} jobs (`divvy daemon --max-jobs`): wait for some to end, or cancel some"
        )))
    }

    /// Stores a job and what belongs to it, all or nothing. `rest`: the others of its array, by the number of the first.
    fn admit<Rest: Iterator<Item = NewJob>>(
        &mut self,
        first: &NewJob,
        rest: impl FnOnce(JobId) -> Rest,
    ) -> Result<Result<JobId, Error>, StoreError> {
        let (job, mut kept) = self.store_job(first)?;
        let id = job.id;
        let mut jobs = vec![(job, budget::new_job_size(first))];
        for new in rest(id) {
            if kept.is_err() {
                break;
            }
            let (job, secrets) = self.store_job(&new)?;
            jobs.push((job, budget::new_job_size(&new)));
            kept = secrets;
        }
        if let Err(error) = kept {
            for (job, _) in jobs {
                self.store.take_back(job.id)?;
                // Also of the one that failed: part of them may be there.
                self.forget_secrets(&job);
            }
            return Ok(Err(Error::new(ErrorCode::Internal, error_chain(&error))));
        }
        let mut fates = dependencies::DependencyOutcomes::default();
        for (job, texts) in jobs {
            let id = job.id;
            let text = format!(
                "{} requests {} in queue {}",
                job.spec.name,
                job.spec.request.amount.describe(),
                job.spec.queue
            );
            self.record_event(Some(id), "submitted", &text)?;
            self.add_job(job, texts);
            self.check_dependencies(id, &mut fates)?;
        }
        Ok(Ok(id))
    }

    /// Stores one job; and its secrets, if that goes well.
    fn store_job(&self, new: &NewJob) -> Result<(Job, Result<(), SecretsError>), StoreError> {
        let job = self.store.insert(new)?;
        let kept = match new.secrets.is_empty() {
            true => Ok(()),
            false => self.secrets.keep(job.id, &new.secrets),
        };
        Ok((job, kept))
    }

    /// After the journal says that they have ended: one that waits again after a crash needs its secrets.
    pub(in crate::controller) fn remove_expired_secrets(&mut self) {
        for id in std::mem::take(&mut self.effects.expired_secrets) {
            if let Some(living) = self.jobs.get(&id) {
                self.forget_secrets(&living.job);
            }
        }
    }

    fn forget_secrets(&self, job: &Job) {
        if !job.spec.secrets.is_empty()
            && let Err(error) = self.secrets.forget(job.id)
        {
            tracing::warn!(job = %job.id, error = error_chain(&error), "cannot delete the job's secrets; they stay on the disk until the next start");
        }
    }

    /// The GPUs as they are when nothing is in the way for a moment, by which it is judged whether a request can ever be
    /// served: one in MIG mode that somebody holds just now comes back, as does one that does not answer and is not lost for good, and one
    /// that is being switched has its new mode soon. What an administrator has to see to first is in the way for longer.
    pub(in crate::controller) fn gpus_ever(&self) -> Vec<Gpu> {
        let ever = |device: &Device| {
            let mut gpu = device.unoccupied();
            if std::mem::take(&mut gpu.away) && !device.is_lost {
                gpu.mode = device.assigned;
            }
            if let Some(wanted) = device
                .requested_mode
                .filter(|_| device.is_managed && device.is_switching_mode)
            {
                gpu.mode = wanted.mode;
            } else if gpu.mode == Mode::Mig && self.trouble_of(device).is_some() {
                gpu.mode = Mode::Unmanaged;
            }
            gpu.mig = gpu.mig.filter(|_| gpu.mode == Mode::Mig);
            gpu
        };
        self.devices.iter().map(ever).collect()
    }

    fn validate(&self, mut submit: Submit, by: &Caller) -> Result<NewJob, Error> {
        self.check_caller(&submit, by)?;
        let contained = submit.container.is_some() || self.config.containers.default.is_some();
        script::check(&submit, contained)?;
        output::check(&submit, contained)?;
        options::validate(&mut submit, self.config.containers.default.as_ref())?;
        validate::check_texts(&submit)?;
        let (queue, amount) =
            self.queue_and_amount(submit.queue.as_deref(), submit.amount.clone())?;
        let gpus = self.gpus_ever();
        let request =
            validate::request(amount, &submit, &gpus).map_err(|never| self.explain(never))?;
        let mut terms = JobPolicy::from_submit(&submit)?;
        idle::check(terms.idle, self.config.idle, by)?;
        if submit.hold && submit.no_wait {
            return Err(
                usage("--hold and --no-wait exclude each other").hint("leave one of the two out")
            );
        }
        if let Some(array) = &submit.array {
            array::check(array)?;
            if submit.no_wait || submit.runner == v1::Runner::Client {
                return Err(usage("an array always waits in its queue")
                    .hint("submit it without --no-wait: `divvy submit --array 0-9`"));
            }
        }
        for after in &mut submit.after {
            let own = self
                .find_own(&after.job, by.account.uid)
                .map_err(journal_error)?;
            after.job = own.map_or_else(|| std::mem::take(&mut after.job), |own| own.to_string());
        }
        terms.after = self.resolve_dependencies(&submit.after)?;
        let owner = terms.owner(submit.project.as_deref());
        if let Some(project) = &submit.project
            && owner.project.is_none()
        {
            let error = IdError::Project(project.clone());
            return Err(usage(error.to_string()).hint(error.hint()));
        }
        let user = on_behalf::user(submit.user, by)?;
        self.check_member(&owner, &by.account, &user)?;
        self.check_project(&owner, &request)?;
        script::store_with_env(submit.script.take(), &mut submit.env);
        Ok(NewJob {
            spec: JobSpec {
                name: validate::name(
                    submit.name,
                    &named_after(&submit.command, &submit.container),
                )?,
                user,
                credentials: Credentials {
                    uid: by.account.uid,
                    gid: by.account.gid,
                },
                project: submit.project,
                queue,
                request,
                runner: submit.runner,
                command: submit.command,
                container: submit.container,
                cwd: submit.cwd,
                policy: terms,
                secrets: submit.secrets.keys().cloned().collect(),
            },
            env: submit.env,
            secrets: submit.secrets,
            key: submit
                .idempotency_key
                .map(|key| idempotency::scoped_key(&key, by)),
            at: now(),
            hold: submit.hold.then(|| Hold::by(by, by.account.uid)),
        })
    }

    /// What only some may ask for.
    fn check_caller(&self, submit: &Submit, by: &Caller) -> Result<(), Error> {
        if submit.container.is_some() || self.config.containers.default.is_some() {
            self.config.rules.may_contain(by)?;
        }
        if submit.runner == v1::Runner::Claim {
            return Err(
                usage("a claim cannot be submitted as a job").hint("use PUT /v1/claims/{uid}")
            );
        }
        // Its client would write records that this agent trusts.
        if submit.runner == v1::Runner::Client && by.account.uid != Credentials::current().uid {
            let why = "the system daemon starts programs itself; clients cannot start them";
            return Err(Error::new(ErrorCode::NotAllowed, why)
                .hint("submit it and follow its log: `divvy submit`, `divvy logs -f last`"));
        }
        Ok(())
    }

    fn queue_and_amount(
        &self,
        queue: Option<&str>,
        amount: Option<v1::Amount>,
    ) -> Result<(QueueName, Amount), Error> {
        let name = queue.map_or_else(|| Ok(QueueName::default_queue()), str::parse);
        let name: QueueName =
            name.map_err(|error: IdError| usage(error.to_string()).hint(error.hint()))?;
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
            (Some(fixed), Some(asked)) if !asked.is_as_much(fixed, &self.gpus_ever()) => {
                Err(usage(format!(
                    "queue {name} allocates {fixed} to each of its jobs, but {asked} was requested"
                ))
                .hint(
                    "leave the amount out, or use another queue; `divvy queues` shows the amounts",
                ))
            }
            // Jobs of one queue share its name.
            (Some(amount), _) | (None, Some(amount)) => Ok((spec.name.clone(), amount)),
            (None, None) => Err(usage(format!(
                "queue {name} has no fixed amount, and the job requests none"
            ))
            .hint("request an amount: -g 0.25, -g 2 or --gpu-memory 4G")),
        }
    }

    /// What would become of the job now, and what there is to know about when it would start.
    fn dry_run(&self, new: &NewJob) -> (v1::Job, StartEstimator) {
        let mut job = Job::queued(JobId(u64::MAX), new);
        let mut snapshot = self.snapshot();
        let (owner, request) = (job.owner(), job.spec.request.clone());
        let waiting = PendingJob {
            owner,
            ..PendingJob::new(job.id, request)
        };
        // Whoever comes back, and whoever runs after others, is no new job.
        let open = self.unfinished_dependencies(&new.spec.policy.after);
        let add = |snapshot: &mut Snapshot| {
            let mut queues = snapshot.queues.iter_mut();
            let queue = queues.find(|queue| queue.spec.name == job.spec.queue && open.is_empty());
            if let Some(queue) = queue {
                let before = |other: &PendingJob| other.owner.priority >= waiting.owner.priority;
                let place = queue.waiting.partition_point(before);
                queue.waiting.insert(place, waiting.clone());
            }
        };
        add(&mut snapshot);
        let foresight = self.start_estimator(job.id, add);
        if let Some(hold) = &new.hold {
            let mut shown = self.to_api(&job, None, None);
            (shown.reason, shown.reason_code) = (Some(hold.describe("ID")), Some(ReasonCode::Held));
            return (unnumbered(shown), foresight);
        }
        let plan = divvy_core::plan(&snapshot);
        let start = plan.starts.into_iter().find(|start| start.job == job.id);
        let wait = plan.waits.into_iter().find(|wait| wait.job == job.id);
        if let Some(start) = start {
            job.place(start.grants);
        }
        let mut shown = self.to_api(&job, None, wait.as_ref());
        if let Some(words) = dependencies::describe_dependencies(&open) {
            (shown.reason, shown.reason_code) = (Some(words), Some(ReasonCode::Dependency));
        }
        (unnumbered(shown), foresight)
    }
}

/// The job of a dry run: it has no number and no folder, and will not get them by this.
fn unnumbered(mut shown: v1::Job) -> v1::Job {
    for text in [&mut shown.id, &mut shown.directory] {
        text.clear();
    }
    if let Some(task) = &mut shown.array {
        task.array.clear();
    }
    shown.slice_directory = None;
    shown
}

/// The words that a job without a name is called after.
fn named_after(command: &[String], container: &Option<v1::Container>) -> Vec<String> {
    match container {
        Some(container) if command.is_empty() => vec![options::name(&container.image)],
        _ => command.to_vec(),
    }
}

fn would_wait(job: &v1::Job) -> Error {
    let reason = job.reason.clone().unwrap_or_default();
    Error::new(
        ErrorCode::WouldWait,
        format!("the job would have to wait: {reason}"),
    )
    .hint("leave --no-wait out to queue it")
}
