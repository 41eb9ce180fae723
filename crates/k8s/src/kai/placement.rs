//! KAI's placement of a pod: which GPUs, and how much of each. Pure.
//!
//! ```text
//!   BindRequest (scheduling.run.ai/v1alpha2)   spec.selectedGPUGroups    written by the scheduler
//!   the pod                                    label runai-gpu-group     written by the binder, for a BindRequest that is gone
//!                                              gpu-fraction, gpu-memory  the request, which KAI's accounting reads too
//!   reservation pod of a group                 run.ai/reserve_for_gpu_index: the UUID of the GPU that it holds
//! ```
//! Names and fields are those of KAI d5bc503 (2026-08-07): pkg/common/constants, pkg/binder/binding/resourcereservation.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::ClaimDevice;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::base::pod_request::{FRACTION, Fraction, FractionError, MEMORY};

/// The label of a pod on a shared GPU, and of the reservation pod that holds it: the GPU's group.
const GROUP: &str = "runai-gpu-group";
/// Begins the label of each group of a pod with fractions of several GPUs.
const GROUPS: &str = "runai-gpu-group/";
/// On a reservation pod: the UUID of its GPU.
const RESERVED: &str = "run.ai/reserve_for_gpu_index";

/// What KAI has placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub devices: Vec<ClaimDevice>,
}

/// Why a pod has no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    #[error("the pod has neither of the annotations {FRACTION} and {MEMORY}")]
    NoRequest,
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
    #[error(
        "KAI reserved GPU {0}, which is no shared GPU of this node's daemon; reservation pods must name GPUs by UUID"
    )]
    UnknownGpu(String),
}

/// How much of each GPU a pod requests.
enum Amount {
    Fraction(Fraction),
    Mebibytes(u64),
}

/// The placement of a pod on this node. `bind` is the `spec` of its BindRequest, and `gpus` has the usable bytes of the
/// node's shared GPUs, by UUID.
///
/// # Errors
/// KAI has not placed it, or the GPU is unknown here.
pub fn placement(
    pod: &Pod,
    bind: Option<&Value>,
    reservations: &[Pod],
    node: &str,
    gpus: &BTreeMap<String, u64>,
) -> Result<Placement, Misplaced> {
    let amount = amount(pod)?;
    let groups = groups(pod, bind);
    if groups.is_empty() {
        return Err(Misplaced::NoGroup);
    }
    let mut devices = Vec::new();
    for group in groups {
        let uuid = reserved(&group, reservations, node)?;
        let mebibytes = match (gpus.get(&uuid), &amount) {
            (None, _) => return Err(Misplaced::UnknownGpu(uuid)),
            (Some(usable), Amount::Fraction(part)) => part.mib_of(*usable),
            (Some(_), Amount::Mebibytes(mebibytes)) => *mebibytes,
        };
        devices.push(ClaimDevice::part(uuid, mebibytes.saturating_mul(1 << 20)));
    }
    Ok(Placement { devices })
}

