//! MIG on a simulated machine: what lies on its GPUs, what the threads of MIG do to it, one step at a time, and what others do.
//!
//! The steps are those of `crate::mig::worker` and `crate::mig::work`. A thread dies with its agent, between any two of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use divvy_core::Bytes;
use divvy_core::mig::recover::Stage;
use divvy_core::mig::{Layout, MigUuid, Placement, Table};
use divvy_driver::nvml::mig::{Activation, MigMode, Refusal};

use super::dice::Dice;
use super::gpus::{Health, uuid};
use super::kernel::Kind;
use super::{World, with};
use crate::gpu::GpuProcess;
use crate::mig::sight::{Found, Offer, Within};
use crate::mig::{Epochs, Failure, Instance, Made, Order, Outcome, Report, Sight, Slot, Task};

/// What an instance has in use of it while nobody uses it.
const BASELINE: Bytes = Bytes::mib(20);

/// A GPU's MIG side.
pub struct Divided {
    pub mode: MigMode,
    /// By the driver's number of the GPU instance. No number comes twice.
    pub instances: BTreeMap<u32, Lies>,
    numbers: u32,
    /// Of the thread of this GPU.
    orders: VecDeque<Under>,
}

/// A GPU instance.
#[derive(Clone, Debug)]
pub struct Lies {
    pub placement: Placement,
    /// In memory slices.
    size: u8,
    memory: Bytes,
    pub uuid: MigUuid,
    /// It has its compute instance.
    pub has_device: bool,
    /// The agent made it, or cannot be told that it did not.
    pub is_ours: bool,
    /// The agent tried to be rid of it and could not.
    is_stuck: bool,
}

/// An order that a thread has.
struct Under {
    order: Order,
    next: Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The change begins.
    Take,
    Begin,
    /// The compute instance of this goes, then it.
    Empty(u32),
    Destroy(u32),
    Make,
    Fill(u32),
}

impl Default for Divided {
    fn default() -> Self {
        Self {
            mode: MigMode {
                current: false,
                pending: false,
            },
            instances: BTreeMap::new(),
            numbers: 0,
            orders: VecDeque::new(),
        }
    }
}

fn offer() -> Arc<Offer> {
    static OFFER: OnceLock<Arc<Offer>> = OnceLock::new();
    let offer = OFFER.get_or_init(|| {
        let table = Table::of_model("a100-80gb").expect("a model of data/mig.toml");
        let ids = table.profiles.iter().map(|profile| profile.id).collect();
        Arc::new(Offer {
            table: Ok(table),
            ids,
        })
    });
    Arc::clone(offer)
}

fn table() -> Arc<Table> {
    offer().table.clone().expect("it was made with one")
}

/// It says where, and nothing of what lay there before.
fn device_at(gpu: usize, placement: Placement) -> MigUuid {
    let Placement { profile, start } = placement;
    let text = format!("MIG-{gpu:08x}-0000-5000-8000-{profile:08x}{start:04x}");
    text.parse().expect("a UUID")
}

/// Takes an order of the agent's, in a simulation.
pub fn give(order: &Order) -> bool {
    with(|world| world.ordered(order)).is_some()
}

impl Divided {
    fn layout(&self) -> Layout {
        let placements = self.instances.values().map(|one| one.placement);
        Layout::of(&table(), placements)
    }

    fn at(&self, placement: Placement) -> Option<u32> {
        let mut all = self.instances.iter();
        all.find(|(_, one)| one.placement == placement)
            .map(|(id, _)| *id)
    }

    fn make(&mut self, gpu: usize, placement: Placement, is_ours: bool) -> Option<u32> {
        let table = table();
        let profile = table.profile(placement.profile)?;
        self.numbers += 1;
        let lies = Lies {
            placement,
            size: profile.memory_slices,
            memory: profile.memory,
            uuid: device_at(gpu, placement),
            has_device: false,
            is_ours,
            is_stuck: false,
        };
        self.instances.insert(self.numbers, lies);
        Some(self.numbers)
    }
}

