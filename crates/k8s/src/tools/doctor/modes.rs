//! The check of each node's mode: what allocates its GPUs, and which mode of Divvy fits to that.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Node, Pod};

use super::facts::ClusterFacts;
use super::nodes::{containers, is_plugin, name};
use super::row::{Row, Status};
use crate::base::claim::{DRIVER, NVIDIA_DRIVER, TICKETS};
use crate::base::error_output::few;

/// HAMi's plugin writes its GPUs there (pkg/device/nvidia/device.go, HAMi 4707fb0).
const HAMI: &str = "hami.io/node-nvidia-register";
/// The label that tells NVIDIA's MIG manager which instances a node has, and the label in which the manager reports.
const MIG_CONFIG: [&str; 2] = ["nvidia.com/mig.config", "nvidia.com/mig.config.state"];
/// The number of replicas of each GPU, as NVIDIA's feature discovery writes it.
const REPLICAS: &str = "nvidia.com/gpu.replicas";
const PLUGIN: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";
/// How NVIDIA's plugin gives a GPU to a container.
const STRATEGY: &str = "DEVICE_LIST_STRATEGY";

/// What allocates the GPUs of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allocator {
    Hami,
    MigManager,
    SharedClaims,
    WholeClaims,
    Kai,
    Replicas,
    Plugin,
    Nothing,
}

/// A mode of Divvy's node part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    OwnDevices,
    Enforcer,
    Carrier,
    None,
}

impl fmt::Display for Allocator {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Hami => "HAMi",
            Self::MigManager => "NVIDIA's MIG manager",
            Self::SharedClaims => "NVIDIA's DRA driver, by memory",
            Self::WholeClaims => "NVIDIA's DRA driver, whole GPUs",
            Self::Kai => "KAI-Scheduler",
            Self::Replicas => "NVIDIA's device plugin, replicas",
            Self::Plugin => "NVIDIA's device plugin, whole GPUs",
            Self::Nothing => "nothing but Divvy",
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::OwnDevices => "own devices",
            Self::Enforcer => "enforcer",
            Self::Carrier => "carrier",
            Self::None => "none",
        })
    }
}

impl Allocator {
    fn fits(self) -> Mode {
        match self {
            Self::Hami | Self::SharedClaims | Self::Kai | Self::Replicas => Mode::Enforcer,
            // Whole GPUs need no limit; parts of them come from Divvy's carriers.
            Self::Plugin => Mode::Carrier,
            // The hardware limits instances, and whole GPUs of a claim have one holder.
            Self::MigManager | Self::WholeClaims => Mode::None,
            Self::Nothing => Mode::OwnDevices,
        }
    }
}

