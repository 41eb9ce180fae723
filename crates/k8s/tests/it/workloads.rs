//! What becomes of workloads: claims in their pod templates, and what an update may do to them.

use divvy_core::units::Bytes;
use divvy_k8s::base::claim::Inventory;
use divvy_k8s::base::inject::{CLAIM_TEMPLATES, WorkloadInjection, inject, inject_workload};
use divvy_k8s::base::pod_request::{Rules, SkipReason, Steps};
use divvy_k8s::base::workload::{ClaimRule, WORKLOADS, Workload};
use serde_json::{Value, json};

fn inventory(sizes: &[u64]) -> Inventory {
    Inventory {
        sizes: sizes.iter().map(|gib| Bytes::gib(*gib)).collect(),
        ..Inventory::default()
    }
}

fn of_80() -> Inventory {
    inventory(&[80])
}

/// A template with one container, these labels and limits.
fn template(labels: Value, limits: Value) -> Value {
    let mut template = json!({ "metadata": {}, "spec": { "containers": [
        { "name": "c", "image": "x", "resources": {} },
    ] } });
    if labels != json!({}) {
        template["metadata"]["labels"] = labels;
    }
    if limits != json!({}) {
        template["spec"]["containers"][0]["resources"]["limits"] = limits;
    }
    template
}

fn half() -> Value {
    template(json!({ "clearml-injector/fraction": "0.500" }), json!({}))
}

/// An object of a kind, with this template in each of its places.
pub fn object(workload: &Workload, template: &Value) -> Value {
    let mut object = json!({ "kind": workload.kind, "metadata": { "name": "w" } });
    for pattern in workload.templates {
        let mut place = &mut object;
        for segment in pattern.split('/').skip(1) {
            place = match segment {
                "*" => {
                    *place = json!([{ "name": "a" }]);
                    &mut place[0]
                }
                "{}" => &mut place["Worker"],
                name => &mut place[name],
            };
        }
        *place = template.clone();
    }
    object
}

fn of_kind(kind: &str, template: &Value) -> Value {
    object(kind_called(kind), template)
}

fn kind_called(kind: &str) -> &'static Workload {
    Workload::of_kind(kind).expect("a kind of workload")
}

fn admit(object: &Value, old: Option<&Value>, inventory: &Inventory) -> Option<WorkloadInjection> {
    inject_workload(object, old, inventory, Steps::Eighths).expect("admitted")
}

/// As it is stored.
fn created(object: &Value) -> Value {
    let admitted = admit(object, None, &of_80());
    admitted.map_or_else(|| object.clone(), |done| done.object)
}

fn updated(object: &Value, old: &Value) -> Value {
    let admitted = admit(object, Some(old), &of_80());
    admitted.map_or_else(|| object.clone(), |done| done.object)
}

/// Where the first template of an object is.
fn place(object: &Value) -> String {
    let kind = object["kind"].as_str().expect("a kind");
    kind_called(kind).places(object)[0].pointer.clone()
}

fn pod_template(object: &Value) -> &Value {
    object.pointer(&place(object)).expect("a template")
}

fn pod_template_mut(object: &mut Value) -> &mut Value {
    let place = place(object);
    object.pointer_mut(&place).expect("a template")
}

/// The claim template's name.
fn claim(object: &Value) -> Option<&str> {
    let claims = &pod_template(object)["spec"]["resourceClaims"];
    claims[0]["resourceClaimTemplateName"].as_str()
}

