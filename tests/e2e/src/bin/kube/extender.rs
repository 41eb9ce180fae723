//! The scheduler extender with a stock kube-scheduler: pods of a real mix on 50 nodes that are objects alone.
//!
//! The scheduler is a process here, with the chart's configuration and the rights of the chart's service account. The cluster's own
//! scheduler goes on: it places the same pods first, for comparison.

mod mix;
mod nodes;
mod rig;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::api::{Proxy, ask};
use crate::burst;
use crate::report::{CaseOutcome, Report};
use crate::stage::Stage;
use mix::Request;
use nodes::{GPU_MIB, Nodes};
use rig::Rig;

/// Pods of a run; they ask for about as many GPUs as the nodes have.
const PODS: usize = 1000;
/// Pods that are made while the extender is dead.
const LATER: usize = 20;
/// What a call may take.
const LIMIT_MS: f64 = 5.0;
/// A run is over when nothing has happened for so long.
const QUIET: Duration = Duration::from_secs(15);

pub fn all(report: &mut Report, stage: &Stage, scheduler: Option<&Path>) {
    let Some(scheduler) = scheduler else {
        report.case("extender", "a kube-scheduler with the extender", || {
            Ok(CaseOutcome::NotChecked(
                "no --kube-scheduler names the program of a stock scheduler".to_owned(),
            ))
        });
        return;
    };
    let mut nodes = None;
    report.case(
        "extender.stock",
        "1,000 pods of the mix, placed by the cluster's own scheduler",
        || {
            nodes = Some(Nodes::make(stage)?);
            let placed = place(stage, "default-scheduler")?;
            cleared(stage)?;
            Ok(CaseOutcome::Held(placed.summary()))
        },
    );
    if nodes.is_none() {
        return;
    }
    let mut rig = None;
    report.case(
        "extender.start",
        "the chart's extender and scheduler start with their own rights, and a table is learned",
        || {
            let started = Instant::now();
            let ready = Rig::start(stage, scheduler)?;
            let status = ready.learned()?;
            rig = Some(ready);
            let seconds = started.elapsed().as_secs_f64();
            Ok(CaseOutcome::Held(
                json!({ "status": status, "seconds": seconds }),
            ))
        },
    );
    let Some(mut rig) = rig else { return };
    report.case(
        "extender.choice",
        "the same pods with the extender: the scheduler takes the policy's node in 99 % or more",
        || choice(stage, &rig),
    );
    report.case(
        "extender.calls",
        "a call takes at most 5 ms at the median, 200 at once are answered, and garbage is refused",
        || calls(&rig),
    );
    report.case(
        "extender.killed",
        "the extender is killed: the scheduler goes on without it",
        || killed(stage, &mut rig),
    );
    drop(rig);
    report.case("extender.clear", "what the cases made goes", || {
        cleared(stage)?;
        drop(nodes);
        Ok(CaseOutcome::Held(Value::Null))
    });
}

/// What became of the pods of a run.
struct Placed {
    /// Nodes of bound pods, by name.
    nodes: BTreeMap<String, String>,
    waiting: usize,
    seconds: f64,
    /// Part of the GPU memory that no claim has, in percent.
    unallocated: f64,
    /// Part of the GPU volume asked for that waits, in percent of the nodes' GPUs.
    asked: f64,
}

impl Placed {
    fn summary(&self) -> Value {
        json!({
            "bound": self.nodes.len(), "waiting": self.waiting, "seconds": self.seconds,
            "unallocated_percent": self.unallocated, "asked_percent": self.asked,
        })
    }
}

fn cleared(stage: &Stage) -> Result<()> {
    let proxy = Proxy::start(stage)?;
    // No controller deletes claims that no pod owns; the suite deletes them with the last pod that uses them.
    let claims = format!(
        "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
        stage.aside
    );
    proxy.delete_all(&claims)?;
    burst::clear(&proxy, &stage.aside)
}

