//! KAI's placement of a pod: which GPUs, and how much of each. Pure.
//!
//! ```text
//!   BindRequest (scheduling.run.ai/v1alpha2)   spec.selectedGPUGroups    written by the scheduler
//!   the pod                                    label runai-gpu-group     written by the binder, if that is gone
//!                                              gpu-fraction, gpu-memory  the request, which KAI's accounting reads too
//!   reservation pod of a group                 run.ai/reserve_for_gpu_index: the UUID of the GPU that it holds
//! ```
//! Names and fields are those of KAI d5bc503 (2026-08-07): pkg/common/constants, pkg/binder/binding/resourcereservation.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::grant::{Amount, Facts, Part, annotation};
use crate::base::pod_request::{FRACTION, Fraction, FractionError, MEMORY};

/// The label of a pod on a shared GPU, and of the reservation pod that holds it: the GPU's group.
const GROUP: &str = "runai-gpu-group";
/// Begins the label of each group of a pod with fractions of several GPUs.
const GROUPS: &str = "runai-gpu-group/";
/// On a reservation pod: the UUID of its GPU.
const RESERVED: &str = "run.ai/reserve_for_gpu_index";

/// Why a pod has no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    #[error("the annotation {FRACTION}: {0}")]
    Fraction(#[from] FractionError),
    #[error("the annotation {MEMORY}: `{0}` is not a positive whole number of MiB in digits")]
    Memory(String),
    #[error("KAI has placed the pod on no GPU group: it has no BindRequest and no label {GROUP}")]
    NoGroup,
    #[error("GPU group {group} has no reservation pod on node {node}")]
    NotReserved { group: String, node: String },
    #[error(
        "the reservation pod of GPU group {0} has no GPU yet: it lacks the annotation {RESERVED}"
    )]
    NoUuid(String),
}

/// Whether KAI places the pod on parts of GPUs; `scheduler` is KAI's name.
pub fn places(pod: &Pod, scheduler: &str) -> bool {
    let named = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduler_name.as_deref());
    named == Some(scheduler)
        && [FRACTION, MEMORY]
            .iter()
            .any(|key| annotation(pod, key).is_some())
}

/// The placement of a pod of KAI on this node.
///
/// # Errors
/// KAI has not placed it.
pub fn parts(facts: &Facts) -> Result<Vec<Part>, Misplaced> {
    let amount = amount(&facts.pod)?;
    let groups = groups(&facts.pod, facts.bind.as_ref());
    if groups.is_empty() {
        return Err(Misplaced::NoGroup);
    }
    let part = |group: String| {
        let gpu = reserved(&group, &facts.reservations, &facts.node)?;
        Ok(Part { gpu, amount })
    };
    groups.into_iter().map(part).collect()
}

/// What the annotations say; KAI prefers the fraction.
pub(super) fn amount(pod: &Pod) -> Result<Amount, Misplaced> {
    let text = annotation(pod, MEMORY).unwrap_or_default();
    match annotation(pod, FRACTION) {
        Some(part) => Ok(Amount::Fraction(Fraction::between_none_and_one(part)?)),
        None => {
            let count = text.parse().ok().filter(|count| *count > 0);
            let short = || text.chars().take(63).collect();
            count
                .map(Amount::Mebibytes)
                .ok_or_else(|| Misplaced::Memory(short()))
        }
    }
}

/// The scheduler's word before the pod's labels, which editors of the namespace can write.
fn groups(pod: &Pod, bind: Option<&Value>) -> BTreeSet<String> {
    if let Some(selected) = bind.and_then(|bind| bind["selectedGPUGroups"].as_array()) {
        let selected = selected.iter().filter_map(Value::as_str);
        return selected.map(str::to_owned).collect();
    }
    let labels = pod.metadata.labels.iter().flatten();
    let of_group = labels.filter(|(key, _)| *key == GROUP || key.starts_with(GROUPS));
    of_group.map(|(_, group)| group.clone()).collect()
}

/// The UUID of the GPU that a group's reservation pod holds.
fn reserved(group: &str, reservations: &[Pod], node: &str) -> Result<String, Misplaced> {
    let is_its = |pod: &&Pod| {
        let labels = pod.metadata.labels.as_ref();
        let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        labels
            .and_then(|labels| labels.get(GROUP))
            .is_some_and(|own| own == group)
            && on == Some(node)
    };
    let pod = reservations.iter().find(is_its);
    let pod = pod.ok_or_else(|| Misplaced::NotReserved {
        group: group.to_owned(),
        node: node.to_owned(),
    })?;
    let uuid = annotation(pod, RESERVED);
    uuid.map(str::to_owned)
        .ok_or_else(|| Misplaced::NoUuid(group.to_owned()))
}
