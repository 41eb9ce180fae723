//! MIG in the shared machine: each GPU's mode and its instances.
//!
//! ```text
//! Mig (in the GPU's record) ─ GPU instances, by id ─ compute instances, by id          who is in which: slots and seats
//! identity: ids, UUIDs, minors     placement: what may lie where (pure)     change: making, destroying     mode: modes, resets
//! ```
//! Everything is read and changed under the state's lock. A record counts from the moment its `used` word is set, which is the last
//! thing that is written and the first that is cleared: a process may die at any instruction.

mod change;
pub mod identity;
mod mode;
pub mod placement;

pub use change::MigError;
pub use mode::Activation;

use self::identity::{IdMap, mig_uuid};
use self::placement::Placed;
use super::gpu::grouped;
use super::seat::{COMPUTE_INSTANCES, GPU_INSTANCES};
use super::state::State;
use crate::model::mig::{ComputeProfile, GpuProfile};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// A compute instance of a GPU: where a process is, and what a MIG device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigInstanceId {
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// A GPU's MIG mode and instances. Zeroed memory is a GPU with the mode off.
#[repr(C)]
pub struct Mig {
    current: AtomicU32,
    pending: AtomicU32,
    right_half_first: AtomicU32,
    /// Users of the GPU as a whole that are no processes of the machine: a monitor that has its device file open.
    held: AtomicU32,
    /// Counts everything that nvmlEventTypeMigConfigChange tells.
    changes: AtomicU64,
    /// How many instances were ever made: the next generation.
    made: AtomicU64,
    /// How often the GPU was bound anew, and handles with it.
    bindings: AtomicU32,
    instances: [GpuRecord; GPU_INSTANCES],
}

#[repr(C)]
struct GpuRecord {
    used: AtomicU32,
    profile: AtomicU32,
    start: AtomicU32,
    size: AtomicU32,
    generation: AtomicU64,
    compute: [ComputeRecord; COMPUTE_INSTANCES],
}

#[repr(C)]
struct ComputeRecord {
    used: AtomicU32,
    profile: AtomicU32,
    start: AtomicU32,
    size: AtomicU32,
    index: AtomicU32,
    /// Handles that somebody has not let go of, without a process in the instance.
    leaked: AtomicU32,
    generation: AtomicU64,
}

/// A GPU instance as it is now. `start` and `size` count memory slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuInstance {
    pub id: u32,
    pub profile: u32,
    pub start: u32,
    pub size: u32,
    /// Different from that of every other instance this GPU ever had.
    pub generation: u64,
}

/// A compute instance as it is now. `start` and `size` count compute slices of its GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeInstance {
    pub place: MigInstanceId,
    pub profile: u32,
    pub start: u32,
    pub size: u32,
    /// The MIG device's index on its GPU.
    pub index: u32,
    pub generation: u64,
}

impl Mig {
    /// When the machine is made.
    pub(super) fn init(&mut self, enabled: bool, map: IdMap) {
        self.current = AtomicU32::new(u32::from(enabled));
        self.pending = AtomicU32::new(u32::from(enabled));
        self.right_half_first = AtomicU32::new(u32::from(map == IdMap::B));
    }

    /// Whether the GPU is divided, whatever instances it has.
    pub fn is_on(&self) -> bool {
        self.current.load(SeqCst) != 0
    }

    /// Whether it will be after the next reset.
    pub fn will_be_on(&self) -> bool {
        self.pending.load(SeqCst) != 0
    }

    fn id_map(&self) -> IdMap {
        if self.right_half_first.load(SeqCst) != 0 {
            IdMap::B
        } else {
            IdMap::A
        }
    }