#[test]
fn every_kind_of_workload_gets_the_claim_in_each_of_its_templates() {
    for workload in WORKLOADS {
        let before = object(
            workload,
            &template(
                json!({ "clearml-injector/fraction": "0.500" }),
                json!({ "nvidia.com/gpu": 1, "cpu": 2 }),
            ),
        );
        let done = admit(&before, None, &of_80()).expect("changed");
        let [made] = &done.templates[..] else {
            panic!("one for all: {:?}", done.templates)
        };
        let places = workload.places(&done.object);
        assert_eq!(places.len(), workload.templates.len());
        for place in places {
            assert_eq!(
                done.object.pointer(&place.pointer).unwrap(),
                &json!({
                    "metadata": {
                        "labels": { "clearml-injector/fraction": "0.500" },
                        "annotations": { "divvy.dev/gpus": "0.500" },
                    },
                    "spec": {
                        "containers": [{ "name": "c", "image": "x", "resources": {
                            "limits": { "cpu": 2 }, "claims": [{ "name": "fraction-gpu" }],
                        } }],
                        "resourceClaims": [
                            { "name": "fraction-gpu", "resourceClaimTemplateName": made.name },
                        ],
                    },
                }),
                "{}",
                workload.kind
            );
        }
        let metadata = &done.object["metadata"];
        assert_eq!(metadata["labels"][CLAIM_TEMPLATES], "true");
        assert_eq!(
            metadata["annotations"][CLAIM_TEMPLATES],
            json!({ made.name.clone(): "0.500" }).to_string()
        );
        let mut patched = before.clone();
        json_patch::patch(&mut patched, &done.patch).expect("the patch fits");
        assert_eq!(patched, done.object);
        assert_eq!(admit(&done.object, None, &of_80()), None, "twice is once");
        assert_eq!(
            admit(&done.object, Some(&done.object), &of_80()),
            None,
            "an update of something else changes nothing"
        );
    }
}

#[test]
fn pods_of_such_a_template_get_the_rest_and_are_checked_as_any_other() {
    let deployment = created(&of_kind("Deployment", &half()));
    let mut pod = pod_template(&deployment).clone();
    pod["kind"] = json!("Pod");
    let injected = inject(&pod, &of_80(), Steps::Eighths).unwrap().unwrap();
    assert_eq!(injected.template, None, "the workload was given it");
    let spec = &injected.pod["spec"];
    assert_eq!(spec["resourceClaims"], pod["spec"]["resourceClaims"]);
    assert_eq!(spec["tolerations"][0]["key"], "nvidia.com/gpu");
    assert_eq!(
        spec["containers"][0]["env"],
        json!([{ "name": "CLEARML_AGENT_GPU_FRACTIONS", "value": "0.500" }])
    );
    assert_eq!(
        inject(&injected.pod, &of_80(), Steps::Eighths),
        Ok(Err(SkipReason::Done))
    );
    for (at, value) in [
        ("/spec/nodeName", json!("node-a")),
        (
            "/spec/containers/0/securityContext",
            json!({ "privileged": true }),
        ),
        (
            "/spec/containers/0/securityContext",
            json!({ "capabilities": { "add": ["SYS_ADMIN"] } }),
        ),
        (
            "/spec/containers/0/env",
            json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }]),
        ),
    ] {
        let with = |object: &Value| {
            let mut object = object.clone();
            let (parent, key) = at.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[key] = value.clone();
            object
        };
        assert!(
            inject(&with(&pod), &of_80(), Steps::Eighths).is_err(),
            "{at}"
        );
        // And the template is refused before any pod is made of it, when it is created and when it is changed.
        let refused = |object: &Value, old: Option<&Value>| {
            let mut object = object.clone();
            let template = pod_template_mut(&mut object);
            *template = with(template);
            inject_workload(&object, old, &of_80(), Steps::Eighths).is_err()
        };
        assert!(refused(&of_kind("Deployment", &half()), None), "{at}");
        assert!(refused(&deployment, Some(&deployment)), "{at}");
    }
}

