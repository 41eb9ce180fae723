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
use divvy_core::comeback::{Lacks, come_back};
use divvy_core::memory::{Memory, Move};
use divvy_core::{Bytes, Held, Job as Life, JobId};
use divvy_ledger::Snapshot;
use rustix::process::Signal;

use super::after::HeldUp;
use super::mig::is_divided;
use super::{Answer, Cycle, Living, Waiter};
use crate::aside::{Errand, News, Outcome, Report, Way};
use crate::clock::{Instant, now};
use crate::job::{Holding, Job};
use crate::mailbox::{Milestone, Reply};
use crate::process::Process;
use crate::store::StoreError;

/// After a failure it is tried again, each time after twice as long, at most after this.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is under way for a job's memory.
#[derive(Default)]
pub(super) struct Trip {
    /// Set when nobody wants it any more.
    withdrawn: Option<Arc<AtomicBool>>,
    /// Tries in a row that came to nothing.
    failures: u32,
    not_before: Option<Instant>,
    /// What the last one failed for.
    stuck: Option<String>,
    /// What a job that is to go on waits for.
    lacks: Option<Lacks>,
}

impl Trip {
    /// Nobody wants it any more; it ends by itself.
    pub(super) fn withdraw(&self) {
        if let Some(withdrawn) = &self.withdrawn {
            withdrawn.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a job that is to go on has its room kept until then.
    pub(super) fn keeps_room(&self) -> bool {
        self.lacks.as_ref().is_none_or(Lacks::keeps_room)
    }

    fn fails(&mut self, why: String) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(6));
        self.not_before = Some(Instant::now() + pause.min(LONGEST_PAUSE));
        self.failures = self.failures.saturating_add(1);
        self.stuck = Some(why);
    }
}

impl Living {
    /// Nobody copies its memory now.
    pub(super) fn stands_still(&self) -> bool {
        self.trip.withdrawn.is_none()
    }
}

impl Job {
    /// Whether it holds what it was granted: not while its memory is aside.
    pub(super) fn holds(&self) -> bool {
        !self.life.grants().is_empty() && self.course.aside.memory.holds()
    }

    /// As the planner has it; `None` for one that holds nothing and is not to.
    pub(super) fn held(&self) -> Option<Held> {
        let aside = &self.course.aside;
        let is_due = aside.memory == Memory::Due && matches!(self.life, Life::Running { .. });
        if !self.holds() && !is_due {
            return None;
        }
        let since = aside.since.map_or(0, jiff::Timestamp::as_microsecond);
        Some(Held {
            owner: self.owner(),
            ran_s: self.ran_s(),
            leaving: matches!(self.life, Life::Stopping { .. }),
            due: is_due.then_some(since),
            ..Held::new(self.id, self.ask.queue.clone(), self.life.grants().to_vec())
        })
    }

    /// Where its memory is, once it was to be put aside.
    pub(super) fn memory(&self) -> Option<JobMemory> {
        let aside = &self.course.aside;
        let is_over = !self.course.suspended || !matches!(self.life, Life::Running { .. });
        let since = aside.since.filter(|_| !is_over)?;
        let place = match aside.memory {
            Memory::Kept => MemoryPlace::Gpu,
            Memory::Leaving => MemoryPlace::Offloading,
            Memory::Aside => MemoryPlace::Host,
            Memory::Due => MemoryPlace::RestorePending,
            Memory::Returning { .. } => MemoryPlace::Restoring,
        };
        Some(JobMemory { place, since })
    }
}