/// Makes the pods one after the other, and waits until the scheduler has looked at all of them.
fn place(stage: &Stage, scheduler: &str) -> Result<Placed> {
    let proxy = Proxy::start(stage)?;
    let requests = mix::requests(PODS);
    let started = Instant::now();
    for (at, request) in requests.iter().enumerate() {
        make(stage, &proxy, at, request, scheduler)?;
    }
    let pods = settled(stage, &proxy, requests.len())?;
    let claims = format!(
        "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
        stage.aside
    );
    let claims = list(&proxy, &claims)?;
    let held: u64 = claims.iter().map(held_mib).sum();
    let total = nodes::gpus() * GPU_MIB;
    let asked: u64 = requests.iter().map(Request::gpu_milli).sum();
    let named = |pod: &Value| {
        let node = pod["spec"]["nodeName"].as_str()?.to_owned();
        Some((pod["metadata"]["name"].as_str()?.to_owned(), node))
    };
    let nodes: BTreeMap<String, String> = pods.iter().filter_map(named).collect();
    Ok(Placed {
        waiting: pods.len() - nodes.len(),
        nodes,
        seconds: started.elapsed().as_secs_f64(),
        unallocated: 100.0 - 100.0 * held as f64 / total as f64,
        asked: asked as f64 / nodes::gpus() as f64 / 10.0,
    })
}

fn make(stage: &Stage, proxy: &Proxy, at: usize, request: &Request, scheduler: &str) -> Result<()> {
    let name = format!("pack-{at:04}");
    if request.gpus > 0 {
        let path = format!(
            "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
            stage.aside
        );
        post(proxy, &path, &request.claim(&name))?;
    }
    let path = format!("/api/v1/namespaces/{}/pods", stage.aside);
    post(proxy, &path, &request.pod(stage, &name, scheduler))
}

pub fn post(proxy: &Proxy, path: &str, object: &Value) -> Result<()> {
    let answer = ask(proxy.port, "POST", path, &object.to_string())?;
    ensure!(answer.status == 201, "{path}: {}", answer.body);
    Ok(())
}

fn list(proxy: &Proxy, path: &str) -> Result<Vec<Value>> {
    let answer = ask(proxy.port, "GET", path, "")?;
    ensure!(answer.status == 200, "{path}: {}", answer.body);
    let mut list: Value = serde_json::from_str(&answer.body)?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Ok(Vec::new()),
    }
}

/// The pods, once each is bound or was found to fit nowhere, and nothing happens any more.
fn settled(stage: &Stage, proxy: &Proxy, pods: usize) -> Result<Vec<Value>> {
    let path = format!("/api/v1/namespaces/{}/pods", stage.aside);
    let is_looked_at = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        pod["spec"]["nodeName"].is_string()
            || conditions
                .any(|one| one["type"] == "PodScheduled" && one["reason"] == "Unschedulable")
    };
    let (mut bound, mut since) = (0, Instant::now());
    burst::within("the scheduler has looked at all pods", || {
        let found = list(proxy, &path)?;
        let now = found
            .iter()
            .filter(|pod| pod["spec"]["nodeName"].is_string())
            .count();
        if now != bound {
            (bound, since) = (now, Instant::now());
        }
        let all = found.len() == pods && found.iter().filter(is_looked_at).count() == pods;
        let is_over = all && (bound == pods || since.elapsed() > QUIET);
        std::thread::sleep(Duration::from_secs(1));
        Ok(is_over.then_some(found))
    })
}

/// MiB that a claim has.
fn held_mib(claim: &Value) -> u64 {
    let results = claim["status"]["allocation"]["devices"]["results"].as_array();
    let memory = results.into_iter().flatten().map(|result| {
        let text = result["consumedCapacity"]["memory"].as_str().unwrap_or("");
        match text.split_at(text.len().saturating_sub(2)) {
            (number, "Gi") => number.parse::<u64>().unwrap_or(0) << 10,
            (number, "Mi") => number.parse::<u64>().unwrap_or(0),
            _ => 0,
        }
    });
    memory.sum()
}