impl World {
    /// What NVML would say of a GPU's MIG side.
    pub fn sight(&self, gpu: usize, epochs: &Epochs) -> Sight {
        let divided = &self.divided[gpu];
        let mut sight = Sight {
            mode: divided.mode,
            offer: divided.mode.current.then(offer),
            epoch: epochs.settled(&uuid(gpu)),
            instances: Vec::new(),
            trouble: None,
        };
        if divided.mode.current && sight.epoch.is_some() {
            let all = divided.instances.iter();
            sight.instances = all.map(|(id, one)| self.found(gpu, *id, one)).collect();
        }
        sight
    }

    fn found(&self, gpu: usize, id: u32, one: &Lies) -> Found {
        let inside = self.inside(gpu, &one.uuid);
        let device = Within {
            id: 0,
            uuid: one.uuid.clone(),
            total: one.memory,
            used: BASELINE.saturating_add(Bytes::new(inside.values().sum())),
            processes: inside
                .iter()
                .map(|(pid, held)| GpuProcess {
                    pid: *pid,
                    used: Some(Bytes::new(*held)),
                })
                .collect(),
        };
        Found {
            placement: one.placement,
            size: one.size,
            id,
            devices: one.has_device.then_some(device).into_iter().collect(),
            is_whole: one.has_device,
        }
    }

    /// Who holds how much of an instance.
    pub fn inside(&self, gpu: usize, device: &MigUuid) -> BTreeMap<u32, u64> {
        let held = |kind: &Kind| match kind {
            Kind::Program(program) if program.device.as_ref() == Some(device) => {
                program.held.get(&gpu).copied()
            }
            _ => None,
        };
        let all = self.processes.iter();
        all.filter_map(|(pid, one)| Some((*pid, held(&one.kind)?)))
            .collect()
    }

    /// The GPU and the bytes of a device, where it is there.
    pub fn device(&self, device: &MigUuid) -> Option<(usize, u64)> {
        let all = self.divided.iter().enumerate();
        let mut all = all.flat_map(|(gpu, one)| one.instances.values().map(move |one| (gpu, one)));
        let found = all.find(|(_, one)| one.uuid == *device && one.has_device);
        found.map(|(gpu, one)| (gpu, one.memory.saturating_sub(BASELINE).get()))
    }

    /// A program starts in its device, or goes on to use it: it is there, and nobody else's.
    pub fn has_its_device(&mut self, job: u64, device: &MigUuid) {
        let other = self.processes.values().find_map(|one| match &one.kind {
            Kind::Program(program)
                if program.device.as_ref() == Some(device)
                    && program.job != job
                    && !self.has_escaped(one) =>
            {
                Some(program.job)
            }
            _ => None,
        });
        if let Some(other) = other {
            self.broken(format!("jobs {other} and {job} are both in {device}"));
        }
        if self.device(device).is_none() && !self.meddled.contains(device) {
            self.broken(format!(
                "job {job} was given {device}, which is not there, and nobody else took it away"
            ));
        }
    }

    /// The agent gives an order: never one that takes away what a job's program runs in.
    fn ordered(&mut self, order: &Order) {
        let gpu = self.gpu_of(&order.gpu);
        if let Task::Unmake { slot, .. } | Task::Check { slot, .. } = &order.task {
            let device = device_at(gpu, slot.placement);
            let inside = self.processes.values().find_map(|one| match &one.kind {
                Kind::Program(program) if program.device.as_ref() == Some(&device) => {
                    (!self.has_escaped(one)).then_some(program.job)
                }
                _ => None,
            });
            if let Some(job) = inside {
                self.broken(format!(
                    "job {job} runs in {device}, and {:?} is ordered",
                    order.task
                ));
            }
        }
        self.say(|| format!("  ordered of GPU {gpu}: {:?}", order.task));
        self.divided[gpu].orders.push_back(Under {
            order: order.clone(),
            next: Next::Take,
        });
    }

    fn gpu_of(&self, gpu: &divvy_core::GpuUuid) -> usize {
        let mut all = 0..self.gpus.len();
        all.find(|index| uuid(*index) == *gpu)
            .expect("a GPU of this machine")
    }

    /// The agent's threads are gone, and what is on its way stays half done.
    pub fn orders_are_lost(&mut self) {
        for divided in &mut self.divided {
            divided.orders.clear();
        }
    }

