//! The MIG room: the record of one GPU's mode and instances, and the rules of instances.
//!
//! ```text
//! Mig (in the GPU's record) ─ GPU instances, by id ─ compute instances, by id
//! identity: ids, UUIDs, minors     placement: what may lie where
//! partition: numbers               capabilities: files of rights
//! ```
//! It may use no other room. `machine` holds the records, and changes them under its lock. A record counts from the
//! moment its `used` word is set, which is the last thing that is written and the first that is cleared: a process may
//! die at any instruction.
//!
//! May use: no other room.
//! Used by: `machine`, `objects`, `process`, `memory`.

pub mod capabilities;
pub mod identity;
pub mod partition;
pub mod placement;

use crate::config::IdMap;
use crate::engine::mig::partition::{COMPUTE_INSTANCES, GPU_INSTANCES};
use crate::engine::mig::placement::Placed;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

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
    pub pending: AtomicU32,
    right_half_first: AtomicU32,
    /// Users of the GPU as a whole that are no processes of the machine: a monitor that has its device file open.
    pub held: AtomicU32,
    /// Counts everything that nvmlEventTypeMigConfigChange tells.
    changes: AtomicU64,
    /// How many instances were ever made: the next generation.
    made: AtomicU64,
    /// How often the GPU was bound anew, and handles with it.
    pub bindings: AtomicU32,
    instances: [GpuRecord; GPU_INSTANCES],
}

#[repr(C)]
pub struct GpuRecord {
    pub used: AtomicU32,
    pub profile: AtomicU32,
    pub start: AtomicU32,
    pub size: AtomicU32,
    pub generation: AtomicU64,
    compute: [ComputeRecord; COMPUTE_INSTANCES],
}

#[repr(C)]
pub struct ComputeRecord {
    pub used: AtomicU32,
    pub profile: AtomicU32,
    pub start: AtomicU32,
    pub size: AtomicU32,
    pub index: AtomicU32,
    /// Leaked handles: the instance is in use without a process in it.
    pub leaked: AtomicU32,
    pub generation: AtomicU64,
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
    pub fn init(&mut self, enabled: bool, map: IdMap) {
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

    pub fn id_map(&self) -> IdMap {
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

impl Mig {
    pub fn count_change(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    pub fn next_generation(&self) -> u64 {
        self.made.fetch_add(1, SeqCst) + 1
    }

    pub fn record(&self, id: u32) -> &GpuRecord {
        &self.instances[id as usize]
    }

    pub fn compute_record(&self, place: MigInstanceId) -> &ComputeRecord {
        &self.record(place.gpu_instance).compute[place.compute_instance as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.gpu_instances().next().is_none()
    }

    pub fn lowest_index(&self) -> u32 {
        let taken: Vec<u32> = self.compute_instances().map(|own| own.index).collect();
        (0..).find(|index| !taken.contains(index)).unwrap_or(0)
    }
}

impl Mig {
    pub fn clear(&self) {
        for record in &self.instances {
            record.used.store(0, SeqCst);
            for compute in &record.compute {
                compute.used.store(0, SeqCst);
                compute.leaked.store(0, SeqCst);
            }
        }
    }

    pub fn set_mode(&self, on: bool) {
        self.pending.store(u32::from(on), SeqCst);
        if self.is_on() != on {
            self.clear();
            self.current.store(u32::from(on), SeqCst);
        }
    }
}
