//! Pod templates of Deployments, Jobs and the like.
//!
//! The API server refuses `clear.ml/fraction-1: "0.5"` in them: an extended resource "must be an integer". So it goes
//! before that is looked at, and what it said stays, as the label; the pods that are made of the template are then injected.

use serde_json::{Value, json};

use super::is_clearml_fraction;
use crate::ask::{DEVICES, FRACTION_LABEL, Refusal, Size, Steps, ask};

/// Where a kind has its pod template, as JSON pointers; `None` for kinds without.
fn place(kind: &str) -> Option<&'static str> {
    match kind {
        "Deployment"
        | "StatefulSet"
        | "DaemonSet"
        | "ReplicaSet"
        | "ReplicationController"
        | "Job" => Some("/spec/template"),
        "CronJob" => Some("/spec/jobTemplate/spec/template"),
        _ => None,
    }
}

/// The same object with its template's fractional limits as a label; `None` where there is nothing to do.
///
/// # Errors
/// The template asks for something that cannot be: better said now than by each of its pods.
pub fn strip_template(object: &Value, steps: Steps) -> Result<Option<Value>, Refusal> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let Some(at) = place(kind) else {
        return Ok(None);
    };
    let Some(template) = object.pointer(at) else {
        return Ok(None);
    };
    let Ok(found) = ask(template, steps)? else {
        return Ok(None);
    };
    let mut changed = object.clone();
    let Some(template) = changed.pointer_mut(at) else {
        return Ok(None);
    };
    let Some(container) = template.pointer_mut(&found.container.pointer()) else {
        return Ok(None);
    };
    let mut any = false;
    for key in ["limits", "requests"] {
        let listed = container.pointer_mut(&format!("/resources/{key}"));
        if let Some(listed) = listed.and_then(Value::as_object_mut) {
            let before = listed.len();
            listed.retain(|name, _| !is_clearml_fraction(name));
            any |= listed.len() < before;
        }
    }
    if !any {
        return Ok(None);
    }
    let (label, devices) = words(&found.gpus)?;
    let metadata = super::entry(template, "metadata", json!({}));
    super::entry(metadata, "labels", json!({}))[FRACTION_LABEL] = json!(label);
    if devices > 1 {
        super::entry(metadata, "annotations", json!({}))[DEVICES] = json!(devices.to_string());
    }
    Ok(Some(changed))
}

/// The label's value for these, and how many devices of it.
fn words(gpus: &[Size]) -> Result<(String, usize), Refusal> {
    match gpus {
        [first, rest @ ..] if rest.iter().any(|size| size != first) => Err(Refusal::Unequal),
        [Size::Fraction(part), ..] => Ok((part.to_string(), gpus.len())),
        _ => Ok((gpus.len().to_string(), 1)),
    }
}