    pub fn has_orders(&self) -> bool {
        self.divided.iter().any(|one| !one.orders.is_empty())
    }

    /// The thread of a GPU does one thing; a report once an order has come to its end.
    pub fn mig_steps(&mut self, gpu: usize, epochs: &Epochs, dice: &mut Dice) -> Option<Report> {
        let mut under = self.divided[gpu].orders.pop_front()?;
        let result = match under.next {
            Next::Take => {
                epochs.step(&uuid(gpu));
                Err(Next::Begin)
            }
            _ => self.carry_out(gpu, &under, dice),
        };
        match result {
            Err(next) => {
                under.next = next;
                self.divided[gpu].orders.push_front(under);
                None
            }
            Ok(result) => {
                self.say(|| format!("  GPU {gpu} reports: {result:?}"));
                Some(Report {
                    gpu: uuid(gpu),
                    result,
                    took: Duration::ZERO,
                    epoch: epochs.step(&uuid(gpu)),
                })
            }
        }
    }

    /// What comes of a step: the end of the order, or what is next.
    fn carry_out(&mut self, gpu: usize, under: &Under, dice: &mut Dice) -> Result<Outcome, Next> {
        let next = under.next;
        let answers = self.gpus[gpu] == Health::Well && !self.driver_is_ill;
        let done = |result| Ok(ended(&under.order.task, result));
        let stuck = |what: &str| Failure::Stuck(what.to_owned());
        let placement = under.order.task.slot().map(|slot| slot.placement);
        match (&under.order.task, next) {
            (Task::Mode { on }, _) if !answers => Ok(Outcome::Mode {
                on: *on,
                result: Err(stuck("no answer")),
            }),
            (Task::Mode { on }, _) => Ok(self.turns(gpu, *on, dice)),
            (Task::Make { .. }, Next::Begin) if !answers => {
                done(Err(stuck("no answer").before_anything()))
            }
            (task, Next::Begin) if !answers => {
                if let (Task::Unmake { .. }, Some(id)) =
                    (task, placement.and_then(|at| self.divided[gpu].at(at)))
                {
                    self.sticks(gpu, id);
                }
                done(Err(stuck("no answer")))
            }
            (Task::Make { .. }, Next::Begin) => Err(Next::Make),
            (Task::Check { made, .. }, Next::Begin) => {
                let placement = placement.expect("an order for a slot");
                let divided = &self.divided[gpu];
                let lies = divided.at(placement).filter(|id| *id == made.id);
                let lies = lies.map(|id| &divided.instances[&id]);
                let clean = lies
                    .is_some_and(|one| one.has_device && self.inside(gpu, &one.uuid).is_empty());
                done(Ok(clean.then(|| made.clone())))
            }
            (Task::Unmake { made, .. }, Next::Begin) => {
                let placement = placement.expect("an order for a slot");
                match self.unmakes(gpu, placement, made.as_ref()) {
                    None => done(Ok(None)),
                    Some(Next::Take) => done(Err(stuck("somebody is in it"))),
                    Some(next) => Err(next),
                }
            }
            (_, Next::Empty(id)) => {
                if let Some(lies) = self.divided[gpu].instances.get_mut(&id) {
                    lies.has_device = false;
                }
                Err(Next::Destroy(id))
            }
            (_, Next::Destroy(id)) => {
                if self.has_fault(dice, 24) {
                    self.sticks(gpu, id);
                    return done(Err(stuck("somebody has it open")));
                }
                self.divided[gpu].instances.remove(&id);
                done(Ok(None))
            }
            (_, Next::Make) => {
                let placement = placement.expect("an order for a slot");
                match self.makes(gpu, placement, dice) {
                    Ok(id) => Err(Next::Fill(id)),
                    Err(failure) => done(Err(failure)),
                }
            }
            (_, Next::Fill(id)) if self.has_fault(dice, 24) => {
                if dice.once_in(2) {
                    self.divided[gpu].instances.remove(&id);
                    return done(Err(refused(None)));
                }
                self.sticks(gpu, id);
                done(Err(stuck("no compute instance, and it does not go")))
            }
            (_, Next::Fill(id)) => {
                let Some(lies) = self.divided[gpu].instances.get_mut(&id) else {
                    return done(Err(refused(Some(Refusal::Gone))));
                };
                lies.has_device = true;
                let uuid = lies.uuid.clone();
                self.meddled.remove(&uuid);
                let made = Made {
                    id,
                    compute: 0,
                    uuid,
                    baseline: BASELINE,
                };
                done(Ok(Some(made)))
            }
            (_, Next::Take) => Err(Next::Begin),
        }
    }

