//! Many pods at once: none is refused, all get a node, and how long that takes, also while one of two controllers is killed.
//!
//! Latency is reported and not judged: the cluster's own limits decide it, above all `--kube-api-qps` of kube-controller-manager, which
//! makes a claim for each pod.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::api::{Proxy, Sighting, Watch, ask};
use crate::node::Machine;
use crate::report::{CaseOutcome, Report};
use crate::stage::{RUN, Stage};

const CLIENTS: usize = 8;
const PODS: usize = 200;
const JOB_PODS: usize = 1000;
/// Nodes of their own, so that other cases keep theirs: 32 GPUs, 256 eighths, room for `JOB_PODS` pods of 1 GiB.
const NODES: [&str; 4] = ["burst-a", "burst-b", "burst-c", "burst-d"];
const BURST_NODE: &str = "divvy.dev/suite-burst";
/// Pods of each node: more than kubelet's default of 110, as no container runs.
const NODE_PODS: &str = "1000";
/// With the defaults of kube-controller-manager a Job of 1,000 pods takes about two minutes, and its end as long.
const LIMIT: Duration = Duration::from_secs(600);
/// The API server's text for a webhook that does not respond; the only answer that a client repeats.
const UNANSWERED: &str = "failed calling webhook";
const REPEATS: usize = 5;

pub fn all(report: &mut Report, stage: &Stage) {
    report.case(
        "burst.fraction",
        "200 pods with a fraction by 8 clients while one of two controllers is killed",
        || tidied(stage, || pods(stage, &fractions(stage), true)),
    );
    report.case(
        "burst.exactly",
        "the same claims written by hand, without the webhook",
        || {
            by_hand(stage)?;
            tidied(stage, || pods(stage, &claims(stage), false))
        },
    );
    report.case("burst.plain", "the same pods without a GPU", || {
        tidied(stage, || pods(stage, &plain(stage), false))
    });
    report.case(
        "burst.job",
        "a Job of 1,000 pods while one of two controllers is killed",
        || tidied(stage, || job(stage)),
    );
}

/// After a case, however it ends, its pods go and one controller serves again.
fn tidied(stage: &Stage, case: impl FnOnce() -> Result<CaseOutcome>) -> Result<CaseOutcome> {
    let outcome = case();
    let proxy = Proxy::start(stage)?;
    let cleared = clear(&proxy, &stage.pods).and_then(|()| clear(&proxy, &stage.aside));
    stage.no_controller();
    stage.serve()?;
    let outcome = outcome?;
    cleared?;
    Ok(outcome)
}

/// The nodes join with the first case that wants them.
fn join(stage: &Stage) -> Result<()> {
    if !stage
        .cluster
        .list("nodes", "", &format!("{BURST_NODE}={}", stage.run))?
        .is_empty()
    {
        return Ok(());
    }
    for name in NODES {
        let node = stage.node(&Machine {
            name,
            gpus: "a100-80gb:8",
            carved: false,
            labels: json!({ BURST_NODE: stage.run }),
        })?;
        let room = json!({ "pods": NODE_PODS });
        let status = json!({ "status": { "capacity": room, "allocatable": room } });
        let words = [
            "patch",
            "node",
            &node,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status.to_string(),
        ];
        let answer = stage.cluster.call(&words, "")?;
        ensure!(answer.done, "{}", answer.stderr);
    }
    Ok(())
}

/// Pods of one namespace that are made at once.
struct Burst {
    namespace: String,
    pods: Vec<Value>,
}

fn pod(stage: &Stage, name: &str, labels: &Value, annotations: &Value) -> Value {
    let mut pod = stage.pod(name, labels, annotations, &json!({}));
    pod["spec"]["nodeSelector"] = json!({ RUN: stage.run, BURST_NODE: stage.run });
    pod
}

fn fractions(stage: &Stage) -> Burst {
    let label = json!({ "clearml-injector/fraction": "0.125" });
    // One size: the claim is `exactly`, as the one by hand is.
    let size = json!({ "divvy.dev/gpu-size": "80Gi" });
    Burst {
        namespace: stage.pods.clone(),
        pods: (0..PODS)
            .map(|at| pod(stage, &format!("burst-{at}"), &label, &size))
            .collect(),
    }
}

fn plain(stage: &Stage) -> Burst {
    let bare = |at| {
        let mut pod = pod(stage, &format!("burst-{at}"), &json!({}), &json!({}));
        pod["metadata"]["namespace"] = json!(stage.aside);
        pod
    };
    Burst {
        namespace: stage.aside.clone(),
        pods: (0..PODS).map(bare).collect(),
    }
}

