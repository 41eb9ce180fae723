//! Identities of MIG instances: ids by place, UUIDs, minors of their capability files.

use crate::config::IdMap;
use crate::engine::mig::MigInstanceId;
use sha1_smol::Sha1;

/// A UUID in groups of hexadecimal digits.
pub fn grouped(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
    format!("{a}-{b}-{c}-{d}-{e}")
}

/// The id of a GPU instance: 0 for a whole GPU, 1 and 2 for halves, 3 to 6 for quarters, 7 to 14 for eighths
/// (open-gpu-kernel-modules, `kmigmgr_ga100.c`). What is smaller than its part counts as the part.
pub fn gpu_instance_id(memory_slices: u32, start: u32, size: u32, map: IdMap) -> u32 {
    let fitting = |parts: &u32| memory_slices / parts >= size;
    let parts = [8, 4, 2, 1].into_iter().find(fitting).unwrap_or(1);
    let place = start * parts / memory_slices;
    let place = match map {
        IdMap::B => (place + parts / 2) % parts,
        IdMap::A => place,
    };
    parts - 1 + place
}

/// The UUID of a MIG device, of version 5 as the driver's: by the GPU and the slot, so that what is made again in the
/// same place has the same. `first_slice` is the compute instance's first slice in its GPU instance.
pub fn mig_uuid(gpu: &[u8; 16], gpu_instance: u32, first_slice: u32) -> [u8; 16] {
    let mut hash = Sha1::from(gpu);
    hash.update(format!("SMC{gpu_instance}/{first_slice}").as_bytes());
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&hash.digest().bytes()[..16]);
    uuid[6] = (uuid[6] & 0x0f) | 0x50;
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    uuid
}

/// GPU instances and compute instances that capability files are numbered for (open-gpu-kernel-modules, `nv-caps.c`).
const NUMBERED_GPU_INSTANCES: u32 = 15;

/// Of the same file of NVIDIA's kernel modules.
const NUMBERED_COMPUTE_INSTANCES: u32 = 8;

/// Minors 0 to 2 are fabric management, `mig/config` and `mig/monitor`. So NVIDIA's kernel modules number them.
const FIRST_MINOR: u32 = 3;

/// The minor of the capability file of a GPU instance, on the GPU of this minor.
pub fn gpu_instance_minor(gpu: u32, gpu_instance: u32) -> u32 {
    let each = 1 + NUMBERED_COMPUTE_INSTANCES;
    FIRST_MINOR + gpu * NUMBERED_GPU_INSTANCES * each + gpu_instance * each
}

/// The minor of the capability file of a compute instance.
pub fn compute_instance_minor(gpu: u32, place: MigInstanceId) -> u32 {
    gpu_instance_minor(gpu, place.gpu_instance) + 1 + place.compute_instance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_say_the_size_class_and_the_maps_swap_the_halves() {
        let ids = |map| {
            [(0, 8), (0, 4), (4, 4), (4, 2), (0, 1), (6, 1)]
                .map(|(start, size)| gpu_instance_id(8, start, size, map))
        };
        assert_eq!(ids(IdMap::A), [0, 1, 2, 5, 7, 13]);
        assert_eq!(ids(IdMap::B), [0, 2, 1, 3, 11, 9]);
    }

    #[test]
    fn boards_of_four_slices_and_of_twelve_have_ids_up_to_6() {
        let quarters = [0, 1, 2, 3].map(|at| gpu_instance_id(4, at, 1, IdMap::A));
        assert_eq!(quarters, [3, 4, 5, 6]);
        let quarters = [0, 3, 6, 9].map(|at| gpu_instance_id(12, at, 3, IdMap::A));
        assert_eq!(quarters, [3, 4, 5, 6]);
        assert_eq!(gpu_instance_id(12, 6, 6, IdMap::A), 2);
        assert_eq!(gpu_instance_id(12, 0, 12, IdMap::B), 0);
    }

    #[test]
    fn minors_of_capability_files_follow_the_drivers_formula() {
        let of = |gpu, gpu_instance, compute_instance| {
            let place = MigInstanceId {
                gpu_instance,
                compute_instance,
            };
            compute_instance_minor(gpu, place)
        };
        assert_eq!(gpu_instance_minor(0, 1), 12);
        assert_eq!([of(0, 1, 0), of(0, 1, 1), of(0, 1, 2)], [13, 14, 15]);
        assert_eq!(of(31, 14, 7), 4322);
    }

    #[test]
    fn a_uuid_is_of_the_slot_and_of_version_5() {
        let (one, other) = ([1; 16], [2; 16]);
        assert_eq!(mig_uuid(&one, 7, 0), mig_uuid(&one, 7, 0));
        assert_ne!(mig_uuid(&one, 7, 0), mig_uuid(&one, 8, 0));
        assert_ne!(mig_uuid(&one, 7, 0), mig_uuid(&one, 7, 1));
        assert_ne!(mig_uuid(&one, 7, 0), mig_uuid(&other, 7, 0));
        assert_eq!(mig_uuid(&one, 7, 0)[6] >> 4, 5);
    }
}