impl Cycle {
    /// Suspends a job and has its memory put aside, or says why that stays.
    pub(super) fn release(
        &mut self,
        reference: &str,
        reply: Reply<v1::Job>,
    ) -> Result<(), StoreError> {
        let id = match self.pausable(reference)? {
            Ok(id) => id,
            Err(error) => {
                self.counted.unsuspended += u64::from(error.code == ErrorCode::Conflict);
                let result = Err(error);
                self.round.answers.push(Answer { reply, result });
                return Ok(());
            }
        };
        let never = self.never_released(id);
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.waiters.push(Waiter {
            milestone: Milestone::Settled,
            reply,
        });
        self.round.reached.push(id);
        let was_suspended = living.job.course.suspended;
        living.job.course.aside.because = None;
        match never {
            Some(why) => {
                if !was_suspended {
                    self.set_suspended(id, true)?;
                }
                self.stays(id, why)
            }
            None => {
                if !was_suspended {
                    self.mark_suspended(id)?;
                    self.tell(Some(id), "suspended", "offloading its GPU memory")?;
                }
                self.move_memory(id, Move::Release)
            }
        }
    }

    /// Why a job's memory cannot even be tried to put aside.
    fn never_released(&self, id: JobId) -> Option<String> {
        let living = self.jobs.get(&id)?;
        if is_divided(living.job.life.grants()) {
            return Some("the driver cannot offload the memory of MIG instances".to_owned());
        }
        if living.slice.is_none() {
            return Some("its slice cannot be read".to_owned());
        }
        None
    }

