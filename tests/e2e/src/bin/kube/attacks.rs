//! Settings with which a pod with a handwritten claim could try to pass its limit, put to the policy of a real API server.
//!
//! The cases are those of `crates/k8s/tests/it/attacks/cases.yaml`, which the tests of `divvy-k8s` evaluate without a cluster.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::until;
use crate::report::{CaseOutcome, Report};
use crate::stage::Stage;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Attack {
    case: String,
    #[serde(default = "nothing")]
    container: Value,
    #[serde(default = "nothing")]
    spec: Value,
    #[serde(default = "nothing")]
    metadata: Value,
    /// A container that joins the pod later.
    ephemeral: Option<Value>,
    /// Part of the text of its refusal.
    refused: Option<String>,
}

fn nothing() -> Value {
    json!({})
}

pub fn all(report: &mut Report, stage: &Stage) {
    let cases = include_str!("../../../../../crates/k8s/tests/it/attacks/cases.yaml");
    let attacks: Vec<Attack> = match yaml_serde::from_str(cases) {
        Ok(attacks) => attacks,
        Err(error) => return report.case("attack", "the cases", || Err(error.into())),
    };
    for (number, attack) in attacks.iter().enumerate() {
        let name = format!("attack.{:02}", number + 1);
        report.case(&name, &attack.case, || attempt(stage, attack));
    }
    report.case(
        "attack.admin",
        "a claim with adminAccess is refused",
        || administrative(stage),
    );
    report.case(
        "attack.namespace",
        "a claim of another namespace has no effect",
        || foreign(stage),
    );
    report.case("attack.end", "the pods of the attacks go", || {
        stage.clear().map(|()| CaseOutcome::Held(Value::Null))
    });
}

fn pod(stage: &Stage, attack: &Attack) -> Value {
    let mut pod = stage.pod("attack", &json!({}), &json!({}), &json!({}));
    let node = pod["spec"]["nodeSelector"].take();
    json_patch::merge(&mut pod["metadata"], &attack.metadata);
    json_patch::merge(&mut pod["spec"], &attack.spec);
    pod["spec"]["nodeSelector"] = node;
    pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": "attack" }]);
    let container = &mut pod["spec"]["containers"][0];
    container["name"] = json!("c");
    json_patch::merge(container, &attack.container);
    container["resources"] = json!({ "claims": [{ "name": "gpu" }] });
    pod
}

fn attempt(stage: &Stage, attack: &Attack) -> Result<CaseOutcome> {
    let pod = pod(stage, attack);
    let answer = match &attack.ephemeral {
        None => stage.cluster.create(&pod, true)?,
        Some(ephemeral) => {
            stage.cluster.delete("pod", &stage.pods, "attack")?;
            stage.parked(&pod)?;
            let mut joining = json!({ "name": "joining", "image": "x" });
            json_patch::merge(&mut joining, ephemeral);
            let patch = json!({ "spec": { "ephemeralContainers": [joining] } }).to_string();
            let words = [
                "patch",
                "pod",
                "attack",
                "-n",
                &stage.pods,
                "--subresource=ephemeralcontainers",
                "--dry-run=server",
                "-p",
                &patch,
            ];
            stage.cluster.call(&words, "")?
        }
    };
    match &attack.refused {
        None => {
            ensure!(answer.done, "refused: {}", answer.stderr.trim());
            Ok(CaseOutcome::Held(json!("admitted")))
        }
        Some(text) => {
            ensure!(!answer.done, "the API server admits it");
            ensure!(answer.stderr.contains(text), "{}", answer.stderr.trim());
            Ok(CaseOutcome::Held(json!(answer.stderr.trim())))
        }
    }
}

fn claim(namespace: &str, name: &str, more: &Value) -> Value {
    let mut exactly = json!({ "deviceClassName": "fraction.gpu.divvy.dev" });
    json_patch::merge(&mut exactly, more);
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } },
    })
}

/// The API server refuses it in namespaces without its own label for that; the driver refuses it elsewhere.
fn administrative(stage: &Stage) -> Result<CaseOutcome> {
    let claim = claim(
        &stage.pods,
        "administrative",
        &json!({ "adminAccess": true }),
    );
    let answer = stage.cluster.create(&claim, true)?;
    ensure!(
        !answer.done && answer.stderr.contains("admin access to devices"),
        "{}",
        answer.stderr.trim()
    );
    Ok(CaseOutcome::Held(json!(answer.stderr.trim())))
}

/// A pod names claims of its own namespace alone: one there is allocated, and the one of another namespace is not.
fn foreign(stage: &Stage) -> Result<CaseOutcome> {
    let theirs = claim(&stage.aside, "theirs", &json!({}));
    stage.cluster.create(&theirs, false)?.object()?;
    let ours = claim(&stage.pods, "ours", &json!({}));
    stage.cluster.create(&ours, false)?.object()?;
    for (name, claim) in [("foreign", "theirs"), ("own", "ours")] {
        let mut pod = stage.pod(name, &json!({}), &json!({}), &json!({}));
        pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": claim }]);
        stage.cluster.create(&pod, false)?.object()?;
    }
    let allocated = until("the claim of the pod's namespace is allocated", || {
        let ours = stage.cluster.get("resourceclaim", &stage.pods, "ours")?;
        let ours = ours.context("the claim is there")?;
        Ok(ours["status"]["allocation"].is_object().then_some(()))
    });
    let theirs = stage.cluster.get("resourceclaim", &stage.aside, "theirs")?;
    let pod = stage.cluster.get("pod", &stage.pods, "foreign")?;
    stage.clear()?;
    allocated?;
    let status = &theirs.context("the claim is there")?["status"];
    ensure!(status["allocation"].is_null(), "the claim has {status}");
    let node = &pod.context("the pod is there")?["spec"]["nodeName"];
    ensure!(node.is_null(), "the pod is on {node}");
    Ok(CaseOutcome::Held(Value::Null))
}
