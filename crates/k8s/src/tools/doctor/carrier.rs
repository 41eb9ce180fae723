//! Checks of carrier mode: GPUs with records, reservation pods that hold them, pods that wait.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::facts::ClusterFacts;
use super::row::{Row, Status};
use crate::base::claim::DRIVER;
use crate::base::error_output::few;
use crate::carrier::NAMESPACE;
use crate::carrier::pod::is_gated;
use crate::carrier::share::GpuShare;
use crate::tools::admin::nodes::plugin_gpus;

pub fn rows(facts: &ClusterFacts) -> Vec<Row> {
    vec![modes(facts), shares(facts), carriers(facts), waiting(facts)]
}

/// The mode of each node: claims or carrier, never both.
fn modes(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "nodes.sharing";
    const READ: &str = "GpuShares, ResourceSlices";
    let carriers: BTreeSet<&str> = all(facts)
        .iter()
        .map(|share| share.spec.node.as_str())
        .collect();
    let slices = facts.slices.as_deref().unwrap_or_default().iter();
    let claims: BTreeSet<&str> = slices
        .filter(|slice| slice.spec.driver == DRIVER)
        .filter_map(|slice| slice.spec.node_name.as_deref())
        .collect();
    let list = |nodes: &BTreeSet<&str>| few(&nodes.iter().collect::<Vec<_>>());
    let found = if claims.is_empty() {
        format!("carrier: {}", list(&carriers))
    } else {
        format!("claims: {}; carrier: {}", list(&claims), list(&carriers))
    };
    let both: BTreeSet<&str> = carriers.intersection(&claims).copied().collect();
    if both.is_empty() {
        Row::ok(CHECK, READ, found)
    } else {
        Row::ok(CHECK, READ, found).but(
            Status::Warn,
            format!(
                "both modes offer the GPUs of {}: the node changes its mode, or its pod is down",
                list(&both)
            ),
            "see the events of the node, and the log of its pod's container `plugin`",
        )
    }
}

fn all(facts: &ClusterFacts) -> &[GpuShare] {
    facts.shares.as_deref().unwrap_or_default()
}

/// Records whose node is gone or offers no GPU for a carrier to hold.
fn shares(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "carriers.gpus";
    const READ: &str = "GpuShares, nodes";
    let nodes = match &facts.nodes {
        Ok(nodes) => nodes,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let names: BTreeSet<&str> = all(facts)
        .iter()
        .map(|share| share.spec.node.as_str())
        .collect();
    let mut troubles = Vec::new();
    for name in &names {
        let node = nodes
            .iter()
            .find(|node| node.metadata.name.as_deref() == Some(*name));
        match node {
            None => troubles.push(format!("{name} (the node does not exist)")),
            Some(node) if plugin_gpus(node) == 0 => {
                troubles.push(format!(
                    "{name} (no allocatable {})",
                    crate::base::pod_request::GPU
                ));
            }
            Some(_) => {}
        }
    }
    let found = format!("{} GPUs on {} nodes", all(facts).len(), names.len());
    if troubles.is_empty() {
        Row::ok(CHECK, READ, found)
    } else {
        Row::ok(CHECK, READ, format!("{found}; with problems: {}", few(&troubles))).but(
            Status::Warn,
            "reservation pods get no GPU on these nodes",
            "run NVIDIA's device plugin on these nodes, with whole GPUs (no replicas, no MIG strategy)",
        )
    }
}

/// Reservation pods without a known GPU, and shares that lost theirs.
fn carriers(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "carriers.pods";
    const READ: &str = "pods of divvy-carriers, GpuShares";
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let ours: Vec<&Pod> = pods
        .iter()
        .filter(|pod| pod.metadata.namespace.as_deref() == Some(NAMESPACE))
        .collect();
    let holders: BTreeSet<&str> = all(facts)
        .iter()
        .filter_map(|share| share.status.as_ref()?.carrier.as_deref())
        .collect();
    let pending: Vec<&str> = ours
        .iter()
        .filter_map(|pod| pod.metadata.name.as_deref())
        .filter(|name| !holders.contains(name))
        .collect();
    let lost: Vec<&str> = all(facts)
        .iter()
        .filter(|share| !share.spec.assignments.is_empty())
        .filter(|share| {
            share
                .status
                .as_ref()
                .is_none_or(|status| status.carrier.is_none())
        })
        .filter_map(|share| share.metadata.name.as_deref())
        .collect();
    if !lost.is_empty() {
        return Row::ok(
            CHECK,
            READ,
            format!(
                "pods use fractions of GPUs that no reservation pod holds: {}",
                few(&lost)
            ),
        )
        .but(
            Status::Warn,
            "NVIDIA's device plugin may allocate the same GPU to another pod as a whole",
            "delete these pods: their reservation pod was deleted or evicted",
        );
    }
    if pending.is_empty() {
        Row::ok(
            CHECK,
            READ,
            format!("{} reservation pods hold a GPU each", ours.len()),
        )
    } else {
        Row::ok(CHECK, READ, format!("waiting for a GPU: {}", few(&pending))).but(
            Status::Warn,
            "all GPUs that reservation pods may use are taken",
            format!("kubectl -n {NAMESPACE} describe pods; then add GPUs, or delete pods"),
        )
    }
}

fn waiting(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "carriers.waiting";
    const READ: &str = "pods with Divvy's scheduling gate";
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let gated: Vec<String> = pods
        .iter()
        .filter(|pod| pod.spec.as_ref().is_some_and(is_gated))
        .map(super::pods::called)
        .collect();
    Row::ok(
        CHECK,
        READ,
        if gated.is_empty() {
            "no pod waits for a GPU fraction".to_owned()
        } else {
            format!(
                "{} pods wait for a GPU fraction: {}",
                gated.len(),
                few(&gated)
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::doctor::facts::tests::{facts, node, share};
    use serde_json::json;

    fn carrier(name: &str) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": NAMESPACE } }))
            .unwrap()
    }

    #[test]
    fn gpus_without_a_plugin_to_hold_them_by_and_carriers_without_a_gpu_are_told() {
        let mut facts = facts();
        facts.nodes = Ok(vec![node("a", "v1.31.0", "containerd://2.1.0", "2")]);
        facts.shares = Ok(vec![share("a", Some("c1"))]);
        facts.slices = Ok(Vec::new());
        facts.pods = Ok(vec![carrier("c1")]);
        assert!(facts.by_carriers());
        assert!(
            rows(&facts).iter().all(|row| row.status == Status::Ok),
            "{:?}",
            rows(&facts)
        );
        facts.pods = Ok(vec![carrier("c1"), carrier("c2")]);
        assert_eq!(carriers(&facts).found, "waiting for a GPU: c2");
        facts.nodes = Ok(vec![node("a", "v1.31.0", "containerd://2.1.0", "0")]);
        assert!(
            shares(&facts)
                .found
                .contains("a (no allocatable nvidia.com/gpu)")
        );
        let mut lost = share("a", None);
        lost.spec
            .assignments
            .push(crate::carrier::share::Assignment {
                uid: "u".to_owned(),
                namespace: "team".to_owned(),
                name: "train".to_owned(),
                units: 4,
            });
        facts.shares = Ok(vec![lost]);
        assert!(carriers(&facts).found.contains("gpu-of-a"));
    }
}
