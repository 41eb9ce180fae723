//! Pending pods: pods that wait for the devices of their claims.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::inject::{ASKED, CLAIM, parse_request};
use crate::pod_request::Size;

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
    pub fn of(pod: &Pod) -> Option<Self> {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref());
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
