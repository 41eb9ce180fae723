//! Simulated MIG: the instances on the GPUs, the commands of the MIG workers, and the acts of other programs. What a
//! thread does is the real code (`crate::gpu::mig::worker`), over [`super::driver`]; it dies with its daemon, at any
//! point.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use divvy_core::mig::recover::InstanceState;
use divvy_core::mig::{Layout, MigUuid, Placement, ProfileTable};
use divvy_core::{Bytes, Grant};
use divvy_driver::nvml::mig::MigMode;

use super::gpus::Health;
use super::kernel::{Kind, Proc};
use super::{World, with};
use crate::gpu::mig::{Epochs, MigCommand, MigOutcome, MigTask};
use crate::model::mig_instance::{InstanceInfo, ManagedInstance, MigSlot};
use divvy_testkit::Rng;

/// The memory that an instance uses without any process.
pub const BASELINE: Bytes = Bytes::mib(20);

/// A GPU's MIG side.
pub struct MigGpu {
    pub mode: MigMode,
    /// By the driver's number of the GPU instance. No number comes twice.
    pub instances: BTreeMap<u32, SimGpuInstance>,
    numbers: u32,
    /// Of the thread of this GPU; with the first it has begun.
    orders: VecDeque<MigCommand>,
    has_begun: bool,
}

/// A GPU instance.
#[derive(Clone, Debug)]
pub struct SimGpuInstance {
    pub placement: Placement,
    /// In memory slices.
    pub size: u8,
    pub memory: Bytes,
    /// Of the device that has all of it, or begins where it does.
    pub uuid: MigUuid,
    /// In compute slices.
    slices: u8,
    /// Its compute instances, by the driver's number.
    pub computes: BTreeMap<u32, SimComputeInstance>,
    /// The daemon made it.
    pub is_made_by_us: bool,
    /// And knows that it did, or cannot tell that it did not.
    pub is_ours: bool,
    /// The daemon has the report that it exists.
    is_known: bool,
    /// The daemon tried to be rid of it and could not, or others have done something to it.
    is_stuck: bool,
    /// A process has a handle of it, and is not listed.
    pub is_open: bool,
    /// The owners of the programs in it since it was made.
    pub tenants: Vec<String>,
}

/// A compute instance.
#[derive(Clone, Debug)]
pub struct SimComputeInstance {
    pub id: u32,
    /// No other has it.
    pub serial: u32,
    pub uuid: MigUuid,
    /// In compute slices of its GPU instance.
    pub start: u8,
    pub size: u8,
    pub is_ours: bool,
}

impl Default for MigGpu {
    fn default() -> Self {
        Self {
            mode: MigMode {
                current: false,
                pending: false,
            },
            instances: BTreeMap::new(),
            numbers: 0,
            orders: VecDeque::new(),
            has_begun: false,
        }
    }
}

pub fn table() -> Arc<ProfileTable> {
    static TABLE: OnceLock<Arc<ProfileTable>> = OnceLock::new();
    let table = TABLE
        .get_or_init(|| ProfileTable::of_model("a100-80gb").expect("a model of data/mig.toml"));
    Arc::clone(table)
}

/// It says where it begins, and nothing of what lay there before.
fn device_at(gpu: usize, placement: Placement, compute: u8) -> MigUuid {
    let Placement { profile, start } = placement;
    let text = format!("MIG-{gpu:08x}-{compute:04x}-5000-8000-{profile:08x}{start:04x}");
    text.parse().expect("a UUID")
}

/// Takes a command of the daemon's.
pub fn dispatch(command: &MigCommand) {
    with(|world| world.ordered(command));
}

impl MigGpu {
    fn layout(&self) -> Layout {
        let placements = self.instances.values().map(|one| one.placement);
        Layout::of(&table(), placements)
    }

    pub fn has_room(&self, placement: Placement) -> bool {
        self.layout().allows(&table(), placement)
    }

    fn at(&self, placement: Placement) -> Option<u32> {
        let mut all = self.instances.iter();
        all.find(|(_, one)| one.placement == placement)
            .map(|(id, _)| *id)
    }

    pub fn make(&mut self, gpu: usize, placement: Placement, is_ours: bool) -> Option<u32> {
        let table = table();
        let profile = table.profile(placement.profile)?;
        self.numbers += 1;
        let lies = SimGpuInstance {
            placement,
            size: profile.memory_slices,
            memory: profile.memory,
            uuid: device_at(gpu, placement, 0),
            slices: profile.compute_slices,
            computes: BTreeMap::new(),
            is_made_by_us: is_ours,
            is_ours,
            is_known: false,
            is_stuck: false,
            is_open: false,
            tenants: Vec::new(),
        };
        self.instances.insert(self.numbers, lies);
        Some(self.numbers)
    }

