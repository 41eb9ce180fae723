//! The diff between the ResourceSlices in the cluster and the wanted ones, as ordered writes.
//!
//! The scheduler takes the devices of a pool only when it sees as many slices of its newest generation as they
//! announce, so a change in several slices takes effect with the last write: first everything new is written, with the
//! next generation, then leftovers are deleted. A deleted slice is created again as it was.

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicyRange, Counter, Device, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::pool::{Node, Pool};
use crate::base::claim::DRIVER;
use crate::base::quantity::plain;

/// A write to one slice.
#[derive(Clone, Debug, PartialEq)]
pub enum SliceChange {
    Create(ResourceSlice),
    /// With the observed resource version: after a concurrent write, the pool is listed again.
    Replace(ResourceSlice),
    Delete(ResourceSlice),
}

/// The writes that turn the existing slices into the node's pool, in order; empty if they are equal. Slices of other
/// drivers or nodes are left alone.
pub fn steps(pool: &Pool, node: &Node, found: &[ResourceSlice]) -> Vec<SliceChange> {
    let ours: Vec<&ResourceSlice> = found
        .iter()
        .filter(|slice| is_ours(slice, &node.name))
        .collect();
    let newest = ours.iter().map(|slice| slice.spec.pool.generation).max();
    let newest = newest.unwrap_or(0).max(1);
    let as_found = pool.slices(node, newest);
    let named = |wanted: &ResourceSlice| {
        let mut ours = ours.iter().copied();
        ours.find(|slice| slice.metadata.name == wanted.metadata.name && same_pool(slice, wanted))
    };
    let stale = |slice: &&&ResourceSlice| {
        let mut wanted = as_found.iter();
        !wanted.any(|one| slice.metadata.name == one.metadata.name && same_pool(slice, one))
    };
    let edited = as_found
        .iter()
        .any(|wanted| named(wanted).is_some_and(|slice| !is_as(slice, wanted)));
    // One of the newest generation that is not to be makes the pool too large.
    let surplus = ours
        .iter()
        .filter(stale)
        .any(|slice| slice.spec.pool.generation == newest);
    let wanted = if edited || surplus {
        pool.slices(node, newest + 1)
    } else {
        as_found.clone()
    };
    let write = wanted.into_iter().filter_map(|slice| match named(&slice) {
        None => Some(SliceChange::Create(with_times(slice, &ours))),
        Some(found) if !is_as(found, &slice) => {
            let mut slice = with_times(slice, &ours);
            let version = &found.metadata.resource_version;
            slice.metadata.resource_version.clone_from(version);
            Some(SliceChange::Replace(slice))
        }
        Some(_) => None,
    });
    let remove = ours
        .iter()
        .filter(stale)
        .map(|slice| SliceChange::Delete((*slice).clone()));
    // One of the same name in another pool is in the way of its successor.
    let (in_the_way, left): (Vec<SliceChange>, Vec<SliceChange>) = remove.partition(|step| {
        let name = |slice: &ResourceSlice| slice.metadata.name.clone();
        let SliceChange::Delete(slice) = step else {
            return false;
        };
        as_found.iter().any(|wanted| name(wanted) == name(slice))
    });
    in_the_way.into_iter().chain(write).chain(left).collect()
}

/// Of this driver and the node of this name.
pub(super) fn is_ours(slice: &ResourceSlice, node: &str) -> bool {
    slice.spec.driver == DRIVER && slice.spec.node_name.as_deref() == Some(node)
}

/// The pool's name is for good.
fn same_pool(one: &ResourceSlice, other: &ResourceSlice) -> bool {
    one.spec.pool.name == other.spec.pool.name
}

/// Whether what was found is what is wanted, however the API server writes it.
fn is_as(found: &ResourceSlice, wanted: &ResourceSlice) -> bool {
    let owned = found.metadata.owner_references == wanted.metadata.owner_references;
    owned && canonical(&found.spec) == canonical(&wanted.spec)
}

/// With the time of every taint that was there already, in whichever slice its device was.
fn with_times(mut slice: ResourceSlice, found: &[&ResourceSlice]) -> ResourceSlice {
    for device in slice.spec.devices.iter_mut().flatten() {
        if device.taints.is_none() {
            continue;
        }
        let mut before = found
            .iter()
            .flat_map(|one| one.spec.devices.iter().flatten());
        let before = before.find(|one| one.name == device.name);
        for taint in device.taints.iter_mut().flatten() {
            let mut taints = before.iter().flat_map(|one| one.taints.iter().flatten());
            let same = taints.find(|one| {
                (&one.key, &one.value, &one.effect) == (&taint.key, &taint.value, &taint.effect)
            });
            taint.time_added = same.and_then(|same| same.time_added.clone());
        }
    }
    slice
}

fn canonical(spec: &ResourceSliceSpec) -> ResourceSliceSpec {
    let mut spec = spec.clone();
    for device in spec.devices.iter_mut().flatten() {
        canonical_device(device);
    }
    for set in spec.shared_counters.iter_mut().flatten() {
        canonical_counters(set.counters.values_mut());
    }
    spec
}

fn canonical_device(device: &mut Device) {
    for taint in device.taints.iter_mut().flatten() {
        taint.time_added = None;
    }
    for consumption in device.consumes_counters.iter_mut().flatten() {
        canonical_counters(consumption.counters.values_mut());
    }
    for capacity in device.capacity.iter_mut().flat_map(|all| all.values_mut()) {
        write(&mut capacity.value);
        if let Some(policy) = &mut capacity.request_policy {
            policy.default.iter_mut().for_each(write);
            if let Some(CapacityRequestPolicyRange { min, max, step }) = &mut policy.valid_range {
                write(min);
                max.iter_mut().chain(step).for_each(write);
            }
        }
    }
}

fn canonical_counters<'c>(counters: impl Iterator<Item = &'c mut Counter>) {
    counters.for_each(|counter| write(&mut counter.value));
}

fn write(quantity: &mut Quantity) {
    *quantity = plain(quantity);
}
