//! One observation of a node in carrier mode, from kubelet and the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use divvy_api::v1::{Gpu, HeldClaim};
use jiff::Timestamp;
use tonic::transport::{Channel, Endpoint};

use crate::base::cluster;
use crate::base::pod_request::GPU;
use crate::carrier::assignment::{self, AssignedPod, PodDevices};
use crate::carrier::protocol::resources::pod_resources_lister_client::PodResourcesListerClient;
use crate::carrier::protocol::resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse,
};
use crate::carrier::share::GpuShare;
use crate::carrier::units::Unit;
use crate::carrier::{NAMESPACE, RESOURCE};

/// The observed state, by source.
#[derive(Clone, Debug, Default)]
pub struct NodeObservation {
    pub gpus: Vec<Gpu>,
    /// Of carrier mode.
    pub claims: Vec<HeldClaim>,
    /// Pods with sixteenths.
    pub shown: Vec<PodDevices>,
    /// Which pod of ours has which GPU, by UUID.
    pub carriers: BTreeMap<String, String>,
}

pub(super) fn assigned_pods(share: &GpuShare) -> Vec<AssignedPod> {
    let assignments = share.spec.assignments.iter();
    assignments
        .map(|one| AssignedPod {
            gpu: share.spec.gpu.clone(),
            uid: one.uid.clone(),
            namespace: one.namespace.clone(),
            name: one.name.clone(),
            units: u8::try_from(one.units).unwrap_or(0),
        })
        .collect()
}

pub(super) fn agent_claims(seen: &NodeObservation) -> Vec<assignment::AgentClaim> {
    let now = Timestamp::now();
    let claims = seen.claims.iter();
    claims
        .map(|claim| {
            let device = claim.devices.first();
            let age = now.duration_since(claim.since);
            assignment::AgentClaim {
                claim: claim.uid.clone(),
                gpu: device.map(|device| device.gpu.clone()).unwrap_or_default(),
                pod: claim.pods.first().cloned(),
                processes: claim.processes,
                // A clock that was set back makes nothing old.
                age: Duration::try_from(age).unwrap_or_default(),
            }
        })
        .collect()
}

pub(in crate::node) async fn list(socket: &Path) -> Result<ListPodResourcesResponse, String> {
    let answer = lister(socket).await?.list(ListPodResourcesRequest {}).await;
    Ok(answer.map_err(|error| cluster::chain(&error))?.into_inner())
}

/// Every id of a resource that kubelet may give out.
pub(in crate::node) async fn allocatable(
    socket: &Path,
) -> Result<AllocatableResourcesResponse, String> {
    let asked = lister(socket)
        .await?
        .get_allocatable_resources(AllocatableResourcesRequest {})
        .await;
    Ok(asked.map_err(|error| cluster::chain(&error))?.into_inner())
}

async fn lister(socket: &Path) -> Result<PodResourcesListerClient<Channel>, String> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    let endpoint = endpoint.map_err(|error| cluster::chain(&error))?;
    let channel = endpoint.connect().await;
    Ok(PodResourcesListerClient::new(
        channel.map_err(|error| cluster::chain(&error))?,
    ))
}

/// Pods with sixteenths, and the GPUs of our carriers.
pub(super) fn of_kubelet(
    listed: &ListPodResourcesResponse,
) -> (Vec<PodDevices>, BTreeMap<String, String>) {
    let (mut shown, mut carriers) = (Vec::new(), BTreeMap::new());
    for pod in &listed.pod_resources {
        let devices = |resource: &str| -> Vec<String> {
            let containers = pod
                .containers
                .iter()
                .flat_map(|container| &container.devices);
            let these = containers.filter(|devices| devices.resource_name == resource);
            these
                .flat_map(|devices| devices.device_ids.clone())
                .collect()
        };
        let units: BTreeSet<Unit> = devices(RESOURCE)
            .iter()
            .filter_map(|id| id.parse().ok())
            .collect();
        if !units.is_empty() {
            shown.push(PodDevices {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                units,
            });
        }
        if pod.namespace == NAMESPACE {
            // `GPU-…::3` is a replica, which others have as well: such a GPU is not ours.
            let whole = devices(GPU).into_iter().filter(|id| !id.contains("::"));
            carriers.extend(whole.map(|gpu| (gpu, pod.name.clone())));
        }
    }
    (shown, carriers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::protocol::resources::{ContainerDevices, ContainerResources, PodResources};

    fn pod(namespace: &str, name: &str, resource: &str, ids: &[&str]) -> PodResources {
        let devices = ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        PodResources {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            containers: vec![ContainerResources {
                name: "c".to_owned(),
                devices: vec![devices],
            }],
        }
    }

    #[test]
    fn a_carrier_is_a_pod_of_ours_with_a_whole_gpu_and_no_replica() {
        let listed = ListPodResourcesResponse {
            pod_resources: vec![
                pod(NAMESPACE, "carrier-1", "nvidia.com/gpu", &["GPU-a"]),
                pod(NAMESPACE, "carrier-2", "nvidia.com/gpu", &["GPU-b::3"]),
                pod("team", "whole", "nvidia.com/gpu", &["GPU-c"]),
                pod("team", "train", RESOURCE, &["GPU-a/0", "GPU-a/1"]),
                pod("team", "other", "nvidia.com/mig-1g.10gb", &["MIG-1"]),
            ],
        };
        let (shown, carriers) = of_kubelet(&listed);
        assert_eq!(
            carriers,
            BTreeMap::from([("GPU-a".to_owned(), "carrier-1".to_owned())])
        );
        assert_eq!(
            (shown.len(), shown[0].name.as_str(), shown[0].units.len()),
            (1, "train", 2)
        );
    }
}
