//! Offloading: the GPU memory of suspended and parked jobs moves to host memory. Other jobs may use the GPUs meanwhile. A resumed
//! job gets its GPUs back before any new job is placed.
//!
//! ```text
//! release ──► journal: leaving ──► offload ──► journal: aside ── GPUs are free ──► resume ──► journal: due
//!    the job runs ◄── journal: kept ◄── restore ◄── journal: returning ◄── there is room, and no job is before it ┘
//! ```
//! Every step is journaled before it is done. After a restart, the daemon asks the processes for their state, and
//! repeats a checkpoint operation that was interrupted. Memory that cannot be offloaded stays on its GPUs, and the job
//! is suspended all the same.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::SyncSender;

use divvy_api::v1::{self, ErrorCode, JobMemory, MemoryPlace};
use divvy_core::resize::memory::{MemoryEvent, MemoryResidency};
use divvy_core::resize::resume::{plan_resume_in, resume_order};
use divvy_core::{AllocatedJob, Bytes, JobId, JobState};
use divvy_ledger::Snapshot;
use rustix::process::Signal;

use crate::checkpoint::{
    CheckpointOp, CheckpointOutcome, CheckpointReport, CheckpointUpdate, Direction, ParkedOp,
};
use crate::controller::actuators::Actuators;
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::lifecycle::{park, park_policy, pause, planner_input};
use crate::controller::observe::usage;
use crate::controller::query::view::BlockReason;
use crate::controller::request::{Milestone, Reply};
use crate::controller::runtime::{ActiveJob, Waiter};
use crate::controller::state::mig::is_divided;
use crate::controller::state::{Jobs, State};
use crate::controller::{active_set, sharing};
use crate::gpu::slice::HeldSlice;
use crate::host::clock::{Instant, now};
use crate::host::process::Process;
use crate::journal::StoreError;
use crate::model::gpu_memory::OffloadKind;
use crate::model::job::{Allocation, Job};

impl ActiveJob {
    /// No operation copies its memory now.
    pub(in crate::controller) fn is_memory_idle(&self) -> bool {
        self.memory_op.cancelled.is_none()
    }
}

impl Job {
    /// Whether it holds its grants; an offloaded job does not.
    pub(in crate::controller) fn holds(&self) -> bool {
        !self.state.grants().is_empty() && self.run_state.aside.memory.holds_gpus()
    }

    /// The job as the planner counts it; `None` if it neither holds GPUs nor waits to get them back.
    pub fn held(&self) -> Option<AllocatedJob> {
        let aside = &self.run_state.aside;
        let is_due =
            aside.memory == MemoryResidency::Due && matches!(self.state, JobState::Running { .. });
        if !self.holds() && !is_due {
            return None;
        }
        let since = aside.since.map_or(0, jiff::Timestamp::as_microsecond);
        Some(AllocatedJob {
            owner: self.owner(),
            ran_s: self.ran_s(),
            leaving: matches!(self.state, JobState::Stopping { .. }),
            resuming_since: is_due.then_some(since),
            ..AllocatedJob::new(
                self.id,
                self.spec.queue.clone(),
                self.state.grants().to_vec(),
            )
        })
    }

    /// Where its memory is, if the job is suspended and its memory was to be offloaded.
    pub(in crate::controller) fn memory(&self) -> Option<JobMemory> {
        let aside = &self.run_state.aside;
        let is_told = self.run_state.suspended || aside.kind == OffloadKind::Parked;
        let is_over = !is_told || !matches!(self.state, JobState::Running { .. });
        let since = aside.since.filter(|_| !is_over)?;
        let place = match aside.memory {
            MemoryResidency::Kept => MemoryPlace::Gpu,
            MemoryResidency::Leaving => MemoryPlace::Offloading,
            MemoryResidency::Offloaded => MemoryPlace::Host,
            MemoryResidency::Due => MemoryPlace::RestorePending,
            MemoryResidency::Returning { .. } => MemoryPlace::Restoring,
        };
        Some(JobMemory { place, since })
    }
}

