//! Resize: a pending or running job gets more or less memory and compute share, or another compute mode.
//!
//! ```text
//! request ──► journal: allocation, and target if less ──► the slice's limits ──► uses no more than the target?
//!                                                          (the target at once)        │ yes: journal
//! ```
//! The limit drops at once, so that the job allocates no more. Memory in use stays with the job until it uses no more
//! than its target. The planner counts what the job still holds, so no other job gets the difference earlier. A daemon
//! may die at each arrow: the next one writes the journal's limits into every slice that it adopts, and checks again. A
//! change of the compute mode needs no room, so it applies as soon as it is journaled.

use std::cmp::Ordering;

use divvy_api::v1::{self, Error, ErrorCode};
use divvy_core::project::quota_exceeded_by_resize;
use divvy_core::resize::memory::MemoryResidency;
use divvy_core::resize::{ResizeError, Resized, grant_at_target, resize as plan_resize};
use divvy_core::{Amount, Bytes, Compute, Grant, JobId, JobState, can_ever_fit, show_labels};

use crate::controller::actuators::Actuators;
use crate::controller::admission::projects;
use crate::controller::effects::Effects;
use crate::controller::halt::{Halt, answer};
use crate::controller::io::Io;
use crate::controller::lifecycle::{change, planner_input};
use crate::controller::mig::capacity;
use crate::controller::request::Reply;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::mig::is_divided;
use crate::controller::state::{Jobs, State};
use crate::controller::{active_set, reference, sharing};
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::job::Job;
use crate::model::validate::{self, never_fits, usage};

pub(in crate::controller) fn resize(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    reference: &str,
    resize: v1::Resize,
    reply: Reply<v1::Job>,
) -> Result<(), StoreError> {
    let result = resize_counted(state, fx, io, reference, resize);
    answer(result, |result| fx.replies.job(reply, result))
}

fn resize_counted(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    reference: &str,
    resize: v1::Resize,
) -> Result<JobId, Halt> {
    let requested = parse_request(resize)?;
    let id = reference::find(&state.jobs, io, reference)?;
    let before = size_of(&state.jobs, id);
    let result = resize_job(state, fx, io, id, requested);
    let counted = match &result {
        Ok(()) => {
            let direction = direction(before.as_ref(), size_of(&state.jobs, id).as_ref());
            direction.map(|direction| (direction, "done"))
        }
        Err(Halt::Refused(error)) => Some((refused_label(error.code), "refused")),
        Err(Halt::Journal(_)) => None,
    };
    if let Some(counted) = counted {
        *fx.counters.resizes.entry(counted).or_default() += 1;
    }
    result.map(|()| id)
}

/// A job's size, held or requested; `None` if there is no such job.
fn size_of(jobs: &Jobs, id: JobId) -> Option<Size> {
    let job = &jobs.active.get(&id)?.job;
    let limits = job.limits();
    Some(Size {
        held: (!limits.is_empty()).then(|| limits.iter().map(|limit| limit.memory).sum()),
        requested: job.request().amount,
        compute: job.compute(),
    })
}

