//! Pods with claims: made one after the other, and looked at until the scheduler has looked at all of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::mix::Request;
use super::nodes::{self, GPU_MIB};
use crate::api::{Proxy, ask};
use crate::burst;
use crate::stage::Stage;

/// A run is over when nothing has happened for so long.
const QUIET: Duration = Duration::from_secs(15);

/// What became of the pods of a run.
pub struct Placed {
    /// Nodes of bound pods, by name.
    pub nodes: BTreeMap<String, String>,
    waiting: usize,
    seconds: f64,
    /// Part of the GPU memory that no claim has, in percent.
    unallocated: f64,
    /// Part of the GPU volume asked for that waits, in percent of the nodes' GPUs.
    asked: f64,
}

impl Placed {
    /// For the report.
    pub fn summary(&self) -> Value {
        json!({
            "bound": self.nodes.len(), "waiting": self.waiting, "seconds": self.seconds,
            "unallocated_percent": self.unallocated, "asked_percent": self.asked,
        })
    }
}

/// Deletes the pods and claims of the cases.
pub fn cleared(stage: &Stage) -> Result<()> {
    let proxy = Proxy::start(stage)?;
    // No controller deletes claims that no pod owns; the suite deletes them with the last pod that uses them.
    let claims = format!(
        "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
        stage.aside
    );
    proxy.delete_all(&claims)?;
    burst::clear(&proxy, &stage.aside)?;
    burst::within("the claims are gone", || {
        Ok(proxy.is_empty(&claims)?.then_some(()))
    })
}

/// Makes the pods one after the other, and waits until the scheduler has looked at all of them.
pub fn place(stage: &Stage, scheduler: &str, requests: &[Request]) -> Result<Placed> {
    let proxy = Proxy::start(stage)?;
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

/// The name of a pod and its claim.
pub fn name(at: usize) -> String {
    format!("pack-{at:04}")
}

/// Makes a pod with its claim, for this scheduler.
pub fn make(
    stage: &Stage,
    proxy: &Proxy,
    at: usize,
    request: &Request,
    scheduler: &str,
) -> Result<()> {
    let name = name(at);
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

/// Makes an object.
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
pub fn settled(stage: &Stage, proxy: &Proxy, pods: usize) -> Result<Vec<Value>> {
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
