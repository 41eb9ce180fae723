//! The YAML of docs/kuberay.md: fields of KubeRay's CRDs, and the claims that the webhook adds to the worker pods.

use std::collections::BTreeSet;

use divvy_core::units::Bytes;
use divvy_k8s::base::claim::Inventory;
use divvy_k8s::base::inject::inject_workload;
use divvy_k8s::base::pod_request::Steps;
use divvy_k8s::base::slices::classes;
use divvy_k8s::base::workload::Workload;
use serde_json::Value;

const PAGE: &str = include_str!("../../../../docs/kuberay.md");

/// The `spec` of each kind, by its name. `$ref` names a kind of the file.
fn crds() -> Value {
    serde_json::from_str(include_str!("kuberay/crds.json")).expect("the extract is JSON")
}

/// The objects that the page shows.
fn objects() -> Vec<Value> {
    let blocks = PAGE.split("```yaml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().expect("the block ends"));
    let read = |block| yaml_serde::from_str(block).expect("the block is YAML");
    blocks.map(read).collect()
}

/// What the schema refuses in a value, each with its place.
fn faults(crds: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(kind) = schema["$ref"].as_str() {
        return faults(crds, &crds[kind], value, place);
    }
    let is_right = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        _ => true,
    };
    if !is_right {
        return vec![format!("{place}: {value} is no {}", schema["type"])];
    }
    let mut found = Vec::new();
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().unwrap_or_default()).is_none() {
            found.push(format!("{place}: no {name}"));
        }
    }
    let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    for (name, inner) in value.as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        let known = (schema["properties"].get(name)).or(schema.get("additionalProperties"));
        match known {
            Some(schema) => found.extend(faults(crds, schema, inner, &place)),
            None if is_open => {}
            None => found.push(format!("{place}: not a field")),
        }
    }
    for (at, inner) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(faults(
            crds,
            &schema["items"],
            inner,
            &format!("{place}[{at}]"),
        ));
    }
    found
}

#[test]
fn the_objects_of_the_page_are_valid_and_an_unknown_field_or_type_is_not() {
    let crds = crds();
    let mut kinds = BTreeSet::new();
    for object in objects() {
        let kind = object["kind"].as_str().expect("a kind");
        assert_eq!(object["apiVersion"], "ray.io/v1");
        assert_eq!(
            faults(&crds, &crds[kind], &object["spec"], kind),
            [""; 0],
            "{kind}"
        );
        kinds.insert(kind.to_owned());
    }
    assert_eq!(kinds, ["RayCluster", "RayJob"].map(str::to_owned).into());
    for (place, wrong) in [
        ("/headGroupSpec/rayStartParams/num-cpus", "0"),
        ("/workerGroupSpecs/0/replicas", "\"4\""),
        ("/workerGroupSpecs/0/template", "null"),
    ] {
        let mut spec = objects().remove(0)["spec"].take();
        let wrong = serde_json::from_str(wrong).expect("JSON");
        *spec.pointer_mut(place).expect("a field of the page") = wrong;
        let found = faults(&crds, &crds["RayCluster"], &spec, "spec");
        assert_eq!(found.len(), 1, "{place}: {found:?}");
    }
    let mut spec = objects().remove(0)["spec"].take();
    spec["workerGroupSpecs"][0]["fraction"] = "0.25".into();
    let found = faults(&crds, &crds["RayCluster"], &spec, "spec");
    assert_eq!(found, ["spec.workerGroupSpecs[0].fraction: not a field"]);
}

#[test]
fn each_worker_group_gets_a_claim_of_a_class_that_the_controller_makes_and_no_head_gets_one() {
    let inventory = Inventory {
        sizes: [Bytes::gib(80)].into(),
        ..Inventory::default()
    };
    let classes = classes(&inventory, false);
    let names: BTreeSet<_> = classes
        .iter()
        .filter_map(|one| one.metadata.name.clone())
        .collect();
    for object in objects() {
        let admitted = inject_workload(&object, None, &inventory, Steps::Eighths);
        let admitted = admitted.expect("admitted").expect("it gets claims");
        let workload = admitted.object["kind"].as_str().and_then(Workload::of_kind);
        let workload = workload.expect("a kind of the webhook");
        let [made] = &admitted.templates[..] else {
            panic!("one size, one template: {:?}", admitted.templates)
        };
        for request in made.spec["spec"]["devices"]["requests"]
            .as_array()
            .expect("requests")
        {
            let class = &request["exactly"]["deviceClassName"];
            let class = class
                .as_str()
                .or_else(|| request["firstAvailable"][0]["deviceClassName"].as_str());
            assert!(
                names.contains(class.expect("a class")),
                "{request}: {names:?}"
            );
        }
        let mut claimed = 0;
        for place in workload.places(&admitted.object) {
            let template = admitted.object.pointer(&place.pointer).expect("a template");
            let is_worker = place.pointer.contains("workerGroupSpecs");
            let claims = &template["spec"]["resourceClaims"];
            let name = &claims[0]["resourceClaimTemplateName"];
            assert_eq!(name.as_str(), is_worker.then_some(made.name.as_str()));
            if is_worker {
                let container = &template["spec"]["containers"][0];
                assert_eq!(
                    container["resources"]["claims"][0]["name"],
                    claims[0]["name"]
                );
                // KubeRay takes the number of GPUs from `nvidia.com/gpu`, which a claim is not.
                let group = place.pointer.trim_end_matches("/template");
                let group = admitted.object.pointer(group).expect("a group");
                assert_eq!(group["rayStartParams"]["num-gpus"], "1");
                claimed += 1;
            }
        }
        assert_eq!(claimed, 1);
    }
}
