//! MIG instances in the cycle: claimed when a job starts, made by a worker, handed over, let go at the job's end.
//!
//! ```text
//! plan ─► claim ─► journal ─► order ─► worker ─► report ─► journal ─► the job's program
//!                     ▲                            │
//!                     ├── not clean: made anew ────┤
//! end  ─► let go ─► journal: idle                  └─ refused: back into the queue
//! ```
//! A job that waits for its instances is `starting`. What lies on the GPUs besides is compared with the journal by
//! `core::mig::recover` whenever no order is on its way: after a crash that finishes what was begun, and on any other day it sees
//! what others have made and destroyed.

mod found;
mod mode;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use divvy_core::mig::recover::Stage;
use divvy_core::mig::{self, Carving, MigProfile, Placement, Standing, Table};
use divvy_core::{Gpu, GpuUuid, Grant, Job as Life, JobId, Mode};

use super::Cycle;
use crate::clock::{Instant, now};
use crate::container::driver::Part;
use crate::failpoint::reach;
use crate::mig::sight::Found;
use crate::mig::{
    self as instances, Failure, Instance, Made, Order, Outcome, Report, Sight, Slot, Task, Workers,
};
use crate::store::StoreError;
pub use mode::Switch;
pub(super) use shown::ENFORCEMENT;

/// How long nothing is made where the driver refused to: whoever is in the way is most often a program that looks at GPUs now and
/// then, and one that stays is asked again about as often as people look.
const BARRED: Duration = Duration::from_secs(10);

/// And it doubles so many times while nothing but refusals comes: to five minutes.
const DOUBLINGS: u32 = 5;

/// How often a job's instances may be refused, where nobody is in the way, before the job is given up.
const REFUSALS: u32 = 3;

/// What the cycle knows of MIG.
pub struct Migs {
    workers: Workers,
    /// The kernel's id of this boot.
    pub(super) boot: String,
    /// As the journal has them.
    instances: BTreeMap<Slot, Instance>,
    /// Slots with an order under way: whoever holds one may let go of it meanwhile, and nobody else gets it before the report.
    busy: BTreeSet<Slot>,
    gpus: BTreeMap<GpuUuid, OfGpu>,
    /// For the next instance.
    generation: u64,
    /// Why instances are being destroyed, by generation.
    leaving: BTreeMap<u64, Why>,
    /// Processes where they do not belong, that were told of.
    told: BTreeSet<(Slot, u32)>,
    pub counts: Counts,
}

/// One GPU in MIG mode.
#[derive(Default)]
struct OfGpu {
    /// What lies on it and is not ours, with its size.
    foreign: Vec<(Placement, u8)>,
    /// As the last look had it that nothing was changed during.
    found: Vec<Found>,
    /// Orders without a report.
    outstanding: usize,
    /// Looks from before it are out of date.
    epoch: u64,
    /// Nothing is made here until then; in all of it, or in one place.
    barred: BTreeMap<Option<Placement>, Instant>,
    /// How many instances could not be had one after the other because somebody has the GPU open, or because nobody could say
    /// whether they are clean.
    in_use: u32,
    /// When a quarantined instance was tried to be destroyed last.
    tried: BTreeMap<Placement, Instant>,
    trouble: Option<String>,
    switch: Option<Switch>,
}

/// Why an instance of ours is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Another needs its place.
    Room,
    /// Somebody else's program was in it last.
    Tenant,
    /// It is not as it was made.
    Unclean,
    /// Idle instances are to go.
    Collected,
    /// The GPU is to be in another mode.
    Mode,
    /// It was begun, or set aside.
    Remains,
}

impl Why {
    /// For people, behind "destroyed".
    fn words(self) -> &'static str {
        match self {
            Self::Room => "to make room",
            Self::Tenant => "as another user's program was in it",
            Self::Unclean => "as it was not clean",
            Self::Collected => "as idle ones are to go",
            Self::Mode => "for another mode of the GPU",
            Self::Remains => "as it was of no use to anybody",
        }
    }
}

/// What was done, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub created: Done,
    pub reused: Done,
    pub destroyed: Done,
    /// Destroyed because another needed the place.
    pub reclaimed: Done,
    pub quarantined: Done,
}

/// How often, and how long it took altogether.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub times: u64,
    pub took: Duration,
}

