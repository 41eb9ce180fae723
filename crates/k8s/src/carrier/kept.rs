//! The fields that the controller of carrier mode keeps of cluster objects: what placement reads, and what a patch names.

use k8s_openapi::api::core::v1::{
    Affinity, Container, Node, NodeSpec, Pod, PodSpec, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::share::GpuShare;
use super::{LEAST, RESOURCE};

pub fn pod(pod: Pod) -> Pod {
    let mut metadata = metadata(pod.metadata);
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| name == LEAST);
    }
    let phase = pod.status.and_then(|status| status.phase);
    Pod {
        metadata,
        spec: pod.spec.map(spec),
        status: Some(PodStatus {
            phase,
            ..PodStatus::default()
        }),
    }
}

fn spec(spec: PodSpec) -> PodSpec {
    let affinity = spec.affinity.and_then(|affinity| affinity.node_affinity);
    PodSpec {
        containers: spec.containers.into_iter().map(container).collect(),
        init_containers: spec
            .init_containers
            .map(|all| all.into_iter().map(container).collect()),
        affinity: affinity.map(|node_affinity| Affinity {
            node_affinity: Some(node_affinity),
            ..Affinity::default()
        }),
        node_name: spec.node_name,
        node_selector: spec.node_selector,
        scheduling_gates: spec.scheduling_gates,
        tolerations: spec.tolerations,
        ..PodSpec::default()
    }
}

/// The sixteenths that a container lists.
fn container(container: Container) -> Container {
    let limits = container.resources.and_then(|resources| resources.limits);
    let limits = limits.map(|mut limits| {
        limits.retain(|name, _| name == RESOURCE);
        limits
    });
    Container {
        resources: Some(ResourceRequirements {
            limits,
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    }
}

/// The labels and taints of a node.
pub fn node(node: Node) -> Option<Node> {
    let mut metadata = metadata(node.metadata);
    metadata.annotations = None;
    // Kubelet updates a node's status all the time, and nothing here reads it.
    metadata.resource_version = None;
    Some(Node {
        metadata,
        spec: node.spec.map(|spec| NodeSpec {
            taints: spec.taints,
            unschedulable: spec.unschedulable,
            ..NodeSpec::default()
        }),
        status: None,
    })
}

pub fn share(mut share: GpuShare) -> Option<GpuShare> {
    share.metadata.managed_fields = None;
    Some(share)
}

fn metadata(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        managed_fields: None,
        ..metadata
    }
}
