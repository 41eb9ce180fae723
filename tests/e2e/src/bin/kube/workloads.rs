//! What becomes of workloads: claims in their pod templates, and updates that must replace no pods.
//!
//! No container runs here, so a rollout is told by the ReplicaSets and ControllerRevisions that a controller makes.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{Answer, until};
use crate::report::{CaseOutcome, Report};
use crate::stage::{RUN, Stage};

const FRACTION: &str = "clearml-injector/fraction";
const CLAIM: &str = "fraction-gpu";
const CLAIM_TEMPLATES: &str = "divvy.dev/claim-templates";
/// Long enough for a controller to have made a ReplicaSet, if it makes one.
const SETTLED: Duration = Duration::from_secs(3);

pub fn all(report: &mut Report, stage: &Stage) {
    for (kind, version) in KINDS {
        report.case(
            &format!("W1.{kind}"),
            "the claim is in the pod template, and in the pods as it is there",
            || claimed(stage, kind, version),
        );
    }
    report.case(
        "W2",
        "a Deployment is scaled, labelled and applied again without another ReplicaSet",
        || quiet(stage),
    );
    report.case(
        "W3",
        "another image is one more ReplicaSet, and undoing it is none",
        || rolled(stage),
    );
    report.case(
        "W4",
        "another fraction is another claim, and none is none",
        || changed(stage),
    );
    report.case(
        "W5",
        "a Job that is held back keeps its template, and gets a deleted one again",
        || held(stage),
    );
    report.case(
        "W6",
        "a Job is started and gets a node selector, as queues do it",
        || unsuspended(stage),
    );
    report.case(
        "W7",
        "a request that cannot be is refused for the workload",
        || refused(stage),
    );
    report.case(
        "W8",
        "a hundred updates by four clients keep the claim",
        || many(stage),
    );
}

const KINDS: [(&str, &str); 6] = [
    ("Job", "batch/v1"),
    ("CronJob", "batch/v1"),
    ("Deployment", "apps/v1"),
    ("StatefulSet", "apps/v1"),
    ("DaemonSet", "apps/v1"),
    ("ReplicaSet", "apps/v1"),
];

/// A workload whose pods fit nowhere, with half a GPU in its template.
fn workload(stage: &Stage, kind: &str, version: &str, name: &str, fraction: &str) -> Value {
    let mut pod = stage.pod(
        name,
        &json!({}),
        &json!({}),
        &json!({ "nvidia.com/gpu": 1 }),
    );
    pod["spec"]["nodeSelector"] = json!({ RUN: "nowhere" });
    let is_job = kind.ends_with("Job");
    pod["spec"]["restartPolicy"] = json!(if is_job { "Never" } else { "Always" });
    let template = json!({
        "metadata": { "labels": { "app": name, FRACTION: fraction } }, "spec": pod["spec"],
    });
    let mut spec = match kind {
        "CronJob" => json!({
            "schedule": "0 0 1 1 *", "suspend": true,
            "jobTemplate": { "spec": { "template": template } },
        }),
        _ => json!({ "template": template }),
    };
    if !is_job {
        spec["selector"] = json!({ "matchLabels": { "app": name } });
    }
    if kind == "StatefulSet" {
        spec["serviceName"] = json!(name);
    }
    json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name, "namespace": stage.pods }, "spec": spec })
}

fn template(object: &Value) -> &Value {
    match object["kind"].as_str() {
        Some("CronJob") => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => &object["spec"]["template"],
    }
}

/// The name of the claim template in a pod template or pod.
fn claim(pod: &Value) -> Result<&str> {
    let claims = pod["spec"]["resourceClaims"].as_array();
    let ours = claims
        .into_iter()
        .flatten()
        .find(|one| one["name"] == CLAIM);
    let name = ours.and_then(|one| one["resourceClaimTemplateName"].as_str());
    name.with_context(|| format!("no claim: {}", pod["spec"]))
}

fn get(stage: &Stage, kind: &str, name: &str) -> Result<Value> {
    let found = stage.cluster.get(kind, &stage.pods, name)?;
    found.with_context(|| format!("{kind} {name} is there"))
}

