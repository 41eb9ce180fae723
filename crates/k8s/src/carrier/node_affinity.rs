//! Node affinity and taints: whether the scheduler may place a pod on a node.
//!
//! It follows kube-scheduler's NodeAffinity and TaintToleration plugins. It ignores the scheduler's other criteria
//! (CPU, ports, spreading), because a removed gate cannot be put back.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

/// Whether nothing that is said keeps a pod of this kind from the node.
pub fn fits(pod: &PodSpec, node: &Node) -> bool {
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let mut selector = pod.node_selector.iter().flatten();
    let selected = selector.all(|(key, value)| labels.get(key) == Some(value));
    let terms = required(pod);
    let wanted = terms.is_none_or(|terms| terms.iter().any(|term| matches(term, labels, name)));
    let spec = node.spec.as_ref();
    let open = spec.is_none_or(|spec| spec.unschedulable != Some(true));
    let mut taints = spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    selected && wanted && open && taints.all(|taint| is_tolerated(taint, pod))
}

/// The node terms that a pod has to have one of.
pub fn required(pod: &PodSpec) -> Option<&Vec<NodeSelectorTerm>> {
    let affinity = pod.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    Some(&required.node_selector_terms)
}

/// A term of nothing matches nothing.
fn matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let some = !expressions.is_empty() || !fields.is_empty();
    some && expressions
        .iter()
        .all(|one| holds(one, labels.get(&one.key).map(String::as_str)))
        && fields
            .iter()
            .all(|one| one.key == "metadata.name" && holds(one, Some(name)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = |wanted: fn(i64, i64) -> bool| {
        let bound = values.first().and_then(|text| number(text));
        value
            .and_then(number)
            .zip(bound)
            .is_some_and(|(value, bound)| wanted(value, bound))
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|value, bound| value > bound),
        "Lt" => compared(|value, bound| value < bound),
        _ => false,
    }
}

fn is_tolerated(taint: &Taint, pod: &PodSpec) -> bool {
    let keeps_away = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    let mut tolerations = pod.tolerations.iter().flatten();
    !keeps_away || tolerations.any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    let same_effect = effect.is_empty() || effect == taint.effect;
    let same_key = key.is_empty() || key == taint.key;
    let same_value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => {
            !key.is_empty() && text(&toleration.value) == text(&taint.value)
        }
        Some(_) => false,
    };
    same_effect && same_key && same_value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node() -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "a", "labels": { "zone": "x", "gpus": "8" } },
            "spec": { "taints": [{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }, { "key": "busy", "effect": "PreferNoSchedule" }] },
        }))
        .unwrap()
    }

    fn fits(mut spec: Value) -> bool {
        spec["containers"] = json!([]);
        if spec.get("tolerations").is_none() {
            spec["tolerations"] =
                json!([{ "key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule" }]);
        }
        super::fits(&serde_json::from_value(spec).unwrap(), &node())
    }

    fn affinity(terms: Value) -> Value {
        json!({ "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
        } } })
    }

    #[test]
    fn selectors_taints_and_terms_count_as_the_scheduler_has_them() {
        assert!(fits(json!({})));
        assert!(fits(json!({ "nodeSelector": { "zone": "x" } })));
        assert!(!fits(json!({ "nodeSelector": { "zone": "y" } })));
        assert!(!fits(json!({ "tolerations": [] })), "tainted");
        assert!(fits(json!({ "tolerations": [{ "operator": "Exists" }] })));
        assert!(!fits(
            json!({ "tolerations": [{ "key": "nvidia.com/gpu", "value": "other" }] })
        ));
        for (expression, fit) in [
            (
                json!({ "key": "zone", "operator": "In", "values": ["y", "x"] }),
                true,
            ),
            (
                json!({ "key": "zone", "operator": "NotIn", "values": ["x"] }),
                false,
            ),
            (json!({ "key": "zone", "operator": "Exists" }), true),
            (json!({ "key": "zone", "operator": "DoesNotExist" }), false),
            (
                json!({ "key": "gpus", "operator": "Gt", "values": ["7"] }),
                true,
            ),
            (
                json!({ "key": "gpus", "operator": "Lt", "values": ["7"] }),
                false,
            ),
            (json!({ "key": "zone", "operator": "Near" }), false),
        ] {
            let spec = affinity(json!([{ "matchExpressions": [expression] }]));
            assert_eq!(fits(spec), fit, "{expression}");
        }
        let field = json!({ "key": "metadata.name", "operator": "In", "values": ["b"] });
        assert!(!fits(affinity(json!([{ "matchFields": [field] }]))));
        assert!(fits(affinity(
            json!([{ "matchFields": [field] }, { "matchExpressions": [{ "key": "zone", "operator": "Exists" }] }])
        )));
        assert!(
            !fits(affinity(json!([{}]))),
            "a term of nothing matches nothing"
        );
    }
}