/// Suspends a job and offloads its memory, or records why its memory stays.
pub(in crate::controller) fn offload(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    reference: &str,
    reply: Reply<v1::Job>,
) -> Result<(), StoreError> {
    let id = match pause::pausable(jobs, io, reference, "suspended or resumed") {
        Ok(id) => id,
        Err(Halt::Refused(error)) => {
            fx.counters.failed_suspends += u64::from(error.code == ErrorCode::Conflict);
            fx.replies.job(reply, Err(error));
            return Ok(());
        }
        Err(Halt::Journal(error)) => return Err(error),
    };
    let never = offload_obstacle(jobs, id);
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    active.waiters.push(Waiter {
        milestone: Milestone::MemorySettled,
        reply,
    });
    fx.replies.milestones.push(id);
    let was_suspended = active.job.run_state.suspended;
    active.job.run_state.aside.because = None;
    active.job.run_state.aside.kind = OffloadKind::Suspended;
    match never {
        Some(why) => {
            if !was_suspended {
                pause::set_suspended(jobs, fx, io, id, true)?;
            }
            keep_on_gpu(jobs, fx, io, id, why)
        }
        None => {
            if !was_suspended {
                pause::mark_suspended(jobs, fx, io, id)?;
                fx.record_event(io, Some(id), "suspended", "offloading its GPU memory")?;
            }
            move_memory(jobs, fx, io, id, MemoryEvent::Release)
        }
    }
}

/// Why the memory of a job on MIG instances stays there.
pub(super) const OF_INSTANCES: &str = "the driver cannot offload the memory of MIG instances";

/// Why no attempt to offload a job's memory is possible.
pub(super) fn offload_obstacle(jobs: &Jobs, id: JobId) -> Option<String> {
    let active = jobs.active.get(&id)?;
    if is_divided(active.job.state.grants()) {
        return Some(OF_INSTANCES.to_owned());
    }
    if active.slice().is_none() {
        return Some("its slice cannot be read".to_owned());
    }
    None
}

/// Records that a job's memory stays on its GPUs.
fn keep_on_gpu(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    why: String,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let aside = &mut active.job.run_state.aside;
    aside.because = Some(why.clone());
    aside.since.get_or_insert_with(now);
    let job = active.job.clone();
    io.store.save(&job)?;
    match job.run_state.aside.kind {
        OffloadKind::Suspended => fx.record_event(io, Some(id), "memory_release_failed", &why),
        OffloadKind::Parked => fx.record_event(io, Some(id), "park_failed", &why),
    }
}

/// Journals a request about a job's memory or the result of an operation, and what the job holds from now on.
pub(in crate::controller) fn move_memory(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    then: MemoryEvent,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let before = active.job.run_state.aside.memory;
    let after = before.on(then);
    fx.replies.milestones.push(id);
    if before == after {
        return Ok(());
    }
    if after.is_copying() {
        (active.memory_op.failures, active.memory_op.retry_after) = (0, None);
        active.memory_op.last_error = None;
    }
    active.memory_op.blocked_by = None;
    active.memory_op.parking.clear();
    active.job.run_state.aside.memory = after;
    // A repeated request has returned above, so a due job keeps its place in the order.
    active.job.run_state.aside.since = Some(now());
    let holding = (before.holds_gpus(), after.holds_gpus());
    if holding == (true, false) {
        usage::journal_metered(jobs, io, id)?;
    }
    let Some(active) = jobs.active.get(&id) else {
        return Ok(());
    };
    let job = active.job.clone();
    match holding {
        (true, false) => io.store.close_usage_for_offload(&job)?,
        (false, true) => io.store.save_allocations(&job)?,
        _ => {}
    }
    io.store.save(&job)?;
    fx.jobs.changed.insert(id);
    if before.holds_gpus() != after.holds_gpus()
        || after == MemoryResidency::Due
        || before == MemoryResidency::Due
    {
        fx.replan = true;
    }
    // The limits change with the memory.
    fx.jobs.resizes.push(id);
    if after.is_copying() {
        fx.jobs.memory_ops.push(id);
    }
    fx.failpoints.push(match after {
        MemoryResidency::Leaving => "aside.intent",
        MemoryResidency::Offloaded => "aside.kept",
        MemoryResidency::Due => "back.due",
        MemoryResidency::Returning { .. } => "back.intent",
        MemoryResidency::Kept => "back.kept",
    });
    Ok(())
}

