//! Pending pods: pods that wait for the devices of their claims.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodResourceClaim, PodResourceClaimStatus};
use kube::ResourceExt as _;
use kube::core::Object;
use serde::{Deserialize, Serialize};

use crate::base::inject::{ASKED, CLAIM, parse_request};
use crate::base::pod_request::Size;

/// The fields of a pod that show whether it waits for Divvy. A watch decodes no others: a pod may have a megabyte of them.
pub type PodFields = Object<SpecFields, StatusFields>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecFields {
    resource_claims: Option<Vec<PodResourceClaim>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusFields {
    phase: Option<String>,
    conditions: Option<Vec<PodCondition>>,
    resource_claim_statuses: Option<Vec<PodResourceClaimStatus>>,
}

/// Returns the fields of a pod that was read whole.
pub fn fields(pod: &Pod) -> PodFields {
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    PodFields {
        types: None,
        metadata: pod.metadata.clone(),
        spec: SpecFields {
            resource_claims: spec.and_then(|spec| spec.resource_claims.clone()),
        },
        status: status.map(|status| StatusFields {
            phase: status.phase.clone(),
            conditions: status.conditions.clone(),
            resource_claim_statuses: status.resource_claim_statuses.clone(),
        }),
    }
}

/// A pod that has not started, and claims by a template of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The template's name.
    pub template: String,
    /// The parsed request from its admission; empty if the claim is not of the webhook.
    pub asked: Vec<Size>,
    /// The claim that was made for it.
    pub claim: Option<String>,
    /// Whether the scheduler has looked at it and found no place.
    pub has_no_place: bool,
}

impl Pending {
    /// `None` for a pod that has started, goes, or claims nothing of ours.
    pub fn of(pod: &PodFields) -> Option<Self> {
        let (spec, status) = (&pod.spec, pod.status.as_ref());
        let phase = status.and_then(|status| status.phase.as_deref());
        if phase.is_some_and(|phase| phase != "Pending")
            || pod.metadata.deletion_timestamp.is_some()
        {
            return None;
        }
        let ours = spec
            .resource_claims
            .iter()
            .flatten()
            .find(|claim| claim.name == CLAIM)?;
        let made = status.and_then(|status| status.resource_claim_statuses.as_ref());
        let made = made.into_iter().flatten().find(|made| made.name == CLAIM);
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let has_no_place = conditions.into_iter().flatten().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("Unschedulable")
        });
        let recorded = pod.annotations().get(ASKED);
        Some(Self {
            namespace: pod.namespace()?,
            name: pod.name_any(),
            uid: pod.uid()?,
            template: ours.resource_claim_template_name.clone()?,
            asked: recorded
                .and_then(|text| parse_request(text))
                .unwrap_or_default(),
            claim: made.and_then(|made| made.resource_claim_name.clone()),
            has_no_place,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pod of another program: 50 variables, a claim of another driver, and what the API server adds.
    fn foreign() -> Value {
        let variables =
            (0..50).map(|n| json!({ "name": format!("V{n}"), "value": "x".repeat(200) }));
        let variables: Vec<Value> = variables.collect();
        json!({
            "metadata": { "name": "train", "namespace": "team", "uid": "u", "managedFields": [
                { "manager": "kubectl", "operation": "Update", "fieldsV1": { "f:spec": {} } },
            ] },
            "spec": {
                "containers": [{ "name": "c", "image": "i", "env": variables }],
                "resourceClaims": [{ "name": "nic", "resourceClaimTemplateName": "nics" }],
            },
            "status": { "phase": "Pending" },
        })
    }

    fn pending(pod: &Value) -> Option<Pending> {
        Pending::of(&serde_json::from_value(pod.clone()).unwrap())
    }

    #[test]
    fn of_a_foreign_pod_nothing_is_kept() {
        let pod = foreign();
        let fields: PodFields = serde_json::from_value(pod.clone()).unwrap();
        let kept = serde_json::to_string(&fields.spec).unwrap();
        assert!(kept.len() < 200, "containers are not even decoded: {kept}");
        assert_eq!(pending(&pod), None);
    }

    #[test]
    fn a_pod_with_the_claim_waits_until_it_runs_or_goes() {
        let mut pod = foreign();
        pod["spec"]["resourceClaims"] =
            json!([{ "name": CLAIM, "resourceClaimTemplateName": "divvy-abc" }]);
        pod["metadata"]["annotations"] = json!({ ASKED: "0.500" });
        let found = pending(&pod).unwrap();
        assert_eq!((found.template.as_str(), found.claim), ("divvy-abc", None));
        assert!(!found.has_no_place);
        pod["status"]["resourceClaimStatuses"] =
            json!([{ "name": CLAIM, "resourceClaimName": "train-x" }]);
        pod["status"]["conditions"] =
            json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }]);
        let found = pending(&pod).unwrap();
        assert_eq!(found.claim.as_deref(), Some("train-x"));
        assert!(found.has_no_place);
        let whole: Pod = serde_json::from_value(pod.clone()).unwrap();
        assert_eq!(Pending::of(&fields(&whole)), Some(found), "read either way");
        pod["status"]["phase"] = json!("Running");
        assert_eq!(pending(&pod), None);
    }
}
