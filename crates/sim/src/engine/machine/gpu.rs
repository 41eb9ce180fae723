//! One GPU of the shared machine: its identity, and the bytes that are taken.

use crate::config::MigConfig;
use crate::engine::machine::accounting::Records;
use crate::engine::machine::health::Health;
use crate::engine::machine::settings::Settings;
use crate::engine::machine::state::{Locked, fill_text, text};
use crate::engine::mig::Mig;
use crate::engine::mig::identity::grouped;
use crate::engine::mig::partition::{
    COMPUTE_INSTANCES, ComputeUnit, GPU_INSTANCES, MAX_PARTITIONS, PARTITIONS_PER_GPU, instance_of,
};
use crate::engine::time::Engine;
use crate::model::MAX_GPUS;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

#[repr(C)]
pub struct Gpu {
    model_key: [u8; 32],
    uuid: [u8; 16],
    pci_bus: u32,
    /// Bytes taken by all processes, on the whole GPU and in each of its GPU instances: derived from the slots and the
    /// shares, see [`Locked::sum_up`].
    used: [AtomicU64; PARTITIONS_PER_GPU],
    pub health: Health,
    pub settings: Settings,
    pub mig: Mig,
    pub records: Records,
    pub engine: Engine,
    compute_instances: [[Engine; COMPUTE_INSTANCES]; GPU_INSTANCES],
}

impl Gpu {
    pub fn init(&mut self, identity: &[u8], index: usize, model_key: &str, mig: &MigConfig) {
        fill_text(&mut self.model_key, model_key);
        self.uuid = uuid(identity, index);
        self.pci_bus = pci_bus(index);
        self.mig.init(mig.enabled.contains(&index), mig.ids);
    }

    pub fn model_key(&self) -> &str {
        text(&self.model_key)
    }

    pub fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// `GPU-` and the UUID in groups, as NVML and nvidia-smi write it.
    pub fn uuid_text(&self) -> String {
        format!("GPU-{}", grouped(&self.uuid))
    }

    /// PCI bus number; domain and device are 0.
    pub fn pci_bus(&self) -> u32 {
        self.pci_bus
    }

    /// Bytes that processes hold, without what the driver reserves.
    pub fn used(&self) -> u64 {
        self.used.iter().map(|used| used.load(SeqCst)).sum()
    }

    /// Bytes that processes hold on one of its partitions.
    pub fn used_at(&self, partition: usize) -> u64 {
        self.sum_at(partition).load(SeqCst)
    }

    fn sum_at(&self, partition: usize) -> &AtomicU64 {
        &self.used[partition / MAX_GPUS]
    }

    /// What runs the work of a unit.
    pub fn engine_at(&self, unit: ComputeUnit) -> &Engine {
        match instance_of(unit.partition) {
            Some(instance) => &self.compute_instances[instance as usize][unit.compute as usize],
            None => &self.engine,
        }
    }
}

/// A version 4 UUID that depends on the state file's path and the index alone: equal in every run on one path,
/// different on another.
fn uuid(identity: &[u8], index: usize) -> [u8; 16] {
    let half = |seed: u64| {
        let bytes = identity.iter().copied().chain(index.to_le_bytes());
        // FNV-1a, and one round of mixing so that neighbouring indices look different.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mixed = (hash ^ (hash >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 29)).to_le_bytes()
    };
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&half(1));
    uuid[8..].copy_from_slice(&half(2));
    uuid[6] = (uuid[6] & 0x0f) | 0x40;
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    uuid
}

/// Bus numbers as on an eight-GPU server: spread, ascending, never 0.
fn pci_bus(index: usize) -> u32 {
    0x07 + 0x0e * index as u32
}

/// The GPU has no room for so many bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct NoRoom;

impl Locked<'_> {
    /// Bytes a process could still take.
    pub fn free(&self, partition: usize) -> u64 {
        self.memory_at(partition)
            .saturating_sub(self.gpu(partition).used_at(partition))
    }

    /// Takes `bytes` for a slot, after collecting the dead when there is no room otherwise.
    pub fn take_bytes(&self, slot: usize, gpu: usize, bytes: u64) -> Result<(), NoRoom> {
        if bytes > self.free(gpu) {
            self.reap();
        }
        if bytes > self.free(gpu) {
            return Err(NoRoom);
        }
        self.slots()[slot].change_used(gpu, bytes, 0);
        self.gpu(gpu).sum_at(gpu).fetch_add(bytes, SeqCst);
        Ok(())
    }

    pub fn return_bytes(&self, slot: usize, gpu: usize, bytes: u64) {
        self.slots()[slot].change_used(gpu, 0, bytes);
        let used = self.gpu(gpu).sum_at(gpu);
        used.store(used.load(SeqCst).saturating_sub(bytes), SeqCst);
    }

    /// Computes every GPU's sum again from what its processes hold.
    pub fn sum_up(&self) {
        let mut sums = [0; MAX_PARTITIONS];
        for slot in self.slots().iter().filter(|slot| slot.is_live()) {
            slot.partitions()
                .for_each(|partition| sums[partition] += slot.used(partition));
        }
        for share in self.shares() {
            if let Some(partition) = share.gpu() {
                sums[partition] += share.bytes();
            }
        }
        for partition in self.partitions() {
            self.gpu(partition)
                .sum_at(partition)
                .store(sums[partition], SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_depend_on_path_and_index_alone() {
        assert_eq!(uuid(b"/a", 0), uuid(b"/a", 0));
        assert_ne!(uuid(b"/a", 0), uuid(b"/a", 1));
        assert_ne!(uuid(b"/a", 0), uuid(b"/b", 0));
        assert_eq!(uuid(b"/a", 0)[6] >> 4, 4);
    }
}
