//! `why` as a user types it, for each thing that can hold a pod.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use crate::kueue::Cluster;

use serde_json::{Value, json};

fn pod(name: &str, spec: &Value, status: &Value) -> Value {
    let mut all = json!({ "containers": [{ "name": "main", "image": "x" }] });
    for (field, value) in spec.as_object().unwrap() {
        all[field] = value.clone();
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "vision",
            "labels": { "clearml-injector/fraction": "0.5" }, "annotations": { "divvy.dev/gpus": "0.500" } },
        "spec": all, "status": status,
    })
}

fn claimed(extra: &Value) -> Value {
    let mut spec = json!({ "resourceClaims": [{ "name": "fraction-gpu", "resourceClaimTemplateName": "divvy-abc" }] });
    for (field, value) in extra.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

fn template(cluster: &Cluster) {
    cluster.server.create(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": { "name": "divvy-abc", "namespace": "vision" }, "spec": { "spec": { "devices": {} } },
    }));
}

fn claim(cluster: &Cluster, namespace: &str, holder: &str, device: &str, memory: &str) {
    cluster.server.create(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": format!("{holder}-claim"), "namespace": namespace },
        "spec": { "devices": { "requests": [] } },
        "status": {
            "reservedFor": [{ "resource": "pods", "name": holder, "uid": "u" }],
            "allocation": { "devices": { "results": [{
                "driver": "gpu.divvy.dev", "pool": "node-a", "device": device, "request": "gpu-0",
                "consumedCapacity": { "memory": memory },
            }] } },
        },
    }));
}

fn uid(cluster: &Cluster, plural: &str, name: &str) -> Value {
    cluster.get(plural, "vision", name).unwrap()["metadata"]["uid"].clone()
}

/// Has Kueue make the Workload of a pod or a Job that is there.
fn workload(cluster: &Cluster, owner: (&str, &str), conditions: &Value) {
    let plural = format!("{}s", owner.0.to_lowercase());
    cluster.server.create(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": { "name": format!("{}-1a2b3", owner.1), "namespace": "vision", "ownerReferences": [
            { "apiVersion": "v1", "kind": owner.0, "name": owner.1, "uid": uid(cluster, &plural, owner.1), "controller": true },
        ] },
        "spec": { "queueName": "default", "active": true, "podSets": [{ "name": "main", "count": 1, "template": {} }] },
        "status": {
            "conditions": conditions,
            "resourceRequests": [{ "name": "main", "resources": { "gpu.memory": "40524Mi" } }],
        },
    }));
}

fn condition(name: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-26T20:00:00Z" })
}

const NEEDED: &str = "couldn't assign flavors to pod set main: insufficient unused quota for gpu.memory in flavor divvy-gpu, 40524Mi more needed";

/// A cluster whose project vision has used its quota, and nlp is over quota.
fn full_quota() -> Cluster {
    let cluster = Cluster::start();
    cluster.done("project add vision --quota 1 --no-over-quota --namespace vision");
    cluster.done("project add nlp --quota 0.5 --namespace nlp");
    for (name, total, borrowed) in [("vision", "81050Mi", "0"), ("nlp", "60787Mi", "20262Mi")] {
        cluster.server.merge(
            "clusterqueues",
            "",
            name,
            &json!({ "status": {
            "admittedWorkloads": 1, "pendingWorkloads": 1,
            "flavorsReservation": [{ "name": "divvy-gpu", "resources": [
                { "name": "gpu.memory", "total": total, "borrowed": borrowed },
            ] }],
        } }),
        );
    }
    cluster
}

#[test]
fn a_pod_at_kueues_gate_learns_the_figures_of_its_project() {
    let cluster = full_quota();
    let gated = claimed(&json!({ "schedulingGates": [{ "name": "kueue.x-k8s.io/admission" }] }));
    cluster
        .server
        .create(pod("train", &gated, &json!({ "phase": "Pending" })));
    let pending = json!([condition("QuotaReserved", "False", "Pending", NEEDED)]);
    workload(&cluster, ("Pod", "train"), &pending);
    assert_eq!(
        cluster.done("why train -n vision").out,
        format!(
            "pod vision/train waits: it needs 0.5 GPUs, and the project vision has no quota left: 1 of 1 GPU in use\n  \
             kueue    {NEEDED}\n  \
             project  vision: quota 1 GPU, never over quota; 1 in use, 0 over quota, 1 running, 1 pending\n  \
             others   over quota: nlp 0.25\n  \
             options  divvy-k8s project set vision --quota 1.5\n"
        )
    );
    let json = cluster.done("why train -n vision -o json").json();
    let why = &json["items"][0];
    assert_eq!(
        (&json["kind"], &why["held_by"], &why["state"]),
        (&json!("Why"), &json!("kueue"), &json!("waiting"))
    );
}

