//! Suspended jobs without their GPUs: their memory goes into the host's, others have the room meanwhile, and it comes back before
//! anybody new gets it.
//!
//! ```text
//! release ──► journal: leaving ──► errand ──► journal: aside ── GPUs are free ──► resume ──► journal: due
//!    the job goes on ◄── journal: kept ◄── errand ◄── journal: returning ◄── there is room, and nobody before it ┘
//! ```
//! Every step is journaled before it is done, and what is left of one is found by asking the processes how they are: an errand that an
//! agent's end cut short is given again by the next. What cannot be released stays on its GPUs, and the job is suspended all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use divvy_api::v1::{self, ErrorCode, JobMemory, MemoryPlace};
use divvy_core::resize::memory::{MemoryEvent, MemoryResidency};
use divvy_core::resize::resume::{ResumeBlocked, plan_resume};
use divvy_core::{AllocatedJob, Bytes, JobId, JobState};
use divvy_ledger::Snapshot;
use rustix::process::Signal;

use crate::checkpoint::{
    CheckpointOp, CheckpointOutcome, CheckpointReport, CheckpointUpdate, Direction,
};
use crate::controller::active_set;
use crate::controller::admission::dependencies::BlockReason;
use crate::controller::effects::{Effects, JobReply};
use crate::controller::io::Io;
use crate::controller::lifecycle::{pause, schedule, start};
use crate::controller::mailbox::{Milestone, Reply};
use crate::controller::mig::is_divided;
use crate::controller::observe::usage;
use crate::controller::runtime::{ActiveJob, Waiter};
use crate::controller::state::{Jobs, State};
use crate::gpu::slice::HeldSlice;
use crate::host::clock::{Instant, now};
use crate::host::process::Process;
use crate::journal::StoreError;
use crate::model::job::{Allocation, Job};

/// After a failure it is tried again, each time after twice as long, at most after this.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// What is under way for a job's memory.
#[derive(Default)]
pub struct MemoryOp {
    /// Set when nobody wants it any more.
    cancelled: Option<Arc<AtomicBool>>,
    /// Tries in a row that came to nothing.
    failures: u32,
    retry_after: Option<Instant>,
    /// What the last one failed for.
    last_error: Option<String>,
    /// What a job that is to go on waits for.
    blocked_by: Option<ResumeBlocked>,
}

impl MemoryOp {
    /// Nobody wants it any more; it ends by itself.
    pub(in crate::controller) fn cancel(&self) {
        if let Some(withdrawn) = &self.cancelled {
            withdrawn.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a job that is to go on has its room kept until then.
    pub(in crate::controller) fn keeps_reservation(&self) -> bool {
        self.blocked_by
            .as_ref()
            .is_none_or(ResumeBlocked::keeps_room)
    }

    fn record_failure(&mut self, why: String) {
        let pause = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(6));
        self.retry_after = Some(Instant::now() + pause.min(MAX_BACKOFF));
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some(why);
    }
}

impl ActiveJob {
    /// Nobody copies its memory now.
    pub(in crate::controller) fn is_memory_idle(&self) -> bool {
        self.memory_op.cancelled.is_none()
    }
}

impl Job {
    /// Whether it holds what it was granted: not while its memory is aside.
    pub(in crate::controller) fn holds(&self) -> bool {
        !self.state.grants().is_empty() && self.run_state.aside.memory.holds_gpus()
    }

    /// As the planner has it; `None` for one that holds nothing and is not to.
    pub(in crate::controller) fn held(&self) -> Option<AllocatedJob> {
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
            due: is_due.then_some(since),
            ..AllocatedJob::new(
                self.id,
                self.spec.queue.clone(),
                self.state.grants().to_vec(),
            )
        })
    }

    /// Where its memory is, once it was to be put aside.
    pub(in crate::controller) fn memory(&self) -> Option<JobMemory> {
        let aside = &self.run_state.aside;
        let is_over = !self.run_state.suspended || !matches!(self.state, JobState::Running { .. });
        let since = aside.since.filter(|_| !is_over)?;
        let place = match aside.memory {
            MemoryResidency::Kept => MemoryPlace::Gpu,
            MemoryResidency::Leaving => MemoryPlace::Offloading,
            MemoryResidency::Aside => MemoryPlace::Host,
            MemoryResidency::Due => MemoryPlace::RestorePending,
            MemoryResidency::Returning { .. } => MemoryPlace::Restoring,
        };
        Some(JobMemory { place, since })
    }
}

