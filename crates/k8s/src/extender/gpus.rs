//! The GPUs of a node, in the scheduler's order, and what is free of each.

use divvy_core::units::Bytes;
use divvy_packing::{GpuFree, Shape};
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceSlice};

use crate::base::quantity::bytes;
use crate::base::slices::{FRACTION, MEMORY, TYPE, WHOLE, least};
use crate::controller::capacity::{ClaimFacts, capacity, newest};

/// Thousandths of a whole GPU.
const WHOLE_MILLI: u64 = 1000;

/// A GPU that is shared, or that only goes whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeGpu {
    /// MiB for claims; `None` for one that only goes whole.
    memory_mib: Option<u64>,
    free_mib: u64,
    is_idle: bool,
}

impl NodeGpu {
    /// What is free, where the node's GPUs have so many MiB each.
    pub fn free(self, node_mib: u64) -> GpuFree {
        let total = self.memory_mib.unwrap_or(node_mib);
        if self.is_idle {
            return GpuFree {
                share: 1000,
                memory_mib: total,
            };
        }
        // Less than the least part serves no claim.
        if total == 0 || Bytes::mib(self.free_mib) < least(Bytes::mib(total)) {
            return GpuFree {
                share: 0,
                memory_mib: 0,
            };
        }
        // Rounded up as the shares of requests are, so that what fits by memory fits by share. A whole GPU needs all of it.
        let share = (self.free_mib * WHOLE_MILLI).div_ceil(total).min(999);
        GpuFree {
            share: u32::try_from(share).unwrap_or(999),
            memory_mib: self.free_mib,
        }
    }
}

/// Gives an assumed pod the first GPUs that have room, as the scheduler will.
pub fn take_first(gpus: &mut [NodeGpu], shape: &Shape, part: GpuFree) {
    let mut left = shape.gpus;
    for gpu in gpus {
        let has_room = match gpu.memory_mib {
            _ if shape.is_whole() => gpu.is_idle,
            Some(_) => gpu.free_mib >= part.memory_mib,
            None => false,
        };
        if left == 0 {
            return;
        }
        if has_room {
            gpu.is_idle = false;
            gpu.free_mib = match shape.is_whole() {
                true => 0,
                false => gpu.free_mib - part.memory_mib,
            };
            left -= 1;
        }
    }
}

/// The node's GPUs, less what these claims hold. GPUs in MIG mode are left out; one that is not well has nothing free.
pub fn gpus<'s>(
    slices: impl IntoIterator<Item = &'s ResourceSlice>,
    claims: impl IntoIterator<Item = &'s ClaimFacts>,
) -> Vec<NodeGpu> {
    let offered = capacity(slices, claims).gpus.into_iter();
    offered
        .map(|gpu| NodeGpu {
            memory_mib: gpu.memory.map(|memory| memory.get() >> 20),
            free_mib: gpu.room() >> 20,
            is_idle: gpu.is_empty(),
        })
        .collect()
}

/// Model and MiB of the node's first GPU, which stands for all of them; `None` where it has MIG instances alone.
pub fn model<'s>(slices: impl IntoIterator<Item = &'s ResourceSlice>) -> Option<(String, u64)> {
    let devices = newest(slices).into_iter();
    let mut devices = devices.flat_map(|slice| slice.spec.devices.iter().flatten());
    devices.find_map(|device| {
        let text = |name: &str| attribute(device, name)?.string.clone();
        let memory = match text(TYPE)?.as_str() {
            FRACTION => {
                let capacity = device.capacity.as_ref()?.get(MEMORY)?;
                bytes(&capacity.value)?.get() >> 20
            }
            WHOLE => u64::try_from(attribute(device, "memoryMi")?.int?).ok()?,
            _ => return None,
        };
        Some((text("model").unwrap_or_default(), memory))
    })
}

fn attribute<'d>(
    device: &'d Device,
    name: &str,
) -> Option<&'d k8s_openapi::api::resource::v1::DeviceAttribute> {
    device.attributes.as_ref()?.get(name)
}

/// UIDs of the pods that a claim is for.
pub fn consumers(claim: &ResourceClaim) -> Vec<String> {
    let reserved = claim
        .status
        .as_ref()
        .and_then(|it| it.reserved_for.as_ref());
    let reserved = reserved.into_iter().flatten();
    let reserved = reserved.filter(|one| one.resource == "pods");
    let owners = claim.metadata.owner_references.iter().flatten();
    let owners = owners.filter(|owner| owner.kind == "Pod");
    let reserved = reserved.map(|one| one.uid.clone());
    reserved.chain(owners.map(|one| one.uid.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(memory_mib: Option<u64>, free_mib: u64, is_idle: bool) -> NodeGpu {
        NodeGpu {
            memory_mib,
            free_mib,
            is_idle,
        }
    }

    #[test]
    fn what_fits_by_memory_fits_by_share_and_idle_is_idle_alone() {
        let total = 81_050;
        for taken in (0..total).step_by(626) {
            let free = gpu(Some(total), total - taken, taken == 0).free(total);
            assert_eq!(free.share == 1000, taken == 0, "{taken}");
            let asked = (free.memory_mib * 1000).div_ceil(total);
            assert!(u64::from(free.share) >= asked.min(999), "{taken}: {free:?}");
        }
        // A thousandth is 82 MiB, in steps of 2.
        assert_eq!(gpu(Some(total), 80, false).free(total).share, 0);
    }

    #[test]
    fn an_assumed_pod_gets_the_first_gpu_with_room() {
        let shape = |share| Shape {
            gpus: 1,
            share,
            ..Shape::default()
        };
        let part = |memory_mib| GpuFree {
            share: 1,
            memory_mib,
        };
        let mut gpus = [
            gpu(None, 0, true),
            gpu(Some(100), 40, false),
            gpu(Some(100), 100, true),
        ];
        take_first(&mut gpus, &shape(0), part(60));
        assert_eq!(gpus[2], gpu(Some(100), 40, false));
        take_first(&mut gpus, &shape(0), part(30));
        assert_eq!(gpus[1].free_mib, 10);
        take_first(&mut gpus, &shape(1000), part(100));
        assert!(!gpus[0].is_idle, "only whole ones go there");
    }
}
