//! The pods that use GPUs of Divvy: by a claim, or by sixteenths in carrier mode.

use std::collections::BTreeSet;

use divvy_api::v1::{Error, ErrorCode};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;
use kube::api::{Api, ListParams};

use crate::base::claim::DRIVER;
use crate::base::cluster::for_each;
use crate::base::error_output;
use crate::base::objects::allocated;
use crate::carrier::{LABEL, pod::units};

/// Pods that a text names; the others are counted. A longer list would not fit a screen.
const NAMED: usize = 20;

/// # Errors
/// The cluster does not respond, or denies the lists.
pub async fn pods(client: &Client) -> Result<BTreeSet<String>, Error> {
    let mut found = BTreeSet::new();
    let claims: Api<ResourceClaim> = Api::all(client.clone());
    let take = |claim: ResourceClaim| found.extend(of_claim(&claim));
    let listed = for_each(&claims, ListParams::default(), take).await;
    listed.map_err(|error| error_output::of_kube(error, "list ResourceClaims"))?;
    let gated = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let pods: Api<Pod> = Api::all(client.clone());
    let take = |pod: Pod| found.extend(of_carrier(&pod));
    let listed = for_each(&pods, gated, take).await;
    listed.map_err(|error| error_output::of_kube(error, "list pods"))?;
    Ok(found)
}

/// Consumers of a claim that has a device of Divvy: `team/train`. The control plane removes pods that have ended.
fn of_claim(claim: &ResourceClaim) -> Vec<String> {
    let Some(status) = &claim.status else {
        return Vec::new();
    };
    if !allocated(claim).any(|result| result.driver == DRIVER) {
        return Vec::new();
    }
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let consumers = status.reserved_for.iter().flatten();
    consumers
        .map(|consumer| format!("{namespace}/{}", consumer.name))
        .collect()
}

/// A pod of carrier mode that has a node and has not ended.
fn of_carrier(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    if is_over || spec.node_name.is_none() || units(spec).is_none() {
        return None;
    }
    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
    Some(format!("{}/{}", namespace.as_ref()?, name.as_ref()?))
}

/// `3 pods use GPUs of Divvy: team/a, team/b, team/c`.
pub fn list(pods: &BTreeSet<String>) -> String {
    let named: Vec<&str> = pods.iter().take(NAMED).map(String::as_str).collect();
    let more = match pods.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let verb = match pods.len() {
        1 => "pod uses",
        _ => "pods use",
    };
    format!(
        "{} {verb} GPUs of Divvy: {}{more}",
        pods.len(),
        named.join(", ")
    )
}

pub fn refusal(pods: &BTreeSet<String>) -> Error {
    Error::new(ErrorCode::Conflict, format!("cannot uninstall: {}", list(pods))).hint(
        "delete these pods and repeat the uninstall; without the driver kubelet cannot release their claims. \
         `helm upgrade --reuse-values --set uninstall.force=true` skips this check",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(driver: &str, pods: &Value) -> ResourceClaim {
        let result = json!({ "request": "r", "driver": driver, "pool": "a", "device": "d" });
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": { "namespace": "team", "name": "c" }, "spec": {},
            "status": { "allocation": { "devices": { "results": [result] } }, "reservedFor": pods },
        });
        serde_json::from_value(claim).unwrap()
    }

    #[test]
    fn pods_with_claims_of_other_drivers_do_not_count() {
        let pods = json!([{ "resource": "pods", "name": "train", "uid": "1" }]);
        assert_eq!(of_claim(&claim(DRIVER, &pods)), ["team/train"]);
        assert!(of_claim(&claim("nic.example", &pods)).is_empty());
        assert!(of_claim(&claim(DRIVER, &json!([]))).is_empty());
    }

    #[test]
    fn pods_of_carrier_mode_count_until_they_have_ended() {
        let pod = |node: Value, phase: &str| {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "team", "name": "p" },
                "spec": { "nodeName": node, "containers": [{
                    "name": "c", "resources": { "limits": { "gpu.divvy.dev/sixteenth": "4" } },
                }] },
                "status": { "phase": phase },
            });
            of_carrier(&serde_json::from_value(pod).unwrap())
        };
        assert_eq!(pod(json!("a"), "Running").as_deref(), Some("team/p"));
        assert_eq!(pod(json!("a"), "Succeeded"), None);
        assert_eq!(pod(Value::Null, "Pending"), None, "behind its gate");
    }

    #[test]
    fn a_long_list_has_a_bound() {
        let pods: BTreeSet<String> = (0..1000).map(|at| format!("team/p{at:03}")).collect();
        let text = list(&pods);
        assert!(text.starts_with("1000 pods use GPUs of Divvy: team/p000, "));
        assert!(text.ends_with("team/p019 and 980 more"), "{text}");
        let one = [String::from("team/p")].into();
        assert_eq!(list(&one), "1 pod uses GPUs of Divvy: team/p");
        assert!(refusal(&pods).message.len() < 1000);
    }
}