fn resize_job(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    (amount, compute): (Option<Amount>, Option<Compute>),
) -> Result<(), Halt> {
    let conflict = |what: &str| {
        let error = Error::new(ErrorCode::Conflict, format!("job {id} {what}"));
        Err(error
            .hint(format!("`divvy describe {id}` shows its state"))
            .into())
    };
    state.jobs.refuse_for_claim(id, "resized")?;
    let active = state.jobs.active.get(&id);
    if active.is_some_and(|active| active.job.run_state.aside.memory != MemoryResidency::Kept) {
        return match active.is_some_and(|active| active.job.run_state.aside.is_parked()) {
            // Its room is promised by its present size, and its memory was counted against it.
            true => conflict("is parked, and returns with its size; wake it before resizing it"),
            false => conflict("is suspended without its GPUs; resume it before resizing it"),
        };
    }
    let unconfirmed = active.is_some_and(|active| active.job.awaits_confirmation());
    match (active.map(|active| &active.job.state), amount) {
        (Some(JobState::Stopping { .. }), _) => conflict("is being stopped"),
        (Some(JobState::Ended { .. }) | None, _) => conflict("has ended already"),
        (Some(job_state), _) if compute.is_some() && is_divided(job_state.grants()) => {
            let what = "a MIG instance has its own compute units, so no compute mode applies";
            Err(Error::new(ErrorCode::Conflict, what)
                .hint("leave --compute out")
                .into())
        }
        (Some(_), None) => Ok(()),
        (Some(JobState::Starting { .. }), Some(_)) if unconfirmed => {
            conflict("waits for a confirmation of its present size")
        }
        (Some(JobState::Queued), Some(amount)) => resize_waiting(state, fx, io, id, amount),
        (Some(JobState::Bound { .. }), Some(_)) => {
            conflict("is a claim, and Divvy does not run its programs")
        }
        (Some(JobState::Starting { .. } | JobState::Running { .. }), Some(amount)) => {
            resize_held(state, fx, io, id, amount)
        }
    }?;
    if let Some(compute) = compute {
        // A latency goal stays, so a mode without one is refused.
        let goal = state
            .jobs
            .active
            .get(&id)
            .and_then(|active| active.job.compute().latency);
        let compute = compute
            .or_latency(goal)
            .map_err(|error| usage(error.to_string()).hint(error.hint()))?;
        change_compute(&mut state.jobs, fx, io, id, compute)?;
    }
    Ok(())
}

fn change_compute(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    compute: Compute,
) -> Result<(), StoreError> {
    let Some(ActiveJob { job, .. }) = jobs.active.get_mut(&id).map(Box::as_mut) else {
        return Ok(());
    };
    let before = job.compute();
    if before == compute {
        return Ok(());
    }
    job.redivided = Some(compute);
    let job = job.clone();
    io.store.save_resized(&job)?;
    fx.record_event(
        io,
        Some(id),
        "resized",
        &format!("compute: {before} -> {compute}"),
    )?;
    fx.jobs.changed.insert(id);
    fx.jobs.resizes.push(id);
    Ok(())
}

/// Changes the request of a pending job, which keeps its place.
fn resize_waiting(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    amount: Amount,
) -> Result<(), Halt> {
    let gpus = capacity::gpus_ever(&state.mig, &state.gpus);
    let Some(ActiveJob { job, .. }) = state.jobs.active.get(&id).map(Box::as_ref) else {
        return Ok(());
    };
    let fixed = io
        .config
        .schedule
        .queues
        .iter()
        .find(|spec| spec.name == job.spec.queue)
        .and_then(|spec| spec.amount);
    if let Some(fixed) = fixed.filter(|fixed| *fixed != amount) {
        let error = usage(format!(
            "queue {} allocates {fixed} to each of its jobs, but {amount} was requested",
            job.spec.queue
        ));
        return Err(error
            .hint(change::open_queue_hint(io, &job.reference(), amount))
            .into());
    }
    let before = job.request();
    if before.amount == amount {
        return Ok(());
    }
    let requested = before.with_amount(amount);
    if let Err(never) = can_ever_fit(&gpus, &requested) {
        return Err(never_fits(never).into());
    }
    projects::check_project(state, io, &job.owner(), &requested)?;
    let Some(ActiveJob { job, .. }) = state.jobs.active.get_mut(&id).map(Box::as_mut) else {
        return Ok(());
    };
    job.resized = Some(amount);
    let job = job.clone();
    io.store.save_resized(&job)?;
    let text = format!(
        "requests {} instead of {}",
        amount.describe(),
        before.amount.describe()
    );
    fx.record_event(io, Some(id), "resized", &text)?;
    fx.replan = true;
    Ok(())
}

