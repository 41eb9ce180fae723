//! Events on pods: what an agent tells of a claim reaches the claim's pod. The agent is a stand-in that answers what a test wants.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, response::IntoResponse};
use divvy_api::v1::List;
use divvy_testkit::until_async as until;
use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::broadcast;

use crate::kubelet::machine::Machine;
use crate::kubelet::rig::Node;

/// An agent that holds the claim `train` as job 7, and job 8, which is no claim.
#[derive(Clone)]
struct Agent {
    uid: String,
    denied: Arc<Mutex<u64>>,
    /// Sent once a driver follows them.
    events: broadcast::Sender<String>,
}

impl Agent {
    fn listen(machine: &Machine, uid: &str) -> (Self, PathBuf) {
        let socket = machine.path().join("stand-in.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (events, _) = broadcast::channel(64);
        let agent = Self {
            uid: uid.to_owned(),
            denied: Arc::default(),
            events,
        };
        let router = Router::new()
            .route("/v1/claims", get(claims))
            .route("/v1/claims/{uid}", axum::routing::delete(release))
            .route("/v1/jobs/{id}", get(job))
            .route("/v1/events", get(events_follow))
            .fallback(async || StatusCode::NOT_FOUND)
            .with_state(agent.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (agent, socket)
    }

    /// An event of the agent, as its stream has it.
    fn tell(&self, seq: u64, job: &str, kind: &str, text: &str) {
        self.tell_at(jiff::Timestamp::now(), seq, job, kind, text);
    }

    fn tell_at(&self, at: jiff::Timestamp, seq: u64, job: &str, kind: &str, text: &str) {
        let at = at.to_string();
        let event = json!({ "seq": seq, "at": at, "job": job, "kind": kind, "text": text });
        self.events.send(format!("data: {event}\n\n")).unwrap();
    }

    fn held(&self) -> Value {
        json!({
            "uid": self.uid, "job": "7", "state": "running", "cdi_device": "divvy.dev/slice=x", "namespace": "team",
            "name": "train", "pods": [], "devices": [], "processes": 1, "since": "2026-01-02T03:04:05Z",
            "slices": [{
                "label": "gpu0.12a", "gpu_uuid": "GPU-0", "gpu_index": 0, "memory_limit_bytes": 10u64 << 30, "share": 125,
                "memory_used_bytes": 9u64 << 30, "memory_peak_bytes": 9u64 << 30, "processes": 1,
                "denials": *self.denied.lock().unwrap(), "last_denied_bytes": 2u64 << 30, "enforcement": "interposer",
            }],
        })
    }
}

fn list(item: Value) -> Json<List<Value>> {
    Json(List::new("List", vec![item]))
}

async fn claims(State(agent): State<Agent>) -> Json<List<Value>> {
    list(agent.held())
}

async fn release(State(agent): State<Agent>) -> Json<List<Value>> {
    list(agent.held())
}

async fn job(State(agent): State<Agent>, Path(id): Path<String>) -> impl IntoResponse {
    let mut job = json!({
        "id": id, "name": "train", "user": "root", "queue": "claims", "state": "running",
        "request": { "kind": "whole", "count": 1 }, "compute": "fair", "slices": [], "command": [], "cwd": "/",
        "runner": "claim", "submitted_at": "2026-01-02T03:04:05Z", "directory": "/",
    });
    if id == "7" {
        job["claim"] = json!({
            "uid": agent.uid, "namespace": "team", "name": "train", "pods": [], "cdi_device": "divvy.dev/slice=x",
        });
    }
    list(job)
}

async fn events_follow(State(agent): State<Agent>) -> Body {
    let news = agent.events.subscribe();
    let next = async |mut news: broadcast::Receiver<String>| {
        let text = news.recv().await.ok()?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), news))
    };
    Body::from_stream(unfold(news, next))
}

/// A node whose driver finds the stand-in, and a pod `train` with a claim.
async fn node() -> (Node, Agent) {
    let mut node = Node::new("a100-80gb:1");
    let claim = node.allocate("train", &[("gpu-0", Some("10Gi"))]);
    let (agent, socket) = Agent::listen(&node.machine, &claim.uid);
    node.start_driver(&socket);
    until("the driver follows the agent's events", async || {
        (agent.events.receiver_count() > 0).then_some(())
    })
    .await;
    (node, agent)
}

/// Events of a reason on the pod.
fn events(node: &Node, reason: &str) -> Vec<Value> {
    let all = node.api.look(|view| view.all("events"));
    let of_reason = all.into_iter().filter(|event| event["reason"] == reason);
    of_reason.collect()
}

async fn first(node: &Node, reason: &str) -> Value {
    until(reason, async || events(node, reason).pop()).await
}

#[tokio::test(flavor = "current_thread")]
async fn a_bypass_and_a_changed_control_file_are_warnings_on_the_pod() {
    let (node, agent) = node().await;
    agent.tell(1, "8", "bypass", "a job that is no claim");
    agent.tell(2, "7", "running", "news that is no incident");
    let text = "pid 4711 (python3) holds 69.0 GiB of GPU 0, more than its slice's ledger records: the limiter is not loaded; the daemon kills it and its job";
    agent.tell(3, "7", "bypass", text);
    let event = first(&node, "GpuMemoryBypass").await;
    assert_eq!(event["note"], text);
    assert_eq!(event["type"], "Warning");
    let regarding = json!({ "apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "train", "uid": "pod-train" });
    assert_eq!(event["regarding"], regarding);
    assert_eq!(event["reportingController"], "gpu.divvy.dev");
    agent.tell(4, "7", "tampered", "another process changed the limit");
    first(&node, "GpuLimitTampered").await;
    // More within a minute is no event of its own.
    for seq in 5..50 {
        agent.tell(seq, "7", "bypass", "again");
    }
    agent.tell(50, "7", "tampered", "the last");
    until("the driver has read everything", async || {
        agent.events.is_empty().then_some(())
    })
    .await;
    assert_eq!(node.api.look(|view| view.made("events")), 2);
}

#[tokio::test(flavor = "current_thread")]
async fn a_bypass_over_a_minute_before_the_driver_came_is_no_event_on_the_pod() {
    let (node, agent) = node().await;
    let before = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(90);
    agent.tell_at(before, 1, "7", "bypass", "while the driver was away");
    agent.tell(2, "7", "bypass", "since the driver is back");
    let event = first(&node, "GpuMemoryBypass").await;
    assert_eq!(event["note"], "since the driver is back");
}

#[tokio::test(flavor = "current_thread")]
async fn refused_memory_is_a_warning_on_the_pod_at_the_latest_when_its_claim_is_let_go() {
    let (node, agent) = node().await;
    let driver = node.kubelet.driver().await;
    *agent.denied.lock().unwrap() = 12;
    let claim = divvy_k8s::node::protocol::dra::Claim {
        namespace: "team".to_owned(),
        name: "train".to_owned(),
        uid: agent.uid.clone(),
    };
    driver.unprepare(&claim).await.unwrap();
    let event = first(&node, "GpuMemoryRefused").await;
    assert_eq!(
        event["note"],
        "the memory limit of 10.0 GiB on GPU 0 refused 12 allocations, the last of 2.0 GiB; 9.0 GiB in use now"
    );
    assert_eq!(event["regarding"]["name"], "train");
}