    /// How what lies there is destroyed: `None` where there is nothing to be destroyed, [`Next::Take`] where somebody is in it.
    fn unmakes(&mut self, gpu: usize, placement: Placement, made: Option<&Made>) -> Option<Next> {
        let id = self.divided[gpu].at(placement)?;
        if made.is_some_and(|made| made.id != id) {
            return None;
        }
        let lies = self.divided[gpu].instances[&id].clone();
        if !lies.is_ours && made.is_some() {
            self.broken(format!(
                "{} is somebody else's, and is destroyed",
                lies.uuid
            ));
        }
        match self.inside(gpu, &lies.uuid).is_empty() {
            true if lies.has_device => Some(Next::Empty(id)),
            true => Some(Next::Destroy(id)),
            false => {
                self.sticks(gpu, id);
                Some(Next::Take)
            }
        }
    }

    fn sticks(&mut self, gpu: usize, id: u32) {
        if let Some(lies) = self.divided[gpu].instances.get_mut(&id) {
            lies.is_stuck = true;
        }
    }

    fn makes(&mut self, gpu: usize, placement: Placement, dice: &mut Dice) -> Result<u32, Failure> {
        if self.has_fault(dice, 16) {
            return Err(refused(Some(Refusal::InUse)));
        }
        let divided = &self.divided[gpu];
        if !divided.mode.current {
            self.broken(format!(
                "GPU {gpu} is to be divided, and is not in MIG mode"
            ));
            return Err(refused(Some(Refusal::NotSupported)));
        }
        if !divided.layout().allows(&table(), placement) {
            // What is others', or stays against the agent's will, is in its way without its fault.
            let all: Vec<&Lies> = divided.instances.values().collect();
            let own = all.iter().all(|one| one.is_ours && !one.is_stuck);
            if own {
                let what =
                    format!("{placement} of GPU {gpu} is to be made where no room is: {all:?}");
                self.broken(what);
            }
            return Err(refused(Some(Refusal::NoRoom)));
        }
        let made = self.divided[gpu].make(gpu, placement, true);
        made.ok_or_else(|| refused(Some(Refusal::NotSupported)))
    }

    fn turns(&mut self, gpu: usize, on: bool, dice: &mut Dice) -> Outcome {
        let result = |activation, mode| Outcome::Mode {
            on,
            result: Ok((activation, Some(mode))),
        };
        let in_use = !self.holders(gpu).is_empty() || !self.divided[gpu].instances.is_empty();
        let needs_reset = self.has_fault(dice, 8);
        let mode = &mut self.divided[gpu].mode;
        if mode.current == on && mode.pending == on {
            return result(Activation::Done, *mode);
        }
        if in_use {
            mode.pending = !on;
            return result(Activation::InUse, *mode);
        }
        mode.pending = on;
        if needs_reset {
            return result(Activation::ResetRequired, *mode);
        }
        mode.current = on;
        result(Activation::Done, *mode)
    }

    /// The driver refuses, once in so often, for a reason of its own.
    fn has_fault(&self, dice: &mut Dice, times: u64) -> bool {
        !self.is_calm && dice.once_in(times)
    }

