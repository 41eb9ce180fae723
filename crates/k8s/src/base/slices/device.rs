//! The devices of a ResourceSlice: a GPU, or a MIG placement.

use std::collections::BTreeMap;

use divvy_core::mig::{Placement, Profile};
use divvy_core::units::Bytes;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
    DeviceTaint,
};

use super::offer::{Carving, Gpu, Health, STEP};
use super::{FRACTION, MEMORY, MIG, TYPE, WHOLE, counters, name};
use crate::base::claim::DRIVER;
use crate::base::quantity::of_bytes;

/// `DeviceAttributeMaxValueLength` of resource.k8s.io/v1.
const LONGEST_VALUE: usize = 64;

/// A GPU in parts: as many claims as its memory has room for. A claim that says no amount has all of it, so a plain request
/// for a device is one for a GPU; any other gets whole steps.
///
/// Memory is the only capacity. Shares of a GPU would be a second sum, and claims by memory would take nothing of it.
pub(super) fn fraction(gpu: &Gpu, name: &str, carving: Option<&Carving>) -> Device {
    let memory = of_bytes(gpu.memory);
    let policy = CapacityRequestPolicy {
        default: Some(memory.clone()),
        valid_range: Some(CapacityRequestPolicyRange {
            min: of_bytes(least(gpu.memory)),
            max: Some(memory.clone()),
            step: Some(of_bytes(STEP)),
        }),
        valid_values: None,
    };
    let capacity = DeviceCapacity {
        value: memory,
        request_policy: Some(policy),
    };
    Device {
        allow_multiple_allocations: Some(true),
        capacity: Some([(MEMORY.to_owned(), capacity)].into()),
        consumes_counters: carving.map(|carving| {
            let all = counters::of(&carving.table);
            vec![counters::consumption(name.to_owned(), all)]
        }),
        ..of_gpu(gpu, name.to_owned(), FRACTION)
    }
}

/// The least part of a GPU with so much memory. A node gives every part at least a thousandth of the GPU's time (`SharedGpu`), so
/// smaller parts would use the time up while the scheduler, which counts memory, still has room.
pub fn least(memory: Bytes) -> Bytes {
    // The published figure is rounded down, by less than a step.
    let all = memory.saturating_add(STEP);
    Bytes::new(all.get().div_ceil(1000)).round_up(STEP)
}

/// A GPU that goes whole alone. It has no capacity by the name of memory: a claim for a part of one asks for that, and what a
/// device does not have cannot be asked of it. What it has is an attribute.
pub(super) fn whole(gpu: &Gpu, name: &str) -> Device {
    let mut device = of_gpu(gpu, name.to_owned(), WHOLE);
    let mib = gpu.memory.get() >> 20;
    add(&mut device, "memoryMi", int(mib));
    device
}

/// A place of an instance. Whose the scheduler makes it is whose instance will lie there.
pub(super) fn place(
    gpu: &Gpu,
    gpu_name: &str,
    carving: &Carving,
    profile: &Profile,
    place: Placement,
) -> Device {
    let name = name::place(gpu_name, profile.name, place.start);
    let taken = counters::taken(&carving.table, profile, place);
    let capacity = DeviceCapacity {
        value: of_bytes(profile.memory),
        request_policy: None,
    };
    let mut device = Device {
        capacity: Some([(MEMORY.to_owned(), capacity)].into()),
        consumes_counters: Some(vec![counters::consumption(gpu_name.to_owned(), taken)]),
        ..of_gpu(gpu, name, MIG)
    };
    add(&mut device, "profile", text(&profile.name.to_string()));
    add(&mut device, "start", int(u64::from(place.start)));
    let slices = u64::from(profile.memory_slices);
    add(&mut device, "memorySlices", int(slices));
    let slices = u64::from(profile.compute_slices);
    add(&mut device, "computeSlices", int(slices));
    device
}

fn of_gpu(gpu: &Gpu, name: String, kind: &str) -> Device {
    let attributes = [
        (TYPE, text(kind)),
        // Of the GPU, for instances too: what is to be on different GPUs differs in it.
        ("uuid", text(&gpu.uuid)),
        ("model", text(&gpu.model)),
        ("index", int(u64::from(gpu.index))),
    ];
    let named = attributes.map(|(name, value)| (name.to_owned(), value));
    Device {
        name,
        attributes: Some(named.into()),
        taints: taint(gpu.health).map(|taint| vec![taint]),
        ..Device::default()
    }
}

/// Nothing new goes to a GPU that is not well. From one that is lost for good what was on it is moved, since its programs
/// are gone; one that only does not answer keeps its programs, as it does on the node.
fn taint(health: Health) -> Option<DeviceTaint> {
    let (value, effect) = match health {
        Health::Well => return None,
        Health::Troubled => ("troubled", "NoSchedule"),
        Health::Drained => ("drained", "NoSchedule"),
        Health::Silent => ("silent", "NoSchedule"),
        Health::Lost => ("lost", "NoExecute"),
    };
    Some(DeviceTaint {
        key: format!("{DRIVER}/unhealthy"),
        value: Some(value.to_owned()),
        effect: effect.to_owned(),
        time_added: None,
    })
}

/// Kubelet knows no driver for the device: a pod that is placed there waits for kubelet's next try.
pub(super) fn unregistered() -> DeviceTaint {
    DeviceTaint {
        key: format!("{DRIVER}/unregistered"),
        value: None,
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }
}

fn add(device: &mut Device, name: &str, value: DeviceAttribute) {
    let attributes = device.attributes.get_or_insert_with(BTreeMap::new);
    attributes.insert(name.to_owned(), value);
}

fn text(value: &str) -> DeviceAttribute {
    DeviceAttribute {
        string: Some(value.chars().take(LONGEST_VALUE).collect()),
        ..DeviceAttribute::default()
    }
}

fn int(value: u64) -> DeviceAttribute {
    DeviceAttribute {
        int: i64::try_from(value).ok(),
        ..DeviceAttribute::default()
    }
}
