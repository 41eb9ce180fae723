//! Pod changes of carrier mode: creation of a reservation pod, and removal of a pod's scheduling gate. Pure.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::node_affinity::required;
use super::{GATE, NAMESPACE, RESOURCE};
use crate::base::objects::containers;
use crate::base::pod_request::GPU;
use crate::base::sharing::CarrierNodes;

/// The label that marks reservation pods.
pub const RESERVATION_LABEL: (&str, &str) = ("app.kubernetes.io/component", "carrier");
/// The placement group of a reservation pod: pods that may go to the same nodes.
pub const PLACE: &str = "divvy.dev/place";

/// Where a pod may go, as far as it says so itself: equal for pods that say the same.
pub fn placement_key(spec: &PodSpec) -> String {
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|all| all.node_affinity.as_ref());
    let words = json!([
        spec.node_selector,
        affinity.and_then(|one| one
            .required_during_scheduling_ignored_during_execution
            .as_ref()),
        spec.tolerations,
    ]);
    short(&words.to_string())
}

/// The name of the carrier that is made for a pod: the same however often it is thought of.
pub fn reservation_pod_name(uid: &str) -> String {
    format!("carrier-{}", short(uid))
}

fn short(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// What all reservation pods of a cluster have in common.
#[derive(Clone, Debug, Default)]
pub struct ReservationTemplate {
    /// What they run: this program's own image.
    pub image: String,
    /// Where they may go; no labels: everywhere.
    pub nodes: CarrierNodes,
}

/// A pod that asks NVIDIA's plugin for one GPU and does nothing with it, where `spec` may go.
pub fn reservation_pod(name: &str, spec: &PodSpec, common: &ReservationTemplate) -> Value {
    let mut tolerations = spec.tolerations.clone().map_or(json!([]), |all| json!(all));
    let toleration = json!({ "key": GPU, "operator": "Exists", "effect": "NoSchedule" });
    if let Some(list) = tolerations.as_array_mut()
        && !list.contains(&toleration)
    {
        list.push(toleration);
    }
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {
                "app.kubernetes.io/name": "divvy",
                "app.kubernetes.io/managed-by": "divvy",
                (RESERVATION_LABEL.0): RESERVATION_LABEL.1,
                (PLACE): placement_key(spec),
            },
        },
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 5,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 65534,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "tolerations": tolerations,
            "containers": [{
                "name": "carrier",
                "image": common.image,
                "command": ["divvy-k8s", "carrier", "hold"],
                "resources": {
                    "requests": { "cpu": "1m", "memory": "8Mi" },
                    "limits": { (GPU): 1, "memory": "64Mi" },
                },
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": { "drop": ["ALL"] },
                },
            }],
        },
    });
    let mut selector = spec.node_selector.clone().unwrap_or_default();
    // A pod that names another value for such a label may go to no carrier node, and its reservation pod waits as it does.
    for (key, value) in common.nodes.labels() {
        let own = selector.entry(key.clone());
        own.or_insert_with(|| value.clone());
    }
    if !selector.is_empty() {
        pod["spec"]["nodeSelector"] = json!(selector);
    }
    if let Some(terms) = required(spec) {
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({ "nodeSelectorTerms": terms });
    }
    pod
}

/// The pod without its gate, and to this node alone. What the API server lets a gated pod's affinity become is narrower: so every
/// term gets one more requirement (KEP-3838).
pub fn ungated(pod: &Pod, node: &str) -> Pod {
    let mut pod = pod.clone();
    let Some(spec) = &mut pod.spec else {
        return pod;
    };
    let here = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    let mut terms = required(spec).map_or(json!([{ "matchFields": [] }]), |terms| json!(terms));
    for term in terms.as_array_mut().into_iter().flatten() {
        // A term of nothing matches nothing, and stays so.
        if *term == json!({}) {
            continue;
        }
        match term["matchFields"].as_array_mut() {
            Some(fields) => fields.push(here.clone()),
            None => term["matchFields"] = json!([here]),
        }
    }
    let mut affinity = json!(spec.affinity);
    affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({ "nodeSelectorTerms": terms });
    spec.affinity = serde_json::from_value(affinity).ok();
    if let Some(gates) = &mut spec.scheduling_gates {
        gates.retain(|gate| gate.name != GATE);
    }
    pod
}