/// Kubelet reads the claim of a pod without volumes at once, before the API server's authorizer may know of the pod.
#[test]
fn only_a_pod_without_volumes_gets_one() {
    let mut pod = template(json!({ "clearml-injector/fraction": "0.5" }), json!({}));
    pod["kind"] = json!("Pod");
    let mutated = |pod: &Value| inject(pod, &of_80(), Steps::Eighths).unwrap().unwrap().pod;
    let spec = mutated(&pod)["spec"].clone();
    assert_eq!(
        spec["containers"][0]["volumeMounts"],
        json!([{ "name": "divvy-pod", "mountPath": "/run/divvy-pod", "readOnly": true }])
    );
    let path = &spec["volumes"][0]["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"];
    assert_eq!(*path, "metadata.annotations['divvy.dev/gpus']");
    pod["spec"]["volumes"] = json!([{ "name": "token", "projected": { "sources": [] } }]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "token", "mountPath": "/var/run/secrets" }]);
    let spec = mutated(&pod)["spec"].clone();
    assert_eq!(spec["volumes"], pod["spec"]["volumes"]);
}

#[test]
fn the_objects_of_another_controller_are_left_to_it_other_than_jobs() {
    let owned = |kind: &str| {
        let mut object = of_kind(kind, &half());
        object["metadata"]["ownerReferences"] = json!([{ "controller": true, "kind": "X" }]);
        object
    };
    for workload in WORKLOADS.iter().filter(|one| one.kind != "Job") {
        let object = owned(workload.kind);
        assert_eq!(admit(&object, None, &of_80()), None, "{}", workload.kind);
        // As the Deployment controller makes it of a Deployment that has the claim, and as it scales it later.
        let mut replica_set = owned(workload.kind);
        *pod_template_mut(&mut replica_set) =
            pod_template(&created(&of_kind("Deployment", &half()))).clone();
        assert_eq!(admit(&replica_set, None, &inventory(&[24])), None);
        assert_eq!(admit(&replica_set, Some(&object), &inventory(&[24])), None);
    }
    let job = admit(&owned("Job"), None, &of_80()).expect("a CronJob's Job gets a claim");
    assert_eq!(admit(&job.object, None, &inventory(&[24])), None);
}

#[test]
fn an_update_with_the_same_request_keeps_the_claim_byte_for_byte() {
    for workload in WORKLOADS {
        let manifest = object(
            workload,
            &template(
                json!({ "clearml-injector/fraction": "0.500" }),
                json!({ "nvidia.com/gpu": 1 }),
            ),
        );
        let stored = created(&manifest);
        let name = claim(&stored).unwrap().to_owned();
        // `kubectl replace` of the manifest, on a cluster that has other GPUs by now.
        let done = admit(&manifest, Some(&stored), &inventory(&[24, 48])).unwrap();
        assert_eq!(done.object, stored, "{}", workload.kind);
        assert_eq!(done.templates, [], "no other template");
        // `kubectl apply`: the limit comes back, the claim was never gone.
        let mut applied = stored.clone();
        pod_template_mut(&mut applied)["spec"]["containers"][0]["resources"]["limits"] =
            json!({ "nvidia.com/gpu": 1 });
        assert_eq!(updated(&applied, &stored), stored, "{}", workload.kind);
        // A queue's own changes.
        let mut unsuspended = stored.clone();
        unsuspended["spec"]["suspend"] = json!(false);
        pod_template_mut(&mut unsuspended)["spec"]["nodeSelector"] = json!({ "pool": "a" });
        let done = admit(&unsuspended, Some(&stored), &inventory(&[]));
        assert_eq!(done, None, "{}", workload.kind);
        // Another image, with another claim of the user's before ours.
        let mut other = stored.clone();
        let spec = &mut pod_template_mut(&mut other)["spec"];
        spec["containers"][0]["image"] = json!("y");
        let claims = spec["resourceClaims"].as_array_mut().unwrap();
        claims.insert(0, json!({ "name": "nic", "resourceClaimName": "n" }));
        let after = updated(&other, &stored);
        let claims = pod_template(&after)["spec"]["resourceClaims"]
            .as_array()
            .unwrap();
        assert!(
            claims
                .iter()
                .any(|claim| claim["resourceClaimTemplateName"] == *name)
        );
        assert_eq!(claims.len(), 2);
        assert_eq!(updated(&after, &after), after);
    }
}