fn choice(stage: &Stage, rig: &Rig<'_>) -> Result<CaseOutcome> {
    let placed = place(stage, rig::SCHEDULER)?;
    let chosen = rig.chosen()?;
    let (mut same, mut others) = (0, Vec::new());
    for (pod, node) in &placed.nodes {
        match chosen.get(pod) {
            Some(choice) if choice == node => same += 1,
            Some(choice) => others.push(format!("{pod}: {choice} was chosen, it is on {node}")),
            // Only one node was left, or it wants no GPU.
            None => {}
        }
    }
    let scored = same + others.len();
    ensure!(scored > PODS / 2, "only {scored} pods were scored");
    ensure!(
        same * 100 >= scored * 99,
        "{same} of {scored}: {}",
        others.join("; ")
    );
    // Not judged: the whole control plane runs on the same cores. The next case judges calls alone.
    let metrics = rig.metrics()?;
    let within = rig::within(&metrics, LIMIT_MS / 1000.0)?;
    let mut seen = placed.summary();
    seen["scored"] = json!(scored);
    seen["on_the_chosen_node"] = json!(same);
    seen["calls_within_5_ms_percent"] = json!(within);
    seen["status"] = rig.status()?;
    Ok(CaseOutcome::Held(seen))
}

fn calls(rig: &Rig<'_>) -> Result<CaseOutcome> {
    let body = rig.question()?;
    let mut took = Vec::new();
    for _ in 0..500 {
        let asked = Instant::now();
        let answer = ask(rig.port, "POST", "/prioritize", &body)?;
        took.push(asked.elapsed());
        ensure!(answer.status == 200, "{}", answer.body);
    }
    took.sort();
    let ms = |part: usize| took[(took.len() * part).div_ceil(100) - 1].as_secs_f64() * 1000.0;
    let (p50, p99) = (ms(50), ms(99));
    // The 99th percentile is reported: on a machine that is busy with other things it is the time until a core is free.
    ensure!(p50 <= LIMIT_MS, "p50 {p50} ms, p99 {p99} ms");
    let port = rig.port;
    let together = std::thread::scope(|scope| {
        let each = || ask(port, "POST", "/prioritize", &body).is_ok_and(|one| one.status == 200);
        let all: Vec<_> = (0..200).map(|_| scope.spawn(each)).collect();
        let all = all.into_iter().map(|one| one.join().unwrap_or(false));
        all.filter(|good| *good).count()
    });
    ensure!(together == 200, "{together} of 200 were answered");
    for garbage in ["", "{}", "[1]", "{\"Pod\":3}", "\u{0}"] {
        let answer = ask(rig.port, "POST", "/prioritize", garbage)?;
        ensure!(answer.status == 400, "{garbage:?}: {}", answer.status);
    }
    let large = format!("{{\"Pod\":\"{}\"}}", "x".repeat(5 << 20));
    let refused = ask(rig.port, "POST", "/prioritize", &large);
    ensure!(
        refused.as_ref().is_ok_and(|answer| answer.status == 413) || refused.is_err(),
        "5 MiB are taken"
    );
    Ok(CaseOutcome::Held(
        json!({ "p50_ms": p50, "p99_ms": p99, "together": together }),
    ))
}

fn killed(stage: &Stage, rig: &mut Rig<'_>) -> Result<CaseOutcome> {
    cleared(stage)?;
    rig.kill_extender();
    let proxy = Proxy::start(stage)?;
    let small = Request {
        gpus: 1,
        share: 250,
        cores: 1,
        gib: 1,
    };
    let started = Instant::now();
    for at in 0..LATER {
        make(stage, &proxy, at, &small, rig::SCHEDULER)?;
    }
    let pods = settled(stage, &proxy, LATER)?;
    let bound = pods
        .iter()
        .filter(|pod| pod["spec"]["nodeName"].is_string())
        .count();
    ensure!(bound == LATER, "{bound} of {LATER} pods are bound");
    // The scheduler's name comes from the chart's admission policy.
    let mut plain = small.pod(stage, "pack-plain", "default-scheduler");
    plain["spec"]["nodeSelector"] = json!({ "divvy.dev/suite": "nowhere" });
    post(
        &proxy,
        &format!("/api/v1/namespaces/{}/pods", stage.aside),
        &plain,
    )?;
    let made = stage.cluster.get("pod", &stage.aside, "pack-plain")?;
    let made = made.context("the pod is there")?;
    ensure!(
        made["spec"]["schedulerName"] == rig::SCHEDULER,
        "a pod with a claim is for {}",
        made["spec"]["schedulerName"]
    );
    Ok(CaseOutcome::Held(
        json!({ "bound": bound, "seconds": started.elapsed().as_secs_f64() }),
    ))
}
