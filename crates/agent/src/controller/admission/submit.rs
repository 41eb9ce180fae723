//! Submission: every check that can refuse a job runs here, before the journal stores anything.

use std::sync::Arc;

use divvy_api::v1::{self, Error, ErrorCode, ReasonCode, Submit};
use divvy_core::units::IdError;
use divvy_core::{Amount, JobId, PendingJob, QueueName, SchedulingClass, Snapshot};

use super::{
    array, container_access, dependencies, idempotency, on_behalf, text_budget, user_rules,
};
use crate::auth::{Caller, Role};
use crate::container::options;
use crate::controller::admission::user_rules::MOST_LABELS;
use crate::controller::admission::{projects, queues};
use crate::controller::effects::Effects;
use crate::controller::halt::{Halt, journal_error};
use crate::controller::io::Io;
use crate::controller::lifecycle::schedule;
use crate::controller::mig::{capacity, view};
use crate::controller::query::estimate;
use crate::controller::state::estimate::StartEstimator;
use crate::controller::state::mig::MigManager;
use crate::controller::state::{GpuState, Jobs, State};
use crate::controller::{disk_full, query, reference};
use crate::host::account::UserAccount;
use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::host::process::Process;
use crate::journal::StoreError;
use crate::journal::secrets::SecretsError;
use crate::model::idle;
use crate::model::job::{Credentials, Job, JobSpec, NewJob};
use crate::model::policy::{Hold, JobPolicy, Tie};
use crate::model::validate::{self, budget, usage};
use crate::supervisor::{output, script};

/// The warning for a job that cannot end with its client.
const UNTIED: &str =
    "the daemon does not see the client's process, so the job does not end with it";

/// The result of a submission.
pub enum SubmitOutcome {
    Job {
        id: JobId,
        /// What the submission may not mean.
        warning: Option<String>,
    },
    /// A dry run: the job as it would be, and the estimator of its start.
    DryRun(Box<v1::Job>, Box<StartEstimator>),
}

/// The caller of a submission, and what the daemon knows of it besides.
#[derive(Clone, Copy)]
pub struct SubmitContext<'a> {
    pub by: &'a Caller,
    /// The account of the user that the submission names.
    pub named: Option<&'a UserAccount>,
    /// The process with which the job is to end.
    pub client: Option<Process>,
}

