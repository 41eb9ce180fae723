//! Carrier mode from a pod to a claim: the controller and the node part as programs, a kubelet that speaks real gRPC, a real daemon
//! over simulated GPUs, an API server in memory. Programs are killed.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use crate::apiserver;
use crate::controller::replica;
use crate::kubelet::machine;
pub mod kubelet;
mod rig;

use divvy_k8s::carrier::{GATE, NAMESPACE, RESOURCE};
use divvy_testkit::{Bounded as _, until_async as until};
use serde_json::{Value, json};

use apiserver::Cut;
use machine::NODE;
use replica::{Replica, marked};
use rig::{IMAGE, Rig};

/// What a controller is started with here.
const ARGS: [&str; 3] = ["--carrier", "--carrier-image", IMAGE];

fn is_gated(pod: &Value) -> bool {
    let gates = pod["spec"]["schedulingGates"].as_array();
    gates.is_some_and(|gates| gates.iter().any(|gate| gate["name"] == GATE))
}

#[tokio::test]
async fn a_part_of_a_gpu_is_had_from_the_webhook_to_the_cdi_device_and_given_back() {
    let mut rig = Rig::new("h100-80gb:2").await;
    let replica = Replica::start(&rig.cluster, "a", &ARGS);
    replica.serves(&rig.cluster.server);
    rig.start_node().await;

    let made = rig.cluster.create(&marked("train")).await.unwrap();
    let made = serde_json::to_value(made).unwrap();
    assert!(is_gated(&made), "{made:#}");
    assert_eq!(
        made["spec"]["containers"][0]["resources"]["limits"][RESOURCE],
        "8"
    );
    assert_eq!(made["spec"].get("resourceClaims"), None);

    let carrier = until("a carrier is made", async || rig.pods(NAMESPACE).pop()).await;
    assert_eq!(carrier["spec"]["containers"][0]["image"], IMAGE);
    let device = rig.runs("train").await;
    let claims = rig.machine.held().await;
    let [claim] = &claims[..] else {
        panic!("{claims:#?}");
    };
    assert_eq!(claim.cdi_device, device);
    let gpu = rig.machine.gpus().await.remove(0);
    let half = gpu.memory_usable_bytes / 2 / (2 << 20) * (2 << 20);
    assert_eq!(claim.devices[0].memory_bytes, Some(half));
    let files: Vec<_> = std::fs::read_dir(rig.machine.cdi_dir()).unwrap().collect();
    assert_eq!(files.len(), 1, "one for the claim");
    let pod = rig.pod("train");
    let terms =
        &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        terms["nodeSelectorTerms"][0]["matchFields"][0]["values"],
        json!([NODE])
    );
    let share = until("the share says what is held", async || {
        rig.shares().into_iter().find(|share| {
            share["status"]["held"]
                .as_array()
                .is_some_and(|held| !held.is_empty())
        })
    })
    .await;
    assert_eq!(
        share["spec"]["assignments"][0]["uid"],
        pod["metadata"]["uid"]
    );
    assert_eq!(share["status"]["held"][0]["uid"], pod["metadata"]["uid"]);

    rig.ends("train");
    until("nothing is held any more", async || {
        let empty = |share: &Value| {
            share["spec"]["assignments"] == json!([]) && share["status"]["held"] == json!([])
        };
        (rig.machine.held().await.is_empty() && rig.shares().iter().all(empty)).then_some(())
    })
    .await;
    assert_eq!(rig.pods(NAMESPACE).len(), 1, "the GPU lingers");
}

#[tokio::test]
async fn ids_of_two_gpus_and_unassigned_ids_are_refused_and_no_slice_is_held() {
    let mut rig = Rig::new("h100-80gb:2").await;
    rig.start_node().await;
    let gpus = rig.machine.uuids().await;
    for (at, gpu) in gpus.iter().enumerate() {
        rig.kubelet.give_gpu(&format!("carrier-{at}"), gpu);
    }
    let plugin = until("the sixteenths of both are offered", async || {
        (rig.kubelet.devices().len() == 32).then(|| rig.kubelet.plugin())
    })
    .await;
    let both = [format!("{}/0", gpus[0]), format!("{}/1", gpus[1])];
    let refused = plugin.allocate(&both).await.unwrap_err();
    assert!(
        refused.contains("one container requests sixteenths of 2 GPUs"),
        "{refused}"
    );
    let refused = plugin
        .allocate(&["GPU-other".to_owned()])
        .await
        .unwrap_err();
    assert!(
        refused.contains("is not the ID of a sixteenth"),
        "{refused}"
    );
    let refused = plugin
        .allocate(&[format!("{}/0", gpus[0])])
        .await
        .unwrap_err();
    assert!(
        refused.contains("no pod is assigned 1 sixteenths"),
        "{refused}"
    );
    assert!(rig.machine.held().await.is_empty());
}

