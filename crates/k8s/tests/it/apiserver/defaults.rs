//! What the API server writes into an object that its author left out, and in which form: of the kinds of resource.k8s.io.
//!
//! `recorded.json` holds it to answers of a real 1.36.2.

use serde_json::{Value, json};

use super::kinds::Kind;

/// Fills in what the real server does before it stores the object.
pub fn fill_in(kind: &Kind, object: &mut Value) {
    let spec = match kind.kind.as_str() {
        "ResourceClaimTemplate" => {
            if let Some(spec) = object["spec"].as_object_mut() {
                // Go's `omitempty` keeps empty structs.
                spec.entry("metadata").or_insert(json!({}));
            }
            "/spec/spec"
        }
        "ResourceClaim" => "/spec",
        _ => return,
    };
    let requests = object.pointer_mut(&format!("{spec}/devices/requests"));
    let requests = requests.and_then(Value::as_array_mut);
    for request in requests.into_iter().flatten() {
        if let Some(exactly) = request.get_mut("exactly") {
            fill_in_request(exactly);
        }
        let alternatives = request.get_mut("firstAvailable");
        let alternatives = alternatives.and_then(Value::as_array_mut);
        alternatives.into_iter().flatten().for_each(fill_in_request);
    }
}

/// `SetDefaults_ExactDeviceRequest` and `SetDefaults_DeviceSubRequest`.
fn fill_in_request(request: &mut Value) {
    if request["allocationMode"].is_null() {
        request["allocationMode"] = json!("ExactCount");
    }
    if request["allocationMode"] == "ExactCount" && request["count"].is_null() {
        request["count"] = json!(1);
    }
    let capacities = request.pointer_mut("/capacity/requests");
    let capacities = capacities.and_then(Value::as_object_mut);
    for (_, quantity) in capacities.into_iter().flatten() {
        if let Some(canonical) = quantity.as_str().and_then(canonical) {
            *quantity = json!(canonical);
        }
    }
}

/// A quantity with a binary suffix as the server writes it: the largest suffix that leaves a whole number.
fn canonical(quantity: &str) -> Option<String> {
    const SUFFIXES: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let at = SUFFIXES
        .iter()
        .position(|suffix| quantity.ends_with(suffix))?;
    let number: u64 = quantity.strip_suffix(SUFFIXES[at])?.parse().ok()?;
    let more = (number.trailing_zeros() / 10) as usize;
    let more = more.min(SUFFIXES.len() - 1 - at);
    Some(format!("{}{}", number >> (10 * more), SUFFIXES[at + more]))
}