/// Suspends a job and has its memory put aside, or says why that stays.
pub(in crate::controller) fn offload(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    reference: &str,
    reply: Reply<v1::Job>,
) -> Result<(), StoreError> {
    let id = match pause::pausable(jobs, io, reference)? {
        Ok(id) => id,
        Err(error) => {
            fx.counters.failed_suspends += u64::from(error.code == ErrorCode::Conflict);
            let result = Err(error);
            fx.replies.jobs.push(JobReply { reply, result });
            return Ok(());
        }
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

/// Why a job's memory cannot even be tried to put aside.
fn offload_obstacle(jobs: &Jobs, id: JobId) -> Option<String> {
    let active = jobs.active.get(&id)?;
    if is_divided(active.job.state.grants()) {
        return Some("the driver cannot offload the memory of MIG instances".to_owned());
    }
    if active.slice().is_none() {
        return Some("its slice cannot be read".to_owned());
    }
    None
}

/// Its memory is not put aside.
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
    fx.record_event(io, Some(id), "memory_release_failed", &why)
}

/// What somebody wants of a job's memory, or what has become of it: journaled, with what the job holds from now on.
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
    active.job.run_state.aside.memory = after;
    // Who waits keeps its place.
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
    // The limits that go with it.
    fx.jobs.resizes.push(id);
    if after.is_copying() {
        fx.jobs.memory_ops.push(id);
    }
    fx.failpoints.push(match after {
        MemoryResidency::Leaving => "aside.intent",
        MemoryResidency::Aside => "aside.kept",
        MemoryResidency::Due => "back.due",
        MemoryResidency::Returning { .. } => "back.intent",
        MemoryResidency::Kept => "back.kept",
    });
    Ok(())
}

/// A suspended job whose memory may be elsewhere is to go on, or to stay so. False where it is an ordinary one.
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
        // What could not be released may have been locked after all: it is asked.
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

/// Gives jobs that are to go on their GPUs again, where there is room: before anybody new is placed.
pub(in crate::controller) fn resume_offloaded(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    let mut due: Vec<(i64, JobId)> = state
        .jobs
        .active
        .values()
        .filter_map(|active| active.job.held())
        .filter_map(|held| Some((held.due?, held.job)))
        .collect();
    due.sort_unstable();
    for (_, id) in due {
        let mut snapshot = schedule::snapshot(state, io);
        let Some(active) = state.jobs.active.get_mut(&id) else {
            continue;
        };
        if !active.memory_op.keeps_reservation() {
            // It keeps its turn.
            snapshot.held.extend(active.job.held());
        }
        match plan_resume(&snapshot, id, &uses(active)) {
            Err(lacks) => active.memory_op.blocked_by = Some(lacks),
            Ok(grants) => {
                active.job.relabel(grants);
                move_memory(&mut state.jobs, fx, io, id, MemoryEvent::Fits)?;
                let words =
                    super::schedule::labels(&state.jobs.active.get(&id).expect("it was there").job);
                fx.record_event(io, Some(id), "memory_restoring", &words)?;
            }
        }
    }
    Ok(())
}

/// Gives the errands that are due: what is journaled and not under way.
pub(in crate::controller) fn run_memory_ops(jobs: &mut Jobs, fx: &mut Effects, io: &Io) {
    let mut trips = std::mem::take(&mut fx.jobs.memory_ops);
    trips.sort_unstable();
    trips.dedup();
    for id in trips {
        run_memory_op(jobs, io, id);
    }
}

/// Those whose pause is over.
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

fn run_memory_op(jobs: &mut Jobs, io: &Io, id: JobId) {
    let dir = start::job_dir(jobs, io, id);
    let Some(active) = jobs.active.get_mut(&id) else {
        return;
    };
    let aside = &active.job.run_state.aside;
    let way = match aside.memory {
        MemoryResidency::Leaving => Direction::Offload,
        MemoryResidency::Returning { .. } => Direction::Restore,
        MemoryResidency::Kept | MemoryResidency::Aside | MemoryResidency::Due => return,
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
        let ended = match way {
            Direction::Offload if aside.parts.is_empty() => CheckpointOutcome::Refused(why),
            Direction::Offload => CheckpointOutcome::Failed(why),
            Direction::Restore => CheckpointOutcome::NotRestored(why),
        };
        let attempt = active.job.attempt;
        return io.checkpoint_ops.report_not_started(id, attempt, ended);
    };
    let withdrawn = Arc::new(AtomicBool::new(false));
    active.memory_op.cancelled = Some(Arc::clone(&withdrawn));
    let grants = active.job.state.grants().iter();
    io.checkpoint_ops.start(CheckpointOp {
        job: id,
        attempt: active.job.attempt,
        direction: way,
        supervisor: launch.process,
        slice,
        gpus: grants.map(|grant| grant.gpu.clone()).collect(),
        parts: aside.parts.clone(),
        is_withdrawn: withdrawn,
    });
}

