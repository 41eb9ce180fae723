//! The cluster state for the assignment planner, read from Kubernetes objects. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use divvy_core::units::Bytes;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};

use super::LEAST;
use super::assign::{ClusterState, FractionPod, PodUnits, ReservationPod, SharedGpu};
use super::node_affinity::fits;
use super::pod::{PLACE, is_gated, placement_key, units};
use super::share::GpuShare;
use super::units::UNITS;

/// The input of the assignment planner.
pub fn cluster_state(
    pods: &[Arc<Pod>],
    carriers: &[Arc<Pod>],
    shares: &[Arc<GpuShare>],
    nodes: &[Arc<Node>],
) -> ClusterState {
    let shared: Vec<&Node> = nodes
        .iter()
        .filter(|node| {
            shares
                .iter()
                .any(|share| node.metadata.name.as_deref() == Some(&share.spec.node))
        })
        .map(Arc::as_ref)
        .collect();
    ClusterState {
        seekers: pods
            .iter()
            .filter_map(|pod| fraction_pod(pod, &shared))
            .collect(),
        shares: shares.iter().map(|share| of_share(share)).collect(),
        carriers: carriers.iter().map(|pod| of_carrier(pod)).collect(),
        nodes: nodes
            .iter()
            .filter_map(|node| node.metadata.name.clone())
            .collect(),
    }
}

fn fraction_pod(pod: &Pod, nodes: &[&Node]) -> Option<FractionPod> {
    let (spec, metadata) = (pod.spec.as_ref()?, &pod.metadata);
    let least = metadata.annotations.as_ref().and_then(|all| all.get(LEAST));
    let least = least.and_then(|mib| mib.parse().ok()).unwrap_or(0);
    let able = nodes.iter().filter(|node| fits(spec, node));
    Some(FractionPod {
        uid: metadata.uid.clone()?,
        namespace: metadata.namespace.clone()?,
        name: metadata.name.clone()?,
        units: units(spec)?,
        min_memory: Bytes::mib(least),
        // One that is on its way out is not let in any more.
        gated: is_gated(spec) && metadata.deletion_timestamp.is_none(),
        node: spec.node_name.clone(),
        over: is_over(pod),
        placement_key: placement_key(spec),
        feasible_nodes: able.filter_map(|node| node.metadata.name.clone()).collect(),
        created: metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
    })
}

fn is_over(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn of_share(share: &GpuShare) -> SharedGpu {
    let status = share.status.clone().unwrap_or_default();
    // Only the controller and the nodes write these numbers; an invalid one counts as a full GPU.
    let units = |units: i64| u8::try_from(units).unwrap_or(UNITS);
    let assigned = share.spec.assignments.iter();
    let held = status.held.iter();
    SharedGpu {
        name: share.metadata.name.clone().unwrap_or_default(),
        node: share.spec.node.clone(),
        memory: Bytes::new(u64::try_from(status.memory_bytes).unwrap_or(0)),
        carrier: status.carrier,
        draining: share.spec.draining,
        assigned: assigned
            .map(|one| PodUnits {
                uid: one.uid.clone(),
                units: units(one.units),
            })
            .collect(),
        held: held
            .map(|one| PodUnits {
                uid: one.uid.clone(),
                units: units(one.units),
            })
            .collect(),
    }
}

fn of_carrier(pod: &Pod) -> ReservationPod {
    let spec: Option<&PodSpec> = pod.spec.as_ref();
    let labels = pod.metadata.labels.as_ref();
    ReservationPod {
        name: pod.metadata.name.clone().unwrap_or_default(),
        placement_key: labels
            .and_then(|labels| labels.get(PLACE))
            .cloned()
            .unwrap_or_default(),
        scheduled: spec.is_some_and(|spec| spec.node_name.is_some()),
        going: pod.metadata.deletion_timestamp.is_some(),
        over: is_over(pod),
    }
}

/// Usable memory of every GPU that a node has told of.
pub fn sizes<'s>(shares: impl IntoIterator<Item = &'s GpuShare>) -> BTreeSet<Bytes> {
    let told = shares.into_iter().filter_map(|share| share.status.as_ref());
    let sizes = told.filter_map(|status| u64::try_from(status.memory_bytes).ok());
    sizes.filter(|bytes| *bytes > 0).map(Bytes::new).collect()
}
