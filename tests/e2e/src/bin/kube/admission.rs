//! What becomes of pods: every language that people have for a part of a GPU, asked of a real API server.

use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cluster::{Answer, until};
use crate::report::{CaseOutcome, Report};
use crate::stage::{RUN, Stage};

const FRACTION: &str = "clearml-injector/fraction";
const CLAIM: &str = "fraction-gpu";

pub fn all(report: &mut Report, stage: &Stage) {
    report.case(
        "A1",
        "the seed's pod: limits become a claim, labels stay",
        || seed_pod(stage),
    );
    for (case, value, devices) in [
        ("A2.0.125", "0.125", 1),
        ("A2.0.0625", "0.0625", 1),
        ("A2.0.250", "0.250", 1),
        ("A3.1.000", "1.000", 1),
        ("A3.2", "2", 2),
    ] {
        report.case(case, "the label alone", || {
            let (pod, _) = stage.parked(&stage.pod(
                &name(case),
                &json!({ FRACTION: value }),
                &json!({}),
                &json!({}),
            ))?;
            claims(stage, &pod, devices)
        });
    }
    for value in ["0.3", "0", "-1", "abc", "1.25"] {
        report.case(
            &format!("A4.{value}"),
            "a label that means nothing is refused, and why",
            || {
                refused(
                    stage,
                    &stage.pod(
                        &name("a4"),
                        &json!({ FRACTION: value }),
                        &json!({}),
                        &json!({}),
                    ),
                    &[value],
                )
            },
        );
    }
    report.case("A5", "label and limit that disagree are refused", || {
        let pod = stage.pod(
            "a5",
            &json!({ FRACTION: "0.500" }),
            &json!({}),
            &json!({ "clear.ml/fraction-1": "0.25" }),
        );
        refused(stage, &pod, &["0.500", "use the same value"])
    });
    report.case(
        "A6",
        "fraction-1 and fraction-2 are parts of two GPUs",
        || {
            let pod = stage.pod(
                "a6",
                &json!({}),
                &json!({}),
                &json!({ "clear.ml/fraction-1": "0.5", "clear.ml/fraction-2": "0.5" }),
            );
            let (pod, _) = stage.parked(&pod)?;
            let template = template(stage, &pod)?;
            ensure!(
                template["spec"]["spec"]["devices"]["constraints"][0]["distinctAttribute"]
                    .is_string(),
                "they may be one GPU: {template}"
            );
            claims(stage, &pod, 2)
        },
    );
    report.case(
        "A7",
        "four replicas of a shared GPU with a label are one half",
        || {
            let pod = stage.pod(
                "a7",
                &json!({ FRACTION: "0.500" }),
                &json!({}),
                &json!({ "nvidia.com/gpu": 4 }),
            );
            claims(stage, &stage.parked(&pod)?.0, 1)
        },
    );
    report.case(
        "A8",
        "a pod that was admitted once is left as it is",
        || again(stage),
    );
    report.case("A9", "pods of a ReplicaSet, which have no name yet", || {
        replica_set(stage)
    });
    report.case(
        "A10",
        "a Deployment's fractional limit becomes its label; without opting in it is refused",
        || deployment(stage),
    );
    report.case("A11", "a dry run makes no template", || dry_run(stage));
    report.case("A12", "another scheduler's pod is left alone", || {
        let mut pod = stage.pod(
            "a12",
            &json!({}),
            &json!({ "gpu-fraction": "0.5" }),
            &json!({}),
        );
        pod["spec"]["schedulerName"] = json!("kai-scheduler");
        let (made, _) = stage.parked(&pod)?;
        ensure!(made["spec"]["resourceClaims"].is_null(), "it has a claim");
        Ok(CaseOutcome::Held(Value::Null))
    });
    for (case, annotations, devices) in [
        ("A13.0.5", json!({ "gpu-fraction": "0.5" }), 1),
        ("A14.2000", json!({ "gpu-memory": "2000" }), 1),
        (
            "A16.2",
            json!({ "gpu-fraction": "0.5", "gpu-fraction-num-devices": "2" }),
            2,
        ),
    ] {
        report.case(case, "annotations of Run:ai and KAI", || {
            claims(
                stage,
                &stage
                    .parked(&stage.pod(&name(case), &json!({}), &annotations, &json!({})))?
                    .0,
                devices,
            )
        });
    }
    for (case, annotations, limits) in [
        ("A13.1.0", json!({ "gpu-fraction": "1.0" }), json!({})),
        ("A13.0", json!({ "gpu-fraction": "0" }), json!({})),
        ("A14.0", json!({ "gpu-memory": "0" }), json!({})),
        ("A14.2G", json!({ "gpu-memory": "2G" }), json!({})),
        (
            "A15.both",
            json!({ "gpu-fraction": "0.5", "gpu-memory": "2000" }),
            json!({}),
        ),
        (
            "A15.limit",
            json!({ "gpu-fraction": "0.5" }),
            json!({ "nvidia.com/gpu": 1 }),
        ),
        (
            "A16.alone",
            json!({ "gpu-fraction-num-devices": "2" }),
            json!({}),
        ),
        (
            "A17.unknown",
            json!({ "gpu-fraction": "0.5", "gpu-fraction-container-name": "nobody" }),
            json!({}),
        ),
    ] {
        report.case(case, "annotations that mean nothing are refused", || {
            refused(
                stage,
                &stage.pod(&name(case), &json!({}), &annotations, &limits),
                &["gpu-"],
            )
        });
    }
    report.case("A17", "the container that an annotation names", || {
        container(stage)
    });
    report.case(
        "A18.privileged",
        "a privileged container is refused",
        || {
            let mut pod = stage.pod("a18", &json!({ FRACTION: "0.500" }), &json!({}), &json!({}));
            pod["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
            refused(stage, &pod, &["privileged"])
        },
    );
    report.case(
        "A18.nodeName",
        "a node by name goes past the scheduler and is refused",
        || {
            let mut pod = stage.pod("a18", &json!({ FRACTION: "0.500" }), &json!({}), &json!({}));
            pod["spec"]["nodeName"] = json!("any");
            refused(stage, &pod, &["nodeName"])
        },
    );
    report.case("A19", "hostPID stays, and is said to be unneeded", || {
        let mut pod = stage.pod("a19", &json!({ FRACTION: "0.500" }), &json!({}), &json!({}));
        pod["spec"]["hostPID"] = json!(true);
        let (made, answer) = stage.parked(&pod)?;
        ensure!(made["spec"]["hostPID"] == true, "it is gone");
        ensure!(
            answer.stderr.contains("hostPID"),
            "no warning: {}",
            answer.stderr
        );
        Ok(CaseOutcome::Held(json!(answer.stderr.trim())))
    });
    report.case(
        "A23",
        "a burst of 64 pods by 8 clients is admitted with one template",
        || burst(stage),
    );
    for level in ["baseline", "restricted"] {
        report.case(
            &format!("A20.{level}"),
            "a namespace of that pod security level takes it",
            || secured(stage, level),
        );
    }
    report.case("A21", "the second container has the limit, and gets the claim", || {
        let mut pod = stage.pod("a21", &json!({ FRACTION: "0.500" }), &json!({}), &json!({}));
        pod["spec"]["containers"] = json!([
            { "name": "a", "image": "x" }, { "name": "b", "image": "x", "resources": { "limits": { "nvidia.com/gpu": 1 } } },
        ]);
        let (made, _) = stage.parked(&pod)?;
        ensure!(made["spec"]["containers"][0]["resources"]["claims"].is_null(), "the first has a claim");
        ensure!(made["spec"]["containers"][1]["resources"]["claims"][0]["name"] == CLAIM, "the second has none");
        Ok(CaseOutcome::Held(Value::Null))
    });
    report.case(
        "A22",
        "limits for bursting are said not to be supported",
        || {
            let pod = stage.pod(
                "a22",
                &json!({}),
                &json!({ "gpu-fraction": "0.5", "gpu-fraction-limit": "0.8" }),
                &json!({}),
            );
            let (_, answer) = stage.parked(&pod)?;
            ensure!(
                answer.stderr.contains("gpu-fraction-limit"),
                "no warning: {}",
                answer.stderr
            );
            Ok(CaseOutcome::Held(json!(answer.stderr.trim())))
        },
    );
}

/// Clients that each make one list of pods at the same time; no other case asks for as much memory.
fn burst(stage: &Stage) -> Result<CaseOutcome> {
    let pods = |client: usize| {
        let pod = |number| {
            let mut pod = stage.pod(
                &format!("a23-{client}-{number}"),
                &json!({}),
                &json!({ "gpu-memory": "2323" }),
                &json!({}),
            );
            pod["spec"]["nodeSelector"] = json!({ RUN: "nowhere" });
            pod
        };
        let items: Vec<Value> = (0..8).map(pod).collect();
        json!({ "apiVersion": "v1", "kind": "List", "items": items })
    };
    let refused: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|client| {
                let (cluster, list) = (stage.cluster.clone(), pods(client));
                scope.spawn(move || cluster.create(&list, false))
            })
            .collect();
        let answers = clients.into_iter().map(|client| client.join());
        let refused = |answer: Answer| (!answer.done).then_some(answer.stderr);
        let answers = answers.map(|answer| answer.unwrap_or_else(|_| bail!("a client panicked")));
        answers
            .filter_map(|answer| answer.map(refused).transpose())
            .collect::<Result<_>>()
    })?;
    ensure!(
        refused.is_empty(),
        "{} lists: {}",
        refused.len(),
        refused[0].trim()
    );
    let (pod, _) = stage.parked(&stage.pod(
        "a23",
        &json!({}),
        &json!({ "gpu-memory": "2323" }),
        &json!({}),
    ))?;
    let template = template(stage, &pod)?;
    let (name, made) = (
        &template["metadata"]["name"],
        &template["metadata"]["creationTimestamp"],
    );
    let all = stage.cluster.list("pods", &stage.pods, "")?;
    let of_burst = all
        .iter()
        .filter(|pod| pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == *name);
    let of_burst: Vec<&Value> = of_burst.collect();
    ensure!(
        of_burst.len() == 65,
        "{} of 65 pods name {name}",
        of_burst.len()
    );
    let first = of_burst
        .iter()
        .filter_map(|pod| pod["metadata"]["creationTimestamp"].as_str());
    let first = first.min().unwrap_or_default();
    ensure!(
        made.as_str() <= Some(first),
        "the template of {made} was made again: the first pod is of {first}"
    );
    Ok(CaseOutcome::Held(
        json!({ "pods": of_burst.len(), "template": name }),
    ))
}

