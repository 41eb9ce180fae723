//! The webhook's mutation of a pod that asks for part of a GPU: its limits are replaced by a claim.
//!
//! Every other field stays: labels and annotations, which other programs may count. No hostPID, no hostPath, no preload
//! and no limit in the environment, which the pod could change. The limit is the claim's allocation, and the node reads
//! it there.

mod record;
mod template;
mod workload;

use json_patch::Patch;
use serde_json::{Map, Value, json};

pub use record::{ASKED, parse_request};
pub use template::strip_template;
pub use workload::{CLAIM_TEMPLATES, WorkloadInjection, inject_workload, recorded_claims};

use crate::base::claim::{Inventory, NoTemplate, Template};
use crate::base::pod_request::{
    GPU, HAMI_CORES, HAMI_MEMORY, HAMI_PERCENT, NO_GPUS, PodRequest, Refusal, Rules, Size,
    SkipReason, VISIBLE, ignored_request, parse_pod_request,
};

/// A namespace with this label takes part.
pub const OPT_IN: (&str, &str) = ("divvy.dev/inject", "enabled");
/// The name of the claim in a pod.
pub const CLAIM: &str = "fraction-gpu";
/// The volume of a pod that mounts no other.
const VOLUME: &str = "divvy-pod";
/// The lists of containers in the specification of a pod.
const CONTAINERS: [&str; 2] = ["containers", "initContainers"];
/// The variable by which ClearML's agent reports a task's GPUs; it limits nothing.
const REPORTED: &str = "CLEARML_AGENT_GPU_FRACTIONS";

/// The result of the mutation.
#[derive(Clone, Debug, PartialEq)]
pub struct Injection {
    /// The pod as it is to be.
    pub pod: Value,
    /// From the pod as it was.
    pub patch: Patch,
    /// Its claim template, which has to exist before the pod does. `None` for a pod that came with its claim: its workload
    /// was given the template.
    pub template: Option<Template>,
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
pub fn inject<'r>(
    pod: &Value,
    inventory: &Inventory,
    rules: impl Into<Rules<'r>>,
) -> Result<Result<Injection, SkipReason>, InjectError> {
    let mut changed = pod.clone();
    let (template, warnings) = match parse_pod_request(pod, rules)? {
        Ok(ask) => {
            let template = Template::of_request(&ask, inventory)?;
            write_claim(&mut changed, &ask, &template.name);
            complete(&mut changed);
            (Some(template), ask.warnings)
        }
        Err(SkipReason::Done) => {
            complete(&mut changed);
            (None, ignored_request(pod).into_iter().collect())
        }
        Err(untouched) => return Ok(Err(untouched)),
    };
    Ok(if changed == *pod && warnings.is_empty() {
        Err(SkipReason::Done)
    } else {
        Ok(Injection {
            patch: json_patch::diff(pod, &changed),
            pod: changed,
            template,
            warnings,
        })
    })
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

/// Writes the claim into a pod or a template, in place of the limits that it stands for.
fn write_claim(pod: &mut Value, ask: &PodRequest, template: &str) {
    if let Some(container) = pod.pointer_mut(&ask.container.pointer()) {
        let resources = entry(container, "resources", json!({}));
        drop_ours(resources);
        push(resources, "claims", json!({ "name": CLAIM }));
    }
    let metadata = entry(pod, "metadata", json!({}));
    entry(metadata, "annotations", json!({}))[ASKED] = json!(record::record(&ask.gpus));
    let claim = json!({ "name": CLAIM, "resourceClaimTemplateName": template });
    push(&mut pod["spec"], "resourceClaims", claim);
}

/// Adds what only the pods need, not the templates that they are made of: clients that apply a template again would see
/// changed lists of tolerations. Only for claims that the webhook has recorded.
///
/// In the containers without the claim the variable that selects GPUs is none. Otherwise an image or `envFrom` could set
/// it, and NVIDIA's runtime would add those GPUs without a limit.
fn complete(pod: &mut Value) {
    let asked = pod["metadata"]["annotations"][ASKED].as_str();
    let Some(gpus) = asked.and_then(parse_request) else {
        return;
    };
    for list in CONTAINERS {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            // The claim's own container gets its GPUs from the node.
            let (name, value) = if has_claim(container) {
                (REPORTED, reported(&gpus))
            } else {
                (VISIBLE, Some(NO_GPUS.to_owned()))
            };
            let Some(value) = value else { continue };
            let variables = entry(container, "env", json!([]));
            if let Some(set) = variables.as_array_mut()
                && !set.iter().any(|variable| variable["name"] == name)
            {
                set.push(json!({ "name": name, "value": value }));
            }
        }
    }
    // The API server adds one for every pod that asks for the resource; this pod no longer does.
    let toleration = json!({ "key": GPU, "operator": "Exists", "effect": "NoSchedule" });
    let tolerations = entry(&mut pod["spec"], "tolerations", json!([]));
    if let Some(list) = tolerations.as_array_mut()
        && !list.contains(&toleration)
    {
        list.push(toleration);
    }
    mount_volume(pod);
}

/// Whether a container uses the webhook's claim.
fn has_claim(container: &Value) -> bool {
    let claims = container["resources"]["claims"].as_array();
    claims.is_some_and(|claims| claims.iter().any(|claim| claim["name"] == CLAIM))
}

/// Gives a pod without any volume one with its request, in the container of the claim.
///
/// Kubelet waits at least 300 ms for a pod's volumes (`podAttachAndMountRetryInterval`). Without that it may read the claim
/// before the API server's Node authorizer knows of the pod; then it retries only after 60 to 90 s.
fn mount_volume(pod: &mut Value) {
    let is_empty = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
    let mut containers = CONTAINERS
        .iter()
        .filter_map(|list| pod["spec"][list].as_array())
        .flatten();
    if containers.any(|one| !is_empty(&one["volumeMounts"]) || !is_empty(&one["volumeDevices"])) {
        return;
    }
    let path = format!("metadata.annotations['{ASKED}']");
    let item = json!({ "path": "gpus", "fieldRef": { "fieldPath": path } });
    let mount = json!({ "name": VOLUME, "mountPath": "/run/divvy-pod", "readOnly": true });
    for list in CONTAINERS {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if has_claim(container) {
                push(container, "volumeMounts", mount.clone());
            }
        }
    }
    let volume = json!({ "name": VOLUME, "downwardAPI": { "items": [item] } });
    push(&mut pod["spec"], "volumes", volume);
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
