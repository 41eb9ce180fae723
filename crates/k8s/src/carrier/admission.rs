//! The webhook's mutation of a pod in carrier mode: its request becomes sixteenths and a scheduling gate.

use std::collections::BTreeSet;

use divvy_core::units::Bytes;
use json_patch::Patch;
use serde_json::{Value, json};

use super::{GATE, LABEL, LEAST, RESOURCE, units};
use crate::base::inject::{drop_ours, entry, push};
use crate::base::pod_request::{GPU, Refusal, Rules, Size, SkipReason, parse_pod_request};

/// The result of the mutation.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    /// The pod as it is to be.
    pub pod: Value,
    /// From the pod as it was.
    pub patch: Patch,
    /// Warnings for the creator of the pod.
    pub warnings: Vec<String>,
}

/// Why a pod cannot be admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(
        "fractions of {0} GPUs in one pod need resource claims, which carrier mode does not use; request a fraction of one GPU, or whole GPUs"
    )]
    Several(usize),
    #[error(
        "{} of GPU memory requested, but the largest GPU has {}",
        asked.human_beside(*most)[0],
        asked.human_beside(*most)[1]
    )]
    TooMuch { asked: Bytes, most: Bytes },
    #[error(
        "no node has reported its GPUs yet; check that the node pods run with --carrier: `kubectl get pods -A -l app.kubernetes.io/component=node`"
    )]
    NoGpus,
}

/// Mutates a pod, or says why it stays as it is. Idempotent. `sizes` are the usable memory of the cluster's GPUs.
///
/// # Errors
/// It asks for something that cannot be, that would not be held, or that no GPU could ever serve.
pub fn gate<'r>(
    pod: &Value,
    sizes: &BTreeSet<Bytes>,
    rules: impl Into<Rules<'r>>,
) -> Result<Result<Gated, SkipReason>, GateError> {
    let gates = pod["spec"]["schedulingGates"].as_array();
    if gates.is_some_and(|gates| gates.iter().any(|gate| gate["name"] == GATE)) {
        return Ok(Err(SkipReason::Done));
    }
    let ask = match parse_pod_request(pod, rules)? {
        Ok(ask) => ask,
        Err(untouched) => return Ok(Err(untouched)),
    };
    let whole = ask.gpus.iter().all(|size| *size == Size::Whole);
    let (resource, count) = match (&ask.gpus[..], whole) {
        (gpus, true) => (GPU, gpus.len()),
        ([size], _) => (RESOURCE, usize::from(sixteenths(*size, sizes)?)),
        (gpus, _) => return Err(GateError::Several(gpus.len())),
    };
    let mut warnings = ask.warnings;
    let mut changed = pod.clone();
    if let Some(container) = changed.pointer_mut(&ask.container.pointer()) {
        let resources = entry(container, "resources", json!({}));
        drop_ours(resources);
        for key in ["limits", "requests"] {
            entry(resources, key, json!({}))[resource] = json!(count.to_string());
        }
    }
    if !whole {
        warnings.extend(rounded(&ask.gpus, count));
        let metadata = entry(&mut changed, "metadata", json!({}));
        entry(metadata, "labels", json!({}))[LABEL.0] = json!(LABEL.1);
        if let [Size::Memory(mib)] = ask.gpus[..] {
            entry(metadata, "annotations", json!({}))[LEAST] = json!(mib.to_string());
        }
        let spec = &mut changed["spec"];
        push(spec, "schedulingGates", json!({ "name": GATE }));
        let toleration = json!({ "key": GPU, "operator": "Exists", "effect": "NoSchedule" });
        let tolerations = entry(spec, "tolerations", json!([]));
        if let Some(list) = tolerations.as_array_mut()
            && !list.contains(&toleration)
        {
            list.push(toleration);
        }
    }
    if changed == *pod {
        Ok(Err(SkipReason::Done))
    } else {
        Ok(Ok(Gated {
            patch: json_patch::diff(pod, &changed),
            pod: changed,
            warnings,
        }))
    }
}

fn sixteenths(size: Size, sizes: &BTreeSet<Bytes>) -> Result<u8, GateError> {
    match size {
        Size::Whole => Ok(units::UNITS),
        Size::Fraction(part) => Ok(units::of_fraction(part)),
        Size::Memory(mib) => {
            let asked = Bytes::mib(mib);
            let most = sizes.last().ok_or(GateError::NoGpus)?;
            units::of_memory(asked, sizes.iter().copied())
                .ok_or(GateError::TooMuch { asked, most: *most })
        }
    }
}