#[test]
fn a_suspended_job_waits_for_quota_too() {
    let cluster = full_quota();
    cluster.server.create(json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": "train", "namespace": "vision", "uid": "uid-train" },
        "spec": { "suspend": true, "template": { "spec": {} } },
    }));
    let preempted =
        "Preempted to accommodate a workload (UID: u) due to reclamation within the cohort";
    let conditions = json!([
        condition("QuotaReserved", "False", "Pending", NEEDED),
        condition("Evicted", "True", "Preempted", preempted),
        condition("Preempted", "True", "InCohortReclamation", preempted),
    ]);
    workload(&cluster, ("Job", "train"), &conditions);
    let said = cluster.done("why job/train -n vision").out;
    assert!(
        said.starts_with(
            "job vision/train waits: it needs 0.5 GPUs, and the project vision has no quota left"
        ),
        "{said}"
    );
    assert!(said.contains(&format!("evicted  {preempted}")), "{said}");
    let inadmissible = json!([condition(
        "QuotaReserved",
        "False",
        "Inadmissible",
        "FirstAvailable device selection is not supported"
    )]);
    workload(&cluster, ("Job", "train"), &inadmissible);
    let said = cluster.done("why job/train -n vision").out;
    assert!(
        said.contains("Kueue cannot admit it to the project vision as it is"),
        "{said}"
    );
    assert!(said.contains("FirstAvailable device selection"), "{said}");
    cluster.server.remove("localqueues", "vision", "default");
    let pending = json!([condition(
        "QuotaReserved",
        "False",
        "Inadmissible",
        "LocalQueue default doesn't exist"
    )]);
    workload(&cluster, ("Job", "train"), &pending);
    let said = cluster.done("why job/train -n vision").out;
    assert!(
        said.contains("the namespace has no LocalQueue default"),
        "{said}"
    );
}

#[test]
fn a_jobset_waits_for_quota_and_then_for_what_its_pods_wait_for() {
    let cluster = full_quota();
    cluster.server.create(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "jobsets.jobset.x-k8s.io" },
        "spec": {
            "group": "jobset.x-k8s.io", "scope": "Namespaced",
            "names": { "plural": "jobsets", "kind": "JobSet" },
            "versions": [{ "name": "v1alpha2", "served": true, "storage": true }],
        },
    }));
    let object = |kind: &str, version: &str, name: &str, owner: &Value| {
        let plural = format!("{}s", kind.to_lowercase());
        cluster.server.create(json!({
            "apiVersion": version, "kind": kind,
            "metadata": { "name": name, "namespace": "vision", "ownerReferences": owner },
            "spec": { "template": { "spec": {} } },
        }));
        let uid = uid(&cluster, &plural, name);
        json!([{ "apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true }])
    };
    let set = object("JobSet", "jobset.x-k8s.io/v1alpha2", "js", &json!([]));
    cluster.refused(
        "why jobset/js -n vision",
        3,
        "JobSet js has no pods in vision",
    );
    let pending = json!([condition("QuotaReserved", "False", "Pending", NEEDED)]);
    workload(&cluster, ("JobSet", "js"), &pending);
    let said = cluster.done("why jobset/js -n vision").out;
    assert!(
        said.contains("the project vision has no quota left"),
        "{said}"
    );
    assert!(said.contains("jobset js"), "{said}");

    workload(
        &cluster,
        ("JobSet", "js"),
        &json!([condition("Admitted", "True", "Admitted", "")]),
    );
    let job = object("Job", "batch/v1", "js-w-0", &set);
    let mut waiting = pod("js-w-0-0", &json!({}), &json!({ "phase": "Pending" }));
    waiting["metadata"]["ownerReferences"] = job;
    cluster.server.create(waiting);
    let said = cluster.done("why jobsets.jobset.x-k8s.io/js -n vision").out;
    assert!(said.starts_with("pod vision/js-w-0-0 waits"), "{said}");
    cluster.refused("why jobset/other -n vision", 3, "has no jobset other");
}

#[test]
fn a_full_node_is_told_with_the_holders_of_the_own_namespace_alone() {
    let cluster = Cluster::start();
    template(&cluster);
    claim(&cluster, "vision", "mine", "gpu-0", "60000Mi");
    claim(&cluster, "secret", "theirs", "gpu-1", "81050Mi");
    let unschedulable = json!({ "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available" },
    ] });
    cluster
        .server
        .create(pod("train", &claimed(&json!({})), &unschedulable));
    let said = cluster.done("why train -n vision").out;
    assert!(
        said.starts_with("pod vision/train waits: it needs 0.500 of a GPU: no GPU has room for it"),
        "{said}"
    );
    assert!(
        said.contains("mine holds 58.6 GiB") && !said.contains("theirs"),
        "{said}"
    );
    assert!(said.contains("scheduler 0/1 nodes are available"), "{said}");
}

#[test]
fn a_pod_that_the_webhook_did_not_see_says_so() {
    let cluster = Cluster::start();
    cluster
        .server
        .create(pod("train", &json!({}), &json!({ "phase": "Pending" })));
    let said = cluster.done("why train -n vision").out;
    assert!(said.contains("the webhook did not see it"), "{said}");
    assert!(
        said.contains("kubectl label namespace vision divvy.dev/inject=enabled"),
        "{said}"
    );
    cluster.server.create(pod(
        "other",
        &claimed(&json!({})),
        &json!({ "phase": "Pending" }),
    ));
    let said = cluster.done("why other -n vision").out;
    assert!(said.contains("its claim template is missing"), "{said}");
}