/// Suspends or resumes an offloaded job. False if the job's memory is on its GPUs as usual.
pub(in crate::controller) fn pause_memory(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    suspend: bool,
) -> Result<bool, StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(false);
    };
    let aside = &active.job.run_state.aside;
    if aside.memory == MemoryResidency::Kept {
        // A process that refused the offload may be locked by the driver all the same: the operation asks the driver.
        let may_be_locked = !suspend && active.job.run_state.suspended && !aside.parts.is_empty();
        if may_be_locked {
            move_memory(jobs, fx, io, id, MemoryEvent::Recall)?;
        }
        return Ok(may_be_locked);
    }
    let before = active.job.run_state.aside.memory;
    let then = if suspend {
        MemoryEvent::Suspend
    } else {
        MemoryEvent::Resume
    };
    move_memory(jobs, fx, io, id, then)?;
    let after = jobs
        .active
        .get(&id)
        .map(|one| one.job.run_state.aside.memory);
    if after == Some(MemoryResidency::Due) && before != MemoryResidency::Due {
        let words = "its memory is restored once its GPUs have room";
        fx.record_event(io, Some(id), "memory_restore_pending", words)?;
    }
    Ok(true)
}

/// Gives resumed jobs their GPUs back if there is room, before any new job is placed.
pub(in crate::controller) fn resume_offloaded(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    let order = due_jobs(state, io);
    for id in order.iter().copied() {
        let mut snapshot = planner_input::snapshot(state, io);
        let Some(active) = state.jobs.active.get_mut(&id) else {
            continue;
        };
        if !active.memory_op.keeps_reservation() {
            // The snapshot keeps no room for the job, but the job keeps its turn.
            snapshot.held.extend(active.job.held());
        }
        let uses = memory_by_allocation(active);
        active.memory_op.parking.clear();
        match plan_resume_in(&order, &snapshot, id, &uses) {
            Err(blocked_by) => {
                let lacks_room = blocked_by.keeps_room();
                active.memory_op.blocked_by = Some(blocked_by);
                if lacks_room {
                    park_policy::make_room_for_resume(state, fx, io, id, (&snapshot, &uses))?;
                }
            }
            Ok(grants) if sharing::acquire(state, io, grants.iter(), &[]).is_err() => {
                state.queues.is_contended = true;
            }
            Ok(grants) => {
                let Some(active) = state.jobs.active.get_mut(&id) else {
                    continue;
                };
                active.job.relabel(grants);
                move_memory(&mut state.jobs, fx, io, id, MemoryEvent::Fits)?;
                let active = state.jobs.active.get(&id).expect("it was there");
                let words = active.job.grant_labels();
                fx.record_event(io, Some(id), "memory_restoring", &words)?;
            }
        }
    }
    Ok(())
}

/// The jobs that wait for their memory, in order.
fn due_jobs(state: &State, io: &Io) -> Vec<JobId> {
    let held = state
        .jobs
        .active
        .values()
        .filter_map(|active| active.job.held());
    let due: Vec<AllocatedJob> = held.filter(|held| held.resuming_since.is_some()).collect();
    if due.is_empty() {
        return Vec::new();
    }
    let mut snapshot = planner_input::snapshot(state, io);
    snapshot.held.retain(|held| held.resuming_since.is_none());
    snapshot.held.extend(due);
    resume_order(&snapshot)
}

/// Starts the journaled checkpoint operations that are not running.
pub(in crate::controller) fn run_memory_ops(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
) {
    let mut ops = std::mem::take(&mut fx.jobs.memory_ops);
    ops.sort_unstable();
    ops.dedup();
    for id in ops {
        run_memory_op(jobs, io, actuators, id);
    }
}

/// Queues the operations of this tick; one in its backoff is skipped later.
pub(in crate::controller) fn retry_memory_ops(jobs: &mut Jobs, fx: &mut Effects, io: &Io) {
    for id in active_set::active_jobs(jobs, io) {
        let moves = jobs.active.get(&id).is_some_and(|active| {
            active.job.run_state.aside.memory.is_copying() && active.memory_op.cancelled.is_none()
        });
        if moves {
            fx.jobs.memory_ops.push(id);
        }
    }
}

