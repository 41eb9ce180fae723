//! Fields of Kubernetes' objects that several rooms read: a claim's devices, a pod's containers and its end.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};

/// The devices that a claim was allocated, of every driver.
pub fn allocated(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.iter().flat_map(|status| &status.allocation);
    let devices = allocation.flat_map(|allocation| &allocation.devices);
    devices.flat_map(|devices| devices.results.iter().flatten())
}

/// All containers of a pod that kubelet starts with devices.
pub fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let init = spec.init_containers.iter().flatten();
    spec.containers.iter().chain(init)
}

/// Whether all containers of a pod have ended for good.
pub fn has_ended(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