pub fn row(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "nodes.mode";
    const READ: &str =
        "labels, annotations and allocatable resources of nodes, ResourceSlices, pods of KAI";
    let nodes = match &facts.nodes {
        Ok(nodes) => nodes,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let (mut found, mut wrong, mut has_replicas) = (Vec::new(), Vec::new(), false);
    for node in nodes {
        let (allocator, now) = (allocator(node, facts), mode(node, facts));
        if allocator == Allocator::Nothing && now == Mode::None {
            continue;
        }
        let fits = allocator.fits();
        has_replicas |= allocator == Allocator::Replicas;
        found.push(format!("{}: {allocator}: {fits}", name(node)));
        if now != Mode::None && now != fits {
            wrong.push(format!("{} is in mode {now}, and {fits} fits", name(node)));
        }
    }
    let row = Row::ok(CHECK, READ, few(&found));
    if found.is_empty() {
        return Row::ok(CHECK, READ, "no node has GPUs that Divvy knows of");
    }
    if !wrong.is_empty() {
        return row.but(
            Status::Warn,
            few(&wrong),
            "choose the nodes with enforcer.nodeSelector, carrier.nodeSelector and node.nodeSelector of the chart",
        );
    }
    let by_cdi = by_cdi(facts);
    if by_cdi.is_empty() || !has_replicas {
        return row;
    }
    row.but(
        Status::Warn,
        format!("{} adds GPUs by CDI, and such containers do not start with Divvy's limit", few(&by_cdi)),
        "set DEVICE_LIST_STRATEGY=envvar in NVIDIA's device plugin (GPU Operator: devicePlugin.env, cdi.enabled=false)",
    )
}

fn allocator(node: &Node, facts: &ClusterFacts) -> Allocator {
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|all| all.get(key));
    let has = |key: &str| {
        node.metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.contains_key(key))
    };
    let slices = facts.slices.as_deref().unwrap_or_default().iter();
    let of_nvidia = slices.filter(|slice| {
        slice.spec.driver == NVIDIA_DRIVER && slice.spec.node_name.as_deref() == Some(name(node))
    });
    let mut devices = of_nvidia
        .flat_map(|slice| slice.spec.devices.iter().flatten())
        .peekable();
    let has_claims = devices.peek().is_some();
    let is_shared = devices.any(|device| device.allow_multiple_allocations == Some(true));
    let gpus = allocatable(node);
    let replicas = label(REPLICAS)
        .and_then(|count| count.parse::<u32>().ok())
        .unwrap_or(1);
    // The manager has a configuration for nodes without instances too.
    let mig = MIG_CONFIG.iter().find_map(|key| label(key));
    match () {
        () if has(HAMI) => Allocator::Hami,
        () if is_shared => Allocator::SharedClaims,
        () if mig.is_some_and(|config| config != "all-disabled") => Allocator::MigManager,
        () if has_claims => Allocator::WholeClaims,
        () if gpus.is_empty() => Allocator::Nothing,
        () if has_kai(facts) => Allocator::Kai,
        () if gpus.contains_key(SHARED) || replicas > 1 => Allocator::Replicas,
        () => Allocator::Plugin,
    }
}

/// The mode in which Divvy's node part serves the node.
fn mode(node: &Node, facts: &ClusterFacts) -> Mode {
    let slices = facts.slices.as_deref().unwrap_or_default();
    let has = |driver: &str| {
        let mut slices = slices.iter().filter(|slice| slice.spec.driver == driver);
        slices.any(|slice| slice.spec.node_name.as_deref() == Some(name(node)))
    };
    let shares = facts.shares.as_deref().unwrap_or_default();
    match () {
        () if has(TICKETS) => Mode::Enforcer,
        () if has(DRIVER) => Mode::OwnDevices,
        () if shares.iter().any(|share| share.spec.node == name(node)) => Mode::Carrier,
        () => Mode::None,
    }
}

/// Resources of NVIDIA's plugin of which the node has some.
fn allocatable(node: &Node) -> BTreeMap<&str, &str> {
    let resources = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let resources = resources.into_iter().flatten();
    let resources = resources
        .filter(|(name, count)| [PLUGIN, SHARED].contains(&name.as_str()) && count.0 != "0");
    resources
        .map(|(name, count)| (name.as_str(), count.0.as_str()))
        .collect()
}

/// Whether KAI's scheduler runs in the cluster.
fn has_kai(facts: &ClusterFacts) -> bool {
    let is_kai = |pod: &Pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut images = containers.filter_map(|container| container.image.as_deref());
        images.any(|image| image.contains("kai-scheduler/scheduler"))
    };
    facts.pods.as_deref().unwrap_or_default().iter().any(is_kai)
}