fn resize_held(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    amount: Amount,
) -> Result<(), Halt> {
    let snapshot = planner_input::snapshot(state, io);
    let resized = plan_resize(&snapshot, id, amount).map_err(|error| refusal(&error))?;
    let grants: Vec<Grant> = resized.iter().map(|one| one.grant.clone()).collect();
    if let Some(overdraft) = quota_exceeded_by_resize(&snapshot, id, &grants) {
        let error = Error::new(ErrorCode::WouldWait, overdraft.to_string());
        return Err(error.hint("`divvy projects` shows limits and usage").into());
    }
    let held: Vec<Grant> = snapshot
        .held
        .iter()
        .filter(|held| held.job == id)
        .flat_map(|held| held.grants.clone())
        .collect();
    if sharing::acquire(state, io, grants.iter(), &held).is_err() {
        return Err(refused_by_others(state, io, id, amount).into());
    }
    let Some(ActiveJob { job, .. }) = state.jobs.active.get_mut(&id).map(Box::as_mut) else {
        return Ok(());
    };
    let is_so = |(one, holding): (&Resized, &crate::model::job::Allocation)| {
        one.grant == holding.grant && one.target == holding.goal
    };
    // Also where nothing changes: a resize begins a new measurement of the job's peak.
    fx.jobs.resizes.push(id);
    if resized.iter().zip(&job.allocations).all(is_so) {
        return Ok(());
    }
    let text = describe_resize(job, &resized);
    job.resized = Some(requested_amount(amount, &resized));
    job.regrant(resized);
    let job = job.clone();
    crate::controller::observe::usage::journal_metered(&mut state.jobs, io, id)?;
    io.store.save_allocations(&job)?;
    io.store.save_resized(&job)?;
    fx.record_event(io, Some(id), "resized", &text)?;
    fx.replan = true;
    fx.jobs.changed.insert(id);
    Ok(())
}

/// The refusal of a size that another daemon of the machine was faster to take.
fn refused_by_others(state: &State, io: &Io, id: JobId, amount: Amount) -> Error {
    match plan_resize(&planner_input::snapshot(state, io), id, amount) {
        Err(error) => refusal(&error),
        Ok(_) => Error::new(
            ErrorCode::WouldWait,
            "another daemon of this machine is taking a part of the GPU now",
        )
        .hint("try again in a moment"),
    }
}

/// Writes the journal's limits into a job's slice, and registers them with the compute scheduler.
pub(in crate::controller) fn apply_limits(
    jobs: &mut Jobs,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) {
    let Some(active) = jobs.active.get(&id) else {
        return;
    };
    let walls: Vec<_> = active.job.driver_limits().collect();
    for (gpu, memory) in walls {
        for command in jobs.limits.resize(id, &gpu, memory) {
            actuators.workers.dispatch(command);
        }
    }
    let Some(active) = jobs.active.get(&id) else {
        return;
    };
    // A job without a slice gets one with the journal's limits.
    let Some(slice) = active.slice() else { return };
    let job = &active.job;
    let (mut limits, compute) = (job.limits(), job.compute());
    for limit in &mut limits {
        // While the driver's limit is raised, the slice's waits for it.
        if let Some((memory, _)) = jobs.limits.in_force(id, &limit.gpu) {
            limit.memory = limit.memory.min(memory);
        }
    }
    let is_parked = job.run_state.aside.is_parked();
    let grants = job.state.grants().iter().filter(|_| is_parked);
    let parked: Vec<Bytes> = grants.map(|grant| grant.memory).collect();
    slice.resize(&limits, compute, &parked);
    let folder = io.config.home.slice(&id.to_string());
    let scheduler = &actuators.compute_scheduler;
    match (is_parked, job.holds()) {
        (true, _) => scheduler.park(id, &folder),
        (false, true) => scheduler.add_slice(id, &folder, &limits, compute),
        (false, false) => scheduler.remove_slice(id),
    }
}

