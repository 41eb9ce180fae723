//! The cluster's GPUs, read from the ResourceSlices of its nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

use super::{FRACTION, MEMORY, MIG, TYPE};
use crate::claim::{DRIVER, Inventory};
use crate::quantity::bytes;

/// The inventory that these slices say, of whichever drivers they are. Of each pool the newest generation counts. GPUs that are
/// not well are there too: what asks for them is to wait, not to be told that there are none.
pub fn inventory_of<'s>(slices: impl IntoIterator<Item = &'s ResourceSlice>) -> Inventory {
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
    let mut inventory = Inventory::default();
    for device in newest.values().flat_map(|(_, devices)| devices) {
        add(&mut inventory, device);
    }
    inventory
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