    /// Makes one compute instance of all of an empty instance, or two of its halves; answers the last one's serial.
    pub fn fill(&mut self, instance: u32, parts: u8) -> Option<u32> {
        let lies = self.instances.get_mut(&instance)?;
        let size = lies.slices / parts;
        if !lies.computes.is_empty() || size == 0 {
            return None;
        }
        // Named by the place alone, so that the first of two has the name that the one of all has.
        let name = lies.uuid.to_string();
        for part in 0..parts {
            self.numbers += 1;
            let start = part * size;
            let part = SimComputeInstance {
                id: part.into(),
                serial: self.numbers,
                uuid: name
                    .replacen("-0000-", &format!("-{start:04x}-"), 1)
                    .parse()
                    .expect("a UUID"),
                start,
                size,
                is_ours: lies.is_ours && parts == 1,
            };
            lies.computes.insert(part.id, part);
        }
        Some(self.numbers)
    }
}

impl World {
    /// The bytes of a device that each process holds.
    pub fn inside(&self, device: &MigUuid) -> BTreeMap<u32, u64> {
        let held = |kind: &Kind| match kind {
            Kind::Program(program) => program.inside.get(device).map(|(_, bytes)| *bytes),
            _ => None,
        };
        let all = self.processes.iter();
        all.filter_map(|(pid, one)| Some((*pid, held(&one.kind)?)))
            .collect()
    }

    /// The GPU and the bytes of a device, where it is there.
    pub fn device(&self, device: &MigUuid) -> Option<(usize, u64)> {
        let (gpu, lies) = self.instance_of(device)?;
        let memory = self.divided[gpu].instances[&lies].memory;
        Some((gpu, memory.saturating_sub(BASELINE).get()))
    }

    /// The GPU and the GPU instance of a device.
    fn instance_of(&self, device: &MigUuid) -> Option<(usize, u32)> {
        let all = self.divided.iter().enumerate();
        let mut all = all.flat_map(|(gpu, one)| one.instances.iter().map(move |one| (gpu, one)));
        let has = |lies: &SimGpuInstance| lies.computes.values().any(|part| part.uuid == *device);
        let (gpu, (id, _)) = all.find(|(_, (_, lies))| has(lies))?;
        Some((gpu, *id))
    }

    /// A program starts in its device, or goes on to use it. The device is there, no other program's, and as no other
    /// program has left it.
    pub fn has_its_device(&mut self, job: u64, tenant: &str, device: &MigUuid) {
        let is_in = |one: &Proc| match &one.kind {
            Kind::Program(program) if program.devices.contains(device) && program.job != job => {
                (!self.has_escaped(one)).then_some(program.job)
            }
            _ => None,
        };
        if let Some(other) = self.processes.values().find_map(is_in) {
            self.broken(format!("jobs {other} and {job} are both in {device}"));
        }
        let Some((gpu, id)) = self.instance_of(device) else {
            if !self.meddled.contains(device) {
                self.broken(format!(
                    "job {job} was given {device}, which is not there, and nobody else took it away"
                ));
            }
            return;
        };
        let Some(lies) = self.divided[gpu].instances.get_mut(&id) else {
            return;
        };
        let before = lies.tenants.clone();
        if !lies.tenants.iter().any(|known| known == tenant) {
            lies.tenants.push(tenant.to_owned());
        }
        if let Some(other) = before.iter().find(|other| *other != tenant) {
            let what = format!("job {job} of {tenant} is in {device} as {other} has left it");
            if lies.is_ours {
                self.broken(what);
            }
        }
    }