pub(in crate::controller) fn submit(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    submit: Submit,
    SubmitContext { by, named, client }: SubmitContext<'_>,
) -> Result<SubmitOutcome, Halt> {
    let (dry_run, no_wait) = (submit.dry_run, submit.no_wait);
    let array = submit.array.clone();
    let key = submit.idempotency_key.as_ref();
    let before = match key.map(|key| idempotency::scoped_key(key, by)) {
        Some(key) => io.store.with_key(&key)?,
        None => None,
    };
    let digest = key.map(|_| idempotency::digest(&submit));
    // Before all other checks: changes since the first submission must not affect the reply to its key.
    if let Some(before) = &before
        && before.spec.policy.digest.is_some()
    {
        let is_same = before.spec.policy.digest == digest;
        return Ok(idempotency::replay(before, is_same)?);
    }
    if let Some(error) =
        disk_full::disk_full_error_for(&state.disk, io, &submit).filter(|_| !dry_run)
    {
        return Err(error.into());
    }
    for account in [Some(&by.account), named].into_iter().flatten() {
        state.queues.users.remember(account, &state.jobs);
    }
    let named_project = submit.project.as_deref();
    let warning = named_project.and_then(|name| user_rules::project_warning(&state.queues, name));
    let warning = warning.or_else(|| {
        let is_untied = submit.with_client && client.is_none();
        is_untied.then(|| UNTIED.to_owned())
    });
    let mut new = validate(state, io, submit, by)?;
    new.spec.policy.tie = client.map(|client| Tie {
        client,
        boot: state.mig.boot.clone(),
    });
    let count = array.as_ref().map_or(1, |array| array.indices.len());
    check_count(&state.jobs, io, by, count)?;
    let alike = array.map(|array| (new.clone(), array));
    let mut new = match &alike {
        Some((alike, array)) => array::task(alike, array, array.indices[0], None),
        None => new,
    };
    if let Some(before) = before {
        return Ok(idempotency::replay(&before, *before.spec == new.spec)?);
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
    text_budget::check_texts(&state.jobs, io, by, more)?;
    if dry_run || no_wait {
        let (mut job, estimator) = self::dry_run(state, io, &new);
        if dry_run {
            job.warnings.extend(warning);
            return Ok(SubmitOutcome::DryRun(Box::new(job), Box::new(estimator)));
        }
        if job.state == v1::JobState::Queued {
            return Err(would_wait(&job).into());
        }
    }
    let rest = move |first: JobId| {
        alike.into_iter().flat_map(move |(alike, array)| {
            let indices = array.indices.clone().into_iter().skip(1);
            indices.map(move |index| array::task(&alike, &array, index, Some(first)))
        })
    };
    if let Some(label) = new
        .spec
        .project
        .as_ref()
        .filter(|_| state.queues.labels.len() < MOST_LABELS)
    {
        state.queues.labels.insert(label.clone());
    }
    let id = admit(&mut state.jobs, fx, io, &new, rest)?;
    if no_wait {
        // The client asked for a start at once, so this job is placed before later submissions of the round are
        // handled.
        schedule::replan(state, fx, io)?;
    } else {
        fx.replan = true;
    }
    Ok(SubmitOutcome::Job { id, warning })
}

/// Whether this user may have `more` more jobs.
fn check_count(jobs: &Jobs, io: &Io, by: &Caller, more: usize) -> Result<(), Error> {
    let most = usize::try_from(io.config.limits.max_jobs).unwrap_or(usize::MAX);
    // A user has at most as many jobs as there are, so the count per user is only needed beyond that.
    if jobs.active.len() + more <= most {
        return Ok(());
    }
    let uid = by.account.uid;
    let active = jobs.active.values();
    let has = active
        .filter(|active| active.job.spec.credentials.uid == uid)
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
        "the limit is {most} jobs (the key limits.max-jobs): wait for some to end, or cancel some"
    )))
}

/// Stores a job and everything that belongs to it, or nothing. `rest`: the other jobs of its array, given the first
/// job's number.
fn admit<Rest: Iterator<Item = NewJob>>(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    first: &NewJob,
    rest: impl FnOnce(JobId) -> Rest,
) -> Result<JobId, Halt> {
    let (job, mut kept) = store_job(io, first)?;
    let id = job.id;
    let mut admitted = vec![(job, budget::new_job_size(first))];
    for new in rest(id) {
        if kept.is_err() {
            break;
        }
        let (job, secrets) = store_job(io, &new)?;
        admitted.push((job, budget::new_job_size(&new)));
        kept = secrets;
    }
    if let Err(error) = kept {
        for (job, _) in admitted {
            io.store.take_back(job.id)?;
            // The failed job may have left a part of its secrets.
            forget_secrets(io, &job);
        }
        return Err(Error::new(ErrorCode::Internal, error_chain(&error)).into());
    }
    let mut outcomes = dependencies::DependencyOutcomes::default();
    for (job, texts) in admitted {
        let id = job.id;
        let text = format!(
            "{} requests {} in queue {}",
            job.spec.name,
            job.spec.request.amount.describe(),
            job.spec.queue
        );
        fx.record_event(io, Some(id), "submitted", &text)?;
        crate::controller::admission::text_budget::add_job(jobs, job, texts);
        crate::controller::admission::dependencies::check_dependencies(
            jobs,
            fx,
            io,
            id,
            &mut outcomes,
        )?;
    }
    Ok(id)
}

/// Stores one job, and its secrets if the job could be stored.
fn store_job(io: &Io, new: &NewJob) -> Result<(Job, Result<(), SecretsError>), StoreError> {
    let job = io.store.insert(new)?;
    let kept = match new.secrets.is_empty() {
        true => Ok(()),
        false => io.secrets.keep(job.id, &new.secrets),
    };
    Ok((job, kept))
}

