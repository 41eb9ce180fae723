//! What nobody may do, and what happens while a piece is away.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};
use crate::node::slices;
use crate::report::{CaseOutcome, Report};
use crate::stage::Stage;

const FRACTION: &str = "clearml-injector/fraction";

pub fn all(report: &mut Report, stage: &Stage, node: &str) {
    report.case(
        "rights.slices",
        "a node's token writes slices of its own node alone",
        || own_slices(stage, node),
    );
    report.case(
        "rights.controller",
        "the controller's token reads no Secret but its own",
        || few_secrets(stage),
    );
    report.case(
        "rights.pods",
        "a pod with a claim reaches none of the driver's folders",
        || guarded(stage),
    );
    report.case(
        "Z1",
        "an editor of a namespace cannot change what a claim was given",
        || forged(stage),
    );
    report.case("Q1", "a quota on devices holds", || quota(stage));
    report.case(
        "F1",
        "no controller: marked pods are refused, others are made",
        || away(stage),
    );
    report.case(
        "kill.driver",
        "a driver that was killed finds its slices again",
        || killed(stage, node),
    );
    report.case("kill.slices", "slices that are deleted come back", || {
        wiped(stage, node)
    });
}

fn own_slices(stage: &Stage, node: &str) -> Result<CaseOutcome> {
    let pod = stage.node_pod(node)?;
    let own = stage
        .cluster
        .with_config(&stage.account("node", Some(&pod))?);
    let loose = stage.cluster.with_config(&stage.account("node", None)?);
    let slice = |node: &str, driver: &str| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "generateName": "suite-" },
            "spec": { "driver": driver, "nodeName": node, "pool": { "name": "suite", "generation": 1, "resourceSliceCount": 1 },
                      "devices": [{ "name": "a" }] },
        })
    };
    let denied = |who: &Cluster, node: &str, driver: &str, word: &str| {
        let answer = who.create(&slice(node, driver), true)?;
        ensure!(
            !answer.done && answer.stderr.contains(word),
            "{node} {driver}: {}",
            answer.stderr
        );
        Ok(())
    };
    own.create(&slice(node, "gpu.divvy.dev"), true)?.object()?;
    denied(
        &own,
        "elsewhere",
        "gpu.divvy.dev",
        "may write only its own ResourceSlices",
    )?;
    denied(
        &own,
        node,
        "gpu.example.com",
        "may write only ResourceSlices of the driver",
    )?;
    denied(&loose, node, "gpu.divvy.dev", "the token names no node")?;
    let other = slices(&stage.cluster, node)?;
    let name = other
        .first()
        .and_then(|slice| slice["metadata"]["name"].as_str())
        .context("the node has slices")?;
    let removed = loose.call(&["delete", "resourceslice", name, "--dry-run=server"], "")?;
    ensure!(
        !removed.done && removed.stderr.contains("names no node"),
        "{}",
        removed.stderr
    );
    Ok(CaseOutcome::Held(Value::Null))
}

fn may(who: &Cluster, words: &[&str]) -> Result<bool> {
    Ok(who
        .call(&[&["auth", "can-i"], words].concat(), "")?
        .stdout
        .trim()
        == "yes")
}

fn few_secrets(stage: &Stage) -> Result<CaseOutcome> {
    let controller = stage
        .cluster
        .with_config(&stage.account("controller", None)?);
    let node = stage.cluster.with_config(&stage.account(
        "node",
        Some(&stage.node_pod(&format!("{}-pair", stage.release))?),
    )?);
    let own = format!("secret/{}-webhook-tls", stage.release);
    ensure!(
        may(&controller, &["get", &own, "-n", &stage.system])?,
        "it cannot read its own certificate"
    );
    for words in [
        &["get", "secrets", "-n", &stage.system][..],
        &["get", "secrets", "-A"],
        &["create", "pods", "-n", &stage.pods],
        &[
            "update",
            "resourceclaims",
            "-n",
            &stage.pods,
            "--subresource=status",
        ],
        &["create", "mutatingwebhookconfigurations"],
        &["update", "nodes"],
        &["create", "clusterrolebindings"],
    ] {
        ensure!(
            !may(&controller, words)?,
            "the controller may {}",
            words.join(" ")
        );
        ensure!(!may(&node, words)?, "a node may {}", words.join(" "));
    }
    ensure!(
        !may(&node, &["get", &own, "-n", &stage.system])?,
        "a node may read the webhook's key"
    );
    Ok(CaseOutcome::Held(Value::Null))
}

