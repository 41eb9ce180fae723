//! Preparing and unpreparing.

use divvy_api::v1::{ClaimDevice, MigState};
use divvy_k8s::node::protocol::dra::Claim;
use divvy_testkit::until_async as until;
use serde_json::json;

use crate::kubelet::machine::NODE;
use crate::kubelet::rig::Node;

#[tokio::test(flavor = "current_thread")]
async fn the_same_claim_prepared_twice_is_the_same_devices_and_one_cdi_file() {
    let (node, driver) = Node::served("a100-80gb:2").await;
    let (first, second) = (node.gpu(0).await, node.gpu(1).await);
    let claim = node.allocate("two", &[(&first, Some("20Gi")), (&second, Some("40Gi"))]);
    let devices = driver.prepare(&claim).await.unwrap();
    let cdi = node.cdi();
    assert_eq!(driver.prepare(&claim).await.unwrap(), devices);
    assert_eq!(node.cdi(), cdi);
    let [held] = &node.machine.held().await[..] else {
        panic!("one claim is held");
    };
    let gpus = node.machine.uuids().await;
    let mut parts = [
        ClaimDevice::part(&*gpus[0], 20 << 30),
        ClaimDevice::part(&*gpus[1], 40 << 30),
    ];
    parts.sort_by(|one, other| one.gpu.cmp(&other.gpu));
    assert_eq!(held.devices, parts);
    let told: Vec<_> = devices
        .iter()
        .map(|one| {
            (
                &*one.pool_name,
                &*one.device_name,
                &one.request_names[0][..],
            )
        })
        .collect();
    assert_eq!(told, [(NODE, &*first, "gpu-0"), (NODE, &*second, "gpu-1")]);
    for device in &devices {
        assert_eq!(device.cdi_device_ids.join(" "), held.cdi_device);
        assert!(device.share_id.is_some());
    }
    let [(_, spec)] = &cdi[..] else {
        panic!("one CDI file: {cdi:?}");
    };
    let (kind, name) = held.cdi_device.split_once('=').unwrap();
    let spec: serde_json::Value = serde_json::from_str(spec).unwrap();
    assert_eq!(spec["kind"], kind);
    assert_eq!(spec["devices"][0]["name"], name);
}