/// Applies this round's resizes: the limits, and what jobs release because they do not use it.
///
/// # Errors
/// When the journal fails.
pub(in crate::controller) fn apply_resizes(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
) -> Result<(), StoreError> {
    let resizes = std::mem::take(&mut fx.jobs.resizes);
    if resizes.is_empty() {
        return Ok(());
    }
    for id in resizes {
        if let Some(active) = state.jobs.active.get(&id)
            && active.job.run_state.aside.is_being_parked()
            && let Some(slice) = active.slice()
        {
            slice.clear_wake_request();
        }
        apply_limits(&mut state.jobs, io, actuators, id);
        if let Some(slice) = state.jobs.active.get(&id).and_then(|active| active.slice()) {
            slice.restart_peaks();
        }
    }
    reach("resize.told");
    io.store.begin()?;
    reclaim_released(state, fx, io)?;
    io.store.commit()
}

/// Checks every job with a target, and takes what it no longer uses.
pub(in crate::controller) fn reclaim_released(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    let mut shrinking: Vec<JobId> = Vec::new();
    active_set::for_each_active(&mut state.jobs, io, |id, active| {
        let mut holdings = active.job.allocations.iter();
        if holdings.any(|holding| holding.goal.is_some()) {
            shrinking.push(id);
        }
    });
    for id in shrinking {
        reclaim_from(state, fx, io, id)?;
    }
    Ok(())
}

fn reclaim_from(state: &mut State, fx: &mut Effects, io: &Io, id: JobId) -> Result<(), StoreError> {
    let snapshot = planner_input::snapshot(state, io);
    let Some(active) = state.jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let (JobState::Starting { .. } | JobState::Running { .. }) = active.job.state else {
        return Ok(());
    };
    if active.job.run_state.aside.memory != MemoryResidency::Kept {
        return Ok(());
    }
    let Some(ledger) = active.slice().and_then(|slice| slice.read().ok()) else {
        return Ok(());
    };
    let mut taken = Vec::new();
    let usages = active.slice_usage();
    let resized = active
        .job
        .allocations
        .iter()
        .enumerate()
        .map(|(gpu, holding)| {
            let usage = ledger.usage(gpu);
            let slice_usage = usages.get(gpu).copied().unwrap_or_default();
            // The job writes its ledger itself, so memory that the driver reports for the job is not given to others
            // either.
            let used = Bytes::new(usage.used()).max(slice_usage.driver.unwrap_or_default());
            let reached_it = |memory: Bytes| usage.limit <= memory.get() && used <= memory;
            match holding.goal.filter(|goal| reached_it(goal.memory)) {
                None => Resized {
                    grant: holding.grant.clone(),
                    target: holding.goal,
                },
                Some(goal) => {
                    let grant = grant_at_target(&snapshot, id, &holding.grant, goal);
                    let released = holding.grant.memory.saturating_sub(grant.memory);
                    taken.push(format!(
                        "{} released {} and holds {}",
                        show_labels([&*grant.label]),
                        released.human(),
                        grant.memory.human()
                    ));
                    Resized {
                        grant,
                        target: None,
                    }
                }
            }
        });
    let resized = resized.collect();
    if taken.is_empty() {
        return Ok(());
    }
    active.job.regrant(resized);
    let job = active.job.clone();
    crate::controller::observe::usage::journal_metered(&mut state.jobs, io, id)?;
    io.store.save_allocations(&job)?;
    fx.jobs.changed.insert(id);
    fx.record_event(io, Some(id), "shrunk", &taken.join(", "))?;
    fx.replan = true;
    Ok(())
}

/// The size of a job, by which a resize counts as more or less.
#[derive(Clone, Debug, PartialEq)]
struct Size {
    /// The sum of its limits, once it holds something.
    held: Option<Bytes>,
    requested: Amount,
    compute: Compute,
}

/// The label of a resize for the metrics; `None` if it changed nothing.
fn direction(before: Option<&Size>, now: Option<&Size>) -> Option<&'static str> {
    let (before, now) = (before?, now?);
    match now.held.cmp(&before.held) {
        Ordering::Greater => Some("more"),
        Ordering::Less => Some("less"),
        Ordering::Equal if now.held.is_none() && now.requested != before.requested => {
            Some("waiting")
        }
        Ordering::Equal => (now.compute != before.compute).then_some("compute"),
    }
}

