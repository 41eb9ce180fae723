//! Tickets: the devices that a node publishes for the claims of KAI's pods.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Client};

use super::DRIVER;
use crate::base::cluster;

/// Tickets of a node, one for each pod with a fraction: as many as one ResourceSlice takes (`ResourceSliceMaxDevices`,
/// resource.k8s.io/v1), and more than the 110 pods that kubelet runs by default.
const TICKETS: usize = 128;

/// The ResourceSlice of a node.
pub(super) fn slice(node: &Node) -> ResourceSlice {
    let name = node.metadata.name.clone().unwrap_or_default();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let device = |number| Device {
        name: format!("ticket-{number:03}"),
        ..Device::default()
    };
    ResourceSlice {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{DRIVER}")),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ResourceSliceSpec {
            driver: DRIVER.to_owned(),
            node_name: Some(name.clone()),
            pool: ResourcePool {
                name,
                generation: 1,
                resource_slice_count: 1,
            },
            devices: Some((0..TICKETS).map(device).collect()),
            ..ResourceSliceSpec::default()
        },
    }
}

/// Creates the node's ResourceSlice if it is missing: kubelet deletes the slices of drivers that it has not seen for a
/// while.
///
/// # Errors
/// The API server does not answer, or refuses.
pub(super) async fn publish(client: &Client, node: &str) -> Result<(), kube::Error> {
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    if slices.get_opt(&format!("{node}-{DRIVER}")).await?.is_some() {
        return Ok(());
    }
    let node = Api::<Node>::all(client.clone()).get(node).await?;
    match slices.create(&PostParams::default(), &slice(&node)).await {
        Err(error) if cluster::is_already_exists(&error) => Ok(()),
        created => created.map(drop),
    }
}
