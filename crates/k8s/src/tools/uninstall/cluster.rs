//! The labels and resources that Divvy leaves on Node objects.

use divvy_api::v1::Error;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::base::cluster::is_missing;
use crate::base::error_output;
use crate::base::role::DYNAMIC_MIG;
use crate::carrier::RESOURCE;

/// Removes Divvy's own label. Labels of other products, which give the same role, stay.
///
/// # Errors
/// The cluster does not respond, or denies the change.
pub async fn remove_labels(client: &Client, nodes: &[Node]) -> Result<String, Error> {
    let api = Api::<Node>::all(client.clone());
    let has = |node: &&Node| {
        let labels = node.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.contains_key(DYNAMIC_MIG))
    };
    let patch = json!({ "metadata": { "labels": { (DYNAMIC_MIG): null } } });
    let mut changed = Vec::new();
    for name in nodes.iter().filter(has).filter_map(name) {
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        if is_there(patched, &format!("label the node {name}"))? {
            changed.push(name);
        }
    }
    Ok(format!("label {DYNAMIC_MIG} removed: {}", listed(&changed)))
}

/// Removes the resource of carrier mode from the capacity of nodes. Kubelet itself only sets it to 0, five minutes after
/// its plugin has ended (`endpointStopGracePeriod`, devicemanager of 1.36.2), and until then writes it again.
///
/// # Errors
/// The cluster does not respond, or denies the change.
pub async fn remove_resource(client: &Client, nodes: &[Node]) -> Result<String, Error> {
    let api = Api::<Node>::all(client.clone());
    let has = |node: &&Node| {
        let capacity = node
            .status
            .as_ref()
            .and_then(|status| status.capacity.as_ref());
        capacity.is_some_and(|capacity| capacity.contains_key(RESOURCE))
    };
    let none = json!({ (RESOURCE): null });
    let patch = json!({ "status": { "capacity": none, "allocatable": none } });
    let mut changed = Vec::new();
    for name in nodes.iter().filter(has).filter_map(name) {
        let patched = api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        let task = format!("remove {RESOURCE} from the status of node {name}");
        if is_there(patched, &task)? {
            changed.push(name);
        }
    }
    Ok(format!("resource {RESOURCE} removed: {}", listed(&changed)))
}

/// Whether a node was there to be changed; a node that is gone needs no change.
fn is_there(patched: Result<Node, kube::Error>, task: &str) -> Result<bool, Error> {
    match patched {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(error_output::of_kube(error, task)),
    }
}

fn name(node: &Node) -> Option<&str> {
    node.metadata.name.as_deref()
}

fn listed(names: &[&str]) -> String {
    match names {
        [] => "no node had it".to_owned(),
        names => names.join(", "),
    }
}
