//! What requests take of a device's capacities and what its policy says to that (`consumable_capacity.go`).

use divvy_k8s::base::slices::bytes;
use k8s_openapi::api::resource::v1::{Device, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Amounts;
use super::claim::Exact;

pub(super) fn asked(exact: &Exact) -> Amounts {
    let requests = exact
        .capacity
        .iter()
        .flat_map(|all| all.requests.iter().flatten());
    requests
        .map(|(name, quantity)| (name.clone(), amount(quantity)))
        .collect()
}

/// What a request takes of a capacity: what it asks, rounded up as the device's policy says.
pub(super) fn consumed(asked: Option<u64>, capacity: &DeviceCapacity) -> u64 {
    let policy = capacity.request_policy.as_ref();
    let Some(asked) = asked else {
        let default = policy.and_then(|policy| policy.default.as_ref());
        return amount(default.unwrap_or(&capacity.value));
    };
    let Some(range) = policy.and_then(|policy| policy.valid_range.as_ref()) else {
        return asked;
    };
    let min = amount(&range.min);
    match &range.step {
        _ if asked < min => min,
        None => asked,
        Some(step) => min + (asked - min).next_multiple_of(amount(step)),
    }
}

/// Whether the device's policy forbids it.
pub(super) fn violates(consumed: u64, capacity: &DeviceCapacity) -> bool {
    let policy = capacity.request_policy.as_ref();
    let range = policy.and_then(|policy| policy.valid_range.as_ref());
    range.is_some_and(|range| {
        let most = range.max.as_ref().map(amount);
        let step = range.step.as_ref().map(amount);
        let default = policy
            .and_then(|policy| policy.default.as_ref())
            .map(amount);
        default != Some(consumed)
            && (most.is_some_and(|most| consumed > most)
                || step.is_some_and(|step| !(consumed - amount(&range.min)).is_multiple_of(step)))
    })
}

pub(super) fn attribute(driver: &str, device: &Device, name: &str) -> Option<String> {
    let own = name
        .strip_prefix(driver)
        .and_then(|rest| rest.strip_prefix('/'));
    let attributes = device.attributes.as_ref()?;
    let found = attributes.get(name).or_else(|| attributes.get(own?))?;
    found.string.clone()
}

pub(super) fn amount(quantity: &Quantity) -> u64 {
    bytes(quantity).expect("a whole number").get()
}