impl Done {
    fn add(&mut self, took: Duration) {
        self.times += 1;
        self.took += took;
    }
}

impl OfGpu {
    /// Whether a look shows the GPU as it is now: no order was carried out since, nor is on its way.
    fn can_be_compared(&self, sight: &Sight) -> bool {
        let is_current = sight.epoch.is_some_and(|epoch| epoch >= self.epoch);
        is_current && self.outstanding == 0
    }
}

impl Migs {
    pub fn new(workers: Workers, instances: BTreeMap<Slot, Instance>) -> Self {
        let generations = instances.values().map(|instance| instance.generation);
        Self {
            generation: generations.max().unwrap_or_default() + 1,
            workers,
            boot: instances::boot(),
            instances,
            busy: BTreeSet::new(),
            gpus: BTreeMap::new(),
            leaving: BTreeMap::new(),
            told: BTreeSet::new(),
            counts: Counts::default(),
        }
    }

    /// The UUID by which a program sees a grant: its instance's, or the GPU's own. `None` while the instance is not made.
    pub(super) fn visible_as(&self, grant: &Grant) -> Option<String> {
        match slot(grant) {
            None => Some(grant.gpu.to_string()),
            Some(slot) => {
                let made = self.instances.get(&slot)?.made.as_ref()?;
                Some(made.uuid.to_string())
            }
        }
    }

    /// What a container has to be given of a grant.
    pub(super) fn part(&self, grant: &Grant) -> Part {
        let made = slot(grant).and_then(|slot| self.instances.get(&slot)?.made.as_ref());
        Part {
            gpu: grant.gpu.clone(),
            instance: made.map(|made| (made.id, made.compute)),
        }
    }

    /// Whether an instance is nobody's, and nothing is being done to it.
    fn is_idle(&self, instance: &Instance) -> bool {
        instance.job.is_none() && self.standing(instance) == Standing::Idle
    }

    /// What an instance of ours that no job holds is to a plan.
    fn standing(&self, instance: &Instance) -> Standing {
        match instance.stage {
            Stage::Creating => Standing::Coming,
            Stage::Ready if self.busy.contains(&instance.slot) => Standing::Coming,
            Stage::Ready => Standing::Idle,
            Stage::Destroying => Standing::Leaving,
            Stage::Quarantined => Standing::Quarantined,
        }
    }

    fn gpu(&mut self, gpu: &GpuUuid) -> &mut OfGpu {
        self.gpus.entry(gpu.clone()).or_default()
    }

    pub(super) fn instances(&self) -> &BTreeMap<Slot, Instance> {
        &self.instances
    }
}

/// Whether a job's GPUs are MIG instances: it has no slice in the ledger then, and no limiter. Nobody is given both.
pub(super) fn is_divided(grants: &[Grant]) -> bool {
    grants.iter().any(|grant| grant.mig.is_some())
}

/// The slot of a grant that is a MIG instance.
pub(super) fn slot(grant: &Grant) -> Option<Slot> {
    Some(Slot {
        gpu: grant.gpu.clone(),
        placement: grant.mig?.placement,
    })
}

