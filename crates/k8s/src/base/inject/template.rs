//! The webhook's mutation of pod templates in Deployments, Jobs and similar objects.
//!
//! The API server refuses `clear.ml/fraction-1: "0.5"` in them: an extended resource "must be an integer". So it goes
//! before that is looked at, and what it said stays, as the label; the pods that are made of the template are then injected.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{CONTAINERS, is_clearml_fraction};
use crate::base::pod_request::{
    COMPUTE, CONTAINER, ContainerRef, DEVICES, FRACTION, FRACTION_LABEL, GPU, HAMI_CORES,
    HAMI_MEMORY, HAMI_PERCENT, MEMORY, PodRequest, Refusal, Rules, Size, parse_pod_request,
};
use crate::base::workload::Workload;

/// The record of values that were put into a template for its limits, as a JSON object of labels and annotations.
const MADE: &str = "divvy.dev/made-of-limits";

/// The same object with the fractional limits of its templates as labels; `None` where there is nothing to do.
///
/// # Errors
/// A template asks for something that cannot be: better said now than by each of its pods.
pub fn strip_template<'r>(
    object: &Value,
    rules: impl Into<Rules<'r>>,
) -> Result<Option<Value>, Refusal> {
    let rules = rules.into();
    let kind = object["kind"].as_str().unwrap_or_default();
    let Some(workload) = Workload::of_kind(kind) else {
        return Ok(None);
    };
    let mut changed = object.clone();
    for place in workload.places(object) {
        if let Some(template) = changed.pointer_mut(&place.pointer) {
            strip(template, rules, is_clearml_fraction)?;
        }
    }
    Ok((changed != *object).then_some(changed))
}

/// The limits of a template that a claim stands for, other than whole GPUs: those of ClearML and of HAMi.
pub(super) fn is_partial(resource: &str) -> bool {
    is_amount(resource) || resource == HAMI_CORES
}

/// The limits that are an amount of a GPU's memory.
fn is_amount(resource: &str) -> bool {
    is_clearml_fraction(resource) || [HAMI_MEMORY, HAMI_PERCENT].contains(&resource)
}

/// Turns these limits into a label or an annotation, which requests the same. Returns the request if there was a limit.
///
/// A client that applies the object again, with other limits, does not know of the label and leaves it there, so values
/// made from limits are made anew. Without limits the label is removed too: such an object may be any that was changed
/// here.
///
/// # Errors
/// The template asks for something that cannot be.
pub(super) fn strip(
    template: &mut Value,
    rules: Rules<'_>,
    is_limit: fn(&str) -> bool,
) -> Result<Option<PodRequest>, Refusal> {
    let has_limits = has_limits(template, is_limit);
    let has_amount = has_limits && self::has_limits(template, is_amount);
    let mut changed = template.clone();
    if has_limits {
        unmake(&mut changed);
    }
    let Ok(found) = parse_pod_request(&changed, rules)? else {
        return Ok(None);
    };
    let Some(container) = changed.pointer_mut(&found.container.pointer()) else {
        return Ok(None);
    };
    if !has_limits {
        return Ok(None);
    }
    drop_limits(container, is_limit);
    let mut make = if has_amount {
        marks(&found, container)?
    } else {
        Vec::new()
    };
    // Without HAMi's limit nothing says the share any more.
    let compute = found.compute.map(|compute| compute.to_string());
    make.extend(compute.map(|text| ("annotations", COMPUTE, text)));
    let metadata = super::entry(&mut changed, "metadata", json!({}));
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
    *template = changed;
    Ok(Some(found))
}

/// The labels and annotations that say what the limits of a container said.
fn marks(
    found: &PodRequest,
    container: &Value,
) -> Result<Vec<(&'static str, &'static str, String)>, Refusal> {
    let (mark, devices) = mark_of(&found.gpus)?;
    let mut make = vec![mark];
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
    Ok(make)
}

pub(super) fn has_limits(template: &Value, is_limit: fn(&str) -> bool) -> bool {
    let lists = CONTAINERS.map(|key| template["spec"][key].as_array());
    let mut containers = lists.into_iter().flatten().flatten();
    containers.any(|container| {
        ["limits", "requests"].iter().any(|key| {
            let listed = container["resources"][key].as_object();
            listed.is_some_and(|listed| listed.keys().any(|name| is_limit(name)))
        })
    })
}

fn drop_limits(container: &mut Value, is_limit: fn(&str) -> bool) {
    for key in ["limits", "requests"] {
        let listed = container.pointer_mut(&format!("/resources/{key}"));
        if let Some(listed) = listed.and_then(Value::as_object_mut) {
            // HAMi's count of GPUs goes with its amounts: an annotation for memory beside whole GPUs is refused.
            let by_hami = [HAMI_MEMORY, HAMI_PERCENT]
                .iter()
                .any(|name| is_limit(name) && listed.contains_key(*name));
            listed.retain(|name, _| !(is_limit(name) || by_hami && name == GPU));
        }
    }
}

/// Takes back what was made of earlier limits and has not been changed since.
pub(super) fn unmake(template: &mut Value) {
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

/// The label or annotation for these, and of how many devices it is.
fn mark_of(gpus: &[Size]) -> Result<((&'static str, &'static str, String), usize), Refusal> {
    match gpus {
        [first, rest @ ..] if rest.iter().any(|size| size != first) => Err(Refusal::Unequal),
        [Size::Fraction(part), ..] if part.is_a_step() => {
            Ok((("labels", FRACTION_LABEL, part.to_string()), gpus.len()))
        }
        [Size::Fraction(part), ..] => Ok((("annotations", FRACTION, part.to_string()), gpus.len())),
        [Size::Memory(mib), ..] => Ok((("annotations", MEMORY, mib.to_string()), gpus.len())),
        _ => Ok((("labels", FRACTION_LABEL, gpus.len().to_string()), 1)),
    }
}