fn run_memory_op(jobs: &mut Jobs, io: &Io, actuators: &Actuators, id: JobId) {
    let dir = jobs.dir(&io.config.home, id);
    let Some(active) = jobs.active.get_mut(&id) else {
        return;
    };
    let aside = &active.job.run_state.aside;
    let direction = match aside.memory {
        MemoryResidency::Leaving => Direction::Offload,
        MemoryResidency::Returning { .. } => Direction::Restore,
        MemoryResidency::Kept | MemoryResidency::Offloaded | MemoryResidency::Due => return,
    };
    let waits = active
        .memory_op
        .retry_after
        .is_some_and(|at| Instant::now() < at);
    let runs = matches!(active.job.state, JobState::Running { .. });
    if waits || !runs || active.memory_op.cancelled.is_some() {
        return;
    }
    let launch = dir.launch().ok().flatten();
    let (Some(launch), Some(slice)) = (launch, active.slice().map(HeldSlice::ledger)) else {
        let why = "its records or its slice cannot be read".to_owned();
        let ended = match direction {
            Direction::Offload if aside.parts.is_empty() => CheckpointOutcome::Refused(why),
            Direction::Offload => CheckpointOutcome::Failed(why),
            Direction::Restore => CheckpointOutcome::NotRestored(why),
        };
        let attempt = active.job.attempt;
        return actuators
            .checkpoint_ops
            .report_not_started(id, attempt, ended);
    };
    let cancelled = Arc::new(AtomicBool::new(false));
    active.memory_op.cancelled = Some(Arc::clone(&cancelled));
    let parked = aside.is_parked().then(|| ParkedOp {
        bytes: aside.bytes,
        group: dir.spec().ok().flatten().and_then(|spec| spec.held.group),
    });
    let grants = active.job.state.grants().iter();
    actuators.checkpoint_ops.start(CheckpointOp {
        job: id,
        attempt: active.job.attempt,
        direction,
        supervisor: launch.process,
        slice,
        gpus: grants.map(|grant| grant.gpu.clone()).collect(),
        parts: aside.parts.clone(),
        parked,
        is_withdrawn: cancelled,
    });
}

/// Applies the report of a checkpoint operation.
pub(in crate::controller) fn apply_checkpoint_report(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    report: CheckpointReport,
) -> Result<(), StoreError> {
    let CheckpointReport {
        job: id,
        attempt,
        update: what,
    } = report;
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let is_its = active.job.attempt == attempt;
    match what {
        CheckpointUpdate::LockPending(parts, journaled) => match is_its {
            true => record_checkpoint_processes(jobs, fx, io, id, parts, journaled),
            // The operation gets no reply, and so it ends.
            false => Ok(()),
        },
        CheckpointUpdate::Finished(outcome) => {
            active.memory_op.cancelled = None;
            // A client that waits for the operation may get its reply now.
            fx.replies.milestones.push(id);
            if active.job.run_state.aside.memory.is_copying() {
                // The opposite operation may have been requested meanwhile.
                fx.jobs.memory_ops.push(id);
            }
            match is_its && matches!(active.job.state, JobState::Running { .. }) {
                true => finish_memory_op(jobs, fx, io, id, outcome),
                false => Ok(()),
            }
        }
    }
}

fn record_checkpoint_processes(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    parts: Vec<Process>,
    journaled: SyncSender<()>,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    active.job.run_state.aside.parts = parts;
    let job = active.job.clone();
    io.store.save(&job)?;
    fx.replies.commits.push(journaled);
    Ok(())
}