/// Draws the consequences of what an errand says.
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
            // Nobody answers, and so it ends.
            false => Ok(()),
        },
        CheckpointUpdate::Finished(outcome) => {
            active.memory_op.cancelled = None;
            // Who waits for its end may not have to any more.
            fx.replies.milestones.push(id);
            if active.job.run_state.aside.memory.is_copying() {
                // Something else may have been asked for meanwhile.
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
    let before = active.job.run_state.aside.memory;
    match (outcome, before) {
        (CheckpointOutcome::Saved, MemoryResidency::Leaving) => {
            let memory: Bytes = uses(active).into_iter().sum();
            let labels = super::schedule::labels(&active.job);
            move_memory(jobs, fx, io, id, MemoryEvent::Offloaded)?;
            let words = format!("{} of {labels} is in host memory", memory.human());
            fx.record_event(io, Some(id), "memory_released", &words)
        }
        (CheckpointOutcome::Refused(why), MemoryResidency::Leaving) => {
            active.job.run_state.aside.parts.clear();
            move_memory(jobs, fx, io, id, MemoryEvent::Refused)?;
            fx.jobs.pauses.push(id);
            keep_on_gpu(jobs, fx, io, id, why)
        }
        (CheckpointOutcome::Failed(why), MemoryResidency::Leaving) => {
            move_memory(jobs, fx, io, id, MemoryEvent::Failed)?;
            keep_on_gpu(jobs, fx, io, id, why)
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
            // What of it goes on meanwhile would wait for the rest.
            fx.jobs.pauses.push(id);
            match is_new {
                true => fx.record_event(io, Some(id), "memory_restore_failed", &why),
                false => Ok(()),
            }
        }
        // It came too late: the next errand begins with how things are.
        _ => Ok(()),
    }
}

/// Why a job that was to be suspended without its GPUs is where it is.
pub(in crate::controller) fn offload_block_reason(jobs: &Jobs, job: &Job) -> Option<BlockReason> {
    let memory = job.memory()?;
    let aside = &job.run_state.aside;
    let active = jobs.active.get(&job.id)?;
    let trip = &active.memory_op;
    let tried = trip.last_error.as_ref();
    let bytes: Bytes = uses(active).into_iter().sum();
    let its = format!("its {} of {}", bytes.human(), super::schedule::labels(job));
    let words = match memory.place {
        MemoryPlace::Gpu => {
            let why = aside.because.as_ref()?;
            format!("its GPU memory was not released: {why}")
        }
        MemoryPlace::Offloading => "offloading its GPU memory".to_owned(),
        MemoryPlace::Host => {
            let since = memory.since;
            format!("holds no GPU: {its} is in host memory since {since:.0}")
        }
        MemoryPlace::RestorePending => match &trip.blocked_by {
            Some(lacks) => {
                format!("resuming, waits for {lacks}; {its} is in host memory")
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

/// Whether a job's memory is where it is for now.
pub(in crate::controller) fn is_memory_settled(active: &ActiveJob) -> bool {
    !active.job.run_state.aside.memory.is_copying()
}

/// What a job's memory comes to by its account, by position in its holdings.
fn uses(active: &ActiveJob) -> Vec<Bytes> {
    let account = active.slice().and_then(|slice| slice.read().ok());
    account.map_or_else(Vec::new, |account| {
        comes_to(&account, &active.job.allocations)
    })
}

/// The same of one account: no more than was granted, whatever the account says.
fn comes_to(account: &Snapshot, holdings: &[Allocation]) -> Vec<Bytes> {
    let of = |(gpu, holding): (usize, &Allocation)| {
        Bytes::new(account.usage(gpu).used()).min(holding.grant.memory)
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
        let account = Slice::open(folder.path()).unwrap().read().unwrap();
        let holding = |uuid| Allocation {
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
        let found = comes_to(&account, &[holding(1), holding(2)]);
        assert_eq!(found, [Bytes::gib(6), Bytes::gib(8)]);
    }
}