fn claimed(stage: &Stage, kind: &str, version: &str) -> Result<CaseOutcome> {
    let name = format!("w1-{}", kind.to_lowercase());
    let object = workload(stage, kind, version, &name, "0.500");
    let made = stage.cluster.create(&object, false)?.object()?;
    let ours = claim(template(&made))?.to_owned();
    let container = &template(&made)["spec"]["containers"][0];
    ensure!(
        container["resources"]["limits"]["nvidia.com/gpu"].is_null(),
        "a queue would count a GPU: {container}"
    );
    ensure!(
        made["metadata"]["labels"][CLAIM_TEMPLATES] == "true",
        "the controller does not know that it is needed: {}",
        made["metadata"]["labels"]
    );
    get(stage, "resourceclaimtemplate", &ours)?;
    // The DaemonSet controller makes no pod for a node that its selector excludes.
    if !["CronJob", "DaemonSet"].contains(&kind) {
        let pod = until("its pod is made", || {
            let pods = stage
                .cluster
                .list("pods", &stage.pods, &format!("app={name}"))?;
            Ok(pods.into_iter().next())
        })?;
        ensure!(claim(&pod)? == ours, "its pod has another claim");
        let tolerations = pod["spec"]["tolerations"].to_string();
        ensure!(tolerations.contains("nvidia.com/gpu"), "{tolerations}");
    }
    stage.cluster.delete(kind, &stage.pods, &name)?;
    Ok(CaseOutcome::Held(json!(ours)))
}

fn replica_sets(stage: &Stage, app: &str) -> Result<usize> {
    let sets = stage
        .cluster
        .list("replicasets", &stage.pods, &format!("app={app}"))?;
    Ok(sets.len())
}

/// Exactly so many, and still after a while.
fn has_replica_sets(stage: &Stage, app: &str, count: usize) -> Result<()> {
    until("the Deployment has its ReplicaSets", || {
        Ok((replica_sets(stage, app)? >= count).then_some(()))
    })?;
    thread::sleep(SETTLED);
    let found = replica_sets(stage, app)?;
    ensure!(found == count, "{found} ReplicaSets, not {count}");
    Ok(())
}

fn said(answer: Answer) -> Result<()> {
    ensure!(answer.done, "{}", answer.stderr.trim());
    Ok(())
}

fn kubectl(stage: &Stage, words: &[&str], input: &str) -> Result<()> {
    let mut all = words.to_vec();
    all.extend(["-n", &stage.pods]);
    said(stage.cluster.call(&all, input)?)
}

fn quiet(stage: &Stage) -> Result<CaseOutcome> {
    let name = "w2";
    let manifest = workload(stage, "Deployment", "apps/v1", name, "0.500").to_string();
    kubectl(stage, &["apply", "-f", "-"], &manifest)?;
    has_replica_sets(stage, name, 1)?;
    let before = get(stage, "deployment", name)?;
    for _ in 0..5 {
        kubectl(stage, &["apply", "-f", "-"], &manifest)?;
        kubectl(stage, &["replace", "-f", "-"], &manifest)?;
        kubectl(
            stage,
            &["apply", "--server-side", "--force-conflicts", "-f", "-"],
            &manifest,
        )?;
    }
    kubectl(stage, &["scale", "deployment", name, "--replicas=3"], "")?;
    kubectl(stage, &["label", "deployment", name, "team=a"], "")?;
    has_replica_sets(stage, name, 1)?;
    let after = get(stage, "deployment", name)?;
    ensure!(
        template(&after) == template(&before),
        "{} became {}",
        template(&before),
        template(&after)
    );
    ensure!(
        after["metadata"]["labels"][CLAIM_TEMPLATES] == "true",
        "the record is gone: {}",
        after["metadata"]
    );
    stage.cluster.delete("deployment", &stage.pods, name)?;
    Ok(CaseOutcome::Held(Value::Null))
}

fn rolled(stage: &Stage) -> Result<CaseOutcome> {
    let name = "w3";
    let object = workload(stage, "Deployment", "apps/v1", name, "0.500");
    stage.cluster.create(&object, false)?.object()?;
    has_replica_sets(stage, name, 1)?;
    let first = get(stage, "deployment", name)?;
    let container = object["spec"]["template"]["spec"]["containers"][0]["name"]
        .as_str()
        .context("the container has a name")?;
    let image = format!("{container}=other");
    kubectl(stage, &["set", "image", "deployment", name, &image], "")?;
    has_replica_sets(stage, name, 2)?;
    let second = get(stage, "deployment", name)?;
    ensure!(
        claim(template(&second))? == claim(template(&first))?,
        "another claim"
    );
    kubectl(stage, &["rollout", "undo", "deployment", name], "")?;
    has_replica_sets(stage, name, 2)?;
    let third = get(stage, "deployment", name)?;
    ensure!(
        template(&third) == template(&first),
        "{} is not {}",
        template(&third),
        template(&first)
    );
    stage.cluster.delete("deployment", &stage.pods, name)?;
    Ok(CaseOutcome::Held(Value::Null))
}