fn guarded(stage: &Stage) -> Result<CaseOutcome> {
    let claimed = || {
        stage.pod(
            "guarded",
            &json!({ FRACTION: "0.500" }),
            &json!({}),
            &json!({}),
        )
    };
    let refused = |pod: &Value, word: &str| {
        let answer = stage.cluster.create(pod, true)?;
        ensure!(
            !answer.done && answer.stderr.contains(word),
            "{word}: {}",
            answer.stderr
        );
        anyhow::Ok(())
    };
    let path = |path: &str| {
        let mut pod = claimed();
        pod["spec"]["volumes"] = json!([{ "name": "v", "hostPath": { "path": path } }]);
        pod
    };
    for hostile in [
        "/run/divvy",
        "/var/lib/divvy/jobs",
        "/var/run/cdi",
        "/",
        "/dev/shm/link",
    ] {
        refused(&path(hostile), "policies.hostPaths")?;
    }
    stage
        .cluster
        .create(&path("/dev/shm"), true)?
        .object()
        .context("a host path that the chart lists")?;
    let mut pod = claimed();
    pod["spec"]["containers"][0]["env"] =
        json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }]);
    refused(&pod, "NVIDIA_VISIBLE_DEVICES")?;
    let mut pod = claimed();
    pod["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": {} }]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "v", "mountPath": "/var/run/nvidia-container-devices/all" }]);
    refused(&pod, "nvidia-container-devices")?;
    later(stage)?;
    // A claim that somebody wrote, which the webhook does not look at.
    let mut own = stage.pod("guarded", &json!({}), &json!({}), &json!({}));
    own["spec"]["resourceClaims"] = json!([{ "name": "mine", "resourceClaimName": "mine" }]);
    own["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
    refused(&own, "privileged")?;
    Ok(CaseOutcome::Held(Value::Null))
}

/// What comes to a pod that is there already.
fn later(stage: &Stage) -> Result<()> {
    let pod = stage.pod(
        "later",
        &json!({ FRACTION: "0.500" }),
        &json!({}),
        &json!({}),
    );
    stage.parked(&pod)?;
    let patch = json!({ "spec": { "ephemeralContainers": [
        { "name": "look", "image": "x", "securityContext": { "privileged": true } },
    ] } });
    let words = [
        "patch",
        "pod",
        "later",
        "-n",
        &stage.pods,
        "--subresource=ephemeralcontainers",
    ];
    let patch = patch.to_string();
    let answer = stage
        .cluster
        .call(&[&words[..], &["-p", &patch]].concat(), "")?;
    ensure!(
        !answer.done && answer.stderr.contains("privileged"),
        "an ephemeral container: {}",
        answer.stderr
    );
    // One that was there before its namespace was served is let end: its finalizers can go.
    let mut before = stage.pod("before", &json!({}), &json!({}), &json!({}));
    before["metadata"]["namespace"] = json!(stage.aside);
    before["metadata"]["finalizers"] = json!(["divvy.dev/suite"]);
    before["spec"]["resourceClaims"] = json!([{ "name": "mine", "resourceClaimName": "mine" }]);
    before["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
    stage.cluster.create(&before, false)?.object()?;
    stage.namespace(&stage.aside, &json!({ "divvy.dev/inject": "enabled" }))?;
    let freed = stage.cluster.patch(
        "pod",
        &stage.aside,
        "before",
        &json!({ "metadata": { "finalizers": null } }),
    );
    stage.namespace(&stage.aside, &json!({}))?;
    freed?
        .object()
        .context("a pod of before cannot be changed any more")?;
    stage.clear()
}

fn forged(stage: &Stage) -> Result<CaseOutcome> {
    let editor = "divvy-suite-editor";
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": editor, "namespace": stage.pods },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": editor }],
    });
    stage.cluster.apply(&binding)?.object()?;
    let pod = stage.pod("z1", &json!({ FRACTION: "0.250" }), &json!({}), &json!({}));
    stage.cluster.create(&pod, false)?.object()?;
    let claim = until("the pod's claim is allocated", || {
        let claims = stage.cluster.list("resourceclaims", &stage.pods, "")?;
        Ok(claims
            .into_iter()
            .find(|claim| claim["status"]["allocation"].is_object()))
    })?;
    let name = claim["metadata"]["name"]
        .as_str()
        .context("a claim has a name")?;
    let was = &claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["memory"];
    let mut more = claim["status"].clone();
    more["allocation"]["devices"]["results"][0]["consumedCapacity"]["memory"] = json!("79Gi");
    let person = stage.cluster.acting_as(editor);
    let patch = json!({ "status": more });
    // Through the object itself the status is not looked at; an editor may or may not touch claims.
    person.patch("resourceclaim", &stage.pods, name, &patch)?;
    let words = [
        "patch",
        "resourceclaim",
        name,
        "-n",
        &stage.pods,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch.to_string(),
    ];
    let answer = person.call(&words, "")?;
    ensure!(
        !answer.done && answer.stderr.contains("forbidden"),
        "the status: {}",
        answer.stderr
    );
    let now = stage
        .cluster
        .get("resourceclaim", &stage.pods, name)?
        .context("the claim is there")?;
    let is = &now["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["memory"];
    stage.clear()?;
    ensure!(is == was && !was.is_null(), "{was} became {is}");
    Ok(CaseOutcome::Held(json!(was)))
}

