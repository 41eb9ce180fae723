//! The webhook's mutation of pod templates in Deployments, Jobs and similar objects.
//!
//! The API server refuses `clear.ml/fraction-1: "0.5"` in them: an extended resource "must be an integer". So it goes
//! before that is looked at, and what it said stays, as the label; the pods that are made of the template are then injected.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::is_clearml_fraction;
use crate::pod_request::{
    CONTAINER, ContainerRef, DEVICES, FRACTION_LABEL, GPU, Refusal, Size, Steps, parse_pod_request,
};

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

/// The record of values that were put into a template for its limits, as a JSON object of labels and annotations.
const MADE: &str = "divvy.dev/made-of-limits";

/// The same object with its template's fractional limits as a label; `None` where there is nothing to do.
///
/// A client that applies the object again, with other limits, does not know of the label and leaves it there, so values
/// made from limits are made anew. Without limits the label is removed too: such an object may be any that was changed
/// here.
///
/// # Errors
/// The template asks for something that cannot be: better said now than by each of its pods.
pub fn strip_template(object: &Value, steps: Steps) -> Result<Option<Value>, Refusal> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let Some(at) = place(kind) else {
        return Ok(None);
    };
    let mut changed = object.clone();
    let Some(template) = changed.pointer_mut(at) else {
        return Ok(None);
    };
    let has_limits = has_fractions(template);
    if has_limits {
        unmake(template);
    }
    let Ok(found) = parse_pod_request(template, steps)? else {
        return Ok(None);
    };
    let Some(container) = template.pointer_mut(&found.container.pointer()) else {
        return Ok(None);
    };
    if !has_limits {
        return Ok(None);
    }
    drop_fractions(container);
    let (label, devices) = label_value(&found.gpus)?;
    let mut make = vec![("labels", FRACTION_LABEL, label)];
    if devices > 1 {
        make.push(("annotations", DEVICES, devices.to_string()));
    }
    // Without its limit nothing says any more which container it was, unless it lists whole GPUs.
    if found.container != ContainerRef::Container(0)
        && container["resources"]["limits"].get(GPU).is_none()
        && let Some(name) = container["name"].as_str()
    {
        make.push(("annotations", CONTAINER, name.to_owned()));
    }
    let metadata = super::entry(template, "metadata", json!({}));
    let mut made = BTreeMap::new();
    for (map, key, value) in make {
        let held = &mut super::entry(metadata, map, json!({}))[key];
        // A user's own value agrees, or the object would have been refused.
        if held.is_null() {
            *held = json!(value);
            made.insert(key, value);
        }
    }
    if !made.is_empty() {
        let text = json!(made).to_string();
        super::entry(metadata, "annotations", json!({}))[MADE] = json!(text);
    }
    Ok(Some(changed))
}

fn has_fractions(template: &Value) -> bool {
    let lists = ["containers", "initContainers"].map(|key| template["spec"][key].as_array());
    let mut containers = lists.into_iter().flatten().flatten();
    containers.any(|container| {
        ["limits", "requests"].iter().any(|key| {
            let listed = container["resources"][key].as_object();
            listed.is_some_and(|listed| listed.keys().any(|name| is_clearml_fraction(name)))
        })
    })
}

fn drop_fractions(container: &mut Value) {
    for key in ["limits", "requests"] {
        let listed = container.pointer_mut(&format!("/resources/{key}"));
        if let Some(listed) = listed.and_then(Value::as_object_mut) {
            listed.retain(|name, _| !is_clearml_fraction(name));
        }
    }
}

/// Takes back what was made of earlier limits and has not been changed since.
fn unmake(template: &mut Value) {
    let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let mut maps = ["annotations", "labels"].map(|map| metadata.remove(map));
    let [annotations, _] = &mut maps;
    let text = annotations.as_mut().and_then(Value::as_object_mut);
    let text = text.and_then(|annotations| annotations.remove(MADE));
    let text = text.as_ref().and_then(Value::as_str).unwrap_or("{}");
    let made: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    for (name, map) in ["annotations", "labels"].into_iter().zip(maps) {
        let Some(mut map) = map else { continue };
        if let Some(map) = map.as_object_mut() {
            map.retain(|key, value| made.get(key).is_none_or(|made| value != made));
        }
        metadata.insert(name.to_owned(), map);
    }
}

/// The label's value for these, and how many devices of it.
fn label_value(gpus: &[Size]) -> Result<(String, usize), Refusal> {
    match gpus {
        [first, rest @ ..] if rest.iter().any(|size| size != first) => Err(Refusal::Unequal),
        [Size::Fraction(part), ..] => Ok((part.to_string(), gpus.len())),
        _ => Ok((gpus.len().to_string(), 1)),
    }
}