impl Cycle {
    /// Journals what the instances of a job that starts are to be, and those that make room for them. True where it waits for
    /// none and can be started at once.
    pub(super) fn claim(
        &mut self,
        id: JobId,
        reclaim: &[(GpuUuid, Placement)],
    ) -> Result<bool, StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(false);
        };
        let tenant = living.job.tenant();
        let grants = living.job.life.grants().to_vec();
        for (gpu, placement) in reclaim {
            let slot = Slot {
                gpu: gpu.clone(),
                placement: *placement,
            };
            self.reclaim(id, &slot)?;
        }
        for grant in &grants {
            let (Some(slot), Some(mig)) = (slot(grant), grant.mig) else {
                continue;
            };
            let there = self.migs.instances.get(&slot);
            let idle = there.is_some_and(|instance| self.migs.is_idle(instance));
            match self.migs.instances.get_mut(&slot) {
                None => self.make(&slot, mig.profile, id)?,
                Some(instance) => {
                    let Some(made) = instance.made.clone().filter(|_| idle) else {
                        let what = format!(
                            "the plan gave away {}, which is {}",
                            instance.label(),
                            instance.stage.name()
                        );
                        self.set_back(id, &what, false)?;
                        return Ok(false);
                    };
                    instance.job = Some(id);
                    // What the driver does with memory that another user has left is not documented.
                    let before = instance.user.as_ref();
                    match before.is_some_and(|before| *before != tenant) {
                        true => self.destroy(&slot, Why::Tenant)?,
                        false => {
                            self.store.save_mig(instance)?;
                            let task = Task::Check {
                                slot: slot.clone(),
                                generation: instance.generation,
                                made,
                            };
                            self.order(&slot.gpu, task);
                        }
                    }
                }
            }
            if let Some(living) = self.jobs.get_mut(&id) {
                living.awaits.insert(slot);
            }
        }
        Ok(self.awaits_nothing(id))
    }

    /// Whether a job that starts waits for what is to be in a slot.
    fn awaits(&self, id: JobId, slot: &Slot) -> bool {
        let starts = |job: &Life| matches!(job, Life::Starting { .. });
        self.jobs
            .get(&id)
            .is_some_and(|living| starts(&living.job.life) && living.awaits.contains(slot))
    }

    /// The job that waits for what is to be in a slot: nobody, where it was stopped or given up meanwhile.
    fn heir(&self, slot: &Slot) -> Option<JobId> {
        let job = self.migs.instances.get(slot)?.job?;
        self.awaits(job, slot).then_some(job)
    }

    /// Whether everything that a job runs on is there.
    pub(super) fn awaits_nothing(&self, id: JobId) -> bool {
        let living = self.jobs.get(&id);
        living.is_none_or(|living| living.awaits.is_empty())
    }

    fn reclaim(&mut self, id: JobId, slot: &Slot) -> Result<(), StoreError> {
        let instance = self.migs.instances.get(slot);
        // Whatever else has become of it, the one that needs its place is refused, and planned anew.
        let Some(instance) = instance.filter(|one| self.migs.is_idle(one)) else {
            return Ok(());
        };
        let label = instance.label();
        self.destroy(slot, Why::Room)?;
        self.tell(Some(id), "mig_reclaimed", &format!("{label} makes room"))
    }

    /// Journals that an instance is to be made for a job, and orders it.
    fn make(&mut self, slot: &Slot, name: MigProfile, job: JobId) -> Result<(), StoreError> {
        let generation = self.migs.generation;
        self.migs.generation += 1;
        let instance = Instance {
            slot: slot.clone(),
            name,
            stage: Stage::Creating,
            generation,
            boot: self.migs.boot.clone(),
            job: Some(job),
            user: None,
            made: None,
            since: now(),
            reason: None,
        };
        self.store.save_mig(&instance)?;
        self.migs.instances.insert(slot.clone(), instance);
        let task = Task::Make {
            slot: slot.clone(),
            generation,
            size: self.size(slot),
        };
        self.order(&slot.gpu, task);
        Ok(())
    }

    /// Journals that an instance is to go, and orders it. For a job that waits for it another is made once it is gone.
    fn destroy(&mut self, slot: &Slot, why: Why) -> Result<(), StoreError> {
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        self.migs.leaving.insert(instance.generation, why);
        instance.stage = Stage::Destroying;
        instance.since = now();
        self.store.save_mig(instance)?;
        let task = Task::Unmake {
            slot: slot.clone(),
            generation: instance.generation,
            made: instance.made.clone(),
        };
        self.order(&slot.gpu, task);
        Ok(())
    }

    fn order(&mut self, gpu: &GpuUuid, task: Task) {
        self.migs.gpu(gpu).outstanding += 1;
        if let Some(slot) = task.slot() {
            let free = self.migs.busy.insert(slot.clone());
            debug_assert!(free, "two orders for {slot} at once");
        }
        self.round.orders.push(Order {
            gpu: gpu.clone(),
            task,
        });
    }

    /// Gives the workers what this round has journaled.
    pub(super) fn give_orders(&mut self) {
        for point in std::mem::take(&mut self.round.points) {
            reach(point);
        }
        for order in std::mem::take(&mut self.round.orders) {
            reach(match &order.task {
                Task::Make { .. } => "mig.create.intent",
                Task::Check { .. } => "mig.reuse.intent",
                Task::Unmake { .. } => "mig.destroy.intent",
                Task::Mode { .. } => "mig.mode.intent",
            });
            self.migs.workers.give(order);
        }
    }

    /// Takes over what has become of an order.
    pub(super) fn reported(&mut self, report: Report) -> Result<(), StoreError> {
        let of_gpu = self.migs.gpu(&report.gpu);
        of_gpu.outstanding = of_gpu.outstanding.saturating_sub(1);
        of_gpu.epoch = of_gpu.epoch.max(report.epoch);
        if let Some(slot) = report.result.slot() {
            self.migs.busy.remove(slot);
        }
        self.round.replan = true;
        // The next look is to show it.
        self.observer.hurry();
        match report.result {
            Outcome::Made {
                slot,
                generation,
                result,
            } if self.is_of(&slot, generation) => match result {
                Ok(made) => self.made(&slot, made, report.took),
                Err(failure) => self.not_made(&slot, &failure),
            },
            Outcome::Checked {
                slot,
                generation,
                result,
            } if self.is_of(&slot, generation) => match result {
                Ok(true) => self.reused(&slot, report.took),
                // Whoever was to have it may have let go of it meanwhile: it is of no use to the next, either.
                Ok(false) => self.destroy(&slot, Why::Unclean),
                Err(failure) => self.not_checked(&slot, &failure),
            },
            Outcome::Unmade {
                slot,
                generation,
                result,
            } if self.is_of(&slot, generation) => {
                self.unmade(&slot, generation, result, report.took)
            }
            Outcome::Made { slot, .. }
            | Outcome::Checked { slot, .. }
            | Outcome::Unmade { slot, .. } => {
                tracing::error!(%slot, "a report about an instance that is not known");
                Ok(())
            }
            Outcome::Mode { on, result } => self.mode_set(&report.gpu, on, result),
        }
    }

    fn is_of(&self, slot: &Slot, generation: u64) -> bool {
        let instance = self.migs.instances.get(slot);
        instance.is_some_and(|instance| instance.generation == generation)
    }

    fn made(&mut self, slot: &Slot, made: Made, took: Duration) -> Result<(), StoreError> {
        reach("mig.create.done");
        self.round.points.push("mig.create.kept");
        if let Some(instance) = self.migs.instances.get_mut(slot) {
            instance.stage = Stage::Ready;
            instance.made = Some(made);
            instance.since = now();
        }
        self.migs.counts.created.add(took);
        self.handed_over(slot, "mig_created", "made", took)
    }

    fn reused(&mut self, slot: &Slot, took: Duration) -> Result<(), StoreError> {
        reach("mig.reuse.done");
        self.round.points.push("mig.reuse.kept");
        if self.heir(slot).is_none() {
            // It is as idle as it was.
            return Ok(());
        }
        self.migs.counts.reused.add(took);
        self.handed_over(slot, "mig_reused", "was there", took)
    }

    /// An instance is there for its job, if it still has one.
    fn handed_over(
        &mut self,
        slot: &Slot,
        kind: &str,
        verb: &str,
        took: Duration,
    ) -> Result<(), StoreError> {
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        let (label, job) = (instance.label(), instance.job);
        let mut ready = None;
        if let Some(living) = heir.and_then(|job| self.jobs.get_mut(&job)) {
            living.awaits.remove(slot);
            // From here on a program of this tenant may run in it.
            instance.user = Some(living.job.tenant());
            if living.awaits.is_empty() {
                living.refusals = 0;
                ready = heir;
            }
        }
        self.store.save_mig(instance)?;
        self.migs.gpu(&slot.gpu).in_use = 0;
        let text = format!(
            "{label} of GPU {} {verb} in {} ms",
            self.index(&slot.gpu),
            took.as_millis()
        );
        tracing::info!(?job, "{text}");
        self.tell(job, kind, &text)?;
        ready.map_or(Ok(()), |id| self.ready(id))
    }

    fn not_made(&mut self, slot: &Slot, failure: &Failure) -> Result<(), StoreError> {
        // Whoever is in the way goes some day.
        let waits = failure.is_in_use() || (!failure.is_final() && self.is_blocked(slot));
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        let (label, job) = (instance.label(), instance.job.take());
        let text = format!("{label} of GPU {}: {failure}", self.index(&slot.gpu));
        match failure {
            Failure::Refused { .. } => {
                self.migs.instances.remove(slot);
                self.store.forget_mig(slot)?;
                let place = (!failure.is_in_use()).then_some(slot.placement);
                self.keep_off(&slot.gpu, place, failure.is_in_use());
                tracing::warn!(?job, "{text}");
                self.tell(job, "mig_refused", &text)?;
            }
            Failure::Stuck(why) => self.quarantine(slot, &why.clone())?,
        }
        match heir {
            Some(job) if waits => self.put_back(job, &text),
            Some(job) => self.set_back(job, &text, failure.is_final()),
            None => Ok(()),
        }
    }

    /// Whether one of ours that cannot be destroyed lies where another was to be. It is in every plan, so nobody is sent there again
    /// before it is gone.
    fn is_blocked(&self, slot: &Slot) -> bool {
        let sized = |slot: &Slot| (slot.placement, self.size(slot));
        let mut ours = self.migs.instances.values();
        ours.any(|other| {
            other.stage == Stage::Quarantined
                && other.slot.gpu == slot.gpu
                && overlap(sized(&other.slot), sized(slot))
        })
    }

    /// Nothing is made or handed on in a place for a time, or anywhere on the GPU: longer each time, where the same `grows`.
    fn keep_off(&mut self, gpu: &GpuUuid, place: Option<Placement>, grows: bool) {
        let of_gpu = self.migs.gpu(gpu);
        let until = Instant::now() + bar(of_gpu.in_use);
        of_gpu.in_use += u32::from(grows);
        of_gpu.barred.insert(place, until);
    }

    /// Nobody knows whether an instance is clean, and nothing was done to it: it stays as it is, and is given to nobody for a time.
    fn not_checked(&mut self, slot: &Slot, failure: &Failure) -> Result<(), StoreError> {
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        instance.job = None;
        self.store.save_mig(instance)?;
        let label = instance.label();
        self.keep_off(&slot.gpu, Some(slot.placement), true);
        let text = format!(
            "{label} of GPU {} cannot be looked at: {failure}",
            self.index(&slot.gpu)
        );
        tracing::warn!(job = ?heir, "{text}");
        heir.map_or(Ok(()), |job| self.put_back(job, &text))
    }

    /// Puts a job back that cannot have what it was to have, or gives it up: where that is final, or has come too often.
    fn set_back(&mut self, id: JobId, why: &str, is_final: bool) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.refusals += 1;
        if is_final || living.refusals >= REFUSALS {
            living.awaits.clear();
            self.withdraw(id, why);
            return Ok(());
        }
        self.put_back(id, why)
    }

    fn unmade(
        &mut self,
        slot: &Slot,
        generation: u64,
        result: Result<bool, Failure>,
        took: Duration,
    ) -> Result<(), StoreError> {
        reach("mig.destroy.done");
        self.round.points.push("mig.destroy.kept");
        let why = self.migs.leaving.remove(&generation);
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get(slot) else {
            return Ok(());
        };
        let (job, name, label) = (instance.job, instance.name, instance.label());
        match result {
            Err(failure) => return self.not_unmade(slot, &failure),
            Ok(false) => self.forget(slot, job, "is not there any more")?,
            Ok(true) => {
                self.migs.instances.remove(slot);
                self.store.forget_mig(slot)?;
                let counts = &mut self.migs.counts;
                match why {
                    Some(Why::Room) => counts.reclaimed.add(took),
                    _ => counts.destroyed.add(took),
                }
                let text = format!(
                    "{label} of GPU {} destroyed in {} ms, {}",
                    self.index(&slot.gpu),
                    took.as_millis(),
                    why.unwrap_or(Why::Remains).words()
                );
                tracing::info!("{text}");
                self.tell(job, "mig_destroyed", &text)?;
            }
        }
        heir.map_or(Ok(()), |job| self.make(slot, name, job))
    }

    /// Whoever was to have the place gets another, or waits: nobody is sent here again before it is gone.
    fn not_unmade(&mut self, slot: &Slot, failure: &Failure) -> Result<(), StoreError> {
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        instance.job = None;
        let label = instance.label();
        self.quarantine(slot, &failure.to_string())?;
        let text = format!("{label} of GPU {}: {failure}", self.index(&slot.gpu));
        heir.map_or(Ok(()), |job| self.put_back(job, &text))
    }

    /// Nobody gets it until it is as it should be, or gone.
    fn quarantine(&mut self, slot: &Slot, why: &str) -> Result<(), StoreError> {
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        instance.stage = Stage::Quarantined;
        let said = instance.reason.replace(why.to_owned());
        self.store.save_mig(instance)?;
        let (label, job) = (instance.label(), instance.job);
        let of_gpu = self.migs.gpu(&slot.gpu);
        of_gpu.tried.insert(slot.placement, Instant::now());
        if said.as_deref() == Some(why) {
            return Ok(());
        }
        self.migs.counts.quarantined.add(Duration::ZERO);
        let text = format!("{label} of GPU {}: {why}", self.index(&slot.gpu));
        tracing::warn!("{text}");
        self.tell(job, "mig_quarantined", &text)
    }

    /// The job has no processes any more: what it held is kept for the next.
    pub(super) fn let_go(&mut self, id: JobId) -> Result<(), StoreError> {
        let held = |instance: &&mut Instance| instance.job == Some(id);
        for instance in self.migs.instances.values_mut().filter(held) {
            instance.job = None;
            instance.since = now();
            self.store.save_mig(instance)?;
        }
        Ok(())
    }

    /// After a start: instances whose job does not hold them, by the jobs' own rows.
    pub(super) fn let_go_of_strays(&mut self) -> Result<(), StoreError> {
        let holds = |job: &JobId, slot: &Slot| {
            let living = self.jobs.get(job);
            let mut grants = living.into_iter().flat_map(|one| one.job.life.grants());
            grants.any(|grant| self::slot(grant).as_ref() == Some(slot))
        };
        let owners: BTreeSet<JobId> = self
            .migs
            .instances
            .values()
            .filter_map(|instance| instance.job.filter(|job| !holds(job, &instance.slot)))
            .collect();
        owners.into_iter().try_for_each(|job| self.let_go(job))
    }

    /// The GPUs as a plan sees them.
    pub(super) fn gpus_now(&self) -> Vec<Gpu> {
        self.devices
            .iter()
            .map(|device| {
                let mut gpu = device.gpu.clone();
                gpu.mig = None;
                if gpu.mode == Mode::Mig {
                    gpu.mig = device.table().map(|table| self.carving(&gpu.uuid, table));
                    let of_gpu = self.migs.gpus.get(&gpu.uuid);
                    // Who cannot see what lies there cannot say where there is room.
                    let barred = of_gpu.is_some_and(|of_gpu| {
                        of_gpu.barred.contains_key(&None) || of_gpu.trouble.is_some()
                    });
                    if barred || gpu.mig.is_none() {
                        gpu.mode = Mode::Unmanaged;
                    }
                }
                gpu
            })
            .collect()
    }

    /// What lies on a GPU and is no job's. What is being destroyed for a job's sake is not shown where that job holds the place
    /// already: whatever is planned beside it comes after it in the worker's order.
    fn carving(&self, gpu: &GpuUuid, table: std::sync::Arc<Table>) -> Carving {
        let mut taken: Vec<(Placement, u8)> = Vec::new();
        let held = self
            .jobs
            .values()
            .flat_map(|living| living.job.life.grants());
        let held = held.filter(|grant| grant.gpu == *gpu);
        taken.extend(held.filter_map(|grant| {
            let placement = grant.mig?.placement;
            Some((placement, size_in(&table, placement)))
        }));
        let mut listed: Vec<mig::Instance> = Vec::new();
        let mut list = |placement: Placement, size: u8, standing: Standing| {
            let there = (placement, size);
            if !taken.iter().any(|other| overlap(*other, there)) {
                taken.push(there);
                listed.push(mig::Instance {
                    placement,
                    standing,
                });
            }
        };
        let of_gpu = self.migs.gpus.get(gpu);
        let barred = |placement: Placement| {
            of_gpu.is_some_and(|of_gpu| of_gpu.barred.contains_key(&Some(placement)))
        };
        let ours = self.migs.instances.values();
        let ours = ours.filter(|one| one.slot.gpu == *gpu && one.job.is_none());
        // In this order, so that what is coming hides what leaves for it.
        let standings = [
            Standing::Coming,
            Standing::Idle,
            Standing::Quarantined,
            Standing::Leaving,
        ];
        for standing in standings {
            let these = ours.clone();
            for instance in these.filter(|one| self.migs.standing(one) == standing) {
                let placement = instance.slot.placement;
                let standing = match barred(placement) {
                    // It could not be looked at.
                    true => Standing::Quarantined,
                    false => standing,
                };
                list(placement, size_in(&table, placement), standing);
            }
        }
        if let Some(of_gpu) = of_gpu {
            for (placement, size) in &of_gpu.foreign {
                for placement in known_as(&table, *placement, *size) {
                    list(placement, size_in(&table, placement), Standing::Foreign);
                }
            }
            for placement in of_gpu.barred.keys().flatten() {
                list(
                    *placement,
                    size_in(&table, *placement),
                    Standing::Quarantined,
                );
            }
        }
        listed.sort_unstable();
        Carving {
            table,
            instances: listed,
        }
    }

    /// Gives back what was barred for a time, and forgets what has long been told.
    pub(super) fn unbar(&mut self) {
        for of_gpu in self.migs.gpus.values_mut() {
            let before = of_gpu.barred.len();
            of_gpu.barred.retain(|_, until| Instant::now() < *until);
            self.round.replan |= of_gpu.barred.len() < before;
        }
    }

    fn size(&self, slot: &Slot) -> u8 {
        let device = self
            .devices
            .iter()
            .find(|device| device.gpu.uuid == slot.gpu);
        let table = device.and_then(crate::gpu::Device::table);
        table.map_or(0, |table| size_in(&table, slot.placement))
    }

    /// For people.
    fn index(&self, gpu: &GpuUuid) -> u32 {
        let device = self.devices.iter().find(|device| device.gpu.uuid == *gpu);
        device.map_or(u32::MAX, |device| device.gpu.index)
    }
}