/// Runs after the commit: a job that is queued again after a crash needs its secrets.
pub(in crate::controller) fn remove_expired_secrets(jobs: &Jobs, fx: &mut Effects, io: &Io) {
    for id in std::mem::take(&mut fx.jobs.expired_secrets) {
        if let Some(active) = jobs.active.get(&id) {
            forget_secrets(io, &active.job);
        }
    }
}

fn forget_secrets(io: &Io, job: &Job) {
    if !job.spec.secrets.is_empty()
        && let Err(error) = io.secrets.forget(job.id)
    {
        tracing::warn!(job = %job.id, error = error_chain(&error), "cannot delete the job's secrets; they stay on the disk until the next start");
    }
}

fn validate(state: &State, io: &Io, mut submit: Submit, by: &Caller) -> Result<NewJob, Error> {
    check_caller(io, &submit, by)?;
    let contained = submit.container.is_some() || io.config.containers.default.is_some();
    script::check(&submit, contained)?;
    output::check(&submit, contained)?;
    let default = io.config.containers.default.as_ref();
    container_access::validate(io, &mut submit, default, by)?;
    validate::check_texts(&submit)?;
    let (queue, amount) = queue_and_amount(
        &state.mig,
        &state.gpus,
        io,
        submit.queue.as_deref(),
        submit.amount.clone(),
    )?;
    let gpus = capacity::gpus_ever(&state.mig, &state.gpus);
    let before = &state.gpus.start.before;
    let request = validate::request(amount, &submit, &gpus)
        // What the GPUs of the last start can serve waits for those that are missing, or in another mode.
        .or_else(|never| validate::request(amount, &submit, before).map_err(|_| never))
        .map_err(|never| view::explain(&state.mig, &state.gpus, never))?;
    let mut terms = JobPolicy::from_submit(&submit)?;
    idle::check(terms.idle, io.config.idle, by)?;
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
        let own = reference::find_own(&state.jobs, io, &after.job, by.account.uid)
            .map_err(journal_error)?;
        after.job = own.map_or_else(|| std::mem::take(&mut after.job), |own| own.to_string());
    }
    terms.after = crate::controller::admission::dependencies::resolve_dependencies(
        &state.jobs,
        io,
        &submit.after,
    )?;
    let user = on_behalf::user(submit.user, by)?;
    terms.account = (user != by.account.name).then(|| by.account.name.clone());
    let named = submit.project.is_some();
    let key = state.queues.users.key(&user);
    submit.project = user_rules::project(&state.queues, io, submit.project, &key, &by.account)?;
    let owner = SchedulingClass {
        user: Some(user.as_str().into()),
        ..terms.owner(submit.project.as_deref())
    };
    if let Some(project) = &submit.project
        && owner.project.is_none()
    {
        let error = IdError::Project(project.clone());
        return Err(usage(error.to_string()).hint(error.hint()));
    }
    projects::check_member(&state.queues, &owner, &by.account, &user).map_err(
        |error| match named {
            true => error,
            false => user_rules::not_member_of_default(error, &user),
        },
    )?;
    let latency = &io.config.schedule.latency;
    let of_project = owner.project.as_ref();
    let of_project = of_project.and_then(|project| latency.projects.get(project));
    let goal = latency.queues.get(&queue).or(of_project).copied();
    let request = validate::with_latency(request, goal, latency.share, &gpus)?;
    projects::check_project(state, io, &owner, &request)?;
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

/// Refuses what this caller may not request.
fn check_caller(io: &Io, submit: &Submit, by: &Caller) -> Result<(), Error> {
    if io.config.claims_only && by.role < Role::Admin {
        let why = "another scheduler assigns the GPUs of this node, so jobs of Divvy's own queues are refused here (claims-only)";
        return Err(Error::new(ErrorCode::NotAllowed, why).hint(
            "request the GPU from that scheduler, such as `srun --gres=shard:1`; in its jobs, start the program without `divvy run`",
        ));
    }
    if submit.container.is_some() || io.config.containers.default.is_some() {
        io.config.rules.get().container_access(by)?;
    }
    if submit.runner == v1::Runner::Claim {
        return Err(usage("a claim cannot be submitted as a job").hint("use PUT /v1/claims/{uid}"));
    }
    // The client would write records that the daemon trusts.
    if submit.runner == v1::Runner::Client && by.account.uid != Credentials::current().uid {
        let why = "the system daemon starts programs itself; clients cannot start them";
        return Err(Error::new(ErrorCode::NotAllowed, why)
            .hint("submit it and follow its log: `divvy submit`, `divvy logs -f last`"));
    }
    Ok(())
}

