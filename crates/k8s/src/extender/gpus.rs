//! The GPUs of a node, in the scheduler's order, and what is free of each.

use divvy_core::{Bytes, Share};
use divvy_packing::{GpuFree, Shape};
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceSlice};

use crate::base::quantity::bytes;
use crate::base::slices::{FRACTION, MEMORY, TYPE, WHOLE, least};
use crate::controller::capacity::{ClaimFacts, capacity, newest};

/// The largest share that needs no idle GPU, in thousandths.
const MOST_OF_A_PART: u64 = 999;

/// A GPU that is shared, or that only goes whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeGpu {
    /// For claims; `None` for one that only goes whole.
    memory: Option<Bytes>,
    free: Bytes,
    is_idle: bool,
}

impl NodeGpu {
    /// What is free, where the node's GPUs have this memory each.
    pub fn free(self, of_node: Option<Bytes>) -> GpuFree {
        let total = self.memory.or(of_node);
        if self.is_idle {
            return GpuFree {
                share: Some(Share::FULL),
                memory: total,
            };
        }
        // Less than the least part serves no claim.
        let serves = |total: &Bytes| *total > Bytes::ZERO && self.free >= least(*total);
        let Some(known) = total.filter(serves) else {
            return GpuFree {
                share: None,
                memory: total.map(|_| Bytes::ZERO),
            };
        };
        // Rounded up as the shares of requests are, so that what fits by memory fits by share. A whole GPU needs all of it.
        let share = self.free.get().saturating_mul(1000).div_ceil(known.get());
        let share = u16::try_from(share.min(MOST_OF_A_PART)).ok();
        GpuFree {
            share: share.and_then(Share::from_thousandths),
            memory: Some(self.free),
        }
    }
}

/// Gives an assumed pod the first GPUs that have room, as the scheduler will.
pub fn take_first(gpus: &mut [NodeGpu], shape: &Shape, part: GpuFree) {
    let mut left = shape.gpus;
    let taken = part.memory.unwrap_or_default();
    for gpu in gpus {
        let has_room = match gpu.memory {
            _ if shape.is_whole() => gpu.is_idle,
            Some(_) => gpu.free >= taken,
            None => false,
        };
        if left == 0 {
            return;
        }
        if has_room {
            gpu.is_idle = false;
            gpu.free = if shape.is_whole() {
                Bytes::ZERO
            } else {
                gpu.free.saturating_sub(taken)
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
        // Whole MiB, as claims ask for them: a rest below one serves no claim, and would raise the share that is free.
        .map(|gpu| NodeGpu {
            memory: gpu.memory.map(|memory| memory.round_down(Bytes::MIB)),
            free: Bytes::new(gpu.room()).round_down(Bytes::MIB),
            is_idle: gpu.is_empty(),
        })
        .collect()
}

/// Model and memory of the node's first GPU, which stands for all of them; `None` where it has MIG instances alone.
pub fn model<'s>(
    slices: impl IntoIterator<Item = &'s ResourceSlice>,
) -> Option<(String, Option<Bytes>)> {
    let devices = newest(slices).into_iter();
    let mut devices = devices.flat_map(|slice| slice.spec.devices.iter().flatten());
    devices.find_map(|device| {
        let text = |name: &str| attribute(device, name)?.string.clone();
        let memory = match text(TYPE)?.as_str() {
            FRACTION => {
                let capacity = device.capacity.as_ref()?.get(MEMORY)?;
                bytes(&capacity.value)?.round_down(Bytes::MIB)
            }
            WHOLE => Bytes::mib(u64::try_from(attribute(device, "memoryMi")?.int?).ok()?),
            _ => return None,
        };
        let known = Some(memory).filter(|memory| *memory > Bytes::ZERO);
        Some((text("model").unwrap_or_default(), known))
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
            memory: memory_mib.map(Bytes::mib),
            free: Bytes::mib(free_mib),
            is_idle,
        }
    }

    #[test]
    fn what_fits_by_memory_fits_by_share_and_idle_is_idle_alone() {
        let total = 81_050;
        for taken in (0..total).step_by(626) {
            let free = gpu(Some(total), total - taken, taken == 0).free(Some(Bytes::mib(total)));
            assert_eq!(free.is_idle(), taken == 0, "{taken}");
            let asked = (free.memory.unwrap().whole_mib() * 1000).div_ceil(total);
            assert!(
                u64::from(free.milli()) >= asked.min(999),
                "{taken}: {free:?}"
            );
        }
        // A thousandth is 82 MiB, in steps of 2.
        let total_bytes = Some(Bytes::mib(total));
        assert_eq!(gpu(Some(total), 80, false).free(total_bytes).share, None);
    }

    #[test]
    fn an_assumed_pod_gets_the_first_gpu_with_room() {
        let shape = |share| Shape {
            gpus: 1,
            share: Share::from_thousandths(share),
            ..Shape::default()
        };
        let part = |memory_mib| GpuFree {
            share: Share::from_thousandths(1),
            memory: Some(Bytes::mib(memory_mib)),
        };
        let mut gpus = [
            gpu(None, 0, true),
            gpu(Some(100), 40, false),
            gpu(Some(100), 100, true),
        ];
        take_first(&mut gpus, &shape(0), part(60));
        assert_eq!(gpus[2], gpu(Some(100), 40, false));
        take_first(&mut gpus, &shape(0), part(30));
        assert_eq!(gpus[1].free, Bytes::mib(10));
        take_first(&mut gpus, &shape(1000), part(100));
        assert!(!gpus[0].is_idle, "only whole ones go there");
    }
}