/// A warning for memory beyond the request, because it counts against other pods.
fn rounded(gpus: &[Size], count: usize) -> Option<String> {
    let exact = match gpus {
        [Size::Fraction(part)] => {
            u64::from(part.millionths()) * u64::from(units::UNITS) == count as u64 * 1_000_000
        }
        _ => false,
    };
    (!exact).then(|| {
        format!(
            "the pod gets {count}/16 of a GPU, because carrier mode allocates GPUs in sixteenths"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::pod_request::Steps;

    fn pod(labels: &Value, annotations: &Value, limits: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "p", "labels": labels, "annotations": annotations },
            "spec": { "containers": [{ "name": "c", "image": "x", "resources": { "limits": limits } }] },
        })
    }

    fn sizes() -> BTreeSet<Bytes> {
        [Bytes::gib(16), Bytes::gib(80)].into()
    }

    fn gated(pod: &Value) -> Gated {
        gate(pod, &sizes(), Steps::Any).unwrap().unwrap()
    }

    fn limits(pod: &Value) -> &Value {
        &pod["spec"]["containers"][0]["resources"]["limits"]
    }

    #[test]
    fn the_seeds_pod_waits_behind_a_gate_with_sixteenths_for_a_limit() {
        let asked = json!({ "nvidia.com/gpu": 1, "clear.ml/fraction-1": "0.5", "cpu": "1" });
        let before = pod(
            &json!({ "clearml-injector/fraction": "0.500" }),
            &json!({}),
            &asked,
        );
        let gated = gated(&before);
        assert_eq!(
            limits(&gated.pod),
            &json!({ "cpu": "1", "gpu.divvy.dev/sixteenth": "8" })
        );
        assert_eq!(
            gated.pod["spec"]["schedulingGates"],
            json!([{ "name": "divvy.dev/carrier" }])
        );
        assert_eq!(
            gated.pod["metadata"]["labels"]["clearml-injector/fraction"],
            "0.500"
        );
        assert!(gated.warnings.is_empty(), "{:?}", gated.warnings);
        let mut patched = before.clone();
        json_patch::patch(&mut patched, &gated.patch).unwrap();
        assert_eq!(patched, gated.pod);
        assert_eq!(
            gate(&gated.pod, &sizes(), Steps::Any),
            Ok(Err(SkipReason::Done)),
            "twice is once"
        );
    }

    #[test]
    fn what_is_rounded_up_is_said_and_what_cannot_be_is_refused() {
        let part = gated(&pod(
            &json!({}),
            &json!({ "gpu-fraction": "0.3" }),
            &json!({}),
        ));
        assert_eq!(limits(&part.pod)["gpu.divvy.dev/sixteenth"], "5");
        assert!(part.warnings[0].contains("5/16"));
        let memory = gated(&pod(
            &json!({}),
            &json!({ "gpu-memory": "4096" }),
            &json!({}),
        ));
        assert_eq!(limits(&memory.pod)["gpu.divvy.dev/sixteenth"], "4");
        let refused = |annotations: Value, sizes: &BTreeSet<Bytes>| {
            gate(
                &pod(&json!({}), &annotations, &json!({})),
                sizes,
                Steps::Any,
            )
            .unwrap_err()
        };
        assert_eq!(
            refused(json!({ "gpu-memory": "90000" }), &sizes()),
            GateError::TooMuch {
                asked: Bytes::mib(90_000),
                most: Bytes::gib(80)
            }
        );
        assert_eq!(
            refused(json!({ "gpu-memory": "1" }), &BTreeSet::new()),
            GateError::NoGpus
        );
        let two = json!({ "gpu-fraction": "0.5", "gpu-fraction-num-devices": "2" });
        assert_eq!(refused(two, &sizes()), GateError::Several(2));
    }

    #[test]
    fn whole_gpus_are_nvidias_plugins_and_others_are_left_alone() {
        let whole = gated(&pod(
            &json!({ "clearml-injector/fraction": "2" }),
            &json!({}),
            &json!({}),
        ));
        assert_eq!(limits(&whole.pod), &json!({ "nvidia.com/gpu": "2" }));
        assert_eq!(whole.pod["spec"].get("schedulingGates"), None);
        assert_eq!(
            gate(&whole.pod, &sizes(), Steps::Any),
            Ok(Err(SkipReason::Done))
        );
        let other = pod(&json!({}), &json!({}), &json!({ "nvidia.com/gpu": 1 }));
        assert_eq!(
            gate(&other, &sizes(), Steps::Any),
            Ok(Err(SkipReason::Unmarked))
        );
    }
}