#[test]
fn an_update_is_not_refused_for_what_was_allowed_when_the_object_was_created() {
    let third = of_kind(
        "Deployment",
        &template(json!({ "clearml-injector/fraction": "0.3" }), json!({})),
    );
    let done = inject_workload(&third, None, &of_80(), Steps::Any).unwrap();
    let stored = done.unwrap().object;
    // The cluster's admin has turned `anyFraction` off since.
    let mut scaled = stored.clone();
    pod_template_mut(&mut scaled)["spec"]["containers"][0]["image"] = json!("y");
    assert_eq!(admit(&scaled, Some(&stored), &of_80()), None);
    assert_eq!(updated(&third, &stored), stored);
    assert!(inject_workload(&third, None, &of_80(), Steps::Eighths).is_err());
}

#[test]
fn an_object_from_before_gets_no_claim_until_its_template_changes() {
    for workload in WORKLOADS {
        let before = object(workload, &half());
        let mut scaled = before.clone();
        scaled["spec"]["replicas"] = json!(3);
        assert_eq!(admit(&scaled, Some(&before), &of_80()), None);
        let mut changed = before.clone();
        pod_template_mut(&mut changed)["spec"]["containers"][0]["image"] = json!("y");
        let done = admit(&changed, Some(&before), &of_80());
        match workload.claims {
            ClaimRule::Replaceable => assert!(claim(&done.unwrap().object).is_some()),
            ClaimRule::Fixed => assert_eq!(done, None, "{}", workload.kind),
        }
    }
}

#[test]
fn another_request_is_another_claim_and_none_is_none() {
    for workload in WORKLOADS {
        let manifest = object(workload, &half());
        let stored = created(&manifest);
        let in_each = |change: &dyn Fn(&mut Value)| {
            let mut object = stored.clone();
            for place in workload.places(&stored) {
                change(object.pointer_mut(&place.pointer).unwrap());
            }
            object
        };
        let quarter = in_each(&|template| {
            template["metadata"]["labels"]["clearml-injector/fraction"] = json!("0.250");
        });
        let done = admit(&quarter, Some(&stored), &of_80());
        let without = in_each(&|template| {
            template["metadata"]["labels"] = json!({ "app": "mine" });
            template["spec"]["tolerations"] = json!([{ "key": "mine" }]);
        });
        let gone = admit(&without, Some(&stored), &of_80());
        match workload.claims {
            ClaimRule::Replaceable => {
                let done = done.unwrap();
                assert_ne!(claim(&done.object), claim(&stored));
                let alone = created(&object(
                    workload,
                    &template(json!({ "clearml-injector/fraction": "0.250" }), json!({})),
                ));
                assert_eq!(done.object, alone);
                let gone = gone.unwrap().object;
                let mut left = template(json!({ "app": "mine" }), json!({}));
                left["spec"]["tolerations"] = json!([{ "key": "mine" }]);
                assert_eq!(pod_template(&gone), &left, "{}", workload.kind);
                assert_eq!(gone["metadata"]["labels"].get(CLAIM_TEMPLATES), None);
                assert_eq!(gone["metadata"]["annotations"].get(CLAIM_TEMPLATES), None);
            }
            ClaimRule::Fixed => {
                for done in [done, gone] {
                    // Nothing, or a warning: the claim is the old one.
                    let object = done.map(|done| done.object);
                    if let Some(object) = object {
                        assert_eq!(claim(&object), claim(&stored), "{}", workload.kind);
                    }
                }
            }
        }
    }
    let job = created(&of_kind("Job", &half()));
    let quarter = of_kind(
        "Job",
        &template(json!({ "clearml-injector/fraction": "0.250" }), json!({})),
    );
    let done = admit(&quarter, Some(&job), &of_80()).unwrap();
    assert_eq!(claim(&done.object), claim(&job));
    assert!(
        done.warnings[0].contains("create it again"),
        "{:?}",
        done.warnings
    );
}

