//! Checks of the nodes: other drivers that allocate their GPUs, and the features of their container runtimes.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, Node, Pod};

use super::facts::ClusterFacts;
use super::row::{Row, Status};
use super::version::parse;
use crate::base::claim::NVIDIA_DRIVER;
use crate::base::error_output::few;
use crate::tools::admin::nodes::{Pool, plugin_gpus};

/// The first containerd that injects CDI devices without being told to (its release notes, 2.0).
const CONTAINERD: (u32, u32) = (2, 0);
/// The first CRI-O that does; kubelets hand CDI names over since the same minor release.
const CRIO: (u32, u32) = (1, 28);
/// The first kubelet with `resource.k8s.io/v1` on.
const KUBELET: (u32, u32) = (1, 34);
/// The setting of NVIDIA's container toolkit that lets any pod take GPUs by a variable.
const BY_VARIABLE: &str = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED";

pub fn rows(facts: &ClusterFacts) -> Vec<Row> {
    let ours = match ours(facts) {
        Ok(ours) => ours,
        Err(why) => {
            let checks = [
                "nodes.divvy",
                "nodes.nvidia-plugin",
                "nodes.kubelet",
                "nodes.cdi",
            ];
            let unknown = checks.map(|check| Row::unknown(check, "nodes", &why));
            return unknown.into_iter().chain([variable(facts)]).collect();
        }
    };
    vec![
        present(facts, &ours),
        plugin(facts, &ours),
        kubelets(&ours, facts),
        cdi(&ours),
        variable(facts),
    ]
}

/// Nodes that publish for us, or on which our node part runs.
fn ours(facts: &ClusterFacts) -> Result<Vec<&Node>, String> {
    let nodes = facts.nodes.as_ref().map_err(Clone::clone)?;
    let slices = facts.slices.as_deref().unwrap_or_default();
    let agents = node_parts(facts);
    Ok(nodes
        .iter()
        .filter(|node| {
            let name = name(node);
            !Pool::of(name, slices).slices.is_empty() || agents.iter().any(|(on, _)| *on == name)
        })
        .collect())
}

pub fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// Our DaemonSet's pods: on which node, and whether ready.
pub fn node_parts(facts: &ClusterFacts) -> Vec<(&str, bool)> {
    let pods = facts.pods.as_deref().unwrap_or_default();
    pods.iter()
        .filter(|pod| {
            ["node", "enforcer"]
                .iter()
                .any(|part| is_part(pod, &facts.system, part))
        })
        .filter_map(|pod| Some((pod.spec.as_ref()?.node_name.as_deref()?, is_ready(pod))))
        .collect()
}

/// Whether it is this piece of the installation.
pub fn is_part(pod: &Pod, system: &str, component: &str) -> bool {
    let label = |key: &str| {
        let labels = pod.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(key))
            .map(String::as_str)
    };
    pod.metadata.namespace.as_deref() == Some(system)
        && label("app.kubernetes.io/name") == Some("divvy")
        && label("app.kubernetes.io/component") == Some(component)
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn present(facts: &ClusterFacts, ours: &[&Node]) -> Row {
    const CHECK: &str = "nodes.divvy";
    const READ: &str = "nodes, pods of Divvy's DaemonSet, Divvy's ResourceSlices";
    let parts = node_parts(facts);
    let broken: Vec<&str> = parts
        .iter()
        .filter(|(_, ready)| !ready)
        .map(|(node, _)| *node)
        .collect();
    let names: Vec<&str> = ours.iter().map(|node| name(node)).collect();
    if ours.is_empty() {
        return Row::ok(CHECK, READ, "Divvy runs on no node").but(
            Status::Fail,
            "no pod can get a GPU fraction",
            format!(
                "install the chart, or check the node selector and the tolerations of its DaemonSet in {}",
                facts.system
            ),
        );
    }
    if !broken.is_empty() {
        return Row::ok(CHECK, READ, format!("not ready on {}", few(&broken))).but(
            Status::Fail,
            "running pods keep their limits, but on these nodes no pod starts and no ended pod is cleaned up",
            format!(
                "kubectl -n {} logs -l app.kubernetes.io/component=node --all-containers",
                facts.system
            ),
        );
    }
    match &facts.pods {
        Err(why) => Row::unknown(CHECK, READ, why),
        Ok(_) if parts.is_empty() => Row::ok(
            CHECK,
            READ,
            format!("ResourceSlices of {} exist, but no node pod of Divvy", few(&names)),
        )
        .but(
            Status::Fail,
            "the ResourceSlices may be of a removed installation: pods that get these devices never start",
            format!("if Divvy is in another namespace than {}, use --namespace", facts.system),
        ),
        Ok(_) => Row::ok(CHECK, READ, format!("Divvy runs on {} nodes: {}", ours.len(), few(&names))),
    }
}