fn changed(stage: &Stage) -> Result<CaseOutcome> {
    let name = "w4";
    for kind in ["Deployment", "StatefulSet"] {
        let apply = |fraction: &str| {
            let object = workload(stage, kind, "apps/v1", name, fraction);
            kubectl(stage, &["apply", "-f", "-"], &object.to_string())?;
            get(stage, kind, name)
        };
        let half = apply("0.500")?;
        let quarter = apply("0.250")?;
        ensure!(
            claim(template(&half))? != claim(template(&quarter))?,
            "the claim is still that of a half"
        );
        let mut without = workload(stage, kind, "apps/v1", name, "");
        let spec = &mut without["spec"]["template"];
        spec["metadata"]["labels"] = json!({ "app": name });
        spec["spec"]["containers"][0]["resources"] = json!({});
        kubectl(stage, &["apply", "-f", "-"], &without.to_string())?;
        let without = get(stage, kind, name)?;
        let left = without.to_string();
        ensure!(
            claim(template(&without)).is_err() && !left.contains("\"divvy.dev/gpus\":"),
            "{left}"
        );
        ensure!(
            without["metadata"]["labels"][CLAIM_TEMPLATES].is_null(),
            "{left}"
        );
        stage.cluster.delete(kind, &stage.pods, name)?;
    }
    Ok(CaseOutcome::Held(Value::Null))
}

fn held(stage: &Stage) -> Result<CaseOutcome> {
    let name = "w5";
    let mut job = workload(stage, "Job", "batch/v1", name, "0.875");
    job["spec"]["suspend"] = json!(true);
    let made = stage.cluster.create(&job, false)?.object()?;
    let ours = claim(template(&made))?.to_owned();
    let words = ["delete", "resourceclaimtemplate", &ours];
    kubectl(stage, &words, "")?;
    until("the controller has made the template again", || {
        stage
            .cluster
            .get("resourceclaimtemplate", &stage.pods, &ours)
    })?;
    stage.cluster.delete("job", &stage.pods, name)?;
    Ok(CaseOutcome::Held(json!(ours)))
}

fn unsuspended(stage: &Stage) -> Result<CaseOutcome> {
    let name = "w6";
    let mut job = workload(stage, "Job", "batch/v1", name, "0.500");
    job["spec"]["suspend"] = json!(true);
    let made = stage.cluster.create(&job, false)?.object()?;
    let started = json!({ "spec": { "suspend": false, "template": {
        "metadata": { "labels": { "queue": "a" } },
        "spec": { "nodeSelector": { "pool": "a" }, "tolerations": [{ "key": "pool", "operator": "Exists" }] },
    } } });
    let answer = stage.cluster.patch("job", &stage.pods, name, &started)?;
    let started = answer.object()?;
    ensure!(
        claim(template(&started))? == claim(template(&made))?,
        "another claim"
    );
    stage.cluster.delete("job", &stage.pods, name)?;
    Ok(CaseOutcome::Held(Value::Null))
}

fn refused(stage: &Stage) -> Result<CaseOutcome> {
    let mut privileged = workload(stage, "Deployment", "apps/v1", "w7", "0.500");
    privileged["spec"]["template"]["spec"]["containers"][0]["securityContext"] =
        json!({ "privileged": true });
    let much = workload(stage, "Job", "batch/v1", "w7", "0.3");
    let mut texts = Vec::new();
    for (object, word) in [(privileged, "privileged"), (much, "0.3")] {
        let answer = stage.cluster.create(&object, true)?;
        ensure!(!answer.done, "it was admitted");
        ensure!(
            answer.stderr.contains("denied the request") && answer.stderr.contains(word),
            "{}",
            answer.stderr.trim()
        );
        texts.push(answer.stderr.trim().to_owned());
    }
    Ok(CaseOutcome::Held(json!(texts)))
}

fn many(stage: &Stage) -> Result<CaseOutcome> {
    let name = "w8";
    let object = workload(stage, "Deployment", "apps/v1", name, "0.500");
    let made = stage.cluster.create(&object, false)?.object()?;
    let failed: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let (cluster, namespace) = (stage.cluster.clone(), stage.pods.clone());
                scope.spawn(move || {
                    let mut failed = Vec::new();
                    for number in 0..25 {
                        let key = format!("client-{client}");
                        let patch = json!({ "spec": { "template": { "metadata": {
                            "annotations": { key: number.to_string() },
                        } } } });
                        match cluster.patch("deployment", &namespace, name, &patch) {
                            Ok(answer) if answer.done => {}
                            Ok(answer) => failed.push(answer.stderr.trim().to_owned()),
                            Err(error) => failed.push(error.to_string()),
                        }
                    }
                    failed
                })
            })
            .collect();
        let each = clients.into_iter().map(|client| client.join());
        each.flat_map(|failed| failed.unwrap_or_else(|_| vec!["a client panicked".to_owned()]))
            .collect()
    });
    ensure!(failed.is_empty(), "{} failed: {}", failed.len(), failed[0]);
    let after = get(stage, "deployment", name)?;
    ensure!(
        claim(template(&after))? == claim(template(&made))?,
        "another claim"
    );
    stage.cluster.delete("deployment", &stage.pods, name)?;
    Ok(CaseOutcome::Held(json!({ "updates": 100 })))
}
