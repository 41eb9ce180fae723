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
use divvy_core::{AllocatedJob, Bytes, JobId, JobState as Life};
use divvy_ledger::Snapshot;
use rustix::process::Signal;

use crate::checkpoint::{
    CheckpointOp, CheckpointOutcome, CheckpointReport, CheckpointUpdate, Direction,
};
use crate::controller::admission::dependencies::BlockReason;
use crate::controller::mailbox::{Milestone, Reply};
use crate::controller::mig::is_divided;
use crate::controller::{ActiveJob, Controller, JobReply, Waiter};
use crate::host::clock::{Instant, now};
use crate::host::process::Process;
use crate::journal::StoreError;
use crate::model::job::{Allocation, Job};

/// After a failure it is tried again, each time after twice as long, at most after this.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// What is under way for a job's memory.
#[derive(Default)]
pub(in crate::controller) struct MemoryOp {
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
            aside.memory == MemoryResidency::Due && matches!(self.state, Life::Running { .. });
        if !self.holds() && !is_due {
            return None;
        }
        let since = aside.since.map_or(0, jiff::Timestamp::as_microsecond);
        Some(AllocatedJob {
            owner: self.owner(),
            ran_s: self.ran_s(),
            leaving: matches!(self.state, Life::Stopping { .. }),
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
        let is_over = !self.run_state.suspended || !matches!(self.state, Life::Running { .. });
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

impl Controller {
    /// Suspends a job and has its memory put aside, or says why that stays.
    pub(in crate::controller) fn offload(
        &mut self,
        reference: &str,
        reply: Reply<v1::Job>,
    ) -> Result<(), StoreError> {
        let id = match self.pausable(reference)? {
            Ok(id) => id,
            Err(error) => {
                self.counters.failed_suspends += u64::from(error.code == ErrorCode::Conflict);
                let result = Err(error);
                self.effects.job_replies.push(JobReply { reply, result });
                return Ok(());
            }
        };
        let never = self.offload_obstacle(id);
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.waiters.push(Waiter {
            milestone: Milestone::MemorySettled,
            reply,
        });
        self.effects.milestones_reached.push(id);
        let was_suspended = living.job.run_state.suspended;
        living.job.run_state.aside.because = None;
        match never {
            Some(why) => {
                if !was_suspended {
                    self.set_suspended(id, true)?;
                }
                self.keep_on_gpu(id, why)
            }
            None => {
                if !was_suspended {
                    self.mark_suspended(id)?;
                    self.record_event(Some(id), "suspended", "offloading its GPU memory")?;
                }
                self.move_memory(id, MemoryEvent::Release)
            }
        }
    }

    /// Why a job's memory cannot even be tried to put aside.
    fn offload_obstacle(&self, id: JobId) -> Option<String> {
        let living = self.jobs.get(&id)?;
        if is_divided(living.job.state.grants()) {
            return Some("the driver cannot offload the memory of MIG instances".to_owned());
        }
        if living.slice.is_none() {
            return Some("its slice cannot be read".to_owned());
        }
        None
    }

    /// Its memory is not put aside.
    fn keep_on_gpu(&mut self, id: JobId, why: String) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let aside = &mut living.job.run_state.aside;
        aside.because = Some(why.clone());
        aside.since.get_or_insert_with(now);
        let job = living.job.clone();
        self.store.save(&job)?;
        self.record_event(Some(id), "memory_release_failed", &why)
    }

    /// What somebody wants of a job's memory, or what has become of it: journaled, with what the job holds from now on.
    pub(in crate::controller) fn move_memory(
        &mut self,
        id: JobId,
        then: MemoryEvent,
    ) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let before = living.job.run_state.aside.memory;
        let after = before.on(then);
        self.effects.milestones_reached.push(id);
        if before == after {
            return Ok(());
        }
        if after.is_copying() {
            (living.memory_op.failures, living.memory_op.retry_after) = (0, None);
            living.memory_op.last_error = None;
        }
        living.memory_op.blocked_by = None;
        living.job.run_state.aside.memory = after;
        // Who waits keeps its place.
        living.job.run_state.aside.since = Some(now());
        let holding = (before.holds_gpus(), after.holds_gpus());
        if holding == (true, false) {
            self.journal_metered(id)?;
        }
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let job = living.job.clone();
        match holding {
            (true, false) => self.store.close_usage_for_offload(&job)?,
            (false, true) => self.store.save_allocations(&job)?,
            _ => {}
        }
        self.store.save(&job)?;
        self.effects.changed.insert(id);
        if before.holds_gpus() != after.holds_gpus()
            || after == MemoryResidency::Due
            || before == MemoryResidency::Due
        {
            self.effects.replan = true;
        }
        // The limits that go with it.
        self.effects.resizes.push(id);
        if after.is_copying() {
            self.effects.memory_ops.push(id);
        }
        self.effects.failpoints.push(match after {
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
        &mut self,
        id: JobId,
        suspend: bool,
    ) -> Result<bool, StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(false);
        };
        let aside = &living.job.run_state.aside;
        if aside.memory == MemoryResidency::Kept {
            // What could not be released may have been locked after all: it is asked.
            let may_be_locked =
                !suspend && living.job.run_state.suspended && !aside.parts.is_empty();
            if may_be_locked {
                self.move_memory(id, MemoryEvent::Recall)?;
            }
            return Ok(may_be_locked);
        }
        let before = living.job.run_state.aside.memory;
        let then = if suspend {
            MemoryEvent::Suspend
        } else {
            MemoryEvent::Resume
        };
        self.move_memory(id, then)?;
        let after = self.jobs.get(&id).map(|one| one.job.run_state.aside.memory);
        if after == Some(MemoryResidency::Due) && before != MemoryResidency::Due {
            let words = "its memory is restored once its GPUs have room";
            self.record_event(Some(id), "memory_restore_pending", words)?;
        }
        Ok(true)
    }

    /// Gives jobs that are to go on their GPUs again, where there is room: before anybody new is placed.
    pub(in crate::controller) fn resume_offloaded(&mut self) -> Result<(), StoreError> {
        let mut due: Vec<(i64, JobId)> = self
            .jobs
            .values()
            .filter_map(|living| living.job.held())
            .filter_map(|held| Some((held.due?, held.job)))
            .collect();
        due.sort_unstable();
        for (_, id) in due {
            let mut snapshot = self.snapshot();
            let Some(living) = self.jobs.get_mut(&id) else {
                continue;
            };
            if !living.memory_op.keeps_reservation() {
                // It keeps its turn.
                snapshot.held.extend(living.job.held());
            }
            match plan_resume(&snapshot, id, &uses(living)) {
                Err(lacks) => living.memory_op.blocked_by = Some(lacks),
                Ok(grants) => {
                    living.job.relabel(grants);
                    self.move_memory(id, MemoryEvent::Fits)?;
                    let words =
                        super::schedule::labels(&self.jobs.get(&id).expect("it was there").job);
                    self.record_event(Some(id), "memory_restoring", &words)?;
                }
            }
        }
        Ok(())
    }

    /// Gives the errands that are due: what is journaled and not under way.
    pub(in crate::controller) fn run_memory_ops(&mut self) {
        let mut trips = std::mem::take(&mut self.effects.memory_ops);
        trips.sort_unstable();
        trips.dedup();
        for id in trips {
            self.run_memory_op(id);
        }
    }

    /// Those whose pause is over.
    pub(in crate::controller) fn retry_memory_ops(&mut self) {
        for id in self.active_jobs() {
            let moves = self.jobs.get(&id).is_some_and(|living| {
                living.job.run_state.aside.memory.is_copying()
                    && living.memory_op.cancelled.is_none()
            });
            if moves {
                self.effects.memory_ops.push(id);
            }
        }
    }

    fn run_memory_op(&mut self, id: JobId) {
        let dir = self.job_dir(id);
        let Some(living) = self.jobs.get_mut(&id) else {
            return;
        };
        let aside = &living.job.run_state.aside;
        let way = match aside.memory {
            MemoryResidency::Leaving => Direction::Offload,
            MemoryResidency::Returning { .. } => Direction::Restore,
            MemoryResidency::Kept | MemoryResidency::Aside | MemoryResidency::Due => return,
        };
        let waits = living
            .memory_op
            .retry_after
            .is_some_and(|at| Instant::now() < at);
        let runs = matches!(living.job.state, Life::Running { .. });
        if waits || !runs || living.memory_op.cancelled.is_some() {
            return;
        }
        let launch = dir.launch().ok().flatten();
        let (Some(launch), Some(slice)) = (launch, &living.slice) else {
            let why = "its records or its slice cannot be read".to_owned();
            let ended = match way {
                Direction::Offload if aside.parts.is_empty() => CheckpointOutcome::Refused(why),
                Direction::Offload => CheckpointOutcome::Failed(why),
                Direction::Restore => CheckpointOutcome::NotRestored(why),
            };
            let attempt = living.job.attempt;
            return self.checkpoint_ops.report_not_started(id, attempt, ended);
        };
        let withdrawn = Arc::new(AtomicBool::new(false));
        living.memory_op.cancelled = Some(Arc::clone(&withdrawn));
        let grants = living.job.state.grants().iter();
        self.checkpoint_ops.start(CheckpointOp {
            job: id,
            attempt: living.job.attempt,
            direction: way,
            supervisor: launch.process,
            slice: slice.ledger(),
            gpus: grants.map(|grant| grant.gpu.clone()).collect(),
            parts: aside.parts.clone(),
            is_withdrawn: withdrawn,
        });
    }

    /// Draws the consequences of what an errand says.
    pub(in crate::controller) fn apply_checkpoint_report(
        &mut self,
        report: CheckpointReport,
    ) -> Result<(), StoreError> {
        let CheckpointReport {
            job: id,
            attempt,
            update: what,
        } = report;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let is_its = living.job.attempt == attempt;
        match what {
            CheckpointUpdate::LockPending(parts, journaled) => match is_its {
                true => self.record_checkpoint_processes(id, parts, journaled),
                // Nobody answers, and so it ends.
                false => Ok(()),
            },
            CheckpointUpdate::Finished(outcome) => {
                living.memory_op.cancelled = None;
                // Who waits for its end may not have to any more.
                self.effects.milestones_reached.push(id);
                if living.job.run_state.aside.memory.is_copying() {
                    // Something else may have been asked for meanwhile.
                    self.effects.memory_ops.push(id);
                }
                match is_its && matches!(living.job.state, Life::Running { .. }) {
                    true => self.finish_memory_op(id, outcome),
                    false => Ok(()),
                }
            }
        }
    }

    fn record_checkpoint_processes(
        &mut self,
        id: JobId,
        parts: Vec<Process>,
        journaled: SyncSender<()>,
    ) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.job.run_state.aside.parts = parts;
        let job = living.job.clone();
        self.store.save(&job)?;
        self.effects.commit_waiters.push(journaled);
        Ok(())
    }