/// Whether NVIDIA's device plugin or DRA driver gives the same GPUs out.
fn plugin(facts: &ClusterFacts, ours: &[&Node]) -> Row {
    const CHECK: &str = "nodes.nvidia-plugin";
    const READ: &str =
        "allocatable resources of Divvy's nodes, DaemonSets, ResourceSlices of gpu.nvidia.com";
    let slices = facts.slices.as_deref().unwrap_or_default();
    let both: Vec<&str> = ours
        .iter()
        .filter(|node| {
            let published = !Pool::of(name(node), slices).slices.is_empty();
            let nvidias = slices.iter().any(|slice| {
                slice.spec.driver == NVIDIA_DRIVER
                    && slice.spec.node_name.as_deref() == Some(name(node))
            });
            published && (plugin_gpus(node) > 0 || nvidias)
        })
        .map(|node| name(node))
        .collect();
    if !both.is_empty() {
        return Row::ok(
            CHECK,
            READ,
            format!("NVIDIA's device plugin or DRA driver also allocates the GPUs of {}", few(&both)),
        )
        .but(
            Status::Fail,
            "one GPU can be allocated as a whole and in fractions at the same time",
            "remove NVIDIA's device plugin from these nodes (GPU Operator: label nvidia.com/gpu.deploy.device-plugin=false), or use carrier mode",
        );
    }
    match &facts.daemon_sets {
        Err(why) => Row::ok(
            CHECK,
            READ,
            format!(
                "no {} on Divvy's nodes; cannot read DaemonSets: {why}",
                crate::base::pod_request::GPU
            ),
        ),
        Ok(all) => {
            let plugins: Vec<String> = all
                .iter()
                .filter(|set| is_plugin(set))
                .map(called)
                .collect();
            let found = if plugins.is_empty() {
                "NVIDIA's device plugin is not in this cluster".to_owned()
            } else {
                format!(
                    "{} runs, but allocates no GPU of Divvy's nodes",
                    few(&plugins)
                )
            };
            Row::ok(CHECK, READ, found)
        }
    }
}

pub fn containers(set: &DaemonSet) -> &[Container] {
    let spec = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    spec.map_or(&[], |spec| &spec.containers)
}

fn has_image(set: &DaemonSet, words: &[&str]) -> bool {
    let images = containers(set)
        .iter()
        .filter_map(|container| container.image.as_deref());
    images
        .into_iter()
        .any(|image| words.iter().any(|word| image.contains(word)))
}

pub fn is_plugin(set: &DaemonSet) -> bool {
    has_image(set, &["k8s-device-plugin", "nvidia-gpu-device-plugin"])
}

fn called(set: &DaemonSet) -> String {
    let word = |text: &Option<String>| text.clone().unwrap_or_default();
    format!(
        "{}/{}",
        word(&set.metadata.namespace),
        word(&set.metadata.name)
    )
}

fn kubelets(ours: &[&Node], facts: &ClusterFacts) -> Row {
    const CHECK: &str = "nodes.kubelet";
    const READ: &str = "kubelet versions in the nodes' status";
    let mut old = Vec::new();
    // Sixteenths are given out by the device plugin's API, which is older than any that is left.
    let shares = facts.shares.as_deref().unwrap_or_default();
    let has_claims = |node: &&&Node| shares.iter().all(|share| share.spec.node != name(node));
    for node in ours.iter().filter(has_claims) {
        let version = info(node, |info| &info.kubelet_version);
        if parse(version).is_none_or(|(major, minor, _)| (major, minor) < KUBELET) {
            old.push(format!("{} ({})", name(node), or_none(version)));
        }
    }
    if old.is_empty() {
        Row::ok(
            CHECK,
            READ,
            "the kubelets of all Divvy nodes are new enough",
        )
    } else {
        Row::ok(CHECK, READ, format!("too old or unknown: {}", few(&old))).but(
            Status::Fail,
            "pods with claims do not start on these nodes",
            "upgrade the nodes to 1.34 or newer (1.36 for all features), or use carrier mode",
        )
    }
}