    /// How often anything changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    pub fn bindings(&self) -> u32 {
        self.bindings.load(SeqCst)
    }

    pub fn gpu_instance(&self, id: u32) -> Option<GpuInstance> {
        let record = self.instances.get(id as usize)?;
        (record.used.load(SeqCst) != 0).then(|| GpuInstance {
            id,
            profile: record.profile.load(SeqCst),
            start: record.start.load(SeqCst),
            size: record.size.load(SeqCst),
            generation: record.generation.load(SeqCst),
        })
    }

    pub fn gpu_instances(&self) -> impl Iterator<Item = GpuInstance> {
        (0..GPU_INSTANCES as u32).filter_map(|id| self.gpu_instance(id))
    }

    pub fn compute_instance(&self, place: MigInstanceId) -> Option<ComputeInstance> {
        self.gpu_instance(place.gpu_instance)?;
        let record = &self.instances[place.gpu_instance as usize]
            .compute
            .get(place.compute_instance as usize)?;
        (record.used.load(SeqCst) != 0).then(|| ComputeInstance {
            place,
            profile: record.profile.load(SeqCst),
            start: record.start.load(SeqCst),
            size: record.size.load(SeqCst),
            index: record.index.load(SeqCst),
            generation: record.generation.load(SeqCst),
        })
    }

    /// Those of one GPU instance.
    pub fn compute_instances_of(&self, gpu_instance: u32) -> impl Iterator<Item = ComputeInstance> {
        (0..COMPUTE_INSTANCES as u32).filter_map(move |compute_instance| {
            self.compute_instance(MigInstanceId {
                gpu_instance,
                compute_instance,
            })
        })
    }

    /// All MIG devices, by the ids of their instances. A GPU instance without a compute instance has none.
    pub fn compute_instances(&self) -> impl Iterator<Item = ComputeInstance> {
        self.gpu_instances()
            .flat_map(|instance| self.compute_instances_of(instance.id))
    }

    /// What lies where.
    pub fn placed(&self) -> Vec<Placed> {
        let placed = self.gpu_instances().map(|instance| Placed {
            profile: instance.profile,
            start: instance.start,
        });
        placed.collect()
    }
}

impl State {
    /// The profile of a GPU instance on this GPU, if it is one.
    pub fn gpu_profile(&self, gpu: usize, id: u32) -> Option<&GpuProfile> {
        self.mig_table(gpu)?.profile(id)
    }

    /// The profile that a compute instance has.
    pub fn compute_profile(&self, gpu: usize, place: MigInstanceId) -> Option<ComputeProfile> {
        let mig = &self.gpus()[gpu].mig;
        let within = self.gpu_profile(gpu, mig.gpu_instance(place.gpu_instance)?.profile)?;
        let wanted = mig.compute_instance(place)?.profile;
        let all = self.mig_table(gpu)?.compute_profiles(within);
        all.into_iter().find(|profile| profile.id == wanted)
    }

    /// Bytes of a GPU instance: what its profile says and what the configuration adds.
    pub fn mig_memory(&self, gpu: usize, gpu_instance: u32) -> u64 {
        let instance = self.gpus()[gpu].mig.gpu_instance(gpu_instance);
        let profile = instance.and_then(|instance| self.gpu_profile(gpu, instance.profile));
        profile.map_or(0, |profile| profile.memory() + self.mig_extra_memory())
    }

    pub fn mig_uuid(&self, gpu: usize, place: MigInstanceId) -> Option<[u8; 16]> {
        let instance = self.gpus()[gpu].mig.compute_instance(place)?;
        let uuid = self.gpus()[gpu].uuid();
        Some(mig_uuid(uuid, place.gpu_instance, instance.start))
    }

    /// `MIG-` and the UUID of a MIG device in groups.
    pub fn mig_uuid_text(&self, gpu: usize, place: MigInstanceId) -> Option<String> {
        let uuid = self.mig_uuid(gpu, place)?;
        Some(format!("MIG-{}", grouped(&uuid)))
    }

    /// What a MIG device is called: its board and its profile, "NVIDIA B200 MIG 3g.90gb" (seen in published outputs).
    pub fn mig_name(&self, gpu: usize, place: MigInstanceId) -> Option<String> {
        let profile = self.compute_profile(gpu, place)?;
        Some(format!("{} MIG {}", self.model(gpu).name, profile.name))
    }

    /// The MIG device of this name: `MIG-<uuid>`, or `MIG-GPU-<uuid of the GPU>/gi/ci` as drivers before 470 wrote it.
    pub fn find_mig_device(&self, text: &str) -> Option<(usize, MigInstanceId)> {
        let text = text.to_ascii_lowercase();
        let name = text.strip_prefix("mig-")?;
        let devices = (0..self.gpu_count()).flat_map(|gpu| {
            let instances = self.gpus()[gpu].mig.compute_instances();
            instances.map(move |instance| (gpu, instance.place))
        });
        let is = |gpu: usize, place: MigInstanceId| match name.strip_prefix("gpu-") {
            Some(rest) => {
                let uuid = self.gpus()[gpu].uuid_text().to_ascii_lowercase();
                let (of, in_it) = (place.gpu_instance, place.compute_instance);
                format!("gpu-{rest}") == format!("{uuid}/{of}/{in_it}")
            }
            None => self
                .mig_uuid_text(gpu, place)
                .is_some_and(|uuid| uuid[4..] == *name),
        };
        devices.into_iter().find(|(gpu, place)| is(*gpu, *place))
    }
}
