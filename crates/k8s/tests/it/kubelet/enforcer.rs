//! The enforcer: claims of other programs, and what becomes of them when either side dies or is replaced.

use std::fs;

use divvy_api::v1::ClaimDevice;
use divvy_k8s::base::claim::TICKETS;
use divvy_k8s::node::protocol::dra::Claim;
use divvy_testkit::until_async as until;
use serde_json::{Value, json};

use crate::carrier::kubelet::Kubelet as DevicePlugins;
use crate::kubelet::fake::Driver;
use crate::kubelet::machine::NODE;
use crate::kubelet::rig::Node;

const TEAM: &str = "team";
const GIB: u64 = 1 << 30;

/// A node of which NVIDIA's driver has published the GPUs.
async fn enforced() -> (Node, Driver, Vec<String>) {
    let mut node = Node::new("a100-80gb:2");
    node.start_daemon(&[]).await;
    node.start_driver_with(&["--enforce"]);
    let driver = node.kubelet.driver().await;
    let uuids = node.machine.uuids().await;
    let usable = node.machine.gpus().await[0].memory_usable_bytes;
    let device = |(at, uuid): (usize, &String)| {
        json!({
            "name": format!("gpu-{at}"), "allowMultipleAllocations": true,
            "attributes": { "type": { "string": "gpu" }, "uuid": { "string": uuid } },
            "capacity": { "memory": { "value": usable.to_string() } },
        })
    };
    let devices: Vec<Value> = uuids.iter().enumerate().map(device).collect();
    node.api.create(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": { "name": "nvidia" },
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": NODE, "devices": devices,
            "pool": { "name": NODE, "generation": 1, "resourceSliceCount": 1 },
        },
    }));
    (node, driver, uuids)
}

/// A pod with this name, and so much besides; its uid.
fn pod(node: &Node, name: &str, spec: Value, metadata: Value) -> String {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": TEAM, "name": name },
        "spec": { "nodeName": NODE, "containers": [{ "name": "c" }] },
        "status": { "phase": "Pending" },
    });
    let ticket =
        json!([{ "name": "divvy-limit", "resourceClaimName": format!("{name}-divvy-limit") }]);
    pod["spec"]["resourceClaims"] = ticket;
    for (field, more) in [("spec", spec), ("metadata", metadata)] {
        let more = more.as_object().cloned().unwrap_or_default();
        pod[field].as_object_mut().unwrap().extend(more);
    }
    let pod = node.api.create(pod);
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// A claim of the pod's, allocated by the scheduler.
fn claim(node: &Node, (name, pod, uid): (&str, &str, &str), result: Value) -> Claim {
    let claim = node.api.create(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "namespace": TEAM, "name": name },
        "spec": {},
        "status": {
            "allocation": { "devices": { "results": [result] } },
            "reservedFor": [{ "resource": "pods", "name": pod, "uid": uid }],
        },
    }));
    Claim {
        namespace: TEAM.to_owned(),
        name: name.to_owned(),
        uid: claim["metadata"]["uid"].as_str().unwrap().to_owned(),
    }
}

/// The pod's ticket, as the scheduler allocates it.
fn ticket(node: &Node, pod: &str, uid: &str) -> Claim {
    let name = format!("{pod}-divvy-limit");
    let result = json!({
        "request": "ticket", "driver": TICKETS, "pool": NODE, "device": "ticket-001",
    });
    claim(node, (&name, pod, uid), result)
}

/// A pod with a claim of NVIDIA's driver for so much memory; its ticket.
fn asks(node: &Node, name: &str, device: &str, memory: &str) -> Claim {
    let claimed = format!("{name}-gpu");
    let spec = json!({ "resourceClaims": [
        { "name": "gpu", "resourceClaimName": claimed },
        { "name": "divvy-limit", "resourceClaimName": format!("{name}-divvy-limit") },
    ] });
    let uid = pod(node, name, spec, Value::Null);
    let result = json!({
        "request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": device,
        "shareID": "1", "consumedCapacity": { "memory": memory },
    });
    claim(node, (&claimed, name, &uid), result);
    ticket(node, name, &uid)
}

