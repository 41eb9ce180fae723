//! What NVIDIA's DRA driver and NVIDIA's device plugin gave to a pod.
//!
//! ```text
//!   claim: status.allocation ── gpu-0, 20Gi of memory ──► ResourceSlice: its UUID, its memory ──► a share of the GPU
//!   kubelet: GPU-…::3        ── one of the ids GPU-…::0 to GPU-…::N                           ──► a share of the GPU
//! ```
//! A device that is a MIG instance has its limit by itself: the container gets the CDI device of NVIDIA's driver. Names
//! and formats are those of dra-driver-nvidia-gpu 9593204 (2026-08-07) and k8s-device-plugin 1b826ac (2026-08-19).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::api::resource::v1::{Device, DeviceRequestAllocationResult, ResourceClaim};

use super::grant::{Amount, Facts, Part, Refused, annotation, containers};
use super::kai;
use crate::base::claim::{NVIDIA_DRIVER, TICKETS};
use crate::base::objects::allocated;
use crate::base::pod_request::{FRACTION, MEMORY};
use crate::base::quantity::bytes;

/// The annotation with the pod's claims that are no GPUs, by name and separated by commas.
pub const OTHERS: &str = "divvy.dev/other-claims";
/// The extended resources of NVIDIA begin so.
pub const RESOURCES: &str = "nvidia.com/";
/// The attribute of a device that says what it is, and its value for a GPU.
const TYPE: &str = "type";
const GPU: &str = "gpu";

/// What claims give.
#[derive(Debug, Default)]
pub struct OfClaims {
    pub parts: Vec<Part>,
    /// CDI devices of NVIDIA's driver.
    pub passed: Vec<String>,
}

/// What the device plugin gives.
#[derive(Debug, Default)]
pub struct OfPlugin {
    pub parts: Vec<Part>,
    /// There are MIG instances.
    pub instances: bool,
}

/// The claim's devices of NVIDIA's driver.
pub fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    allocated(claim).filter(|result| result.driver == NVIDIA_DRIVER)
}

/// No container has a claim of NVIDIA's driver itself, and each has its claims of other drivers. NVIDIA's CDI device
/// contains the driver's own libraries, and its hooks cannot run beside Divvy's: they rename files over its mounts.
///
/// # Errors
/// Names the claim.
pub fn check_names(facts: &Facts) -> Result<(), Refused> {
    let named = |container: &Container, claim: &str| {
        let mut claims = container
            .resources
            .iter()
            .flat_map(|it| it.claims.iter().flatten());
        claims.any(|one| one.name == claim)
    };
    for (name, claim) in &facts.claims {
        let mut holders = containers(&facts.pod).filter(|container| named(container, name));
        let first = holders.next();
        match (results(claim).next(), first) {
            (Some(_), Some(container)) => {
                return Err(Refused::Direct {
                    container: container.name.clone(),
                    claim: name.clone(),
                });
            }
            (Some(_), None) | (None, Some(_)) => {}
            (None, None) => {
                let driver = driver_of(claim).unwrap_or_default();
                return Err(Refused::Hidden {
                    claim: name.clone(),
                    driver,
                });
            }
        }
    }
    Ok(())
}

fn driver_of(claim: &ResourceClaim) -> Option<String> {
    let mut others = allocated(claim).filter(|result| result.driver != TICKETS);
    others.next().map(|result| result.driver.clone())
}

/// Parts of the GPUs of the pod's claims.
///
/// # Errors
/// A claim is another pod's too, or has a device that this node does not know.
pub fn claims(facts: &Facts) -> Result<OfClaims, Refused> {
    let mut found = OfClaims::default();
    for (name, claim) in &facts.claims {
        for result in results(claim) {
            let pods = claim
                .status
                .iter()
                .flat_map(|status| status.reserved_for.iter().flatten());
            let pods = pods.count();
            if pods > 1 {
                let claim = name.clone();
                return Err(Refused::Shared { claim, pods });
            }
            let uid = claim.metadata.uid.as_deref().unwrap_or_default();
            match part(facts, result)? {
                Some(part) => found.parts.push(part),
                // The name that NVIDIA's driver makes of the claim and the device (cmd/gpu-kubelet-plugin/cdi.go).
                None => (found.passed)
                    .push(format!("k8s.{NVIDIA_DRIVER}/claim={uid}-{}", result.device)),
            }
        }
    }
    // Kubelet adds NVIDIA's CDI device to containers with extended resources, whether Divvy likes it or not.
    for result in facts.extended.iter().flat_map(results) {
        let limited = part(facts, result)?.filter(|part| !part.amount.is_whole());
        if limited.is_some() {
            return Err(Refused::Direct {
                container: "with an extended resource".to_owned(),
                claim: "of the scheduler".to_owned(),
            });
        }
    }
    Ok(found)
}