fn queue_and_amount(
    mig: &MigManager,
    gpus: &GpuState,
    io: &Io,
    queue: Option<&str>,
    amount: Option<v1::Amount>,
) -> Result<(QueueName, Amount), Error> {
    let default = QueueName::default_queue();
    let spec = queues::served_queue(io, queue.unwrap_or(default.as_str()))?;
    let name = &spec.name;
    let requested = amount.map(Amount::try_from).transpose()?;
    match (spec.amount, requested) {
        (Some(fixed), Some(requested))
            if !requested.is_as_much(fixed, &capacity::gpus_ever(mig, gpus)) =>
        {
            Err(usage(format!(
                "queue {name} allocates {fixed} to each of its jobs, but {requested} was requested"
            ))
            .hint("leave the amount out, or use another queue; `divvy queues` shows the amounts"))
        }
        // The queue's own name is cloned, so that all its jobs share one string.
        (Some(amount), _) | (None, Some(amount)) => Ok((spec.name.clone(), amount)),
        (None, None) => Err(usage(format!(
            "queue {name} has no fixed amount, and the job requests none"
        ))
        .hint("request an amount: -g 0.25, -g 2 or --gpu-memory 4G")),
    }
}

/// The job as it would be placed now, and the estimator of its start.
fn dry_run(state: &State, io: &Io, new: &NewJob) -> (v1::Job, StartEstimator) {
    let mut job = Job::queued(JobId(u64::MAX), new);
    let (owner, request) = (job.owner(), job.spec.request.clone());
    let waiting = PendingJob {
        owner,
        ..PendingJob::new(job.id, request)
    };
    // A job with open dependencies is not in its queue's order yet.
    let open = crate::controller::admission::dependencies::unfinished_dependencies(
        &state.jobs,
        &new.spec.policy.after,
    );
    let limit = user_rules::user_limit(state, io, &new.spec.user);
    let add = |snapshot: &mut Snapshot| {
        let limit = limit.map(|most| (new.spec.user.as_str().into(), most));
        snapshot.user_limits.extend(limit);
        let mut queues = snapshot.queues.iter_mut();
        let queue = queues.find(|queue| queue.spec.name == job.spec.queue && open.is_empty());
        if let Some(queue) = queue {
            let before = |other: &PendingJob| other.owner.priority >= waiting.owner.priority;
            let place = queue.waiting.partition_point(before);
            queue.waiting.insert(place, waiting.clone());
        }
    };
    let input = Arc::new(estimate::copy(state, io).with(add));
    let estimator = StartEstimator {
        id: job.id,
        input: Arc::clone(&input),
    };
    if let Some(hold) = &new.hold {
        let mut shown = query::to_api(state, io, &job, None, None);
        (shown.reason, shown.reason_code) = (Some(hold.describe("ID")), Some(ReasonCode::Held));
        return (unnumbered(shown), estimator);
    }
    let plan = divvy_core::plan(input.snapshot());
    let start = plan.starts.into_iter().find(|start| start.job == job.id);
    let wait = plan.waits.into_iter().find(|wait| wait.job == job.id);
    if let Some(start) = start {
        job.place(start.grants);
    }
    let mut shown = query::to_api(state, io, &job, None, wait.as_ref());
    if let Some(words) = dependencies::describe_dependencies(&open) {
        (shown.reason, shown.reason_code) = (Some(words), Some(ReasonCode::Dependency));
    }
    (unnumbered(shown), estimator)
}

/// The job of a dry run has no number and no folder.
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

/// The words from which a job without a name gets one.
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
