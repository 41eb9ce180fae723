//! Changes of pending jobs: their queue, place, request, priority, time limit and name.
//!
//! ```text
//! body ──► validated for the job and its caller ──► journal: all of it ──► events ──► plan
//!               │ one part is refused
//!               └──► no change
//! ```
//! `why` runs the same validation without the change, so it suggests only commands that the daemon accepts
//! ([`commands`]). A running job can change its time limit and its name here; `resize` changes its amount.

use std::sync::Arc;

use divvy_api::v1::{Error, ErrorCode, JobChange};
use divvy_core::order_key::{is_topmost, next_number};
use divvy_core::{Amount, JobId, JobState, QueueName, QueueSpec, Top, can_ever_fit};

use crate::auth::{Caller, Role};
use crate::controller::admission::{projects, queues, text_budget};
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::lifecycle::hold;
use crate::controller::mig::capacity;
use crate::controller::state::{Jobs, State};
use crate::model::job::{Job, JobSpec};
use crate::model::policy::{check_priority, check_range, check_time_limit};
use crate::model::validate::{self, budget, never_fits, usage};

/// A validated change: the job as it will be.
struct ValidatedChange {
    spec: JobSpec,
    resized: Option<Amount>,
    top: Top,
    /// Bytes of the job's texts.
    texts: u64,
    /// Events to record: kind and text. Empty if nothing changes.
    events: Vec<(&'static str, String)>,
}

pub(in crate::controller) fn change_job(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    change: &JobChange,
    by: &Caller,
) -> Result<JobId, Halt> {
    let changed = validate_change(state, io, id, change, by)?;
    if changed.events.is_empty() {
        return Ok(id);
    }
    let Some(active) = state.jobs.active.get_mut(&id) else {
        return Ok(id);
    };
    let job = &mut active.job;
    job.spec = Arc::new(changed.spec);
    job.resized = changed.resized;
    job.run_state.top = changed.top;
    let job = job.clone();
    io.store.save_changed(&job)?;
    text_budget::set_texts(&mut state.jobs, id, changed.texts);
    for (kind, text) in changed.events {
        fx.record_event(io, Some(id), kind, &text)?;
    }
    if job.state != JobState::Queued {
        fx.jobs.changed.insert(id);
    }
    fx.replan = true;
    Ok(id)
}

/// Validates a change, and returns its result.
///
/// # Errors
/// The errors of `submit` for such a job, with the same codes. [`ErrorCode::Conflict`] if the job's state does not
/// allow the change.
fn validate_change(
    state: &State,
    io: &Io,
    id: JobId,
    change: &JobChange,
    by: &Caller,
) -> Result<ValidatedChange, Error> {
    let job = hold::not_elsewhere(&state.jobs, id, "changed")?;
    if *change == JobChange::default() {
        return Err(usage("no change requested")
            .hint("use one or more of --priority, --time, -g, --gpu-memory, --name and -q"));
    }
    check_state(job, change)?;
    let mut changed = ValidatedChange {
        spec: JobSpec::clone(&job.spec),
        resized: job.resized,
        top: job.run_state.top,
        texts: 0,
        events: Vec::new(),
    };
    validate_queue(state, io, job, change, &mut changed)?;
    if change.top {
        changed.top = top_of(&state.jobs, job, &changed.spec.queue, by);
        if changed.top != job.run_state.top {
            let words = match changed.top {
                Top::OfUser(_) => format!(
                    "moved before {}'s other jobs in queue {}",
                    job.spec.user, changed.spec.queue
                ),
                Top::No | Top::OfQueue(_) => {
                    format!("moved to the front of queue {}", changed.spec.queue)
                }
            };
            changed.events.push(("moved", words));
        }
    }
    if let Some(priority) = change.priority {
        validate_priority(job, priority, by, &mut changed)?;
    }
    if let Some(limit) = change.time_limit_s {
        validate_time_limit(job, limit, by, &mut changed)?;
    }
    if let Some(name) = &change.name {
        let name = validate::name(Some(name.clone()), &[])?;
        let name = match &job.spec.policy.array {
            Some(task) => format!("{name}[{}]", task.index),
            None => name,
        };
        note_change(&mut changed, "name", &job.spec.name, &name);
        changed.spec.name = name;
    }
    let before = state.jobs.active.get(&id).map_or(0, |active| active.texts);
    changed.texts = (before + budget::ended_job_size(&changed.spec))
        .saturating_sub(budget::ended_job_size(&job.spec));
    text_budget::check_job(
        &state.jobs,
        io,
        id,
        changed.texts,
        "the change would make it",
    )?;
    if by.account.uid != job.spec.credentials.uid {
        for (_, text) in &mut changed.events {
            *text += &format!(", by {}", by.account.name);
        }
    }
    Ok(changed)
}

/// Validates a new queue and a new request.
fn validate_queue(
    state: &State,
    io: &Io,
    job: &Job,
    change: &JobChange,
    changed: &mut ValidatedChange,
) -> Result<(), Error> {
    let before = spec_of(io, &job.spec.queue);
    let to = match &change.queue {
        None => before.clone(),
        Some(name) => queues::served_queue(io, name)?.clone(),
    };
    if to.name != before.name {
        let words = format!("queue: {} -> {}", before.name, to.name);
        changed.events.push(("moved", words));
        changed.spec.queue = to.name.clone();
        // Its place at the top belonged to the other queue.
        changed.top = Top::No;
    }
    let has = job.amount();
    let requested = change.amount.clone().map(Amount::try_from).transpose()?;
    let is_queues_own = before.amount == Some(has) && to.name != before.name;
    let amount = match (requested, to.amount) {
        (Some(requested), Some(fixed)) if requested != fixed => {
            return Err(usage(format!(
                "queue {} allocates {} to each of its jobs, but {} was requested",
                to.name,
                fixed.describe(),
                requested.describe()
            ))
            .hint(open_queue_hint(io, &job.reference(), requested)));
        }
        (Some(requested), _) => requested,
        (None, Some(fixed)) if is_queues_own => fixed,
        (None, Some(fixed)) if fixed != has && to.name != before.name => {
            return Err(usage(format!(
                "queue {} allocates {} to each of its jobs, but job {} requests {}",
                to.name,
                fixed.describe(),
                job.reference(),
                has.describe()
            ))
            .hint(format!(
                "change its request as well: divvy move {} -q {} {}",
                job.reference(),
                to.name,
                fixed.flag()
            )));
        }
        (None, _) => has,
    };
    if amount == has {
        return Ok(());
    }
    let requested = job.request().with_amount(amount);
    let gpus = capacity::gpus_for(&state.mig, &state.gpus, &requested);
    can_ever_fit(&gpus, &requested).map_err(never_fits)?;
    projects::check_project(state, io, &job.owner(), &requested)?;
    changed.resized = Some(amount);
    let words = format!(
        "requests {} instead of {}",
        amount.describe(),
        has.describe()
    );
    changed.events.push(("resized", words));
    Ok(())
}

/// The hint for a pending job in a queue with another fixed amount.
pub(in crate::controller) fn open_queue_hint(io: &Io, id: &str, amount: Amount) -> String {
    let mut queues = io.config.schedule.queues.iter();
    match queues.find(|spec| spec.amount.is_none()) {
        Some(open) => format!(
            "move it to a queue without a fixed amount: divvy move {id} -q {} {}",
            open.name,
            amount.flag()
        ),
        None => "the job can be resized once it runs".to_owned(),
    }
}

/// The queue of a pending job. A queue that is no longer configured has no fixed amount.
fn spec_of(io: &Io, name: &QueueName) -> QueueSpec {
    let mut queues = io.config.schedule.queues.iter();
    let served = queues.find(|spec| spec.name == *name);
    served
        .cloned()
        .unwrap_or_else(|| QueueSpec::open(name.clone()))
}

/// Moves a job to the front of the queue as far as its caller may. A job that is first already keeps its number.
fn top_of(jobs: &Jobs, job: &Job, queue: &QueueName, by: &Caller) -> Top {
    let there = jobs.active.values().map(|active| &active.job);
    let there = there.filter(|other| other.state == JobState::Queued && other.spec.queue == *queue);
    let others = there.filter(|other| other.id != job.id);
    let is_own = |other: &&Job| other.spec.credentials.uid == job.spec.credentials.uid;
    let of_all: Vec<Top> = others.clone().map(|other| other.run_state.top).collect();
    let of_own: Vec<Top> = others
        .filter(is_own)
        .map(|other| other.run_state.top)
        .collect();
    let before = match *queue == job.spec.queue {
        true => job.run_state.top,
        false => Top::No,
    };
    match (by.role >= Role::Operator, before) {
        (true, Top::OfQueue(_)) if is_topmost(before, &of_all) => before,
        (true, _) => Top::OfQueue(next_number(&of_all)),
        // An operator moved the job before all jobs; its user must not move it behind them.
        (false, Top::OfQueue(_)) => before,
        (false, Top::OfUser(_)) if is_topmost(before, &of_own) => before,
        (false, _) => Top::OfUser(next_number(&of_own)),
    }
}

/// Commands that make these changes, one word per element; empty for a change that the caller may not make.
pub fn commands(
    state: &State,
    io: &Io,
    tries: &[Option<SuggestedChange>],
    by: &Caller,
) -> Vec<Vec<String>> {
    let command = |a_try: &Option<SuggestedChange>| {
        let command = a_try
            .as_ref()
            .and_then(|a_try| self::command(state, io, a_try, by));
        command.unwrap_or_default()
    };
    tries.iter().map(command).collect()
}

fn command(state: &State, io: &Io, a_try: &SuggestedChange, by: &Caller) -> Option<Vec<String>> {
    let job = &state.jobs.active.get(&a_try.job)?.job;
    let owner = job.spec.credentials.uid;
    by.authorize(crate::auth::Verb::Change, by.whose(owner))
        .ok()?;
    let takes = |change: &JobChange| validate_change(state, io, a_try.job, change, by).is_ok();
    let id = job.reference();
    let words = |words: &[&str]| {
        let all = ["divvy"].iter().chain(words);
        all.map(ToString::to_string).collect::<Vec<String>>()
    };
    match &a_try.change {
        ChangeKind::Release => {
            (hold::is_released_by(&state.jobs, a_try.job, by)).then(|| words(&["release", &id]))
        }
        ChangeKind::Amount(amount) => {
            let change = JobChange {
                amount: Some((*amount).into()),
                ..JobChange::default()
            };
            let flag = amount.flag().to_string();
            let verb = match amount {
                Amount::Mig(_) => "change",
                _ => "resize",
            };
            let mut command = words(&[verb, &id]);
            command.extend(flag.split(' ').map(str::to_owned));
            takes(&change).then_some(command)
        }
        ChangeKind::Queue(queue, amount) => {
            let mut change = JobChange {
                queue: Some(queue.to_string()),
                ..JobChange::default()
            };
            let mut command = words(&["move", &id, "-q", queue.as_str()]);
            if validate_change(state, io, a_try.job, &change, by).is_ok_and(|changed| {
                changed.resized.unwrap_or(changed.spec.request.amount) == *amount
            }) {
                return Some(command);
            }
            change.amount = Some((*amount).into());
            let flag = amount.flag().to_string();
            command.extend(flag.split(' ').map(str::to_owned));
            takes(&change).then_some(command)
        }
    }
}

/// A change that would start a job; the caller's rights are not checked yet.
pub struct SuggestedChange {
    pub job: JobId,
    pub change: ChangeKind,
}

/// The kind of change.
pub enum ChangeKind {
    Release,
    Amount(Amount),
    Queue(QueueName, Amount),
}

impl SuggestedChange {
    /// The change that the planner suggests for a job.
    pub fn of(job: JobId, change: &divvy_core::SuggestedChange) -> Self {
        let what = match change {
            divvy_core::SuggestedChange::Amount(amount) => ChangeKind::Amount(*amount),
            divvy_core::SuggestedChange::Queue(queue, amount) => {
                ChangeKind::Queue(queue.clone(), *amount)
            }
        };
        Self { job, change: what }
    }
}

/// Refuses to change the queue, request or priority of a job that is no longer pending.
fn check_state(job: &Job, change: &JobChange) -> Result<(), Error> {
    let JobChange {
        queue,
        top,
        amount,
        priority,
        time_limit_s: _,
        name: _,
    } = change;
    if job.state == JobState::Queued {
        return Ok(());
    }
    let id = job.reference();
    let refused = |part: &str, hint: String| {
        let why = format!("job {id} is no longer queued, so {part} cannot change");
        Err(Error::new(ErrorCode::Conflict, why).hint(hint))
    };
    let requeue = format!("`divvy requeue {id}` stops it and puts it back into its queue");
    if queue.is_some() || *top {
        return refused("its place in the queue", requeue);
    }
    if amount.is_some() {
        return refused(
            "its request",
            format!("resize it: divvy resize {id} -g 0.5, or --gpu-memory 12G"),
        );
    }
    if priority.is_some() {
        return refused("its priority", requeue);
    }
    Ok(())
}

fn validate_priority(
    job: &Job,
    priority: i32,
    by: &Caller,
    changed: &mut ValidatedChange,
) -> Result<(), Error> {
    let before = job.spec.policy.priority;
    check_range(priority)?;
    if priority != before {
        check_priority(priority, by)?;
    }
    note_change(changed, "priority", &before, &priority);
    changed.spec.policy.priority = priority;
    Ok(())
}

fn validate_time_limit(
    job: &Job,
    limit: u64,
    by: &Caller,
    changed: &mut ValidatedChange,
) -> Result<(), Error> {
    let id = job.id;
    let (before, after) = (
        job.spec.policy.time_limit_s,
        Some(limit).filter(|limit| *limit > 0),
    );
    check_time_limit(after)?;
    let longest = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let runs = job.state != JobState::Queued;
    // Other users have start estimates that rely on this limit.
    if runs && longest(after) > longest(before) && by.role < Role::Operator {
        let why = format!(
            "changing the time limit of running job {id} from {} to {} requires the role {}, but {} (uid {}) has the role {}",
            format_duration(before),
            format_duration(after),
            Role::Operator.name(),
            by.account.name,
            by.account.uid,
            by.role.name()
        );
        return Err(Error::new(ErrorCode::NotAllowed, why)
            .hint("ask an operator; users can extend the time limit only of pending jobs"));
    }
    let ran = job.ran_s();
    if let Some(limit) = after.filter(|limit| runs && after != before && *limit <= ran) {
        let id = job.reference();
        let why = format!(
            "job {id} has already run for {}: the time limit {} would end it immediately",
            format_duration(Some(ran)),
            format_duration(Some(limit))
        );
        return Err(Error::new(ErrorCode::Conflict, why).hint(format!(
            "use a longer limit, or end the job: divvy cancel {id}"
        )));
    }
    note_change(
        changed,
        "time limit",
        &format_duration(before),
        &format_duration(after),
    );
    changed.spec.policy.time_limit_s = after;
    Ok(())
}

/// Adds an event for a part that changes.
fn note_change<T: PartialEq + ToString>(
    changed: &mut ValidatedChange,
    part: &str,
    before: &T,
    after: &T,
) {
    if before != after {
        let words = format!("{part}: {} -> {}", before.to_string(), after.to_string());
        changed.events.push(("changed", words));
    }
}

/// `1h30m`, `90s`, `none`: in the form in which the user would type it.
fn format_duration(limit_s: Option<u64>) -> String {
    let Some(seconds) = limit_s else {
        return "none".to_owned();
    };
    let parts = [
        (seconds / 3600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
    ];
    let text: String = (parts.iter())
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    match text.is_empty() {
        true => "0s".to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_told_as_it_is_typed() {
        for (seconds, text) in [
            (None, "none"),
            (Some(0), "0s"),
            (Some(90), "1m30s"),
            (Some(7200), "2h"),
            (Some(3661), "1h1m1s"),
        ] {
            assert_eq!(format_duration(seconds), text);
        }
    }
}