/// The label of a refused resize: only a request for more can lack room.
fn refused_label(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::WouldWait | ErrorCode::NeverFits => "more",
        _ => "none",
    }
}

/// The validated request: an amount, a compute mode, or both.
fn parse_request(resize: v1::Resize) -> Result<(Option<Amount>, Option<Compute>), Error> {
    let amount = resize.amount.map(Amount::try_from).transpose()?;
    let compute = resize
        .compute
        .as_deref()
        .map(validate::compute)
        .transpose()?;
    if amount.is_none() && compute.is_none() {
        let hint = "give an amount or a compute mode: -g 0.5, --gpu-memory 12G or --compute";
        return Err(usage("no change requested").hint(hint));
    }
    Ok((amount, compute))
}

/// The job's new request, in the form of a new submission.
fn requested_amount(amount: Amount, resized: &[Resized]) -> Amount {
    let count = u32::try_from(resized.len()).unwrap_or(u32::MAX);
    let several = std::num::NonZeroU32::new(count).filter(|count| count.get() > 1);
    let share = resized
        .iter()
        .map(|one| one.target.map_or(one.grant.share, |goal| goal.share))
        .max();
    match (amount, several, share) {
        (Amount::Memory(_) | Amount::Share(_), Some(count), Some(share)) => {
            Amount::Shares { count, share }
        }
        _ => amount,
    }
}

/// `gpu0:0.25a: 20.0 GiB -> 40.0 GiB`, `gpu0:0.5a: 40.0 GiB -> 10.0 GiB once it uses no more than that`.
fn describe_resize(job: &Job, resized: &[Resized]) -> String {
    let one = |(holding, one): (&crate::model::job::Allocation, &Resized)| {
        let before = &holding.grant;
        let memory = one.target.map_or(one.grant.memory, |goal| goal.memory);
        let [from, to] = before.memory.human_beside(memory);
        let later = match one.target {
            Some(_) => " once it uses no more than that",
            None => "",
        };
        let label = show_labels([&*before.label]);
        format!("{label}: {from} -> {to}{later}")
    };
    let all = job.allocations.iter().zip(resized).map(one);
    all.collect::<Vec<_>>().join(", ")
}

fn refusal(error: &ResizeError) -> Error {
    let code = match error {
        ResizeError::OtherCount { .. } | ResizeError::Range => ErrorCode::Usage,
        ResizeError::NotServed { .. } | ResizeError::Instance | ResizeError::IntoInstance => {
            ErrorCode::Conflict
        }
        ResizeError::Never { .. } => ErrorCode::NeverFits,
        ResizeError::NoRoom { .. } => ErrorCode::WouldWait,
    };
    Error::new(code, error.to_string()).hint(error.hint())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_is_counted_by_what_it_made_of_the_job() {
        let size = |held: Option<u64>, gib, compute: &str| {
            Some(Size {
                held: held.map(Bytes::gib),
                requested: Amount::Memory(Bytes::gib(gib)),
                compute: compute.parse().unwrap(),
            })
        };
        let runs = size(Some(4), 4, "fair");
        for (now, expected) in [
            (size(Some(8), 8, "fair"), Some("more")),
            (size(Some(2), 2, "strict"), Some("less")),
            (size(Some(4), 4, "strict"), Some("compute")),
            (size(Some(4), 4, "fair"), None),
            (None, None),
        ] {
            assert_eq!(direction(runs.as_ref(), now.as_ref()), expected, "{now:?}");
        }
        let waits = size(None, 4, "fair");
        let other = size(None, 2, "fair");
        assert_eq!(direction(waits.as_ref(), other.as_ref()), Some("waiting"));
        assert_eq!(direction(waits.as_ref(), waits.as_ref()), None);
        assert_eq!(refused_label(ErrorCode::NeverFits), "more");
        assert_eq!(refused_label(ErrorCode::Conflict), "none");
    }
}
