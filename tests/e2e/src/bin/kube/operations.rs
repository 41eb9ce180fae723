//! An update and a drain of the release that is installed, on nodes with kubelet, while pods with fractions come.
//!
//! Times are the API server's and kubelet's, in whole seconds. A case fails if a pod fails or waits longer than [`LONGEST`].

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};
use crate::report::{CaseOutcome, Report};

/// Pods of one case, a second apart.
const PODS: usize = 60;
/// Time with pods before the update begins.
const BEFORE: Duration = Duration::from_secs(10);
/// Kubelet repeats a failed preparation of a claim only after 60 s: a longer wait than this one is a gap.
const LONGEST: i64 = 30;
/// Replicas of the Deployment that a drain moves.
const REPLICAS: usize = 4;

/// The release, and what its cases use.
pub struct Installed {
    pub cluster: Cluster,
    /// Name of the Helm release, and its namespace.
    pub release: String,
    pub system: String,
    /// An image with `sh` and `sleep` that the nodes have or can pull.
    pub image: String,
    /// The node that may be drained.
    pub drain: Option<String>,
}

pub fn all(report: &mut Report, installed: &Installed) {
    let namespace = format!("divvy-operations-{}", std::process::id());
    report.case(
        "operations.update",
        "an update of all nodes: no pod fails or waits for kubelet's next try",
        || tidied(installed, &namespace, || updated(installed, &namespace)),
    );
    report.case(
        "operations.drain",
        "a node is drained and returns: its claims are released",
        || match &installed.drain {
            Some(node) => tidied(installed, &namespace, || {
                let outcome = drained(installed, &namespace, node);
                let uncordoned = installed.call(&["uncordon", node]);
                outcome.and_then(|outcome| uncordoned.map(|_| outcome))
            }),
            None => Ok(CaseOutcome::NotChecked(
                "no node: --drain names one, whose pods other nodes can take".to_owned(),
            )),
        },
    );
}

/// The case in a namespace of its own, which goes afterwards.
fn tidied(
    installed: &Installed,
    namespace: &str,
    case: impl FnOnce() -> Result<CaseOutcome>,
) -> Result<CaseOutcome> {
    let object = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": namespace, "labels": { "divvy.dev/inject": "enabled" } },
    });
    installed.cluster.apply(&object)?.object()?;
    let outcome = case();
    let gone = installed.call(&["delete", "namespace", namespace, "--timeout=120s"]);
    outcome.and_then(|outcome| gone.map(|_| outcome))
}

impl Installed {
    fn call(&self, words: &[&str]) -> Result<String> {
        let answer = self.cluster.call(words, "")?;
        ensure!(
            answer.done,
            "kubectl {}: {}",
            words.join(" "),
            answer.stderr.trim()
        );
        Ok(answer.stdout)
    }

    /// The DaemonSet of the node pods.
    fn daemon_set(&self) -> Result<String> {
        let selector = format!("app.kubernetes.io/instance={}", self.release);
        let found = self.cluster.list("daemonsets", &self.system, &selector)?;
        let names = found
            .iter()
            .filter_map(|one| one["metadata"]["name"].as_str());
        let name = names.into_iter().find(|name| name.ends_with("-node"));
        let name = name.with_context(|| {
            format!(
                "namespace {} has no DaemonSet of the release {}",
                self.system, self.release
            )
        })?;
        Ok(format!("daemonset/{name}"))
    }

    /// A pod with an eighth of a GPU.
    fn pod(&self, namespace: &str, name: &str, node: Option<&str>) -> Value {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace, "labels": { "clearml-injector/fraction": "0.125" } },
            "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main", "image": self.image, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "2"],
                }],
            },
        });
        if let Some(node) = node {
            pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
        }
        pod
    }
}

fn updated(installed: &Installed, namespace: &str) -> Result<CaseOutcome> {
    let set = installed.daemon_set()?;
    let took = thread::scope(|scope| -> Result<Duration> {
        let update = scope.spawn(|| -> Result<Duration> {
            thread::sleep(BEFORE);
            let (system, started) = (&installed.system, Instant::now());
            installed.call(&["rollout", "restart", &set, "-n", system])?;
            installed.call(&["rollout", "status", &set, "-n", system, "--timeout=300s"])?;
            Ok(started.elapsed())
        });
        let started = Instant::now();
        for at in 0..PODS {
            let pod = installed.pod(namespace, &format!("pod-{at}"), None);
            installed.cluster.create(&pod, false)?.object()?;
            let next = Duration::from_secs(at as u64 + 1);
            thread::sleep(next.saturating_sub(started.elapsed()));
        }
        update
            .join()
            .unwrap_or_else(|_| bail!("the update did not run"))
    })?;
    let waits = waits(installed, namespace, PODS)?;
    judged(&waits, json!({ "update_seconds": took.as_secs_f64() }))
}