#[tokio::test]
async fn whatever_is_restarted_pods_keep_what_they_have() {
    let mut rig = Rig::new("h100-80gb:1").await;
    let replica = Replica::start(&rig.cluster, "a", &ARGS);
    replica.serves(&rig.cluster.server);
    rig.start_node().await;
    rig.cluster.create(&marked("train")).await.unwrap();
    let device = rig.runs("train").await;
    let uid = rig.machine.held().await[0].uid.clone();

    rig.kill_node();
    rig.start_node().await;
    let registered = rig.kubelet.registrations();
    rig.kubelet.restart().await;
    until("kubelet knows the plugin again", async || {
        (rig.kubelet.registrations() > registered && rig.kubelet.devices().len() == 16)
            .then_some(())
    })
    .await;
    assert_eq!(rig.machine.held().await[0].uid, uid);

    // As after a reboot: kubelet starts the container again with the ids that it had.
    rig.machine.agent().delete_claim(&uid).await.unwrap();
    let ids = rig.kubelet.ids("team", "train");
    rig.kubelet.plugin().pre_start(&ids).await.unwrap();
    let held = rig.machine.held().await;
    assert_eq!(
        (held[0].uid.as_str(), held[0].cdi_device.as_str()),
        (uid.as_str(), device.as_str())
    );

    // A second one finds room on the same GPU, a third one does not.
    rig.cluster.create(&marked("second")).await.unwrap();
    rig.runs("second").await;
    rig.cluster.create(&marked("third")).await.unwrap();
    until("a carrier for the third", async || {
        (rig.pods(NAMESPACE).len() == 2).then_some(())
    })
    .await;
    assert!(is_gated(&rig.pod("third")));
}

#[tokio::test]
async fn a_controller_that_is_killed_at_any_write_leaves_nothing_double_and_nothing_undone() {
    for cut in [Cut::Before, Cut::After] {
        for nth in 1.. {
            if !at_write(nth, cut).await {
                assert!(nth > 2, "a carrier, an assignment and a gate are writes");
                break;
            }
        }
    }
}

/// Kills the controller at its nth write, and lets another one finish; `false` where it never came so far.
async fn at_write(nth: usize, cut: Cut) -> bool {
    let rig = Rig::without_node().await;
    let server = &rig.cluster.server;
    // Who comes again under its name leads at once, and seldom writes that it does.
    let lease = ["--lease-seconds", "60"];
    let start = || Replica::start(&rig.cluster, "a", &[&ARGS[..], &lease].concat());
    let first = start();
    first.hears(|line| line.ends_with(" ready"), || false);
    server.until("it leads", |view| {
        let lease = view.get("leases", "divvy-system", "divvy-controller")?;
        (lease["spec"]["holderIdentity"] == "a").then_some(())
    });
    server.cut(nth, cut);
    server.create(rig::gated("train", 8));
    let held = until("a hold, or the end", async || {
        rig.plays_node();
        let held = server.look(|view| view.held().is_some());
        let done = !is_gated(&rig.pod("train"));
        (held || done).then_some(held)
    })
    .await;
    drop(first);
    server.release();
    if held {
        let _second = start();
        until("the gate is lifted", async || {
            rig.plays_node();
            (!is_gated(&rig.pod("train"))).then_some(())
        })
        .await;
    }
    let assigned: Vec<Value> = rig
        .shares()
        .iter()
        .flat_map(|share| {
            share["spec"]["assignments"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        })
        .collect();
    assert_eq!(assigned.len(), 1, "{cut:?} {nth}: {assigned:?}");
    assert_eq!(rig.pods(NAMESPACE).len(), 1, "{cut:?} {nth}");
    held
}

/// The chart's own, as it would be printed without its labels.
const CHARTS: &str = include_str!("../../../../deploy/helm/divvy/templates/carrier/gpushare.yaml");

#[test]
fn the_definition_is_printed_as_yaml_and_the_charts_is_the_same() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_divvy-k8s"))
        .args(["carrier", "crd"])
        .output_bounded()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let definition: Value = yaml_serde::from_str(&text).unwrap();
    assert_eq!(definition["spec"]["names"]["kind"], "GpuShare");
    let charts: Vec<&str> = CHARTS.lines().filter(|line| !line.contains("{{")).collect();
    let charts: Value = yaml_serde::from_str(&charts.join("\n")).unwrap();
    assert_eq!(
        charts, definition,
        "`divvy-k8s carrier crd` prints what is to be there"
    );
}
