//! How kubelet finds the driver, again and again.

use std::fs;

use divvy_k8s::base::claim::DRIVER;
use divvy_k8s::carrier::share::definition;
use divvy_k8s::node::protocol::health::HealthStatus;
use divvy_k8s::node::registration_socket;

use divvy_testkit::until_async as until;

use crate::kubelet::raw::{Answer, PROTOCOL_ERROR, authority, get_info};
use crate::kubelet::rig::Node;

#[tokio::test(flavor = "current_thread")]
async fn kubelets_percent_encoded_authority_is_taken_because_of_the_at_in_the_sockets_name() {
    let mut node = Node::new("a100-80gb:1");
    node.start_driver(&node.machine.agent_socket());
    node.kubelet.register().await;
    let socket = registration_socket(&node.machine.kubelet_dir(), DRIVER, None);
    let kubelets = authority(&socket);
    assert!(kubelets.starts_with("%2Ftmp%2F") && kubelets.ends_with("%2Fgpu.divvy.dev@reg.sock"));
    let Answer::Info(info) = get_info(&socket, &kubelets).await else {
        panic!("not registered");
    };
    assert_eq!((&*info.r#type, &*info.name), ("DRAPlugin", "gpu.divvy.dev"));
    assert!(
        info.endpoint.ends_with("/plugins/gpu.divvy.dev/dra.sock"),
        "{}",
        info.endpoint
    );
    assert_eq!(
        info.supported_versions,
        ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
    );
    // What kubelet would send if the socket were named as everybody names theirs: why ours is not.
    let plain = authority(&socket.with_file_name("gpu.divvy.dev-reg.sock"));
    assert_eq!(
        get_info(&socket, &plain).await,
        Answer::Broken(PROTOCOL_ERROR)
    );
}

#[tokio::test(flavor = "current_thread")]
async fn a_swept_registry_and_a_restarted_kubelet_find_the_driver_again() {
    let (node, driver) = Node::served("a100-80gb:1").await;
    let claim = node.allocate("a", &[(&node.gpu(0).await, Some("20Gi"))]);
    let devices = driver.prepare(&claim).await.unwrap();
    // Kubelet starts anew: what it finds is what was there.
    let again = node.kubelet.driver().await;
    assert_eq!(again.prepare(&claim).await.unwrap(), devices);
    for (number, folder) in ["kubelet/plugins_registry", "kubelet/plugins/gpu.divvy.dev"]
        .into_iter()
        .enumerate()
    {
        // In one step: the driver may be looking just now, and puts back what is missing.
        let swept = node.machine.path().join(format!("swept-{number}"));
        fs::rename(node.machine.path().join(folder), swept).unwrap();
        let again = node.kubelet.driver().await;
        assert_eq!(again.prepared(&claim).await, devices);
    }
    // And one that was put there by somebody else is replaced.
    let socket = registration_socket(&node.machine.kubelet_dir(), DRIVER, None);
    let elsewhere = node.machine.path().join("other.sock");
    let _other = std::os::unix::net::UnixListener::bind(&elsewhere).unwrap();
    fs::rename(&elsewhere, &socket).unwrap();
    assert_eq!(node.kubelet.driver().await.prepared(&claim).await, devices);
    node.is_sound(&[&claim]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn slices_that_kubelet_wiped_are_published_again() {
    let (node, _driver) = Node::served("a100-80gb:2").await;
    let before = node.devices().await;
    let slices = node.api.look(|view| view.all("resourceslices"));
    for slice in &slices {
        let name = slice["metadata"]["name"].as_str().unwrap();
        node.api.remove("resourceslices", "", name);
    }
    until("all slices are there again", async || {
        let now = node.api.look(|view| view.all("resourceslices"));
        (now.len() == slices.len()).then_some(())
    })
    .await;
    assert_eq!(node.devices().await, before);
}

/// The keys of the taints of all published devices.
fn taints(node: &Node) -> Vec<String> {
    let slices = node.api.look(|view| view.all("resourceslices"));
    let devices = slices
        .iter()
        .filter_map(|slice| slice["spec"]["devices"].as_array());
    let taints = devices
        .flatten()
        .filter_map(|device| device["taints"].as_array());
    let keys = taints.flatten().map(|taint| {
        let [key, effect] = ["key", "effect"].map(|field| taint[field].as_str().unwrap());
        format!("{key}:{effect}")
    });
    keys.collect()
}

#[tokio::test(flavor = "current_thread")]
async fn devices_are_tainted_while_kubelet_knows_no_driver_of_the_node() {
    let (mut node, _driver) = Node::served("a100-80gb:2").await;
    assert_eq!(node.devices().await.len(), 2);
    assert_eq!(taints(&node), [""; 0]);
    // A power cut: no driver has told the cluster anything.
    node.kill_driver();
    assert_eq!(taints(&node), [""; 0]);
    let unregistered = ["gpu.divvy.dev/unregistered:NoSchedule"; 2];
    node.start_driver(&node.machine.agent_socket());
    let is_tainted = async || (taints(&node) == unregistered).then_some(());
    until("a starting driver taints the devices", is_tainted).await;
    node.kubelet.driver().await;
    until("the registered driver takes the taint back", async || {
        taints(&node).is_empty().then_some(())
    })
    .await;
    assert!(node.stop_driver().await.success());
    assert_eq!(taints(&node), unregistered, "it has no successor");
    node.start_driver(&node.machine.agent_socket());
    node.kubelet.driver().await;
    until("the next driver takes the taint back", async || {
        taints(&node).is_empty().then_some(())
    })
    .await;
}

/// A pod may be placed by an earlier driver's slices at any moment until they are withdrawn.
#[tokio::test(flavor = "current_thread")]
async fn a_node_that_is_to_be_a_carrier_prepares_claims_while_slices_of_it_are_published() {
    let (mut node, _driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    node.api.create(serde_json::to_value(definition()).unwrap());
    node.kill_driver();
    // The node has this label.
    node.start_driver_with(&["--carrier", "--carrier-nodes=divvy.dev/dynamic-mig=true"]);
    let driver = node.kubelet.driver().await;
    let claim = node.allocate("a", &[(&gpu, Some("20Gi"))]);
    driver.prepare(&claim).await.unwrap();
    node.is_sound(&[&claim]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_clean_end_takes_the_sockets_away_and_leaves_what_is_held() {
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let claim = node.allocate("a", &[(&node.gpu(0).await, Some("20Gi"))]);
    let devices = driver.prepare(&claim).await.unwrap();
    let mut watch = driver.watch().await;
    watch.next().await.unwrap();
    let cdi = node.cdi();
    assert!(node.stop_driver().await.success());
    // Its stream has ended, and kubelet finds nobody.
    while watch.next().await.is_some() {}
    assert!(node.kubelet.found().is_empty());
    driver.prepare(&claim).await.unwrap_err();
    assert_eq!(node.cdi(), cdi);
    node.is_sound(&[&claim]).await;
    node.start_driver(&node.machine.agent_socket());
    let driver = node.kubelet.driver().await;
    assert_eq!(driver.prepare(&claim).await.unwrap(), devices);
    driver.unprepare(&claim).await.unwrap();
    node.is_sound(&[]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn kubelet_is_told_which_devices_are_healthy_and_which_unknown() {
    let (mut node, driver) = Node::served("a100-80gb:2").await;
    let mut watch = driver.watch().await;
    let [first, second] = [node.gpu(0).await, node.gpu(1).await];
    let both = |health| [(first.clone(), health), (second.clone(), health)].into();
    until("both are well", async || {
        (watch.next().await? == both(HealthStatus::Healthy)).then_some(())
    })
    .await;
    node.kill_daemon();
    until("nobody knows", async || {
        (watch.next().await? == both(HealthStatus::Unknown)).then_some(())
    })
    .await;
    node.start_daemon(&[]).await;
    until("both are well again", async || {
        (watch.next().await? == both(HealthStatus::Healthy)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn kubelet_is_told_of_a_gpu_that_fell_off_the_bus() {
    let fault = "[[fault]]\nfunction = 'nvmlDeviceGetUtilizationRates'\ncall = 12\nlose_gpu = 1\n";
    let (node, driver) = Node::simulated("a100-80gb:2", fault).serve().await;
    let mut watch = driver.watch().await;
    let gpus = node.machine.uuids().await;
    let name = |index: usize| gpus[index].to_lowercase();
    let wanted = [
        (name(0), HealthStatus::Healthy),
        (name(1), HealthStatus::Unhealthy),
    ];
    until("one is ill", async || {
        (watch.next().await? == wanted.clone().into()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn the_old_and_the_new_driver_of_an_update_serve_side_by_side() {
    let mut node = Node::new("a100-80gb:1");
    node.start_daemon(&[]).await;
    let agent = node.machine.agent_socket();
    let start = |uid: &str| node.machine.node(&["--instance", uid], &agent, &node.api);
    let mut old = start("0000000a-0000");
    let first = node.kubelet.driver_of("0000000a").await;
    let claim = node.allocate("a", &[(&node.gpu(0).await, Some("20Gi"))]);
    let devices = first.prepare(&claim).await.unwrap();
    let new = start("0000000b-0000");
    let second = node.kubelet.driver_of("0000000b").await;
    assert_eq!(node.kubelet.found().len(), 2);
    assert_eq!(second.prepare(&claim).await.unwrap(), devices);
    assert_eq!(first.prepare(&claim).await.unwrap(), devices);
    node.is_sound(&[&claim]).await;
    old.terminate();
    let ended = until("the old driver ends", async || old.end()).await;
    assert!(ended.success());
    let [left] = &node.kubelet.found()[..] else {
        panic!("{:?}", node.kubelet.found());
    };
    assert!(left.ends_with("gpu.divvy.dev-0000000b@reg.sock"));
    second.unprepare(&claim).await.unwrap();
    node.is_sound(&[]).await;
    // Killed, it leaves its sockets, which the next driver removes.
    drop(new);
    assert_eq!(node.kubelet.found().len(), 1);
    let _third = start("0000000c-0000");
    let third = node.kubelet.driver_of("0000000c").await;
    assert_eq!(node.kubelet.found().len(), 1);
    third.prepare(&claim).await.unwrap();
    node.is_sound(&[&claim]).await;
}
