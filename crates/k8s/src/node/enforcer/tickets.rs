//! Tickets: the devices that a node publishes for pods whose GPUs other programs allocate.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::sleep;

use crate::base::claim::TICKETS as DRIVER;
use crate::base::cluster;

/// Tickets of a node, one for each pod: as many as one ResourceSlice takes (`ResourceSliceMaxDevices`,
/// resource.k8s.io/v1), and more than the 110 pods that kubelet runs by default.
const COUNT: usize = 128;

/// Between two looks. Kubelet deletes the slice of a driver that was away for half a minute, and a pod waits so long
/// for its ticket at most; half would double the calls of every node.
const AGAIN: Duration = Duration::from_secs(15);

/// Keeps the node's tickets in the cluster.
pub(in crate::node) async fn run(client: Client, node: &str) {
    loop {
        if let Err(error) = publish(&client, node).await {
            tracing::warn!(%node, "cannot publish tickets: {}", cluster::chain(&error));
        }
        sleep(AGAIN).await;
    }
}

/// The ResourceSlice of a node.
fn slice(node: &Node) -> ResourceSlice {
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
            devices: Some((0..COUNT).map(device).collect()),
            ..ResourceSliceSpec::default()
        },
    }
}

/// Creates the node's ResourceSlice if it is missing: kubelet deletes the slices of drivers that it has not seen for a
/// while.
///
/// # Errors
/// The API server does not answer, or refuses.
async fn publish(client: &Client, node: &str) -> Result<(), kube::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_slice_of_as_many_tickets_as_a_slice_takes() {
        let node = Node {
            metadata: ObjectMeta {
                name: Some("node-a".to_owned()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        };
        let slice = slice(&node);
        let devices = slice.spec.devices.unwrap();
        assert_eq!(
            (slice.spec.pool.resource_slice_count, devices.len()),
            (1, 128)
        );
        assert_eq!(slice.spec.node_name.as_deref(), Some("node-a"));
        // KAI would count a name with this word as GPUs.
        assert!(!slice.spec.driver.contains("gpu"));
    }
}