fn claims(stage: &Stage) -> Burst {
    let mut burst = plain(stage);
    for pod in &mut burst.pods {
        pod["spec"]["resourceClaims"] =
            json!([{ "name": "gpu", "resourceClaimTemplateName": "burst" }]);
        pod["spec"]["containers"][0]["resources"] = json!({ "claims": [{ "name": "gpu" }] });
    }
    burst
}

fn by_hand(stage: &Stage) -> Result<()> {
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": { "name": "burst", "namespace": stage.aside },
        "spec": { "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": {
            "deviceClassName": "fraction.gpu.divvy.dev", "capacity": { "requests": { "memory": "8Gi" } },
        } }] } } },
    });
    stage.cluster.apply(&template)?.object().map(drop)
}

/// What the clients saw.
#[derive(Default)]
struct Made {
    /// When each pod was asked for, and how long the API server took.
    pods: BTreeMap<String, (Instant, Duration)>,
    /// Pods with a claim in the answer.
    claims: usize,
    refused: Vec<String>,
    /// Requests that the killed controller had taken and left without an answer. Their client repeats them.
    cut: usize,
}

fn pods(stage: &Stage, burst: &Burst, killed: bool) -> Result<CaseOutcome> {
    join(stage)?;
    let proxy = Proxy::start(stage)?;
    let watch = Watch::start(&proxy, &burst.namespace, "burst-")?;
    let mut replicas = killed.then(|| stage.serve_twice()).transpose()?;
    let bodies: Vec<(String, String)> = burst
        .pods
        .iter()
        .map(|pod| Ok((named(pod)?, pod.to_string())))
        .collect::<Result<_>>()?;
    let path = format!("/api/v1/namespaces/{}/pods", burst.namespace);
    let answered = AtomicUsize::new(0);
    let mut killed_after = None;
    let started = Instant::now();
    let made = thread::scope(|scope| -> Result<Made> {
        let shares = bodies.chunks(bodies.len().div_ceil(CLIENTS));
        let clients: Vec<_> = shares
            .map(|share| scope.spawn(|| client(proxy.port, &path, share, &answered)))
            .collect();
        if let Some(replicas) = &mut replicas {
            while answered.load(Ordering::Relaxed) < bodies.len() / 2
                && !clients.iter().all(|client| client.is_finished())
            {
                thread::sleep(Duration::from_millis(1));
            }
            replicas.kill_leader();
            killed_after = Some(answered.load(Ordering::Relaxed));
        }
        let mut all = Made::default();
        for client in clients {
            let one = match client.join() {
                Ok(one) => one?,
                Err(_) => bail!("a client panicked"),
            };
            all.pods.extend(one.pods);
            all.claims += one.claims;
            all.refused.extend(one.refused);
            all.cut += one.cut;
        }
        Ok(all)
    })?;
    ensure!(
        made.refused.is_empty(),
        "{} of {} refused: {}",
        made.refused.len(),
        bodies.len(),
        made.refused[0]
    );
    ensure!(
        made.cut <= CLIENTS,
        "{} requests without an answer; the kill can cost one for each client",
        made.cut
    );
    ensure!(
        !killed || made.claims == bodies.len(),
        "{} of {} pods got a claim",
        made.claims,
        bodies.len()
    );
    let seen = bound(&watch, bodies.len())?;
    let end = ended(&seen)?;
    let mut latency = Vec::new();
    for (name, (asked, _)) in &made.pods {
        let sighting = seen
            .get(name)
            .with_context(|| format!("{name} was never seen"))?;
        latency.extend(sighting.bound.map(|bound| bound.duration_since(*asked)));
    }
    if let Some(replicas) = &mut replicas {
        replicas.lives()?;
    }
    drop(replicas);
    let answers = made.pods.values().map(|(_, took)| *took).collect();
    Ok(CaseOutcome::Held(json!({
        "pods": bodies.len(), "clients": CLIENTS, "refused": 0, "cut_off": made.cut, "killed_after": killed_after,
        "seconds": end.duration_since(started).as_secs_f64(),
        "answer_ms": spread(answers), "bound_ms": spread(latency),
    })))
}