/// Seconds from creation to the start of the container, by pod.
fn waits(installed: &Installed, namespace: &str, count: usize) -> Result<BTreeMap<String, i64>> {
    until("every pod has run", || {
        let pods = installed.cluster.list("pods", namespace, "")?;
        let mut waits = BTreeMap::new();
        for pod in &pods {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            ensure!(
                pod["status"]["phase"] != "Failed",
                "pod {name} failed: {}",
                pod["status"]
            );
            let state = &pod["status"]["containerStatuses"][0]["state"];
            let began = state["running"]["startedAt"]
                .as_str()
                .or(state["terminated"]["startedAt"].as_str());
            let made = pod["metadata"]["creationTimestamp"].as_str();
            let (Some(began), Some(made)) = (began, made) else {
                continue;
            };
            let (began, made): (Timestamp, Timestamp) = (began.parse()?, made.parse()?);
            waits.insert(name.to_owned(), began.duration_since(made).as_secs());
        }
        Ok((waits.len() >= count).then_some(waits))
    })
}

fn judged(waits: &BTreeMap<String, i64>, mut seen: Value) -> Result<CaseOutcome> {
    let longest = waits.iter().max_by_key(|(_, wait)| **wait);
    let (pod, longest) = longest.context("no pod ran")?;
    ensure!(*longest <= LONGEST, "pod {pod} waited {longest} s");
    seen["pods"] = json!(waits.len());
    seen["longest_wait_seconds"] = json!(longest);
    Ok(CaseOutcome::Held(seen))
}

fn drained(installed: &Installed, namespace: &str, node: &str) -> Result<CaseOutcome> {
    let prefers = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100, "preference": { "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
        ] },
    }] } });
    let mut template = installed.pod(namespace, "serve", None);
    let labels = json!({ "app": "serve", "clearml-injector/fraction": "0.125" });
    template["spec"]["affinity"] = prefers;
    template["spec"]["restartPolicy"] = json!("Always");
    template["spec"]["containers"][0]["command"] = json!(["sleep", "100000"]);
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "serve", "namespace": namespace },
        "spec": {
            "replicas": REPLICAS, "selector": { "matchLabels": { "app": "serve" } },
            "template": { "metadata": { "labels": labels }, "spec": template["spec"] },
        },
    });
    installed.cluster.apply(&deployment)?.object()?;
    let status = [
        "rollout",
        "status",
        "deployment/serve",
        "-n",
        namespace,
        "--timeout=120s",
    ];
    installed.call(&status)?;
    let before = claims_on(installed, namespace, node)?;
    ensure!(before > 0, "no pod of the Deployment runs on {node}");
    let started = Instant::now();
    installed.call(&[
        "drain",
        node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--timeout=120s",
    ])?;
    let drained = started.elapsed();
    installed.call(&status)?;
    let moved = started.elapsed();
    until("no claim is left on the drained node", || {
        Ok((claims_on(installed, namespace, node)? == 0).then_some(()))
    })?;
    let released = started.elapsed();
    installed.call(&["uncordon", node])?;
    let pod = installed.pod(namespace, "back", Some(node));
    installed.cluster.create(&pod, false)?.object()?;
    until("a pod runs on the node again", || {
        let pod = installed.cluster.get("pod", namespace, "back")?;
        let phase = pod.unwrap_or_default()["status"]["phase"].clone();
        Ok((phase == "Running" || phase == "Succeeded").then_some(()))
    })?;
    Ok(CaseOutcome::Held(json!({
        "claims": before, "drain_seconds": drained.as_secs_f64(), "moved_seconds": moved.as_secs_f64(),
        "released_seconds": released.as_secs_f64(), "back_seconds": (started.elapsed() - released).as_secs_f64(),
    })))
}

/// Allocated claims of the namespace on a node.
fn claims_on(installed: &Installed, namespace: &str, node: &str) -> Result<usize> {
    let claims = installed.cluster.list("resourceclaims", namespace, "")?;
    let on_node = |claim: &&Value| {
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        let mut results = results.into_iter().flatten();
        results.any(|result| result["driver"] == "gpu.divvy.dev" && result["pool"] == node)
    };
    Ok(claims.iter().filter(on_node).count())
}