    /// The daemon sends a command: never one that destroys what a job's program runs in.
    fn ordered(&mut self, order: &MigCommand) {
        let gpu = super::gpus::index(&order.gpu);
        if let MigTask::Destroy { slot, .. } | MigTask::Check { slot, .. } = &order.task {
            let device = device_at(gpu, slot.placement, 0);
            let inside = self.processes.values().find_map(|one| match &one.kind {
                Kind::Program(program) if program.devices.contains(&device) => {
                    (!self.has_escaped(one) && !program.is_idle_pod()).then_some(program.job)
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
        self.trace(|| format!("  ordered of GPU {gpu}: {:?}", order.task));
        self.divided[gpu].orders.push_back(order.clone());
    }

    /// The daemon's threads are gone, and what is on its way stays half done.
    pub fn orders_are_lost(&mut self) {
        for divided in &mut self.divided {
            divided.orders.clear();
            divided.has_begun = false;
        }
    }

    pub fn has_orders(&self) -> bool {
        self.divided.iter().any(|one| !one.orders.is_empty())
    }

    /// The command that a GPU's worker carries out now. It takes one first, so that observations see a change under
    /// way.
    pub fn next_order(&mut self, gpu: usize, epochs: &Epochs) -> Option<MigCommand> {
        let divided = &mut self.divided[gpu];
        let order = divided.orders.front()?.clone();
        if !divided.has_begun {
            divided.has_begun = true;
            epochs.advance(&order.gpu);
            return None;
        }
        divided.has_begun = false;
        divided.orders.pop_front();
        // What lies in the place of a record that says nothing of what was made cannot be told from what was.
        if let MigTask::Destroy {
            slot, made: None, ..
        } = &order.task
        {
            self.takes_for_its_own(gpu, slot.placement);
        }
        Some(order)
    }

    /// The outcome of a command.
    pub fn carried_out(&mut self, gpu: usize, outcome: &MigOutcome) {
        self.trace(|| format!("  GPU {gpu} reports: {outcome:?}"));
        let (slot, is_left) = match outcome {
            MigOutcome::Created { slot, result, .. } => (slot, result.is_err()),
            MigOutcome::Checked { slot, result, .. }
            | MigOutcome::Destroyed { slot, result, .. } => (slot, result.is_err()),
            MigOutcome::ModeSet { .. } | MigOutcome::Limited { .. } => return,
        };
        let made = match outcome {
            MigOutcome::Created { result, .. } => result.as_ref().ok(),
            _ => None,
        };
        let divided = &mut self.divided[gpu];
        if let Some(id) = divided.at(slot.placement)
            && let Some(lies) = divided.instances.get_mut(&id)
        {
            lies.is_stuck |= is_left;
            // Another program may have divided it before the report: it is the daemon's all the same.
            let is_made = made.is_some_and(|made| made.id == id);
            lies.is_known |= is_made;
            lies.is_ours |= is_made;
            let is_as_made = |made: &&InstanceInfo| {
                let mut parts = lies.computes.values();
                parts.any(|part| part.is_ours && part.uuid == made.uuid)
            };
            if let Some(made) = made.filter(is_as_made) {
                self.meddled.remove(&made.uuid);
            }
        }
    }

    /// The daemon makes an instance where none can be. What is others', or stays against the daemon's will, is in its
    /// way without its fault.
    pub fn room_was_expected(&mut self, gpu: usize, placement: Placement) {
        let all: Vec<&SimGpuInstance> = self.divided[gpu].instances.values().collect();
        if all.iter().all(|one| one.is_ours && !one.is_stuck) {
            let what = format!("{placement} of GPU {gpu} is to be made where no room is: {all:?}");
            self.broken(what);
        }
    }

    /// Once in so often, while there are faults.
    pub fn has_fault(&mut self, times: u64) -> bool {
        !self.is_calm && self.luck.once_in(times)
    }

    /// Another program makes an instance, divides one, leaks a handle of one, or removes one without processes.
    pub fn meddles(&mut self, gpu: usize, dice: &mut Rng) {
        if !self.divided[gpu].mode.current || self.gpus[gpu] != Health::Well {
            return;
        }
        if dice.once_in(2) {
            return self.meddler_makes(gpu, dice);
        }
        let takes_ours = dice.once_in(3);
        let is_empty = |lies: &SimGpuInstance| {
            let mut parts = lies.computes.values();
            parts.all(|part| self.inside(&part.uuid).is_empty())
        };
        let all = self.divided[gpu].instances.iter();
        let free = all.filter(|(_, one)| (!one.is_ours || takes_ours) && is_empty(one));
        let free: Vec<u32> = free.map(|(id, _)| *id).collect();
        let Some(id) = dice.one(&free) else { return };
        let kind = dice.below(5);
        let divided = &mut self.divided[gpu];
        let Some(lies) = divided.instances.get_mut(&id) else {
            return;
        };
        let (placement, uuid) = (lies.placement, lies.uuid.clone());
        lies.is_stuck = true;
        if kind == 0 {
            lies.is_open = true;
            return self.trace(|| format!("  somebody leaks a handle of {placement} of GPU {gpu}"));
        }
        if lies.is_open {
            return;
        }
        lies.computes.clear();
        // An instance that is divided before the daemon knows it is taken for another program's.
        lies.is_ours &= kind != 1 || lies.is_known;
        let what = match kind {
            1 => "divides",
            2 | 3 => "takes",
            _ => "empties",
        };
        match kind {
            1 => {
                divided.fill(id, 2);
                // Perhaps no program takes the other half.
                if let Some(lies) = divided.instances.get_mut(&id).filter(|_| dice.once_in(2)) {
                    lies.computes.remove(&1);
                }
            }
            2 | 3 => drop(divided.instances.remove(&id)),
            _ => {}
        }
        self.meddled.insert(uuid);
        self.trace(|| format!("  somebody else {what} {placement} of GPU {gpu}"));
    }

    fn meddler_makes(&mut self, gpu: usize, dice: &mut Rng) {
        let table = table();
        let profiles: Vec<u32> = table.profiles.iter().map(|profile| profile.id).collect();
        let Some(profile) = dice.one(&profiles) else {
            return;
        };
        let divided = &mut self.divided[gpu];
        let starts: Vec<u8> = divided.layout().starts(&table, profile).collect();
        let Some(start) = dice.one(&starts) else {
            return;
        };
        let placement = Placement { profile, start };
        let parts = dice.one(&[0, 1, 1, 1, 2]).unwrap_or(1);
        let Some(id) = divided.make(gpu, placement, false) else {
            return;
        };
        if parts > 0 {
            divided.fill(id, parts);
        }
        // A job that has the name from before has nothing.
        self.meddled.insert(device_at(gpu, placement, 0));
        self.trace(|| format!("  somebody else makes {placement} on GPU {gpu}, in {parts} parts"));
    }

    /// Other programs' instances go, also those in ours, and their handles close. A GPU that waits for a reset gets
    /// one.
    pub fn others_give_up(&mut self) {
        for gpu in 0..self.gpus.len() {
            let in_use = !self.holders(gpu).is_empty();
            let divided = &mut self.divided[gpu];
            divided.instances.retain(|_, one| one.is_ours);
            for lies in divided.instances.values_mut() {
                lies.is_open = false;
                lies.computes.retain(|_, part| part.is_ours);
            }
            if !in_use && divided.instances.is_empty() {
                divided.mode.current = divided.mode.pending;
            }
        }
    }

    /// Instances that a new daemon takes for its own, because a dead daemon's record names their place and not what was
    /// created there (`divvy_core::mig::recover`).
    pub fn takes_what_is_recorded(&mut self, records: &BTreeMap<MigSlot, ManagedInstance>) {
        for record in records.values().filter(|one| one.info.is_none()) {
            let gpu = super::gpus::index(&record.slot.gpu);
            self.takes_for_its_own(gpu, record.slot.placement);
        }
    }

    /// But a divided instance is taken for another program's, for the daemon never divides any.
    fn takes_for_its_own(&mut self, gpu: usize, placement: Placement) {
        if let Some(id) = self.divided[gpu].at(placement)
            && let Some(lies) = self.divided[gpu].instances.get_mut(&id)
        {
            let slices = lies.slices;
            lies.is_ours = lies.computes.values().all(|part| part.size >= slices);
            for part in lies.computes.values_mut() {
                part.is_ours = lies.is_ours;
            }
        }
    }

    /// The names by which programs see what a job was granted, in its order.
    pub fn visible(grants: &[Grant]) -> Vec<String> {
        let name = |grant: &Grant| match grant.mig {
            Some(mig) => device_at(super::gpus::index(&grant.gpu), mig.placement, 0).to_string(),
            None => grant.gpu.to_string(),
        };
        grants.iter().map(name).collect()
    }

    /// What there is of ours.
    pub fn instances_of_ours(&self) -> Vec<String> {
        let all = self.divided.iter().flat_map(|one| one.instances.values());
        let ours = all.filter(|one| one.is_ours);
        ours.map(|one| one.uuid.to_string()).collect()
    }

    /// What a daemon has in its journal is what lies there.
    ///
    /// # Errors
    /// What is not ours and is taken for that.
    pub fn knows_its_own(
        &mut self,
        records: &BTreeMap<MigSlot, ManagedInstance>,
    ) -> Result<(), String> {
        for record in records.values() {
            let gpu = super::gpus::index(&record.slot.gpu);
            let Some(made) = record.info.as_ref() else {
                continue;
            };
            let lies = self.divided[gpu].instances.get_mut(&made.id);
            let at = record.slot.placement;
            let Some(lies) = lies.filter(|lies| lies.placement == at) else {
                continue;
            };
            // A daemon that was started anew may have found it made.
            lies.is_known |= lies.is_ours && record.state == InstanceState::Ready;
            if record.state == InstanceState::Ready && !lies.is_ours {
                return Err(format!(
                    "{} is somebody else's, and is taken for ours",
                    record.label()
                ));
            }
        }
        Ok(())
    }
}
