//! Claims that kubelet will never give back, and the processes that they leave.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use divvy_k8s::node::protocol::dra::Claim;
use divvy_testkit::{Bounded as _, programs, until_async as until};
use serde_json::{Value, json};

use crate::kubelet::callers::{inside, pod_group};
use crate::kubelet::rig::Node;

#[tokio::test(flavor = "current_thread")]
async fn what_is_held_for_claims_that_are_gone_or_moved_is_released_and_told() {
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let gpu = node.gpu(0).await;
    let names = ["gone", "replaced", "deallocated", "moved", "kept"];
    let claims = names.map(|name| node.allocate(name, &[(&gpu, Some("10Gi"))]));
    for claim in &claims {
        driver.prepare(claim).await.unwrap();
    }
    let [gone, replaced, deallocated, _, kept] = &claims;
    // Kubelet forgets them all: it asks for nothing.
    node.kill_driver();
    node.forget(gone);
    node.allocate(&replaced.name, &[(&gpu, Some("10Gi"))]);
    let none = json!({ "status": { "allocation": null } });
    node.api
        .merge("resourceclaims", "team", &deallocated.name, &none);
    let elsewhere = json!({ "status": { "allocation": { "devices": { "results": [{
        "request": "gpu-0", "driver": "gpu.divvy.dev", "pool": "node-b", "device": gpu,
    }] } } } });
    node.api
        .merge("resourceclaims", "team", "moved", &elsewhere);
    node.start_driver(&node.machine.agent_socket());
    until("only one is held", async || {
        (node.machine.held().await.len() == 1).then_some(())
    })
    .await;
    node.is_sound(&[kept]).await;
    until("all four are told", async || {
        let events = node.api.look(|view| view.all("events"));
        let of = |claim: &&divvy_k8s::node::protocol::dra::Claim| {
            events.iter().any(|event| {
                event["reason"] == "LeakReleased" && event["regarding"]["uid"] == claim.uid
            })
        };
        (claims.iter().filter(of).count() == 4).then_some(())
    })
    .await;
}

/// The names that the files of a claim's slice have in a container. The daemon removes its own names, and not these.
struct Container {
    home: PathBuf,
    folder: PathBuf,
}

impl Container {
    async fn of(node: &Node, claim: &Claim) -> Self {
        let held = node.machine.held().await;
        let held = held.iter().find(|held| held.uid == claim.uid).unwrap();
        let home = node.machine.path().join("home");
        let folder = node.machine.path().join("container");
        fs::create_dir(&folder).unwrap();
        for name in ["control", "slots"] {
            let slice = home.join("slices").join(&held.job);
            fs::hard_link(slice.join(name), folder.join(name)).unwrap();
        }
        Self { home, folder }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.without_limiter(words);
        command
            .env("LD_PRELOAD", programs::folder().join("libdivvy_preload.so"))
            .env("DIVVY_SLICE", &self.folder);
        command
    }

    fn without_limiter(&self, words: &[&str]) -> Command {
        let sim = self.home.join("sim");
        let mut command = Command::new(programs::folder().join("cudarc_probe"));
        command
            .args(words)
            .env("LD_LIBRARY_PATH", sim.join("lib"))
            .env("DIVVY_SIM_STATE", sim.join("state"))
            .env("DIVVY_SIM", "a100-80gb:1")
            .stdout(Stdio::piped());
        command
    }
}

/// A program that holds a gibibyte until it is killed.
fn hold(mut command: Command) -> Child {
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let report: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(report["held_bytes"], 1 << 30, "{report}");
    child
}

const HOLD: [&str; 5] = ["hold", "--bytes", "1G", "--seconds", "600"];

async fn used(node: &Node) -> u64 {
    node.machine.gpus().await[0].memory_used_bytes
}

/// The reasons of events on the pod of a claim.
fn reasons_on_pod(node: &Node, pod: &str) -> Vec<Value> {
    let events = node.api.look(|view| view.all("events"));
    let of_pod = events
        .into_iter()
        .filter(|event| event["regarding"]["name"] == pod);
    let of_pod = of_pod.filter(|event| event["regarding"]["kind"] == "Pod");
    of_pod.map(|event| event["reason"].clone()).collect()
}