/// For how long nothing is tried again after so many refusals: who has a GPU open for days must not fill the journal.
fn bar(refused: u32) -> Duration {
    BARRED * (1 << refused.min(DOUBLINGS))
}

fn size_in(table: &Table, placement: Placement) -> u8 {
    let profile = table.profile(placement.profile);
    profile.map_or(0, |profile| profile.memory_slices)
}

fn overlap((a, long): (Placement, u8), (b, wide): (Placement, u8)) -> bool {
    let end = |placement: Placement, size: u8| u16::from(placement.start) + u16::from(size);
    u16::from(a.start) < end(b, wide) && u16::from(b.start) < end(a, long)
}

/// What stands for somebody else's instance of a profile that the table has not: instances of the smallest that cover it.
fn known_as(table: &Table, placement: Placement, size: u8) -> Vec<Placement> {
    if table.profile(placement.profile).is_some() {
        return vec![placement];
    }
    let there = (placement, size);
    let smallest = table
        .profiles
        .iter()
        .min_by_key(|profile| profile.memory_slices);
    let Some(profile) = smallest else {
        return Vec::new();
    };
    let piece = |start: &u8| Placement {
        profile: profile.id,
        start: *start,
    };
    profile
        .starts
        .iter()
        .map(piece)
        .filter(|piece| overlap((*piece, profile.memory_slices), there))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(profile: u32, start: u8) -> Placement {
        Placement { profile, start }
    }

    #[test]
    fn who_stays_in_the_way_is_asked_less_and_less_often() {
        let seconds: Vec<u64> = (0..8).map(|refused| bar(refused).as_secs()).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 320, 320]);
    }

    #[test]
    fn side_by_side_is_no_overlap() {
        assert!(!overlap((at(14, 0), 2), (at(14, 2), 2)));
        assert!(overlap((at(14, 0), 2), (at(19, 1), 1)));
        assert!(overlap((at(0, 0), 8), (at(19, 6), 1)));
    }

    #[test]
    fn an_instance_of_an_unknown_profile_takes_its_slices() {
        let table = Table::of_model("a100-40gb").unwrap();
        assert_eq!(known_as(&table, at(19, 3), 1), [at(19, 3)]);
        let covered = known_as(&table, at(77, 2), 2);
        assert!(covered.iter().all(|piece| [2, 3].contains(&piece.start)));
        assert_eq!(covered.len(), 2);
    }
}