    /// Its memory is not put aside.
    fn stays(&mut self, id: JobId, why: String) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let aside = &mut living.job.course.aside;
        aside.because = Some(why.clone());
        aside.since.get_or_insert_with(now);
        let job = living.job.clone();
        self.store.save(&job)?;
        self.tell(Some(id), "memory_release_failed", &why)
    }

    /// What somebody wants of a job's memory, or what has become of it: journaled, with what the job holds from now on.
    pub(super) fn move_memory(&mut self, id: JobId, then: Move) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let before = living.job.course.aside.memory;
        let after = before.on(then);
        self.round.reached.push(id);
        if before == after {
            return Ok(());
        }
        if after.moves() {
            (living.trip.failures, living.trip.not_before) = (0, None);
            living.trip.stuck = None;
        }
        living.trip.lacks = None;
        living.job.course.aside.memory = after;
        // Who waits keeps its place.
        living.job.course.aside.since = Some(now());
        let holding = (before.holds(), after.holds());
        if holding == (true, false) {
            self.journal_metered(id)?;
        }
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let job = living.job.clone();
        match holding {
            (true, false) => self.store.put_aside(&job)?,
            (false, true) => self.store.hold(&job)?,
            _ => {}
        }
        self.store.save(&job)?;
        self.round.changed.insert(id);
        if before.holds() != after.holds() || after == Memory::Due || before == Memory::Due {
            self.round.replan = true;
        }
        // The limits that go with it.
        self.round.resizes.push(id);
        if after.moves() {
            self.round.trips.push(id);
        }
        self.round.points.push(match after {
            Memory::Leaving => "aside.intent",
            Memory::Aside => "aside.kept",
            Memory::Due => "back.due",
            Memory::Returning { .. } => "back.intent",
            Memory::Kept => "back.kept",
        });
        Ok(())
    }

    /// A suspended job whose memory may be elsewhere is to go on, or to stay so. False where it is an ordinary one.
    pub(super) fn pause_memory(&mut self, id: JobId, suspend: bool) -> Result<bool, StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(false);
        };
        let aside = &living.job.course.aside;
        if aside.memory == Memory::Kept {
            // What could not be released may have been locked after all: it is asked.
            let may_be_locked = !suspend && living.job.course.suspended && !aside.parts.is_empty();
            if may_be_locked {
                self.move_memory(id, Move::Recall)?;
            }
            return Ok(may_be_locked);
        }
        let before = living.job.course.aside.memory;
        let then = if suspend { Move::Suspend } else { Move::Resume };
        self.move_memory(id, then)?;
        let after = self.jobs.get(&id).map(|one| one.job.course.aside.memory);
        if after == Some(Memory::Due) && before != Memory::Due {
            let words = "its memory is restored once its GPUs have room";
            self.tell(Some(id), "memory_restore_pending", words)?;
        }
        Ok(true)
    }

    /// Gives jobs that are to go on their GPUs again, where there is room: before anybody new is placed.
    pub(super) fn come_back(&mut self) -> Result<(), StoreError> {
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
            if !living.trip.keeps_room() {
                // It keeps its turn.
                snapshot.held.extend(living.job.held());
            }
            match come_back(&snapshot, id, &uses(living)) {
                Err(lacks) => living.trip.lacks = Some(lacks),
                Ok(grants) => {
                    living.job.relabel(grants);
                    self.move_memory(id, Move::Fits)?;
                    let words =
                        super::place::labels(&self.jobs.get(&id).expect("it was there").job);
                    self.tell(Some(id), "memory_restoring", &words)?;
                }
            }
        }
        Ok(())
    }

    /// Gives the errands that are due: what is journaled and not under way.
    pub(super) fn make_trips(&mut self) {
        let mut trips = std::mem::take(&mut self.round.trips);
        trips.sort_unstable();
        trips.dedup();
        for id in trips {
            self.make_trip(id);
        }
    }

    /// Those whose pause is over.
    pub(super) fn look_for_trips(&mut self) {
        for id in self.busy() {
            let moves = self.jobs.get(&id).is_some_and(|living| {
                living.job.course.aside.memory.moves() && living.trip.withdrawn.is_none()
            });
            if moves {
                self.round.trips.push(id);
            }
        }
    }

    fn make_trip(&mut self, id: JobId) {
        let dir = self.job_dir(id);
        let Some(living) = self.jobs.get_mut(&id) else {
            return;
        };
        let aside = &living.job.course.aside;
        let way = match aside.memory {
            Memory::Leaving => Way::Out,
            Memory::Returning { .. } => Way::Back,
            Memory::Kept | Memory::Aside | Memory::Due => return,
        };
        let waits = living.trip.not_before.is_some_and(|at| Instant::now() < at);
        let runs = matches!(living.job.life, Life::Running { .. });
        if waits || !runs || living.trip.withdrawn.is_some() {
            return;
        }
        let launch = dir.launch().ok().flatten();
        let (Some(launch), Some(slice)) = (launch, &living.slice) else {
            let why = "its records or its slice cannot be read".to_owned();
            let ended = match way {
                Way::Out if aside.parts.is_empty() => Outcome::Refused(why),
                Way::Out => Outcome::Failed(why),
                Way::Back => Outcome::NotRestored(why),
            };
            let attempt = living.job.attempt;
            return self.errands.give_up(id, attempt, ended);
        };
        let withdrawn = Arc::new(AtomicBool::new(false));
        living.trip.withdrawn = Some(Arc::clone(&withdrawn));
        let grants = living.job.life.grants().iter();
        self.errands.send(Errand {
            job: id,
            attempt: living.job.attempt,
            way,
            supervisor: launch.process,
            slice: slice.account(),
            gpus: grants.map(|grant| grant.gpu.clone()).collect(),
            parts: aside.parts.clone(),
            withdrawn,
        });
    }

    /// Draws the consequences of what an errand says.
    pub(super) fn trip_news(&mut self, report: Report) -> Result<(), StoreError> {
        let Report {
            job: id,
            attempt,
            what,
        } = report;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let is_its = living.job.attempt == attempt;
        match what {
            News::Met(parts, journaled) => match is_its {
                true => self.met(id, parts, journaled),
                // Nobody answers, and so it ends.
                false => Ok(()),
            },
            News::Ended(outcome) => {
                living.trip.withdrawn = None;
                // Who waits for its end may not have to any more.
                self.round.reached.push(id);
                if living.job.course.aside.memory.moves() {
                    // Something else may have been asked for meanwhile.
                    self.round.trips.push(id);
                }
                match is_its && matches!(living.job.life, Life::Running { .. }) {
                    true => self.trip_ended(id, outcome),
                    false => Ok(()),
                }
            }
        }
    }

    fn met(
        &mut self,
        id: JobId,
        parts: Vec<Process>,
        journaled: SyncSender<()>,
    ) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.job.course.aside.parts = parts;
        let job = living.job.clone();
        self.store.save(&job)?;
        self.round.journaled.push(journaled);
        Ok(())
    }

    fn trip_ended(&mut self, id: JobId, outcome: Outcome) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let before = living.job.course.aside.memory;
        match (outcome, before) {
            (Outcome::Saved, Memory::Leaving) => {
                let memory: Bytes = uses(living).into_iter().sum();
                let labels = super::place::labels(&living.job);
                self.move_memory(id, Move::Saved)?;
                let words = format!("{} of {labels} is in host memory", memory.human());
                self.tell(Some(id), "memory_released", &words)
            }
            (Outcome::Refused(why), Memory::Leaving) => {
                living.job.course.aside.parts.clear();
                self.move_memory(id, Move::Refused)?;
                self.round.pauses.push(id);
                self.stays(id, why)
            }
            (Outcome::Failed(why), Memory::Leaving) => {
                self.move_memory(id, Move::Failed)?;
                self.stays(id, why)
            }
            (Outcome::Restored, Memory::Returning { goes_on }) => {
                let was_released = living.job.course.aside.because.is_none();
                self.move_memory(id, Move::Restored)?;
                if was_released {
                    let words = "its memory is restored to its GPUs";
                    self.tell(Some(id), "memory_restored", words)?;
                }
                match goes_on {
                    true => {
                        self.signal_all(id, Signal::CONT);
                        self.set_suspended(id, false)
                    }
                    false => {
                        self.round.pauses.push(id);
                        Ok(())
                    }
                }
            }
            (Outcome::NotRestored(why), Memory::Returning { .. }) => {
                let is_new = living.trip.stuck.as_ref() != Some(&why);
                living.trip.fails(why.clone());
                tracing::warn!(job = %id, "cannot restore the job's memory to its GPUs: {why}");
                // What of it goes on meanwhile would wait for the rest.
                self.round.pauses.push(id);
                match is_new {
                    true => self.tell(Some(id), "memory_restore_failed", &why),
                    false => Ok(()),
                }
            }
            // It came too late: the next errand begins with how things are.
            _ => Ok(()),
        }
    }

    /// Why a job that was to be suspended without its GPUs is where it is.
    pub(super) fn away(&self, job: &Job) -> Option<HeldUp> {
        let memory = job.memory()?;
        let aside = &job.course.aside;
        let living = self.jobs.get(&job.id)?;
        let trip = &living.trip;
        let tried = trip.stuck.as_ref();
        let bytes: Bytes = uses(living).into_iter().sum();
        let its = format!("its {} of {}", bytes.human(), super::place::labels(job));
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
            MemoryPlace::RestorePending => match &trip.lacks {
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
        Some(HeldUp { code: None, words })
    }

    /// Whether a job's memory is where it is for now.
    pub(super) fn is_settled(living: &Living) -> bool {
        !living.job.course.aside.memory.moves()
    }
}

