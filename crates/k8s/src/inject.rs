//! The webhook's mutation of a pod that asks for part of a GPU: its limits are replaced by a claim.
//!
//! Every other field stays: labels and annotations, which other programs may count. No hostPID, no hostPath, no preload
//! and no limit in the environment, which the pod could change. The limit is the claim's allocation, and the node reads
//! it there.

mod record;
mod template;

use json_patch::Patch;
use serde_json::{Map, Value, json};

pub use record::{ASKED, parse_request};
pub use template::strip_template;

use crate::claim::{Inventory, NoTemplate, Template};
use crate::pod_request::{
    ContainerRef, GPU, HAMI_CORES, HAMI_MEMORY, HAMI_PERCENT, NO_GPUS, PodRequest, Refusal, Size,
    SkipReason, Steps, VISIBLE, parse_pod_request,
};

/// The name of the claim in a pod.
pub const CLAIM: &str = "fraction-gpu";
/// The variable by which ClearML's agent reports a task's GPUs; it limits nothing.
const REPORTED: &str = "CLEARML_AGENT_GPU_FRACTIONS";

/// The result of the mutation.
#[derive(Clone, Debug, PartialEq)]
pub struct Injection {
    /// The pod as it is to be.
    pub pod: Value,
    /// From the pod as it was.
    pub patch: Patch,
    /// Its claim template, which has to exist before the pod does.
    pub template: Template,
    /// Warnings for the creator of the pod.
    pub warnings: Vec<String>,
}

/// Why a pod cannot be admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    NoTemplate(#[from] NoTemplate),
}

/// Mutates a pod, or says why it stays as it is. Idempotent.
///
/// # Errors
/// It asks for something that cannot be, that would not be held, or that no GPU could ever serve.
pub fn inject(
    pod: &Value,
    inventory: &Inventory,
    steps: Steps,
) -> Result<Result<Injection, SkipReason>, InjectError> {
    let ask = match parse_pod_request(pod, steps)? {
        Ok(ask) => ask,
        Err(untouched) => return Ok(Err(untouched)),
    };
    let template = Template::of(&ask.gpus, inventory)?;
    let mut changed = pod.clone();
    claim(&mut changed, &ask, &template.name);
    Ok(Ok(Injection {
        patch: json_patch::diff(pod, &changed),
        pod: changed,
        template,
        warnings: ask.warnings,
    }))
}

/// Whether a resource is one of ClearML's fractions: `clear.ml/fraction`, `clear.ml/fraction-1`.
pub(crate) fn is_clearml_fraction(resource: &str) -> bool {
    let number = resource.strip_prefix("clear.ml/fraction");
    number.is_some_and(|rest| {
        let digits = rest.strip_prefix('-');
        rest.is_empty()
            || digits.is_some_and(|digits| {
                digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty()
            })
    })
}

fn claim(pod: &mut Value, ask: &PodRequest, template: &str) {
    if let Some(container) = pod.pointer_mut(&ask.container.pointer()) {
        let resources = entry(container, "resources", json!({}));
        drop_ours(resources);
        push(resources, "claims", json!({ "name": CLAIM }));
        if let Some(fractions) = reported(&ask.gpus) {
            let variables = entry(container, "env", json!([]));
            let set = variables.as_array_mut();
            if let Some(set) = set
                && !set.iter().any(|variable| variable["name"] == REPORTED)
            {
                set.push(json!({ "name": REPORTED, "value": fractions }));
            }
        }
    }
    hide_gpus(pod, ask.container);
    let metadata = entry(pod, "metadata", json!({}));
    entry(metadata, "annotations", json!({}))[ASKED] = json!(record::record(&ask.gpus));
    let spec = &mut pod["spec"];
    push(
        spec,
        "resourceClaims",
        json!({ "name": CLAIM, "resourceClaimTemplateName": template }),
    );
    // The API server adds one for every pod that asks for the resource; this pod no longer does.
    let toleration = json!({ "key": GPU, "operator": "Exists", "effect": "NoSchedule" });
    let tolerations = entry(spec, "tolerations", json!([]));
    if let Some(list) = tolerations.as_array_mut()
        && !list.contains(&toleration)
    {
        list.push(toleration);
    }
}

/// Sets the variable that selects GPUs to none in the containers without the claim. Otherwise an image or `envFrom` could
/// set it, and NVIDIA's runtime would add those GPUs without a limit. The claim's own container gets it from the node.
fn hide_gpus(pod: &mut Value, with_claim: ContainerRef) {
    let count = |pod: &Value, list: &str| pod["spec"][list].as_array().map_or(0, Vec::len);
    let all = (0..count(pod, "containers"))
        .map(ContainerRef::Container)
        .chain((0..count(pod, "initContainers")).map(ContainerRef::InitContainer));
    for other in all.filter(|other| *other != with_claim) {
        let Some(container) = pod.pointer_mut(&other.pointer()) else {
            continue;
        };
        let set = container["env"].as_array().into_iter().flatten();
        if !set.into_iter().any(|variable| variable["name"] == VISIBLE) {
            push(
                container,
                "env",
                json!({ "name": VISIBLE, "value": NO_GPUS }),
            );
        }
    }
}

/// Takes what the claim stands for out of limits and requests.
pub(crate) fn drop_ours(resources: &mut Value) {
    for key in ["limits", "requests"] {
        let Some(listed) = resources.get_mut(key).and_then(Value::as_object_mut) else {
            continue;
        };
        listed.retain(|name, _| {
            !is_clearml_fraction(name)
                && ![GPU, HAMI_MEMORY, HAMI_PERCENT, HAMI_CORES].contains(&name.as_str())
        });
        if listed.is_empty() {
            resources.as_object_mut().map(|all| all.remove(key));
        }
    }
}

/// `0.500`, or `1.000,1.000` for two whole GPUs; `None` where it is not known before a GPU is.
fn reported(gpus: &[Size]) -> Option<String> {
    let each = gpus.iter().map(|size| match size {
        Size::Whole => Some("1.000".to_owned()),
        Size::Fraction(part) => Some(part.to_string()),
        Size::Memory(_) => None,
    });
    each.collect::<Option<Vec<_>>>().map(|all| all.join(","))
}

/// The value at a key, put there if there is none.
pub(crate) fn entry<'v>(object: &'v mut Value, key: &str, empty: Value) -> &'v mut Value {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let value = &mut object[key];
    if value.is_null() {
        *value = empty;
    }
    value
}

pub(crate) fn push(object: &mut Value, key: &str, value: Value) {
    if let Some(list) = entry(object, key, json!([])).as_array_mut() {
        list.push(value);
    }
}