pub fn is_gated(spec: &PodSpec) -> bool {
    let mut gates = spec.scheduling_gates.iter().flatten();
    gates.any(|gate| gate.name == GATE)
}

/// How many sixteenths its containers list, all together; `None` where that is none, or more than a GPU has.
pub fn units(spec: &PodSpec) -> Option<u8> {
    let limits =
        containers(spec).filter_map(|one| one.resources.as_ref()?.limits.as_ref()?.get(RESOURCE));
    let sum: u64 = limits
        .map(|count| count.0.parse::<u64>().unwrap_or(u64::MAX >> 8))
        .sum();
    u8::try_from(sum)
        .ok()
        .filter(|units| (1..=super::units::UNITS).contains(units))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: &Value) -> Pod {
        let mut spec = spec.clone();
        spec["schedulingGates"] = json!([{ "name": GATE }, { "name": "other/gate" }]);
        spec["containers"] =
            json!([{ "name": "c", "resources": { "limits": { (RESOURCE): "4" } } }]);
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap()
    }

    fn terms(pod: &Pod) -> Value {
        json!(required(pod.spec.as_ref().unwrap()).unwrap())
    }

    #[test]
    fn a_gate_is_lifted_to_one_node_and_other_gates_stay() {
        let before = pod(&json!({ "affinity": { "podAffinity": {} } }));
        assert!(is_gated(before.spec.as_ref().unwrap()));
        let after = ungated(&before, "a");
        let spec = after.spec.as_ref().unwrap();
        assert!(!is_gated(spec));
        assert_eq!(
            spec.scheduling_gates.as_ref().unwrap()[0].name,
            "other/gate"
        );
        let here = json!({ "key": "metadata.name", "operator": "In", "values": ["a"] });
        assert_eq!(terms(&after), json!([{ "matchFields": [here] }]));
        assert!(
            spec.affinity.as_ref().unwrap().pod_affinity.is_some(),
            "the rest stays"
        );
    }

    #[test]
    fn terms_of_the_pods_own_become_narrower_and_none_wider() {
        let zone = json!({ "key": "zone", "operator": "Exists" });
        let own = json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [zone] }, { "matchFields": [{ "key": "metadata.name", "operator": "NotIn", "values": ["b"] }] }],
        } } } });
        let after = ungated(&pod(&own), "a");
        assert_eq!(terms(&after)[0]["matchExpressions"], json!([zone]));
        assert_eq!(terms(&after)[1]["matchFields"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_carrier_goes_where_its_pod_may_and_asks_for_one_gpu() {
        let own = pod(
            &json!({ "nodeSelector": { "zone": "x" }, "tolerations": [{ "operator": "Exists" }] }),
        );
        let spec = own.spec.as_ref().unwrap();
        let common = ReservationTemplate {
            image: "divvy:1".to_owned(),
            nodes: "pool=old,zone=y".parse().unwrap(),
        };
        let made = reservation_pod(&reservation_pod_name("u"), spec, &common);
        let typed: Pod = serde_json::from_value(made.clone()).unwrap();
        assert_eq!(
            made["spec"]["nodeSelector"],
            json!({ "zone": "x", "pool": "old" })
        );
        assert_eq!(
            made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"],
            1
        );
        assert_eq!(made["spec"]["tolerations"].as_array().unwrap().len(), 2);
        assert_eq!(typed.metadata.namespace.as_deref(), Some("divvy-carriers"));
        assert_eq!(reservation_pod_name("u"), reservation_pod_name("u"));
        assert_ne!(
            placement_key(spec),
            placement_key(pod(&json!({})).spec.as_ref().unwrap())
        );
        assert_eq!(units(spec), Some(4));
        assert_eq!(units(typed.spec.as_ref().unwrap()), None);
    }
}
