use super::*;
use crate::tools::doctor::facts::tests::{facts, node, node_part, slice};
use serde_json::{Value, json};

fn status(facts: &ClusterFacts, check: &str) -> Status {
    find_row(facts, check).status
}

fn find_row(facts: &ClusterFacts, check: &str) -> Row {
    rows(facts)
        .into_iter()
        .find(|row| row.check == check)
        .unwrap()
}

fn set(name: &str, image: &str, env: Value) -> DaemonSet {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "gpu-operator" },
        "spec": { "selector": {}, "template": { "spec": { "containers": [
            { "name": "c", "image": image, "env": env },
        ] } } },
    }))
    .unwrap()
}

#[test]
fn a_sound_cluster_has_nothing_to_say_but_what_the_api_does_not_show() {
    let facts = facts();
    for check in [
        "nodes.divvy",
        "nodes.nvidia-plugin",
        "nodes.kubelet",
        "nodes.cdi",
    ] {
        assert_eq!(status(&facts, check), Status::Ok, "{check}");
    }
    assert_eq!(status(&facts, "nodes.gpus-by-variable"), Status::Unknown);
}

#[test]
fn two_drivers_that_allocate_the_same_gpus_are_found() {
    let mut facts = facts();
    facts.nodes = Ok(vec![node("a", "v1.36.2", "containerd://2.1.0", "2")]);
    assert_eq!(status(&facts, "nodes.nvidia-plugin"), Status::Fail);
    let mut facts = crate::tools::doctor::facts::tests::facts();
    facts
        .slices
        .as_mut()
        .unwrap()
        .push(slice("a", NVIDIA_DRIVER, 1, 1));
    assert_eq!(status(&facts, "nodes.nvidia-plugin"), Status::Fail);
    let mut facts = crate::tools::doctor::facts::tests::facts();
    facts.daemon_sets = Ok(vec![set(
        "plugin",
        "nvcr.io/nvidia/k8s-device-plugin:v0.18",
        json!([]),
    )]);
    let row = find_row(&facts, "nodes.nvidia-plugin");
    assert_eq!(row.status, Status::Ok);
    assert!(
        row.found.contains("gpu-operator/plugin runs"),
        "{}",
        row.found
    );
}

#[test]
fn runtimes_are_told_by_their_versions() {
    for (runtime, expected) in [
        ("containerd://2.0.1", Status::Ok),
        ("containerd://1.7.27", Status::Warn),
        ("containerd://1.6.33", Status::Fail),
        ("cri-o://1.33.0", Status::Ok),
        ("docker://28.0.0", Status::Fail),
        ("", Status::Fail),
    ] {
        let mut facts = facts();
        facts.nodes = Ok(vec![node("a", "v1.36.2", runtime, "0")]);
        assert_eq!(status(&facts, "nodes.cdi"), expected, "{runtime}");
    }
    let mut facts = facts();
    facts.nodes = Ok(vec![node("a", "v1.33.4", "containerd://2.0.1", "0")]);
    assert_eq!(status(&facts, "nodes.kubelet"), Status::Fail);
}

#[test]
fn the_variable_that_gives_every_gpu_is_off_only_where_it_is_said_to_be() {
    let mut facts = facts();
    let image = "nvcr.io/nvidia/k8s/container-toolkit:v1.18";
    facts.daemon_sets = Ok(vec![set("toolkit", image, json!([]))]);
    assert_eq!(status(&facts, "nodes.gpus-by-variable"), Status::Warn);
    let off = json!([{ "name": BY_VARIABLE, "value": "false" }]);
    facts.daemon_sets = Ok(vec![set("toolkit", image, off)]);
    assert_eq!(status(&facts, "nodes.gpus-by-variable"), Status::Ok);
}

#[test]
fn a_node_part_that_is_down_or_gone_is_not_called_well() {
    let mut facts = facts();
    facts.pods = Ok(vec![node_part("a", false)]);
    assert_eq!(status(&facts, "nodes.divvy"), Status::Fail);
    facts.pods = Ok(Vec::new());
    assert!(
        find_row(&facts, "nodes.divvy")
            .means
            .contains("removed installation")
    );
    facts.slices = Ok(Vec::new());
    assert_eq!(
        find_row(&facts, "nodes.divvy").found,
        "Divvy runs on no node"
    );
    facts.nodes = Err("forbidden".to_owned());
    assert_eq!(status(&facts, "nodes.cdi"), Status::Unknown);
}