#[tokio::test(flavor = "current_thread")]
async fn more_than_a_gpu_has_is_refused_until_there_is_room() {
    let (node, driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    let first = node.allocate("first", &[(&gpu, Some("60Gi"))]);
    let second = node.allocate("second", &[(&gpu, Some("40Gi"))]);
    driver.prepare(&first).await.unwrap();
    let refused = driver.prepare(&second).await.unwrap_err();
    assert!(!refused.is_empty());
    node.is_sound(&[&first]).await;
    driver.unprepare(&first).await.unwrap();
    driver.prepared(&second).await;
    node.is_sound(&[&second]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_whole_gpu_and_a_part_of_it_are_never_held_together() {
    let (node, driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    let all = node.devices().await[0]["capacity"]["memory"]["value"].clone();
    let whole = node.allocate("whole", &[(&gpu, all.as_str())]);
    let part = node.allocate("part", &[(&gpu, Some("2Mi"))]);
    driver.prepare(&whole).await.unwrap();
    assert!(node.machine.held().await[0].devices[0].whole);
    driver.prepare(&part).await.unwrap_err();
    driver.unprepare(&whole).await.unwrap();
    driver.prepared(&part).await;
    driver.prepare(&whole).await.unwrap_err();
    node.is_sound(&[&part]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn instances_that_would_overlap_are_refused_until_there_is_room() {
    let (node, driver) = Node::divided("a100-80gb:1", 0).serve().await;
    let [three, one] = [
        node.place("3g.40gb", 0).await,
        node.place("1g.10gb", 2).await,
    ];
    let large = node.allocate("large", &[(&three, None)]);
    let small = node.allocate("small", &[(&one, None)]);
    driver.prepare(&large).await.unwrap();
    let refused = driver.prepare(&small).await.unwrap_err();
    assert!(!refused.is_empty());
    node.is_sound(&[&large]).await;
    driver.unprepare(&large).await.unwrap();
    // The idle instance is room: nobody waits for it.
    driver.prepared(&small).await;
    node.is_sound(&[&small]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn an_instance_is_kept_for_the_next_and_carved_anew_for_another_profile() {
    let (node, driver) = Node::divided("a100-80gb:1", 0).serve().await;
    let [two, three] = [
        node.place("2g.20gb", 0).await,
        node.place("3g.40gb", 0).await,
    ];
    let first = node.allocate("first", &[(&two, None)]);
    driver.prepare(&first).await.unwrap();
    let instance = async || {
        let instances = node.machine.agent().mig_instances().await.unwrap();
        let [one] = &instances[..] else {
            return None;
        };
        Some((one.profile.clone(), one.state))
    };
    let made = node.machine.agent().mig_instances().await.unwrap()[0]
        .uuid
        .clone();
    driver.unprepare(&first).await.unwrap();
    until("the instance is idle", async || {
        (instance().await? == ("2g.20gb".to_owned(), MigState::Idle)).then_some(())
    })
    .await;
    let same = node.allocate("same", &[(&two, None)]);
    driver.prepare(&same).await.unwrap();
    assert_eq!(
        node.machine.agent().mig_instances().await.unwrap()[0].uuid,
        made
    );
    driver.unprepare(&same).await.unwrap();
    let other = node.allocate("other", &[(&three, None)]);
    driver.prepared(&other).await;
    assert_eq!(
        instance().await,
        Some(("3g.40gb".to_owned(), MigState::InUse))
    );
    node.is_sound(&[&other]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn unpreparing_what_is_not_held_succeeds_as_often_as_one_likes() {
    let (node, driver) = Node::served("a100-80gb:1").await;
    let unknown = Claim {
        namespace: "team".into(),
        name: "never".into(),
        uid: "7d1c1f7e-0000-4000-8000-000000000000".into(),
    };
    driver.unprepare(&unknown).await.unwrap();
    let claim = node.allocate("a", &[(&node.gpu(0).await, Some("20Gi"))]);
    driver.prepare(&claim).await.unwrap();
    // Its object may be gone by then.
    node.forget(&claim);
    driver.unprepare(&claim).await.unwrap();
    driver.unprepare(&claim).await.unwrap();
    node.is_sound(&[]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn what_a_claims_author_configures_counts_for_nothing_and_is_told() {
    let (node, driver) = Node::served("a100-80gb:1").await;
    let config = json!([{
        "source": "FromClaim",
        "opaque": { "driver": "gpu.divvy.dev", "parameters": { "memory": "80Gi", "limit": "none" } },
    }]);
    let gpu = node.gpu(0).await;
    let claim = node.allocate_with("greedy", &[(&gpu, Some("2Gi"))], &config);
    driver.prepare(&claim).await.unwrap();
    assert_eq!(
        node.machine.held().await[0].devices[0].memory_bytes,
        Some(2 << 30)
    );
    until("it is told", async || {
        let events = node.api.look(|view| view.all("events"));
        events.into_iter().find(|event| {
            event["reason"] == "ConfigIgnored"
                && event["regarding"]["uid"] == claim.uid
                && event["type"] == "Warning"
        })
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_claim_of_two_pods_is_one_budget_and_more_pods_change_nothing() {
    let (node, driver) = Node::served("a100-80gb:1").await;
    let claim = node.allocate("shared", &[(&node.gpu(0).await, Some("8Gi"))]);
    let devices = driver.prepare(&claim).await.unwrap();
    let pods = json!({ "status": { "reservedFor": [
        { "resource": "pods", "name": "one", "uid": "pod-one" },
        { "resource": "pods", "name": "two", "uid": "pod-two" },
    ] } });
    node.api.merge("resourceclaims", "team", "shared", &pods);
    assert_eq!(driver.prepare(&claim).await.unwrap(), devices);
    let [held] = &node.machine.held().await[..] else {
        panic!("one claim is held");
    };
    assert_eq!(held.devices[0].memory_bytes, Some(8 << 30));
    assert_eq!(held.slices.len(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_claim_with_the_same_name_and_another_uid_is_another_claim() {
    let (node, driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    let old = node.allocate("train", &[(&gpu, Some("60Gi"))]);
    driver.prepare(&old).await.unwrap();
    let new = node.allocate("train", &[(&gpu, Some("60Gi"))]);
    let refused = driver.prepare(&old).await.unwrap_err();
    assert!(refused.contains("replaced"), "{refused}");
    // The old one is still there: force-deleted, and its containers are not gone.
    driver.prepare(&new).await.unwrap_err();
    driver.unprepare(&old).await.unwrap();
    driver.prepared(&new).await;
    node.is_sound(&[&new]).await;
}

#[tokio::test(flavor = "current_thread")]
async fn nothing_that_a_pod_says_in_its_environment_is_in_the_way_of_its_limit() {
    let (node, driver) = Node::served("a100-80gb:1").await;
    let claim = node.allocate("a", &[(&node.gpu(0).await, Some("2Gi"))]);
    driver.prepare(&claim).await.unwrap();
    let [(_, text)] = &node.cdi()[..] else {
        panic!("one CDI file");
    };
    let spec: serde_json::Value = serde_json::from_str(text).unwrap();
    let edits = |key: &str| {
        let of = [
            &spec["containerEdits"],
            &spec["devices"][0]["containerEdits"],
        ];
        let all = of.map(|edits| edits[key].as_array().cloned().unwrap_or_default());
        all.concat()
    };
    // The limit is no variable: what brings the limiter in is a file that the container cannot write.
    let limit = (2_u64 << 30).to_string();
    for variable in edits("env") {
        let variable = variable.as_str().unwrap();
        assert!(!variable.contains(&limit), "{variable}");
    }
    let mounts = edits("mounts");
    let preload = mounts
        .iter()
        .find(|mount| mount["containerPath"] == "/etc/ld.so.preload");
    let preload = preload.expect("the loader's own list, which no variable replaces");
    let options = preload["options"].as_array().unwrap();
    assert!(options.iter().any(|option| option == "ro"), "{preload}");
}