#[tokio::test(flavor = "current_thread")]
async fn two_pods_of_nvidias_driver_are_limited_to_what_their_claims_consumed() {
    let (node, driver, uuids) = enforced().await;
    let [one, two] =
        ["8Gi", "16Gi"].map(|memory| asks(&node, &memory.to_lowercase(), "gpu-1", memory));
    for (ticket, memory) in [(&one, 8 * GIB), (&two, 16 * GIB)] {
        let devices = driver.prepare(ticket).await.unwrap();
        let held = node.machine.held().await;
        let held = held.iter().find(|held| held.uid == ticket.uid).unwrap();
        assert_eq!(held.devices, [ClaimDevice::part(&*uuids[1], memory)]);
        assert_eq!(devices[0].cdi_device_ids.join(" "), held.cdi_device);
    }
    node.is_sound(&[&one, &two]).await;
    // What the scheduler cannot have meant is refused, as anywhere else.
    let third = asks(&node, "third", "gpu-1", "60Gi");
    let refused = driver.prepare(&third).await.unwrap_err();
    assert!(refused.contains("GPU 1"), "{refused}");
    driver.unprepare(&one).await.unwrap();
    driver.prepare(&third).await.unwrap();
    node.is_sound(&[&two, &third]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_second_ticket_of_a_pod_is_refused() {
    let (node, driver, _) = enforced().await;
    let first = asks(&node, "train", "gpu-0", "8Gi");
    let uid = node.api.look(|view| view.all("pods"))[0]["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    let result = json!({
        "request": "ticket", "driver": TICKETS, "pool": NODE, "device": "ticket-002",
    });
    let second = claim(&node, ("mine", "train", &uid), result);
    driver.prepare(&first).await.unwrap();
    let refused = driver.prepare(&second).await.unwrap_err();
    assert!(refused.contains("a pod has one ticket"), "{refused}");
    node.is_sound(&[&first]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn the_cdi_files_of_nvidias_driver_and_the_order_of_the_drivers_change_nothing() {
    let (node, driver, _) = enforced().await;
    let ticket = asks(&node, "train", "gpu-0", "8Gi");
    // Before NVIDIA's driver, and then after it.
    let before = driver.prepare(&ticket).await.unwrap();
    let theirs = node
        .machine
        .cdi_dir()
        .join("k8s.gpu.nvidia.com-claim_1.yaml");
    fs::write(&theirs, "cdiVersion: 0.6.0").unwrap();
    assert_eq!(driver.prepare(&ticket).await.unwrap(), before);
    driver.unprepare(&ticket).await.unwrap();
    assert_eq!(node.cdi().len(), 1, "only NVIDIA's file: {:?}", node.cdi());
    assert_eq!(driver.prepare(&ticket).await.unwrap(), before);
    fs::remove_file(&theirs).unwrap();
    node.is_sound(&[&ticket]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_pod_keeps_its_limit_while_either_side_dies_and_its_claim_is_deleted() {
    let (mut node, driver, _) = enforced().await;
    let ticket = asks(&node, "train", "gpu-0", "8Gi");
    let before = driver.prepare(&ticket).await.unwrap();
    node.kill_daemon();
    node.start_daemon(&[]).await;
    node.kill_driver();
    node.start_driver_with(&["--enforce"]);
    let driver = node.kubelet.driver().await;
    // NVIDIA's side is gone altogether.
    node.api.remove("resourceclaims", TEAM, "train-gpu");
    node.api.remove("resourceslices", "", "nvidia");
    assert_eq!(driver.prepare(&ticket).await.unwrap(), before);
    node.is_sound(&[&ticket]).await;
    let late = asks(&node, "late", "gpu-0", "8Gi");
    let refused = driver.prepare(&late).await.unwrap_err();
    assert!(refused.contains("no ResourceSlice"), "{refused}");
    // Kubelet has forgotten the first pod, and so has the cluster. A driver compares when it starts.
    node.forget(&ticket);
    node.kill_driver();
    node.start_driver_with(&["--enforce"]);
    let _driver = node.kubelet.driver().await;
    until("the claim is released", async || {
        node.machine.held().await.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn in_an_update_either_enforcer_prepares_a_ticket_with_the_same_result() {
    let (mut node, _, _) = enforced().await;
    node.kill_driver();
    node.start_driver_with(&["--enforce", "--instance", "1a-old"]);
    let old = node.kubelet.driver_of("1a").await;
    let ticket = asks(&node, "train", "gpu-0", "8Gi");
    let before = old.prepare(&ticket).await.unwrap();
    let agent = node.machine.agent_socket();
    let new = ["--enforce", "--instance", "2b-new"];
    let _new = node.machine.node(&new, &agent, &node.api);
    let new = node.kubelet.driver_of("2b").await;
    assert_eq!(new.prepare(&ticket).await.unwrap(), before);
    node.kill_driver();
    new.unprepare(&ticket).await.unwrap();
    node.is_sound(&[]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn replicas_of_the_device_plugin_are_equal_parts_and_an_annotation_is_a_part_of_that_size() {
    let (node, driver, uuids) = enforced().await;
    let usable = node.machine.gpus().await[0].memory_usable_bytes;
    let kubelet = DevicePlugins::start(&node.machine.kubelet_dir());
    let all: Vec<String> = (0..4).map(|at| format!("{}::{at}", uuids[0])).collect();
    let limits = json!({ "containers": [{
        "name": "c", "resources": { "limits": { "nvidia.com/gpu.shared": "1" } },
    }] });
    let memory = json!({ "annotations": { "gpu-memory": "4096" } });
    let [equal, exact] = [("equal", Value::Null), ("exact", memory)].map(|(name, metadata)| {
        let uid = pod(&node, name, limits.clone(), metadata);
        ticket(&node, name, &uid)
    });
    // Kubelet gives devices when it admits a pod, before it prepares claims.
    let refused = driver.prepare(&equal).await.unwrap_err();
    assert!(refused.contains("nvidia.com/gpu.shared"), "{refused}");
    kubelet.give_replica((TEAM, "equal"), &all[3], &all);
    kubelet.give_replica((TEAM, "exact"), &all[1], &all);
    let quarter = usable / 4 / (2 << 20) * (2 << 20);
    for (ticket, memory) in [(&equal, quarter), (&exact, 4 * GIB)] {
        driver.prepare(ticket).await.unwrap();
        let held = node.machine.held().await;
        let held = held.iter().find(|held| held.uid == ticket.uid).unwrap();
        assert_eq!(held.devices, [ClaimDevice::part(&*uuids[0], memory)]);
    }
    node.is_sound(&[&equal, &exact]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_pod_of_kai_is_limited_on_the_gpu_of_its_reservation_pod() {
    let (node, driver, uuids) = enforced().await;
    node.api.create(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "bindrequests.scheduling.run.ai" },
        "spec": {
            "group": "scheduling.run.ai", "scope": "Namespaced",
            "names": { "plural": "bindrequests", "kind": "BindRequest" },
            "versions": [{ "name": "v1alpha2", "served": true, "storage": true }],
        },
    }));
    node.api.create(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "kai-resource-reservation", "name": "r", "labels": { "runai-gpu-group": "g" },
            "annotations": { "run.ai/reserve_for_gpu_index": uuids[1] },
        },
        "spec": { "nodeName": NODE, "containers": [] },
    }));
    let kai = json!({ "schedulerName": "kai-scheduler" });
    let half = json!({ "annotations": { "gpu-fraction": "0.5" } });
    let uid = pod(&node, "train", kai, half);
    let ticket = ticket(&node, "train", &uid);
    let refused = driver.prepare(&ticket).await.unwrap_err();
    assert!(
        refused.contains("KAI has placed the pod on no GPU group"),
        "{refused}"
    );
    node.api.create(json!({
        "apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest",
        "metadata": { "namespace": TEAM, "name": "train", "ownerReferences": [
            { "apiVersion": "v1", "kind": "Pod", "name": "train", "uid": uid },
        ] },
        "spec": { "podName": "train", "selectedGPUGroups": ["g"] },
    }));
    driver.prepare(&ticket).await.unwrap();
    let [held] = &node.machine.held().await[..] else {
        panic!("one claim is held");
    };
    assert_eq!(held.devices[0].gpu, uuids[1]);
    let usable = node.machine.gpus().await[1].memory_usable_bytes;
    assert_eq!(
        held.devices[0].memory_bytes,
        Some(usable / (4 << 20) * (2 << 20))
    );
}

#[tokio::test(flavor = "current_thread")]
async fn a_pod_with_a_part_of_a_gpu_and_no_ticket_is_reported_once() {
    let (mut node, _, _) = enforced().await;
    node.kill_driver();
    let ticket = asks(&node, "limited", "gpu-0", "8Gi");
    let spec = json!({ "resourceClaims": [{ "name": "gpu", "resourceClaimName": "limited-gpu" }] });
    pod(&node, "bare", spec, Value::Null);
    pod(&node, "web", json!({ "resourceClaims": [] }), Value::Null);
    node.start_driver_with(&["--enforce"]);
    let driver = node.kubelet.driver().await;
    driver.prepared(&ticket).await;
    let told = until("an event is written", async || {
        let events = node.api.look(|view| view.all("events"));
        let mut told = events
            .into_iter()
            .filter(|event| event["reason"] == "NotLimited");
        told.next()
    })
    .await;
    assert_eq!(told["regarding"]["name"], "bare");
    let note = told["note"].as_str().unwrap();
    assert!(note.contains("without a limit of GPU memory"), "{note}");
}