#[test]
fn limits_of_hami_become_annotations_and_other_limits_later_replace_them() {
    let with = |limits: Value| of_kind("Deployment", &template(json!({}), limits));
    let two = with(
        json!({ "nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30, "cpu": 1 }),
    );
    let stored = created(&two);
    let of_two = pod_template(&stored);
    assert_eq!(of_two["metadata"]["annotations"]["gpu-memory"], "3000");
    assert_eq!(
        of_two["metadata"]["annotations"]["divvy.dev/compute"],
        "fair=0.3"
    );
    assert_eq!(
        of_two["metadata"]["annotations"]["divvy.dev/gpus"],
        "3000Mi,3000Mi"
    );
    let resources = &of_two["spec"]["containers"][0]["resources"];
    assert_eq!(resources["limits"], json!({ "cpu": 1 }));
    assert_eq!(updated(&two, &stored), stored);
    // As `kubectl apply` leaves it: the live object with the manifest's new limits.
    let mut applied = stored.clone();
    pod_template_mut(&mut applied)["spec"]["containers"][0]["resources"]["limits"] =
        json!({ "nvidia.com/gpumem-percentage": 30 });
    let after = updated(&applied, &stored);
    let annotations = &pod_template(&after)["metadata"]["annotations"];
    assert_eq!(annotations["gpu-fraction"], "0.300");
    assert_eq!(annotations["divvy.dev/gpus"], "0.300");
    assert_eq!(annotations.get("gpu-memory"), None);
    assert_eq!(annotations.get("divvy.dev/compute"), None);
    assert_eq!(annotations.get("gpu-fraction-num-devices"), None);
}

#[test]
fn limits_of_clearml_stay_the_label_that_they_were() {
    let limited = of_kind(
        "Job",
        &template(
            json!({}),
            json!({ "clear.ml/fraction-1": "0.5", "nvidia.com/gpu": 1 }),
        ),
    );
    let stored = created(&limited);
    let labels = &pod_template(&stored)["metadata"]["labels"];
    assert_eq!(labels["clearml-injector/fraction"], "0.500");
    assert_eq!(claim(&stored), claim(&created(&of_kind("Job", &half()))));
    assert_eq!(updated(&limited, &stored), stored);
    // A Job from before this version, applied again.
    let mut before = of_kind("Job", &half());
    pod_template_mut(&mut before)["metadata"]["annotations"] = json!({
        "divvy.dev/made-of-limits": r#"{"clearml-injector/fraction":"0.500"}"#,
    });
    let mut applied = before.clone();
    pod_template_mut(&mut applied)["spec"]["containers"][0]["resources"]["limits"] =
        json!({ "clear.ml/fraction-1": "0.5" });
    let after = updated(&applied, &before);
    let limits = &pod_template(&after)["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(
        limits,
        &json!({}),
        "the API server takes no half of a resource"
    );
    assert_eq!(claim(&after), None);
}

#[test]
fn the_container_with_the_gpu_keeps_the_claim_when_others_come_before_it() {
    let mut template = half();
    template["spec"]["containers"] = json!([
        { "name": "side" },
        { "name": "train", "resources": { "limits": { "nvidia.com/gpu": 1 } } },
    ]);
    let stored = created(&of_kind("Deployment", &template));
    let claims = |object: &Value, at: usize| {
        pod_template(object)["spec"]["containers"][at]["resources"]["claims"].clone()
    };
    let ours = json!([{ "name": "fraction-gpu" }]);
    assert_eq!(claims(&stored, 1), ours);
    let mut more = stored.clone();
    let spec = &mut pod_template_mut(&mut more)["spec"];
    let containers = spec["containers"].as_array_mut().unwrap();
    containers.insert(0, json!({ "name": "proxy" }));
    let after = updated(&more, &stored);
    assert_eq!(
        [0, 1, 2].map(|at| claims(&after, at)),
        [json!(null), json!(null), ours]
    );
}

#[test]
fn an_image_with_a_fixed_limit_is_a_request_and_an_explicit_one_wins() {
    let image = "clearml/fractional-gpu:u22-cu12.3-8gb";
    let mut fixed = template(json!({}), json!({}));
    fixed["spec"]["hostPID"] = json!(true);
    fixed["spec"]["containers"][0]["image"] = json!(image);
    let done = admit(&of_kind("Job", &fixed), None, &of_80()).unwrap();
    let annotations = &pod_template(&done.object)["metadata"]["annotations"];
    assert_eq!(annotations["divvy.dev/gpus"], "8192Mi");
    assert_eq!(done.warnings.len(), 2, "{:?}", done.warnings);
    let mut quarter = fixed.clone();
    quarter["metadata"]["labels"] = json!({ "clearml-injector/fraction": "0.250" });
    let stored = created(&of_kind("Job", &quarter));
    assert_eq!(
        pod_template(&stored)["metadata"]["annotations"]["divvy.dev/gpus"],
        "0.250"
    );
    let mut whole = fixed.clone();
    whole["spec"]["containers"][0]["resources"]["limits"] = json!({ "nvidia.com/gpu": 1 });
    assert_eq!(admit(&of_kind("Job", &whole), None, &of_80()), None);
    // With another image there is no request any more.
    let deployment = created(&of_kind("Deployment", &fixed));
    let mut other = deployment.clone();
    pod_template_mut(&mut other)["spec"]["containers"][0]["image"] = json!("python:3");
    assert_eq!(claim(&updated(&other, &deployment)), None);
}

#[test]
fn workloads_of_other_schedulers_are_left_unless_they_are_served() {
    let mut volcano = half();
    volcano["spec"]["schedulerName"] = json!("volcano");
    let job = of_kind("Job", &volcano);
    assert_eq!(admit(&job, None, &of_80()), None);
    let schedulers = ["volcano".to_owned()];
    let rules = Rules {
        steps: Steps::Eighths,
        schedulers: &schedulers,
    };
    let done = inject_workload(&job, None, &of_80(), rules)
        .unwrap()
        .unwrap();
    assert!(claim(&done.object).is_some());
}

#[test]
fn an_object_has_a_bounded_number_of_requests() {
    let job_set = |count: u64| {
        let replicated = (1..=count).map(|mib| {
            let mut template = template(json!({}), json!({}));
            template["metadata"]["annotations"] = json!({ "gpu-memory": mib.to_string() });
            json!({ "name": format!("r{mib}"), "template": { "spec": { "template": template } } })
        });
        let replicated: Vec<Value> = replicated.collect();
        json!({ "kind": "JobSet", "metadata": {}, "spec": { "replicatedJobs": replicated } })
    };
    let many = admit(&job_set(32), None, &of_80()).unwrap();
    assert_eq!(many.templates.len(), 32);
    let error = inject_workload(&job_set(33), None, &of_80(), Steps::Eighths).unwrap_err();
    assert!(
        error.to_string().contains("33 different GPU requests"),
        "{error}"
    );
    // A hundred alike are one.
    let mut alike = job_set(100);
    for job in alike["spec"]["replicatedJobs"].as_array_mut().unwrap() {
        job["template"]["spec"]["template"]["metadata"]["annotations"] =
            json!({ "gpu-memory": "5" });
    }
    assert_eq!(admit(&alike, None, &of_80()).unwrap().templates.len(), 1);
}

#[test]
fn a_copy_of_a_stored_object_in_another_cluster_gets_that_clusters_claim() {
    let stored = created(&of_kind("Deployment", &half()));
    let copy = admit(&stored, None, &inventory(&[24])).unwrap();
    assert_ne!(claim(&copy.object), claim(&stored));
    assert_eq!(copy.templates.len(), 1);
}