fn quota(stage: &Stage) -> Result<CaseOutcome> {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "devices", "namespace": stage.pods },
        "spec": { "hard": { "fraction.gpu.divvy.dev.deviceclass.resource.k8s.io/devices": "1" } },
    });
    stage.cluster.create(&quota, false)?.object()?;
    until("the quota counts", || {
        let quota = stage
            .cluster
            .get("resourcequota", &stage.pods, "devices")?
            .context("the quota is there")?;
        Ok(quota["status"]["used"].is_object().then_some(()))
    })?;
    let label = json!({ FRACTION: "0.250" });
    stage.parked(&stage.pod("q1-one", &label, &json!({}), &json!({})))?;
    until("the first claim is made", || {
        Ok((!stage
            .cluster
            .list("resourceclaims", &stage.pods, "")?
            .is_empty())
        .then_some(()))
    })?;
    stage.parked(&stage.pod("q1-two", &label, &json!({}), &json!({})))?;
    let said = until("the second claim is refused", || {
        let events = stage.cluster.list("events", &stage.pods, "")?;
        let refused = |event: &&Value| {
            event["reason"] == "FailedResourceClaimCreation"
                && event["involvedObject"]["name"] == "q1-two"
        };
        Ok(events
            .iter()
            .find(refused)
            .map(|event| event["message"].clone()))
    });
    stage.clear()?;
    let said = said?;
    ensure!(
        said.as_str()
            .is_some_and(|text| text.contains("exceeded quota")),
        "{said}"
    );
    Ok(CaseOutcome::Held(said))
}

fn away(stage: &Stage) -> Result<CaseOutcome> {
    stage.no_controller();
    let marked = stage.pod(
        "f1-marked",
        &json!({ FRACTION: "0.500" }),
        &json!({}),
        &json!({}),
    );
    let refused = stage.cluster.create(&marked, true);
    let other = stage.cluster.create(
        &stage.pod("f1-other", &json!({}), &json!({}), &json!({})),
        true,
    );
    let mut outside = marked.clone();
    outside["metadata"]["namespace"] = json!(stage.aside);
    let outside = stage.cluster.create(&outside, true);
    stage.serve()?;
    let refused = refused?;
    ensure!(
        !refused.done && refused.stderr.contains("failed calling webhook"),
        "{}",
        refused.stderr
    );
    other?.object().context("an unmarked pod")?;
    outside?
        .object()
        .context("a marked pod of a namespace that has not opted in")?;
    stage
        .cluster
        .create(&marked, true)?
        .object()
        .context("a marked pod with the controller back")?;
    Ok(CaseOutcome::Held(json!(refused.stderr.trim())))
}

fn killed(stage: &Stage, node: &str) -> Result<CaseOutcome> {
    let before = slices(&stage.cluster, node)?;
    stage.restart_driver(node)?;
    let first = &before.first().context("the node has slices")?["metadata"]["uid"];
    // It is heard of again when it has brought back what is taken away.
    wiped(stage, node)?;
    let after = slices(&stage.cluster, node)?;
    ensure!(
        after.len() == before.len(),
        "{} slices became {}",
        before.len(),
        after.len()
    );
    Ok(CaseOutcome::Held(first.clone()))
}

fn wiped(stage: &Stage, node: &str) -> Result<CaseOutcome> {
    let before = slices(&stage.cluster, node)?;
    for slice in &before {
        let name = slice["metadata"]["name"]
            .as_str()
            .context("a slice has a name")?;
        stage.cluster.delete("resourceslice", "", name)?;
    }
    let back = until("the slices are back", || {
        let now = slices(&stage.cluster, node)?;
        Ok((now.len() == before.len()
            && now.iter().any(|slice| slice["spec"]["devices"].is_array()))
        .then_some(now))
    })?;
    let devices = |slices: &[Value]| -> Vec<Value> {
        let all = slices
            .iter()
            .flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten());
        let mut names: Vec<Value> = all.map(|device| device["name"].clone()).collect();
        names.sort_by_key(Value::to_string);
        names
    };
    ensure!(
        devices(&before) == devices(&back),
        "other devices than before"
    );
    Ok(CaseOutcome::Held(json!(back.len())))
}