/// DaemonSets of NVIDIA's plugin that add GPUs by CDI.
fn by_cdi(facts: &ClusterFacts) -> Vec<String> {
    let sets = facts.daemon_sets.as_deref().unwrap_or_default().iter();
    let by_cdi = sets.filter(|set| is_plugin(set)).filter(|set| {
        let mut variables = containers(set)
            .iter()
            .flat_map(|one| one.env.iter().flatten());
        variables
            .any(|one| one.name == STRATEGY && one.value.iter().any(|value| value.contains("cdi")))
    });
    by_cdi.filter_map(|set| set.metadata.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;
    use serde_json::{Value, json};

    use super::*;
    use crate::tools::doctor::facts::tests::{self, facts, slice};

    fn node(name: &str, gpus: &str, metadata: Value) -> Node {
        let mut node = tests::node(name, "v1.36.2", "containerd://2.1.0", gpus);
        node.metadata.labels = serde_json::from_value(metadata["labels"].clone()).unwrap();
        node.metadata.annotations =
            serde_json::from_value(metadata["annotations"].clone()).unwrap();
        node
    }

    #[test]
    fn the_mode_of_each_kind_of_node_is_named() {
        let mut facts = facts();
        facts.nodes = Ok(vec![
            node("a", "0", Value::Null),
            node("b", "0", Value::Null),
            node(
                "c",
                "8",
                json!({ "labels": { "nvidia.com/gpu.replicas": "4" } }),
            ),
            node("d", "2", Value::Null),
            node(
                "e",
                "16",
                json!({ "annotations": { "hami.io/node-nvidia-register": "GPU-1,…" } }),
            ),
        ]);
        (facts.slices.as_mut().unwrap()).push(slice("b", NVIDIA_DRIVER, 1, 1));
        let row = row(&facts);
        assert_eq!(
            (row.status, row.found.as_str()),
            (
                Status::Ok,
                "a: nothing but Divvy: own devices, b: NVIDIA's DRA driver, by memory: enforcer, \
                 c: NVIDIA's device plugin, replicas: enforcer, d: NVIDIA's device plugin, whole GPUs: carrier, \
                 e: HAMi: enforcer"
            )
        );
    }

    #[test]
    fn a_mig_manager_and_kai_have_their_modes_and_a_wrong_mode_is_told() {
        let mut facts = facts();
        let mig = json!({ "labels": { "nvidia.com/mig.config": "all-1g.10gb" } });
        facts.nodes = Ok(vec![
            node("a", "0", Value::Null),
            node("b", "7", mig),
            node("c", "2", Value::Null),
        ]);
        let kai = json!({
            "metadata": {}, "spec": { "containers": [{ "name": "s", "image": "ghcr.io/kai-scheduler/kai-scheduler/scheduler:v0.17" }] },
        });
        (facts.pods.as_mut().unwrap()).push(serde_json::from_value(kai).unwrap());
        let well = row(&facts);
        assert!(
            well.found
                .contains("b: NVIDIA's MIG manager: none, c: KAI-Scheduler: enforcer"),
            "{well:?}"
        );
        (facts.slices.as_mut().unwrap()).push(slice("a", NVIDIA_DRIVER, 1, 1));
        let wrong = row(&facts);
        assert_eq!(wrong.status, Status::Warn);
        assert_eq!(wrong.means, "a is in mode own devices, and enforcer fits");
        facts
            .slices
            .as_mut()
            .unwrap()
            .retain(|slice| slice.spec.driver != DRIVER);
        (facts.slices.as_mut().unwrap()).push(slice("a", TICKETS, 1, 1));
        assert_eq!(row(&facts).status, Status::Ok);
    }

    #[test]
    fn a_plugin_that_adds_replicas_by_cdi_is_told() {
        let mut facts = facts();
        facts.nodes = Ok(vec![node(
            "a",
            "8",
            json!({ "labels": { "nvidia.com/gpu.replicas": "4" } }),
        )]);
        facts.slices = Ok(Vec::new());
        assert_eq!(row(&facts).status, Status::Ok);
        let plugin: DaemonSet = serde_json::from_value(json!({
            "metadata": { "name": "nvidia-device-plugin" },
            "spec": { "selector": {}, "template": { "spec": { "containers": [{
                "name": "p", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.18.0",
                "env": [{ "name": "DEVICE_LIST_STRATEGY", "value": "cdi-annotations,cdi-cri" }],
            }] } } },
        }))
        .unwrap();
        facts.daemon_sets = Ok(vec![plugin]);
        let row = row(&facts);
        assert_eq!(row.status, Status::Warn);
        assert!(row.means.contains("nvidia-device-plugin"), "{row:?}");
    }
}