fn finish_memory_op(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    outcome: CheckpointOutcome,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let aside = &active.job.run_state.aside;
    let (before, is_parked) = (aside.memory, aside.is_parked());
    let took = aside.since.map(|since| now().duration_since(since));
    let took = took.map_or(0.0, |took| took.as_secs_f64());
    match (outcome, before) {
        (CheckpointOutcome::Saved, MemoryResidency::Leaving) => {
            let memory: Bytes = memory_by_allocation(active).into_iter().sum();
            let labels = active.job.grant_labels();
            if is_parked {
                park_policy::count_park(active, fx, false);
            }
            let needed_by = active.memory_op.parked_for.take();
            (jobs.copy_rates).measure(&active.job, Direction::Offload, memory, took);
            move_memory(jobs, fx, io, id, MemoryEvent::Offloaded)?;
            let words = format!("{} of {labels} is in host memory", memory.human());
            match is_parked {
                true => fx.record_event(
                    io,
                    Some(id),
                    "parked",
                    &match needed_by {
                        Some(by) => format!("{words} after {took:.1} s; job {by} needed its room"),
                        None => format!("{words} after {took:.1} s"),
                    },
                ),
                false => fx.record_event(io, Some(id), "memory_released", &words),
            }
        }
        (CheckpointOutcome::Refused(why), MemoryResidency::Leaving) => {
            active.job.run_state.aside.parts.clear();
            if is_parked {
                park_policy::count_park(active, fx, true);
            }
            move_memory(jobs, fx, io, id, MemoryEvent::Refused)?;
            fx.jobs.pauses.push(id);
            keep_on_gpu(jobs, fx, io, id, why)
        }
        (CheckpointOutcome::Failed(why), MemoryResidency::Leaving) => {
            if is_parked {
                park_policy::count_park(active, fx, true);
            }
            move_memory(jobs, fx, io, id, MemoryEvent::Failed)?;
            keep_on_gpu(jobs, fx, io, id, why)
        }
        (CheckpointOutcome::Restored, MemoryResidency::Returning { .. }) if is_parked => {
            // An attempt that failed before would count as part of the copy.
            if aside.because.is_none() && active.memory_op.failures == 0 {
                (jobs.copy_rates).measure(&active.job, Direction::Restore, aside.bytes, took);
            }
            move_memory(jobs, fx, io, id, MemoryEvent::Restored)?;
            park::woken(jobs, fx, io, id, took)
        }
        (CheckpointOutcome::Restored, MemoryResidency::Returning { goes_on }) => {
            let was_released = active.job.run_state.aside.because.is_none();
            move_memory(jobs, fx, io, id, MemoryEvent::Restored)?;
            if was_released {
                let words = "its memory is restored to its GPUs";
                fx.record_event(io, Some(id), "memory_restored", words)?;
            }
            match goes_on {
                true => {
                    pause::signal_all(jobs, io, id, Signal::CONT);
                    pause::set_suspended(jobs, fx, io, id, false)
                }
                false => {
                    fx.jobs.pauses.push(id);
                    Ok(())
                }
            }
        }
        (CheckpointOutcome::NotRestored(why), MemoryResidency::Returning { .. }) => {
            let is_new = active.memory_op.last_error.as_ref() != Some(&why);
            active.memory_op.record_failure(why.clone());
            tracing::warn!(job = %id, "cannot restore the job's memory to its GPUs: {why}");
            // Processes that run meanwhile would wait for the others.
            fx.jobs.pauses.push(id);
            match is_new {
                true => fx.record_event(io, Some(id), "memory_restore_failed", &why),
                false => Ok(()),
            }
        }
        // The report is outdated: the next operation reads the actual state.
        _ => Ok(()),
    }
}