/// A name that a pod can have.
fn name(case: &str) -> String {
    case.to_lowercase().replace('.', "-")
}

/// The template that an admitted pod claims by.
fn template(stage: &Stage, pod: &Value) -> Result<Value> {
    let claim = &pod["spec"]["resourceClaims"][0];
    ensure!(
        claim["name"] == CLAIM,
        "it has no claim: {}",
        pod["spec"]["resourceClaims"]
    );
    let name = claim["resourceClaimTemplateName"]
        .as_str()
        .context("its claim is not by template")?;
    stage
        .cluster
        .get("resourceclaimtemplates", &stage.pods, name)?
        .with_context(|| format!("there is no template {name}"))
}

/// The pod claims so many devices.
fn claims(stage: &Stage, pod: &Value, devices: u64) -> Result<CaseOutcome> {
    let template = template(stage, pod)?;
    let requests = template["spec"]["spec"]["devices"]["requests"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let count = |request: &Value| {
        let one = request
            .get("exactly")
            .unwrap_or(&request["firstAvailable"][0]);
        one["count"].as_u64().unwrap_or(1)
    };
    let found: u64 = requests.iter().map(count).sum();
    ensure!(found == devices, "it claims {found} devices: {template}");
    Ok(CaseOutcome::Held(template["metadata"]["name"].clone()))
}

/// Making the pod is refused with these words.
fn refused(stage: &Stage, pod: &Value, words: &[&str]) -> Result<CaseOutcome> {
    let answer = stage.cluster.create(pod, true)?;
    ensure!(!answer.done, "it was admitted");
    ensure!(
        answer.stderr.contains("denied the request"),
        "somebody else refused it: {}",
        answer.stderr.trim()
    );
    for word in words {
        ensure!(
            answer.stderr.contains(word),
            "`{word}` is not in: {}",
            answer.stderr.trim()
        );
    }
    Ok(CaseOutcome::Held(json!(answer.stderr.trim())))
}

fn seed_pod(stage: &Stage) -> Result<CaseOutcome> {
    let pod = stage.pod(
        "a1",
        &json!({ FRACTION: "0.500", "required-resources": "0.5" }),
        &json!({}),
        &json!({ "nvidia.com/gpu": 1, "clear.ml/fraction-1": "0.5" }),
    );
    let (made, _) = stage.parked(&pod)?;
    let container = &made["spec"]["containers"][0];
    for list in ["limits", "requests"] {
        ensure!(
            container["resources"]
                .get(list)
                .is_none_or(|found| found.as_object().is_some_and(|map| map.is_empty())),
            "{list} are left: {container}"
        );
    }
    ensure!(
        container["resources"]["claims"][0]["name"] == CLAIM,
        "no claim: {container}"
    );
    ensure!(
        container["env"][0] == json!({ "name": "CLEARML_AGENT_GPU_FRACTIONS", "value": "0.500" }),
        "no report: {container}"
    );
    ensure!(
        made["metadata"]["labels"]["required-resources"] == "0.5",
        "the label is gone"
    );
    claims(stage, &made, 1)?;
    let claim = until("the pod's claim is made", || {
        let made = stage.cluster.list("resourceclaims", &stage.pods, "")?;
        Ok(made
            .into_iter()
            .find(|claim| claim["metadata"]["ownerReferences"][0]["name"] == "a1"))
    })?;
    Ok(CaseOutcome::Held(claim["metadata"]["name"].clone()))
}

fn again(stage: &Stage) -> Result<CaseOutcome> {
    let (first, _) =
        stage.parked(&stage.pod("a8", &json!({ FRACTION: "0.500" }), &json!({}), &json!({})))?;
    let mut second = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": first["metadata"], "spec": first["spec"] });
    second["metadata"] = json!({ "name": "a8-again", "namespace": stage.pods, "labels": first["metadata"]["labels"] });
    let made = stage.cluster.create(&second, false)?.object()?;
    for field in ["resourceClaims", "containers", "tolerations"] {
        ensure!(
            made["spec"][field] == first["spec"][field],
            "{field} changed: {}",
            made["spec"][field]
        );
    }
    Ok(CaseOutcome::Held(Value::Null))
}

fn of_template(
    stage: &Stage,
    kind: &str,
    version: &str,
    name: &str,
    namespace: &str,
    labels: Value,
    limits: Value,
) -> Value {
    let mut pod = stage.pod(name, &labels, &json!({}), &limits);
    pod["spec"]["nodeSelector"] = json!({ RUN: "nowhere" });
    pod["spec"]["restartPolicy"] = json!(if kind == "Job" { "Never" } else { "Always" });
    let mut labels = labels;
    labels["app"] = json!(name);
    let mut spec = json!({ "template": { "metadata": { "labels": labels }, "spec": pod["spec"] } });
    if kind != "Job" {
        spec["replicas"] = json!(1);
        spec["selector"] = json!({ "matchLabels": { "app": name } });
    }
    json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name, "namespace": namespace }, "spec": spec })
}