    fn finish_memory_op(
        &mut self,
        id: JobId,
        outcome: CheckpointOutcome,
    ) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let before = living.job.run_state.aside.memory;
        match (outcome, before) {
            (CheckpointOutcome::Saved, MemoryResidency::Leaving) => {
                let memory: Bytes = uses(living).into_iter().sum();
                let labels = super::schedule::labels(&living.job);
                self.move_memory(id, MemoryEvent::Offloaded)?;
                let words = format!("{} of {labels} is in host memory", memory.human());
                self.record_event(Some(id), "memory_released", &words)
            }
            (CheckpointOutcome::Refused(why), MemoryResidency::Leaving) => {
                living.job.run_state.aside.parts.clear();
                self.move_memory(id, MemoryEvent::Refused)?;
                self.effects.pauses.push(id);
                self.keep_on_gpu(id, why)
            }
            (CheckpointOutcome::Failed(why), MemoryResidency::Leaving) => {
                self.move_memory(id, MemoryEvent::Failed)?;
                self.keep_on_gpu(id, why)
            }
            (CheckpointOutcome::Restored, MemoryResidency::Returning { goes_on }) => {
                let was_released = living.job.run_state.aside.because.is_none();
                self.move_memory(id, MemoryEvent::Restored)?;
                if was_released {
                    let words = "its memory is restored to its GPUs";
                    self.record_event(Some(id), "memory_restored", words)?;
                }
                match goes_on {
                    true => {
                        self.signal_all(id, Signal::CONT);
                        self.set_suspended(id, false)
                    }
                    false => {
                        self.effects.pauses.push(id);
                        Ok(())
                    }
                }
            }
            (CheckpointOutcome::NotRestored(why), MemoryResidency::Returning { .. }) => {
                let is_new = living.memory_op.last_error.as_ref() != Some(&why);
                living.memory_op.record_failure(why.clone());
                tracing::warn!(job = %id, "cannot restore the job's memory to its GPUs: {why}");
                // What of it goes on meanwhile would wait for the rest.
                self.effects.pauses.push(id);
                match is_new {
                    true => self.record_event(Some(id), "memory_restore_failed", &why),
                    false => Ok(()),
                }
            }
            // It came too late: the next errand begins with how things are.
            _ => Ok(()),
        }
    }

    /// Why a job that was to be suspended without its GPUs is where it is.
    pub(in crate::controller) fn offload_block_reason(&self, job: &Job) -> Option<BlockReason> {
        let memory = job.memory()?;
        let aside = &job.run_state.aside;
        let living = self.jobs.get(&job.id)?;
        let trip = &living.memory_op;
        let tried = trip.last_error.as_ref();
        let bytes: Bytes = uses(living).into_iter().sum();
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
    pub(in crate::controller) fn is_memory_settled(living: &ActiveJob) -> bool {
        !living.job.run_state.aside.memory.is_copying()
    }
}

/// What a job's memory comes to by its account, by position in its holdings.
fn uses(living: &ActiveJob) -> Vec<Bytes> {
    let account = living.slice.as_ref().and_then(|slice| slice.read().ok());
    account.map_or_else(Vec::new, |account| {
        comes_to(&account, &living.job.allocations)
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