/// The reason that a job shows after a request to offload its memory.
pub(in crate::controller) fn offload_block_reason(jobs: &Jobs, job: &Job) -> Option<BlockReason> {
    let memory = job.memory()?;
    let aside = &job.run_state.aside;
    let active = jobs.active.get(&job.id)?;
    let op = &active.memory_op;
    let tried = op.last_error.as_ref();
    let bytes: Bytes = memory_by_allocation(active).into_iter().sum();
    let its = format!("its {} of {}", bytes.human(), job.grant_labels());
    let words = match memory.place {
        MemoryPlace::Gpu => {
            let why = aside.because.as_ref()?;
            match aside.kind {
                OffloadKind::Suspended => format!("its GPU memory was not released: {why}"),
                OffloadKind::Parked => format!("it was not parked: {why}"),
            }
        }
        MemoryPlace::Offloading => "offloading its GPU memory".to_owned(),
        // Since when, `describe` says in the reader's time zone.
        MemoryPlace::Host if aside.is_parked() => {
            let id = job.reference();
            let vain = match job.run_state.park.vain_wakes {
                0 => String::new(),
                1 => "; woken once without a launch, so it has to be idle for longer".to_owned(),
                times => format!(
                    "; woken {times} times without a launch, so it has to be idle for longer"
                ),
            };
            let ledger = active.slice().and_then(|slice| slice.read().ok());
            let wakes = ledger.is_none_or(|ledger| park::calls_wake(&ledger));
            let how = match wakes {
                true => format!("its next GPU call or `divvy wake {id}` brings it back"),
                false => format!(
                    "only `divvy wake {id}` brings it back, for {}",
                    park::EARLIER_LIMITER
                ),
            };
            format!("parked: {its} is in host memory; {how}{vain}")
        }
        MemoryPlace::Host => format!("holds no GPU: {its} is in host memory"),
        MemoryPlace::RestorePending if !op.parking.is_empty() => {
            park_policy::parking_in_words(jobs, job, &op.parking, bytes)
        }
        MemoryPlace::RestorePending if aside.is_parked() => match &op.blocked_by {
            Some(blocked_by) => {
                format!("waking, waits for {blocked_by}; {its} is in host memory")
            }
            None => format!("waking; {its} is in host memory"),
        },
        MemoryPlace::RestorePending => match &op.blocked_by {
            Some(blocked_by) => {
                format!("resuming, waits for {blocked_by}; {its} is in host memory")
            }
            None => format!("resuming; {its} is in host memory"),
        },
        MemoryPlace::Restoring => match tried {
            Some(why) => {
                format!("restoring its memory to its GPUs again, after a failure: {why}")
            }
            None => "restoring its memory to its GPUs".to_owned(),
        },
    };
    Some(BlockReason {
        code: None,
        message: words,
    })
}

/// Whether no operation moves the job's memory.
pub(in crate::controller) fn is_memory_settled(active: &ActiveJob) -> bool {
    !active.job.run_state.aside.memory.is_copying()
}

/// A job's memory by its ledger, by position in its allocations.
pub(super) fn memory_by_allocation(active: &ActiveJob) -> Vec<Bytes> {
    let ledger = active.slice().and_then(|slice| slice.read().ok());
    ledger.map_or_else(Vec::new, |ledger| {
        capped_usage(&ledger, &active.job.allocations)
    })
}

/// The same for one ledger, capped at the grant: the job itself writes the ledger.
fn capped_usage(ledger: &Snapshot, holdings: &[Allocation]) -> Vec<Bytes> {
    let of = |(gpu, holding): (usize, &Allocation)| {
        Bytes::new(ledger.usage(gpu).used()).min(holding.grant.memory)
    };
    holdings.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use divvy_core::{GpuUuid, Grant, Share};
    use divvy_ledger::{Control, GpuSpec, Slice, SliceSpec};

    use super::*;
    use crate::model::job::AllocationStats;

    #[test]
    fn memory_that_is_to_come_back_is_what_the_account_says_and_at_most_the_grant() {
        let folder = tempfile::tempdir().unwrap();
        let gpu = |uuid| GpuSpec {
            uuid: [uuid; 16],
            ..GpuSpec::default()
        };
        let spec = SliceSpec {
            id: "3".into(),
            gpus: vec![gpu(1), gpu(2)],
            ..SliceSpec::default()
        };
        let _control = Control::create(folder.path(), &spec).unwrap();
        let slot = Slice::open(folder.path()).unwrap().join().unwrap();
        slot.force(0, Bytes::gib(6).get());
        slot.force(1, Bytes::gib(600).get());
        let ledger = Slice::open(folder.path()).unwrap().read().unwrap();
        let holding = |uuid| Allocation {
            enforcement: divvy_core::Enforcement::Limiter,
            grant: Grant {
                gpu: GpuUuid::from_bytes([uuid; 16]),
                index: 0,
                memory: Bytes::gib(8),
                share: Share::FULL,
                label: "gpu0".into(),
                mig: None,
            },
            goal: None,
            stats: AllocationStats::default(),
        };
        let found = capped_usage(&ledger, &[holding(1), holding(2)]);
        assert_eq!(found, [Bytes::gib(6), Bytes::gib(8)]);
    }
}