    /// Somebody else makes an instance, or takes one away that nobody is in.
    pub fn meddles(&mut self, gpu: usize, dice: &mut Dice) {
        if !self.divided[gpu].mode.current || self.gpus[gpu] != Health::Well {
            return;
        }
        let divided = &self.divided[gpu];
        if dice.once_in(2) {
            let table = table();
            let profile = dice.below(u64::try_from(table.profiles.len()).unwrap_or(1));
            let profile = usize::try_from(profile).ok();
            let profile = profile.and_then(|at| table.profiles.get(at));
            let Some(profile) = profile.map(|profile| profile.id) else {
                return;
            };
            let starts: Vec<u8> = divided.layout().starts(&table, profile).collect();
            if let Some(start) = dice.one(&starts) {
                let placement = Placement { profile, start };
                self.say(|| format!("  somebody else makes {placement} on GPU {gpu}"));
                if let Some(id) = self.divided[gpu].make(gpu, placement, false)
                    && let Some(lies) = self.divided[gpu].instances.get_mut(&id)
                {
                    lies.has_device = true;
                    // A job that has the name from before has nothing.
                    self.meddled.insert(device_at(gpu, placement));
                }
            }
            return;
        }
        let takes_ours = dice.once_in(3);
        let free = divided.instances.iter().filter(|(_, one)| {
            (!one.is_ours || takes_ours) && self.inside(gpu, &one.uuid).is_empty()
        });
        let free: Vec<u32> = free.map(|(id, _)| *id).collect();
        if let Some(id) = dice.one(&free) {
            let whole = dice.once_in(2);
            let divided = &mut self.divided[gpu];
            if let Some(lies) = divided.instances.get_mut(&id) {
                let words = format!("  somebody else takes {} from GPU {gpu}", lies.placement);
                self.meddled.insert(lies.uuid.clone());
                lies.has_device = false;
                if whole {
                    divided.instances.remove(&id);
                }
                self.say(|| words);
            }
        }
    }

    /// What others made goes, and the GPU is reset if it waits for that.
    pub fn others_give_up(&mut self, gpu: usize) {
        let in_use = !self.holders(gpu).is_empty();
        let divided = &mut self.divided[gpu];
        divided.instances.retain(|_, one| one.is_ours);
        if !in_use && divided.instances.is_empty() {
            divided.mode.current = divided.mode.pending;
        }
    }

    /// What the records of a dead agent do not tell from what it has made itself: what lies in the place of one that says nothing of what
    /// was made (`divvy_core::mig::recover`).
    pub fn takes_for_its_own(&mut self, records: &BTreeMap<Slot, Instance>) {
        for record in records.values().filter(|one| one.made.is_none()) {
            let gpu = self.gpu_of(&record.slot.gpu);
            if let Some(id) = self.divided[gpu].at(record.slot.placement)
                && let Some(lies) = self.divided[gpu].instances.get_mut(&id)
            {
                lies.is_ours = true;
            }
        }
    }

    /// What there is of ours.
    pub fn instances_of_ours(&self) -> Vec<String> {
        let all = self.divided.iter().flat_map(|one| one.instances.values());
        let ours = all.filter(|one| one.is_ours);
        ours.map(|one| one.uuid.to_string()).collect()
    }

    /// What an agent has in its journal is what lies there.
    ///
    /// # Errors
    /// What is not ours and is taken for that.
    pub fn knows_its_own(&self, records: &BTreeMap<Slot, Instance>) -> Result<(), String> {
        for record in records.values() {
            let gpu = self.gpu_of(&record.slot.gpu);
            let Some(made) = record.made.as_ref() else {
                continue;
            };
            let lies = self.divided[gpu].instances.get(&made.id);
            if record.stage == Stage::Ready
                && lies.is_some_and(|lies| !lies.is_ours && lies.placement == record.slot.placement)
            {
                return Err(format!(
                    "{} is somebody else's, and is taken for ours",
                    record.label()
                ));
            }
        }
        Ok(())
    }
}

/// What has become of an order about a slot, and what is there then.
fn ended(task: &Task, result: Result<Option<Made>, Failure>) -> Outcome {
    let slot = task.slot().expect("an order for a slot").clone();
    match task {
        Task::Unmake { generation, .. } => Outcome::Unmade {
            slot,
            generation: *generation,
            result: result.map(|_| true),
        },
        Task::Make { generation, .. } => Outcome::Made {
            slot,
            generation: *generation,
            result: result.map(|made| made.expect("it was made")),
        },
        Task::Check { generation, .. } => Outcome::Checked {
            slot,
            generation: *generation,
            result: result.map(|clean| clean.is_some()),
        },
        Task::Mode { .. } => unreachable!("it is about no slot"),
    }
}

fn refused(refusal: Option<Refusal>) -> Failure {
    Failure::Refused {
        refusal,
        what: "simulated".to_owned(),
        hint: "none",
    }
}