/// The pod that a controller made.
fn made_of(stage: &Stage, app: &str) -> Result<Value> {
    until("its pod is made", || {
        let pods = stage
            .cluster
            .list("pods", &stage.pods, &format!("app={app}"))?;
        Ok(pods.into_iter().next())
    })
}

fn replica_set(stage: &Stage) -> Result<CaseOutcome> {
    let set = of_template(
        stage,
        "ReplicaSet",
        "apps/v1",
        "a9",
        &stage.pods,
        json!({ FRACTION: "0.500" }),
        json!({}),
    );
    stage.cluster.create(&set, false)?.object()?;
    claims(stage, &made_of(stage, "a9")?, 1)
}

fn deployment(stage: &Stage) -> Result<CaseOutcome> {
    let limits = json!({ "clear.ml/fraction-1": "0.5", "nvidia.com/gpu": 1 });
    for (kind, version, name) in [
        ("Deployment", "apps/v1", "a10-deployment"),
        ("Job", "batch/v1", "a10-job"),
    ] {
        let aside = of_template(
            stage,
            kind,
            version,
            name,
            &stage.aside,
            json!({}),
            limits.clone(),
        );
        let answer = stage.cluster.create(&aside, true)?;
        ensure!(
            !answer.done && answer.stderr.contains("must be an integer"),
            "{kind} elsewhere: {}",
            answer.stderr
        );
        let object = of_template(
            stage,
            kind,
            version,
            name,
            &stage.pods,
            json!({}),
            limits.clone(),
        );
        let made = stage.cluster.create(&object, false)?.object()?;
        ensure!(
            made["spec"]["template"]["metadata"]["labels"][FRACTION] == "0.500",
            "{kind}: {}",
            made["spec"]["template"]
        );
        claims(stage, &made_of(stage, name)?, 1)?;
    }
    Ok(CaseOutcome::Held(Value::Null))
}