/// The part of a GPU that was allocated; `None` for a device that is no GPU.
fn part(facts: &Facts, result: &DeviceRequestAllocationResult) -> Result<Option<Part>, Refused> {
    let unknown = || Refused::UnknownDevice(result.device.clone());
    let slices = facts
        .slices
        .iter()
        .filter(|slice| slice.spec.pool.name == result.pool);
    let mut devices = slices.flat_map(|slice| slice.spec.devices.iter().flatten());
    let device = devices.find(|device| device.name == result.device);
    let device = device.ok_or_else(unknown)?;
    if text(device, TYPE) != Some(GPU) {
        return Ok(None);
    }
    let gpu = text(device, "uuid").ok_or_else(unknown)?.to_owned();
    let capacity = device.capacity.iter().flat_map(|all| all.get("memory"));
    let capacity = capacity.filter_map(|memory| bytes(&memory.value)).next();
    let consumed = result
        .consumed_capacity
        .iter()
        .flat_map(|all| all.get("memory"));
    let consumed = consumed.map(bytes).next();
    let amount = match (consumed, capacity) {
        // Not shared: the scheduler gave the whole device to one claim.
        (None, _) if device.allow_multiple_allocations != Some(true) => Amount::Share(1, 1),
        (Some(Some(consumed)), Some(capacity)) if consumed.get() > 0 && capacity.get() > 0 => {
            Amount::Share(consumed.get(), capacity.get())
        }
        _ => shares(device, result).ok_or_else(|| Refused::NoMemory(result.device.clone()))?,
    };
    Ok(Some(Part { gpu, amount }))
}

/// With `--consumable-shares=N` a claim consumes shares, and no memory.
fn shares(device: &Device, result: &DeviceRequestAllocationResult) -> Option<Amount> {
    let all = bytes(&device.capacity.as_ref()?.get("shares")?.value)?;
    let own = bytes(result.consumed_capacity.as_ref()?.get("shares")?)?;
    (own.get() > 0).then_some(Amount::Share(own.get(), all.get()))
}

fn text<'d>(device: &'d Device, name: &str) -> Option<&'d str> {
    let attribute = device.attributes.as_ref()?.get(name)?;
    attribute.string.as_deref()
}

/// Parts of the GPUs of kubelet's devices: one for each replica, or what the pod's annotation says.
///
/// # Errors
/// A device cannot be limited, or the pod was promised one and has none.
pub fn replicas(facts: &Facts) -> Result<OfPlugin, Refused> {
    let mut found = OfPlugin::default();
    let (mut gpus, mut own) = (BTreeSet::new(), Vec::new());
    for id in &facts.ids {
        let (device, replica) = id
            .split_once("::")
            .map_or((id.as_str(), None), |(device, at)| (device, Some(at)));
        match (device.starts_with("MIG-"), replica) {
            (true, None) => found.instances = true,
            (true, Some(_)) => return Err(Refused::SharedInstance(id.clone())),
            (false, replica) => {
                gpus.insert(device);
                let all = match replica {
                    Some(_) => replicas_of(device, &facts.allocatable)
                        .ok_or_else(|| Refused::NoReplicas(device.to_owned()))?,
                    None => 1,
                };
                own.push(Part {
                    gpu: device.to_owned(),
                    amount: Amount::Share(1, all),
                });
            }
        }
    }
    let is_asked = [FRACTION, MEMORY]
        .iter()
        .any(|key| annotation(&facts.pod, key).is_some());
    found.parts = if is_asked && !gpus.is_empty() {
        let amount = kai::amount(&facts.pod)?;
        let part = |gpu: &str| Part {
            gpu: gpu.to_owned(),
            amount,
        };
        gpus.into_iter().map(part).collect()
    } else {
        own
    };
    let missing = requested(facts).filter(|_| facts.ids.is_empty() && facts.extended.is_none());
    missing.map_or(Ok(found), |resource| Err(Refused::NoDevice(resource)))
}

fn replicas_of(gpu: &str, allocatable: &[String]) -> Option<u64> {
    let is_its = |id: &&String| id.split_once("::").is_some_and(|(device, _)| device == gpu);
    let count = allocatable.iter().filter(is_its).count();
    u64::try_from(count).ok().filter(|count| *count > 0)
}

/// An extended resource of NVIDIA that a container of the pod requests.
pub fn requested(facts: &Facts) -> Option<String> {
    let limits = containers(&facts.pod).flat_map(|container| &container.resources);
    let mut names = limits.flat_map(|it| it.limits.iter().flatten().map(|(name, _)| name));
    names.find(|name| name.starts_with(RESOURCES)).cloned()
}

impl Amount {
    fn is_whole(self) -> bool {
        matches!(self, Self::Share(units, all) if units >= all)
    }
}
