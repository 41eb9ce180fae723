//! The cluster's GPUs, read from the ResourceSlices of its nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{FRACTION, MEMORY, MIG, TYPE};
use crate::base::claim::{DRIVER, Inventory};
use crate::base::quantity::bytes;

/// The inventory that these slices say, of whichever drivers they are. Of each pool the newest generation counts. GPUs that are
/// not well are there too: what asks for them is to wait, not to be told that there are none.
pub fn inventory_of<'s>(slices: impl IntoIterator<Item = &'s ResourceSlice>) -> Inventory {
    let mut inventory = Inventory::default();
    for (_, device) in newest(slices) {
        add(&mut inventory, device);
    }
    inventory
}

/// Attributes of a device that a controller or the extender reads.
const KEPT_ATTRIBUTES: [&str; 4] = [TYPE, "profile", "model", "memoryMi"];

/// Returns a slice with the fields that a controller or the extender reads, for their caches.
pub fn stripped(mut slice: ResourceSlice) -> ResourceSlice {
    slice.metadata = ObjectMeta {
        name: slice.metadata.name,
        ..ObjectMeta::default()
    };
    for device in slice.spec.devices.iter_mut().flatten() {
        if let Some(attributes) = &mut device.attributes {
            attributes.retain(|name, _| KEPT_ATTRIBUTES.contains(&name.as_str()));
        }
        if let Some(capacity) = &mut device.capacity {
            capacity.retain(|name, _| name == MEMORY);
        }
    }
    slice
}

/// Returns the bytes of GPU memory that the nodes publish: of each GPU the most that one device of it has, since the
/// placements of MIG instances overlap.
pub fn total_memory<'s>(slices: impl IntoIterator<Item = &'s ResourceSlice>) -> u64 {
    let mut gpus: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (pool, device) in newest(slices) {
        let uuid = device.attributes.as_ref().and_then(|all| all.get("uuid"));
        let uuid = uuid.and_then(|uuid| uuid.string.as_deref());
        let capacity = device.capacity.as_ref().and_then(|all| all.get(MEMORY));
        let memory = capacity.and_then(|capacity| bytes(&capacity.value));
        let most = gpus
            .entry((pool, uuid.unwrap_or(&device.name)))
            .or_default();
        *most = memory.map_or(*most, |memory| memory.get().max(*most));
    }
    gpus.into_values().fold(0, u64::saturating_add)
}

/// Every device with its pool.
fn newest<'s>(
    slices: impl IntoIterator<Item = &'s ResourceSlice>,
) -> impl Iterator<Item = (&'s str, &'s Device)> {
    let mut newest: BTreeMap<&str, (i64, Vec<&Device>)> = BTreeMap::new();
    for slice in slices {
        let (spec, pool) = (&slice.spec, &slice.spec.pool);
        if spec.driver != DRIVER {
            continue;
        }
        let (generation, devices) = newest
            .entry(&pool.name)
            .or_insert((pool.generation, vec![]));
        if pool.generation > *generation {
            *generation = pool.generation;
            devices.clear();
        }
        if pool.generation == *generation {
            devices.extend(spec.devices.iter().flatten());
        }
    }
    let of_pool = |(pool, (_, devices)): (&'s str, (i64, Vec<&'s Device>))| {
        devices.into_iter().map(move |device| (pool, device))
    };
    newest.into_iter().flat_map(of_pool)
}

fn add(inventory: &mut Inventory, device: &Device) {
    let text = |name: &str| {
        let attributes = device.attributes.as_ref()?;
        attributes.get(name)?.string.as_deref()
    };
    let capacity = device.capacity.as_ref().and_then(|all| all.get(MEMORY));
    let Some(memory) = capacity.and_then(|capacity| bytes(&capacity.value)) else {
        return;
    };
    match text(TYPE) {
        Some(FRACTION) => {
            inventory.sizes.insert(memory);
        }
        Some(MIG) => {
            if let Some(Ok(profile)) = text("profile").map(str::parse) {
                // One name may stand for a little more on another model: what is promised is what all of them have.
                let least = inventory.profiles.entry(profile).or_insert(memory);
                *least = memory.min(*least);
            }
        }
        _ => {}
    }
}