/// Whether containers get what CDI files name; told by the runtime's version, for its configuration is not in the API.
fn cdi(ours: &[&Node]) -> Row {
    const CHECK: &str = "nodes.cdi";
    const READ: &str = "container runtime versions in the nodes' status";
    let (mut perhaps, mut never) = (Vec::new(), Vec::new());
    for node in ours {
        let version = info(node, |info| &info.container_runtime_version);
        let said = format!("{} ({})", name(node), or_none(version));
        let (runtime, number) = version.split_once("://").unwrap_or((version, ""));
        let number = parse(number).map(|(major, minor, _)| (major, minor));
        match (runtime, number) {
            ("containerd", Some(number)) if number >= CONTAINERD => {}
            ("cri-o", Some(number)) if number >= CRIO => {}
            ("containerd", Some((1, 7..))) => perhaps.push(said),
            _ => never.push(said),
        }
    }
    let means = "pods with a claim do not start on nodes without CDI";
    match (perhaps.is_empty(), never.is_empty()) {
        (true, true) => Row::ok(
            CHECK,
            READ,
            "on by default in the container runtimes of all Divvy nodes",
        ),
        (false, true) => Row::ok(
            CHECK,
            READ,
            format!("off by default: {}", few(&perhaps)),
        )
        .but(
            Status::Warn,
            means,
            "set enable_cdi = true in the cri section of /etc/containerd/config.toml, or upgrade to containerd 2",
        ),
        (_, false) => Row::ok(
            CHECK,
            READ,
            format!("too old, or CDI support unknown: {}", few(&never)),
        )
        .but(
            Status::Fail,
            means,
            "use containerd 2, or CRI-O 1.28 or newer, where CDI is on by default",
        ),
    }
}

fn info(node: &Node, which: fn(&k8s_openapi::api::core::v1::NodeSystemInfo) -> &String) -> &str {
    let info = node
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref());
    info.map_or("", |info| which(info).as_str())
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

/// Whether any pod can take all GPUs by setting a variable.
fn variable(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "nodes.gpus-by-variable";
    const READ: &str = "environment variables of the DaemonSets of NVIDIA's container toolkit";
    let means = "any pod that sets NVIDIA_VISIBLE_DEVICES=all can use every GPU of its node, without a limit";
    let sets = match &facts.daemon_sets {
        Ok(sets) => sets,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let toolkits: Vec<&DaemonSet> = sets
        .iter()
        .filter(|set| has_image(set, &["container-toolkit"]))
        .collect();
    if toolkits.is_empty() {
        return Row::ok(
            CHECK,
            READ,
            "no DaemonSet installs NVIDIA's container toolkit, and the API does not show its configuration on the nodes",
        )
        .but(
            Status::Unknown,
            means,
            "on each node, set accept-nvidia-visible-devices-envvar-when-unprivileged = false in /etc/nvidia-container-runtime/config.toml",
        );
    }
    let open: BTreeSet<String> = toolkits
        .iter()
        .filter(|set| {
            let mut variables = containers(set)
                .iter()
                .flat_map(|container| container.env.iter().flatten());
            !variables.any(|one| one.name == BY_VARIABLE && one.value.as_deref() == Some("false"))
        })
        .map(|set| called(set))
        .collect();
    if open.is_empty() {
        Row::ok(CHECK, READ, "off in NVIDIA's container toolkit")
    } else {
        let open: Vec<String> = open.into_iter().collect();
        Row::ok(CHECK, READ, format!("on in {}", few(&open))).but(
            Status::Warn,
            means,
            format!("set {BY_VARIABLE}=false in these DaemonSets (GPU Operator: toolkit.env)"),
        )
    }
}

#[cfg(test)]
mod tests;