#[test]
fn a_pod_on_a_node_says_what_keeps_its_containers() {
    let cluster = Cluster::start();
    template(&cluster);
    claim(&cluster, "vision", "train", "gpu-0", "40524Mi");
    let made = json!([{ "name": "fraction-gpu", "resourceClaimName": "train-claim" }]);
    let bound = claimed(&json!({ "nodeName": "node-a" }));
    let waiting = json!({ "phase": "Pending", "resourceClaimStatuses": made, "containerStatuses": [{
        "name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\"" } },
    }] });
    cluster.server.create(pod("train", &bound, &waiting));
    let said = cluster.done("why train -n vision").out;
    assert!(said.starts_with("pod vision/train starts: its container main on node-a does not start: ImagePullBackOff\n"), "{said}");
    assert!(
        said.contains("gpu      gpu-0 of node-a (39.6 GiB)"),
        "{said}"
    );
    cluster.server.create(json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "train.1", "namespace": "vision" },
        "involvedObject": { "uid": uid(&cluster, "pods", "train") }, "type": "Warning", "reason": "FailedPrepareDynamicResources",
        "message": "Failed to prepare dynamic resources: DRA driver gpu.divvy.dev is not registered",
        "lastTimestamp": "2026-11-26T20:00:00Z",
    }));
    let said = cluster.done("why train -n vision").out;
    assert!(
        said.contains("the DRA driver of the node node-a does not run"),
        "{said}"
    );
    let runs = json!({ "phase": "Running", "resourceClaimStatuses": made });
    cluster.server.create(pod("train", &bound, &runs));
    assert_eq!(
        cluster.done("why train -n vision").out,
        "pod vision/train runs: on node-a\n  gpu      gpu-0 of node-a (39.6 GiB)\n"
    );
    cluster.server.create(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-a" },
        "status": { "conditions": [
            condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."),
        ] },
    }));
    let said = cluster.done("why train -n vision").out;
    assert!(
        said.starts_with("pod vision/train runs: on node-a, which is not ready: Kubelet stopped posting node status\n"),
        "{said}"
    );
    assert!(said.contains("kubectl describe node node-a"), "{said}");
    let failed = json!({ "phase": "Failed", "containerStatuses": [{
        "name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } },
    }] });
    cluster.server.create(pod("train", &bound, &failed));
    let said = cluster.done("why pod/train -n vision").out;
    assert!(
        said.contains("has ended: it failed: container main ended with exit code 137 (OOMKilled)"),
        "{said}"
    );
}

/// The message is kubelet 1.36.2's.
#[test]
fn a_claim_that_kubelet_read_too_early_is_explained() {
    let cluster = Cluster::bare();
    cluster.namespace("vision");
    let bound = claimed(&json!({ "nodeName": "node-a" }));
    cluster
        .server
        .create(pod("train", &bound, &json!({ "phase": "Pending" })));
    cluster.server.create(json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "train.1", "namespace": "vision" },
        "involvedObject": { "uid": uid(&cluster, "pods", "train") }, "type": "Warning", "reason": "FailedPrepareDynamicResources",
        "message": "Failed to prepare dynamic resources: prepare dynamic resources: fetch ResourceClaim train-claim: resourceclaims.resource.k8s.io \"train-claim\" is forbidden: User \"system:node:node-a\" cannot get resource \"resourceclaims\" in API group \"resource.k8s.io\" in the namespace \"vision\": no relationship found between node 'node-a' and this object",
        "lastTimestamp": "2026-11-27T00:48:37Z",
    }));
    let said = cluster.done("why train -n vision").out;
    assert!(
        said.starts_with("pod vision/train starts: kubelet of node-a read its claim too early\n"),
        "{said}"
    );
    assert!(said.contains("60 to 90 s"), "{said}");
}

#[test]
fn without_kueue_and_without_rights_there_is_still_an_answer() {
    let cluster = Cluster::bare();
    cluster.namespace("vision");
    let unschedulable = json!({ "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available" },
    ] });
    template(&cluster);
    cluster
        .server
        .create(pod("train", &claimed(&json!({})), &unschedulable));
    cluster.server.fail("GET", "/resourceslices", 403, 9);
    cluster.server.fail("GET", "/resourceclaims", 403, 9);
    let said = cluster.done("why train -n vision").out;
    assert_eq!(said, "pod vision/train waits: 0/1 nodes are available\n");
    cluster.refused(
        "why gone -n vision",
        3,
        "the namespace vision has no pod, Job or Workload gone",
    );
    cluster.refused(
        "why node/x -n vision",
        2,
        "not a pod, a Workload or a kind that the webhook gives claims to",
    );
    let many = "x ".repeat(101);
    cluster.refused(&format!("why {many} -n vision"), 2, "101 names");
}