/// An ordinary user deletes the claim of a running pod, and patches its finalizer away.
#[tokio::test(flavor = "current_thread")]
async fn programs_that_start_after_the_release_of_a_deleted_claim_get_no_memory() {
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let claim = node.allocate("train", &[(&node.gpu(0).await, Some("10Gi"))]);
    driver.prepare(&claim).await.unwrap();
    let container = Container::of(&node, &claim).await;
    let first = container.command(&["fill"]).output_bounded().unwrap();
    let got = |output: &std::process::Output| -> Value {
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    assert!(
        got(&first)["got_bytes"].as_u64() > Some(9 << 30),
        "{first:?}"
    );
    node.forget(&claim);
    // The comparison at the start of a driver is that of each minute.
    node.kill_driver();
    node.start_driver(&node.machine.agent_socket());
    until("the claim is released", async || {
        node.machine.held().await.is_empty().then_some(())
    })
    .await;
    for _ in 0..10 {
        let later = container.command(&["fill"]).output_bounded().unwrap();
        let got = got(&later)["got_bytes"].as_u64().unwrap_or_default();
        assert_eq!(got, 0, "{later:?}");
    }
    until("the GPU is empty", async || {
        (used(&node).await == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "current_thread")]
async fn processes_of_a_deleted_claim_are_ended_with_an_event_on_the_pod() {
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let claim = node.allocate("train", &[(&node.gpu(0).await, Some("10Gi"))]);
    driver.prepare(&claim).await.unwrap();
    let container = Container::of(&node, &claim).await;
    let mut held = hold(container.command(&HOLD));
    let known = node.machine.agent();
    until("the driver has noted the pod", async || {
        let claims = known.claims().await.ok()?;
        (claims[0].processes == 1).then_some(())
    })
    .await;
    node.forget(&claim);
    node.kill_driver();
    node.start_driver(&node.machine.agent_socket());
    until("the process is killed", async || held.try_wait().unwrap()).await;
    until("the claim is released and the GPU empty", async || {
        (node.machine.held().await.is_empty() && used(&node).await == 0).then_some(())
    })
    .await;
    until("the event is there", async || {
        let events = node.api.look(|view| view.all("events"));
        events
            .into_iter()
            .find(|event| event["reason"] == "LeakInUse")
    })
    .await;
}

/// The daemon restarts in between: it finds the released claim in its journal.
#[tokio::test(flavor = "current_thread")]
async fn a_process_that_takes_memory_past_the_limiter_of_a_released_claim_is_killed_with_an_event()
{
    let (mut node, driver) = Node::served("a100-80gb:1").await;
    let claim = node.allocate("train", &[(&node.gpu(0).await, Some("10Gi"))]);
    let uid = format!("2f9a3c1e-5d0b-4a53-9a2e-{:012x}", std::process::id());
    let reserved = json!({ "status": { "reservedFor": [{ "resource": "pods", "name": "train", "uid": uid }] } });
    node.api.merge("resourceclaims", "team", "train", &reserved);
    let Some(group) = pod_group(&uid) else {
        eprintln!("SKIPPED: no control groups here");
        return;
    };
    driver.prepare(&claim).await.unwrap();
    let container = Container::of(&node, &claim).await;
    driver.unprepare(&claim).await.unwrap();
    node.forget(&claim);
    for restarts in [false, true] {
        if restarts {
            node.kill_daemon();
            node.start_daemon(&[]).await;
        }
        let program = inside(&group, &container.without_limiter(&HOLD));
        let mut left = hold(program);
        until("the process is killed", async || left.try_wait().unwrap()).await;
        until("the GPU is empty", async || {
            (used(&node).await == 0).then_some(())
        })
        .await;
    }
    until("the pod has the event", async || {
        let reasons = reasons_on_pod(&node, "train");
        reasons.contains(&json!("GpuMemoryBypass")).then_some(())
    })
    .await;
    fs::remove_dir(group).unwrap();
}