fn dry_run(stage: &Stage) -> Result<CaseOutcome> {
    // A size that nothing else here asks for, so its template would be a new one.
    let pod = stage.pod(
        "a11",
        &json!({}),
        &json!({ "gpu-memory": "1337" }),
        &json!({}),
    );
    let shown = stage.cluster.create(&pod, true)?.object()?;
    let name = shown["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
        .as_str()
        .context("the patch is not shown")?;
    ensure!(
        stage
            .cluster
            .get("resourceclaimtemplates", &stage.pods, name)?
            .is_none(),
        "the template {name} was made"
    );
    Ok(CaseOutcome::Held(json!(name)))
}

fn container(stage: &Stage) -> Result<CaseOutcome> {
    let annotations = json!({ "gpu-fraction": "0.5", "gpu-fraction-container-name": "side" });
    let mut pod = stage.pod("a17", &json!({}), &annotations, &json!({}));
    pod["spec"]["containers"] =
        json!([{ "name": "main", "image": "x" }, { "name": "side", "image": "x" }]);
    let (made, _) = stage.parked(&pod)?;
    ensure!(
        made["spec"]["containers"][1]["resources"]["claims"][0]["name"] == CLAIM,
        "the sidecar has no claim"
    );
    let mut pod = stage.pod("a17-init", &json!({}), &annotations, &json!({}));
    pod["spec"]["initContainers"] = json!([{ "name": "side", "image": "x" }]);
    let (made, _) = stage.parked(&pod)?;
    ensure!(
        made["spec"]["initContainers"][0]["resources"]["claims"][0]["name"] == CLAIM,
        "the init container has no claim"
    );
    Ok(CaseOutcome::Held(Value::Null))
}

fn secured(stage: &Stage, level: &str) -> Result<CaseOutcome> {
    let namespace = format!("{}-{level}", stage.pods);
    stage.namespace(
        &namespace,
        &json!({ "divvy.dev/inject": "enabled", "pod-security.kubernetes.io/enforce": level }),
    )?;
    let mut pod = stage.pod("a20", &json!({ FRACTION: "0.500" }), &json!({}), &json!({}));
    pod["metadata"]["namespace"] = json!(namespace);
    pod["spec"]["securityContext"] = json!({ "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } });
    pod["spec"]["containers"][0]["securityContext"] =
        json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    // Its service account comes a moment after a namespace.
    let answer = until("the namespace has its service account", || {
        let answer = stage.cluster.create(&pod, true)?;
        Ok((!answer
            .stderr
            .contains("serviceaccount \"default\" not found"))
        .then_some(answer))
    });
    let shown = answer.and_then(|answer| answer.object());
    stage.cluster.delete("namespace", "", &namespace)?;
    ensure!(
        shown?["spec"]["resourceClaims"][0]["name"] == CLAIM,
        "it has no claim"
    );
    Ok(CaseOutcome::Held(Value::Null))
}