fn amount(pod: &Pod) -> Result<Amount, Misplaced> {
    let annotations = pod.metadata.annotations.as_ref();
    let text = |key: &str| annotations.and_then(|all| all.get(key)).map(String::as_str);
    match (text(FRACTION), text(MEMORY)) {
        (Some(part), _) => Ok(Amount::Fraction(Fraction::between_none_and_one(part)?)),
        (None, Some(mebibytes)) => {
            let count = mebibytes.parse().ok().filter(|count| *count > 0);
            count
                .map(Amount::Mebibytes)
                .ok_or_else(|| Misplaced::Memory(mebibytes.to_owned()))
        }
        (None, None) => Err(Misplaced::NoRequest),
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
    let annotations = pod.metadata.annotations.as_ref();
    let uuid = annotations.and_then(|all| all.get(RESERVED));
    uuid.cloned()
        .ok_or_else(|| Misplaced::NoUuid(group.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    /// As KAI d5bc503 left them on Kubernetes 1.36.2.
    fn recorded() -> (Pod, Value, Pod) {
        let recorded: Value = serde_json::from_str(include_str!("recorded.json")).unwrap();
        (
            pod(recorded["pod"].clone()),
            recorded["bindRequest"]["spec"].clone(),
            pod(recorded["reservation"].clone()),
        )
    }

    fn gpus() -> BTreeMap<String, u64> {
        [UUID, "GPU-other"]
            .map(|uuid| (uuid.to_owned(), 81_050 << 20))
            .into()
    }

    const UUID: &str = "GPU-d13f172e-4a74-4804-af73-6b498c993c34";

    #[test]
    fn a_recorded_pod_of_kai_gets_its_fraction_of_the_reserved_gpu() {
        let (pod, bind, reservation) = recorded();
        let half = [ClaimDevice::part(UUID, 40_524 << 20)];
        for bind in [Some(&bind), None] {
            let placed = placement(
                &pod,
                bind,
                std::slice::from_ref(&reservation),
                "node-a",
                &gpus(),
            );
            assert_eq!(placed.unwrap().devices, half);
        }
    }

    #[test]
    fn a_request_for_memory_is_exact_and_fractions_of_several_gpus_are_one_device_each() {
        let (mut pod, mut bind, reservation) = recorded();
        let annotations = pod.metadata.annotations.as_mut().unwrap();
        annotations.remove(FRACTION);
        annotations.insert(MEMORY.to_owned(), "4096".to_owned());
        let mut second = reservation.clone();
        second
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .insert(GROUP.to_owned(), "two".to_owned());
        let annotations = second.metadata.annotations.as_mut().unwrap();
        annotations.insert(RESERVED.to_owned(), "GPU-other".to_owned());
        let first = bind["selectedGPUGroups"][0].clone();
        bind["selectedGPUGroups"] = json!([first, "two"]);
        let placed = placement(&pod, Some(&bind), &[reservation, second], "node-a", &gpus());
        let mut devices = placed.unwrap().devices;
        devices.sort_by(|one, other| one.gpu.cmp(&other.gpu));
        let four = 4096 << 20;
        let expected = [
            ClaimDevice::part(UUID, four),
            ClaimDevice::part("GPU-other", four),
        ];
        assert_eq!(devices, expected);
    }

    #[test]
    fn the_schedulers_group_counts_and_not_the_pods_label() {
        let (mut pod, bind, reservation) = recorded();
        let labels = pod.metadata.labels.as_mut().unwrap();
        labels.insert(GROUP.to_owned(), "another".to_owned());
        let reservations = [reservation];
        assert!(placement(&pod, Some(&bind), &reservations, "node-a", &gpus()).is_ok());
        let by_label = placement(&pod, None, &reservations, "node-a", &gpus());
        assert!(
            matches!(by_label, Err(Misplaced::NotReserved { .. })),
            "{by_label:?}"
        );
    }

    #[test]
    fn what_kai_has_not_placed_has_its_own_reason() {
        let (pod, bind, reservation) = recorded();
        let here = |pod: &Pod, bind: Option<&Value>, reservation: &Pod, node: &str| {
            placement(pod, bind, std::slice::from_ref(reservation), node, &gpus()).unwrap_err()
        };
        let with = |key: &str, value: Option<&str>| {
            let mut pod = pod.clone();
            let annotations = pod.metadata.annotations.as_mut().unwrap();
            annotations.remove(FRACTION);
            if let Some(value) = value {
                annotations.insert(key.to_owned(), value.to_owned());
            }
            here(&pod, Some(&bind), &reservation, "node-a")
        };
        assert_eq!(with(FRACTION, None), Misplaced::NoRequest);
        assert!(matches!(
            with(FRACTION, Some("1.5")),
            Misplaced::Fraction(_)
        ));
        assert!(matches!(with(MEMORY, Some("2G")), Misplaced::Memory(_)));
        let elsewhere = here(&pod, Some(&bind), &reservation, "node-b");
        assert!(matches!(elsewhere, Misplaced::NotReserved { .. }));
        let mut unnamed = reservation.clone();
        unnamed.metadata.annotations = None;
        let unnamed = here(&pod, Some(&bind), &unnamed, "node-a");
        assert!(matches!(unnamed, Misplaced::NoUuid(_)));
        let mut by_index = reservation.clone();
        let annotations = by_index.metadata.annotations.as_mut().unwrap();
        annotations.insert(RESERVED.to_owned(), "0".to_owned());
        let by_index = here(&pod, Some(&bind), &by_index, "node-a");
        assert_eq!(by_index, Misplaced::UnknownGpu("0".to_owned()));
        let mut free = pod.clone();
        free.metadata.labels = None;
        assert_eq!(
            here(&free, None, &reservation, "node-a"),
            Misplaced::NoGroup
        );
    }
}