/// What a job's memory comes to by its account, by position in its holdings.
fn uses(living: &Living) -> Vec<Bytes> {
    let account = living.slice.as_ref().and_then(|slice| slice.read().ok());
    account.map_or_else(Vec::new, |account| comes_to(&account, &living.job.holdings))
}

/// The same of one account: no more than was granted, whatever the account says.
fn comes_to(account: &Snapshot, holdings: &[Holding]) -> Vec<Bytes> {
    let of = |(gpu, holding): (usize, &Holding)| {
        Bytes::new(account.usage(gpu).used()).min(holding.grant.memory)
    };
    holdings.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use divvy_core::{GpuUuid, Grant, Share};
    use divvy_ledger::{Control, GpuSpec, Slice, SliceSpec};

    use super::*;
    use crate::job::Traces;

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
        let holding = |uuid| Holding {
            grant: Grant {
                gpu: GpuUuid::from_bytes([uuid; 16]),
                index: 0,
                memory: Bytes::gib(8),
                share: Share::FULL,
                label: "gpu0".into(),
                mig: None,
            },
            goal: None,
            traces: Traces::default(),
        };
        let found = comes_to(&account, &[holding(1), holding(2)]);
        assert_eq!(found, [Bytes::gib(6), Bytes::gib(8)]);
    }
}