/// Makes one pod after another.
fn client(
    port: u16,
    path: &str,
    pods: &[(String, String)],
    answered: &AtomicUsize,
) -> Result<Made> {
    let mut made = Made::default();
    for (name, body) in pods {
        let asked = Instant::now();
        for attempt in 0..=REPEATS {
            let answer = ask(port, "POST", path, body)?;
            if answer.status == 201 {
                made.pods.insert(name.clone(), (asked, asked.elapsed()));
                made.claims += usize::from(answer.body.contains("resourceClaimTemplateName"));
                break;
            }
            if attempt == REPEATS || !answer.body.contains(UNANSWERED) {
                made.refused.push(answer.body);
                break;
            }
            made.cut += 1;
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(made)
}

fn job(stage: &Stage) -> Result<CaseOutcome> {
    join(stage)?;
    let proxy = Proxy::start(stage)?;
    let watch = Watch::start(&proxy, &stage.pods, "burst-")?;
    let mut replicas = stage.serve_twice()?;
    let memory = json!({ "gpu-memory": "1024" });
    let template = pod(stage, "burst", &json!({}), &memory);
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "burst", "namespace": stage.pods },
        "spec": { "parallelism": JOB_PODS, "completions": JOB_PODS, "template": {
            "metadata": { "annotations": memory }, "spec": template["spec"],
        } },
    });
    let path = format!("/apis/batch/v1/namespaces/{}/jobs", stage.pods);
    let started = Instant::now();
    let answer = ask(proxy.port, "POST", &path, &job.to_string())?;
    ensure!(answer.status == 201, "the Job: {}", answer.body);
    within("half of the Job's pods are made", || {
        Ok((watch.seen().len() >= JOB_PODS / 2).then_some(()))
    })?;
    replicas.kill_leader();
    let seen = bound(&watch, JOB_PODS)?;
    let end = ended(&seen)?;
    let made = seen.values().map(|sighting| sighting.made).max();
    let made = made.context("the Job has pods")?;
    let latency = seen
        .values()
        .filter_map(|one| one.bound.map(|bound| bound.duration_since(one.made)))
        .collect();
    let from_job = seen
        .values()
        .filter_map(|one| one.bound.map(|bound| bound.duration_since(started)))
        .collect();
    replicas.lives()?;
    let (refused, cut) = refusals(stage)?;
    ensure!(
        refused.is_empty(),
        "{} of the Job's pods refused: {}",
        refused.len(),
        refused[0]
    );
    Ok(CaseOutcome::Held(json!({
        "pods": JOB_PODS, "refused": 0, "cut_off": cut,
        "made_seconds": made.duration_since(started).as_secs_f64(),
        "seconds": end.duration_since(started).as_secs_f64(),
        "bound_ms": spread(latency), "bound_since_job_ms": spread(from_job),
    })))
}

/// Why the Job's controller could not make pods: refusals, and the number of requests without an answer.
fn refusals(stage: &Stage) -> Result<(Vec<String>, u64)> {
    let events = stage.cluster.list("events", &stage.pods, "")?;
    let mut refused = Vec::new();
    let mut cut = 0;
    for event in events {
        let about_it =
            event["involvedObject"]["name"] == "burst" && event["reason"] == "FailedCreate";
        if !about_it {
            continue;
        }
        let message = event["message"].as_str().unwrap_or_default();
        if message.contains(UNANSWERED) {
            cut += event["count"].as_u64().unwrap_or(1);
        } else {
            refused.push(message.to_owned());
        }
    }
    Ok((refused, cut))
}

fn named(object: &Value) -> Result<String> {
    let name = object["metadata"]["name"].as_str();
    Ok(name.context("a pod has a name")?.to_owned())
}

/// Waits until so many pods have a node.
fn bound(watch: &Watch, pods: usize) -> Result<BTreeMap<String, Sighting>> {
    let mut reached = 0;
    let all = within("all pods are bound", || {
        let seen = watch.seen();
        reached = seen.values().filter(|one| one.bound.is_some()).count();
        Ok((reached >= pods).then_some(seen))
    });
    all.with_context(|| format!("{reached} of {pods} pods are bound"))
}

/// When the last pod got its node.
fn ended(seen: &BTreeMap<String, Sighting>) -> Result<Instant> {
    let last = seen.values().filter_map(|sighting| sighting.bound).max();
    last.context("a pod is bound")
}

/// Pods and claims are gone. Without kubelet no other process ends pods, so they are removed until none is left.
pub fn clear(proxy: &Proxy, namespace: &str) -> Result<()> {
    proxy.delete_all(&format!("/apis/batch/v1/namespaces/{namespace}/jobs"))?;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let claims = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims");
    within("pods and claims are gone", || {
        if !proxy.is_empty(&pods)? {
            proxy.delete_all(&pods)?;
            // Those of a Job go when its controller has let go of them.
            thread::sleep(Duration::from_secs(2));
            return Ok(None);
        }
        Ok(proxy.is_empty(&claims)?.then_some(()))
    })
}

/// Asks `look` until it answers something, for longer than `until`.
pub fn within<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if started.elapsed() > LIMIT {
            bail!("waited {} s in vain: {what}", LIMIT.as_secs());
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Median, 99th percentile and maximum, in milliseconds.
fn spread(mut all: Vec<Duration>) -> Value {
    all.sort();
    let at = |part: usize| {
        let rank = (all.len() * part).div_ceil(100).max(1);
        all.get(rank - 1).map(Duration::as_millis)
    };
    json!({ "p50": at(50), "p99": at(99), "max": at(100) })
}
