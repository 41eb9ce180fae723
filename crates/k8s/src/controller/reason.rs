//! The reason why a pod waits for its GPU, worded for an event of the pod.
//!
//! Whose pods hold what is said of the pod's own namespace; of others it is said how many.

use std::collections::BTreeMap;

use super::capacity::{Capacity, ClaimFacts, GpuCapacity, MigPlacementState};
use super::pending::Pending;
use crate::base::claim::{Inventory, Kind, Template};
use crate::base::pod_request::Size;
use crate::base::slices;
use divvy_core::units::Bytes;

/// Holders that are named; an event has room for 1024 characters (`NoteLengthLimit`, events.k8s.io).
const NAMED: usize = 5;

/// `None` where the GPUs are not what it waits for, as far as can be seen.
pub fn why(
    pod: &Pending,
    claim: Option<&ClaimFacts>,
    offered: &Capacity,
    inventory: &Inventory,
) -> Option<String> {
    if pod.asked.is_empty() {
        return None;
    }
    if let (None, Err(error)) = (&pod.claim, Template::of(&pod.asked, inventory)) {
        return Some(error.to_string());
    }
    if !pod.has_no_place {
        return None;
    }
    if offered.gpus.is_empty() && offered.places.is_empty() {
        return Some(
            "no node publishes GPUs at the moment; `divvy-k8s doctor` checks the node pods"
                .to_owned(),
        );
    }
    let kind = Kind::of(&pod.asked, inventory);
    let mut counts: BTreeMap<Size, usize> = BTreeMap::new();
    for size in &pod.asked {
        *counts.entry(*size).or_default() += 1;
    }
    let missing = counts
        .iter()
        .find_map(|(size, count)| lack(pod, *size, *count, kind, offered));
    missing.or_else(|| claim.and_then(|claim| outdated(claim, &counts, offered)))
}

/// The missing devices for so many GPUs of a size.
fn lack(pod: &Pending, size: Size, count: usize, kind: Kind, offered: &Capacity) -> Option<String> {
    let gpus = offered
        .gpus
        .iter()
        .filter(|gpu| kind != Kind::Instances && has_room(gpu, size))
        .count();
    let serves = |place: &&MigPlacementState| kind != Kind::Parts && serves(place, size);
    let places = offered
        .places
        .iter()
        .filter(|place| place.free && serves(place))
        .count();
    if gpus + places >= count {
        return None;
    }
    let wanted = match (size, count) {
        (Size::Whole, 1) => "a whole GPU".to_owned(),
        (Size::Whole, count) => format!("{count} whole GPUs"),
        (Size::Fraction(part), 1) => format!("{part} of a GPU"),
        (Size::Fraction(part), count) => format!("{part} of each of {count} GPUs"),
        (Size::Memory(mib), 1) => format!("{} of a GPU", Bytes::mib(mib).human()),
        (Size::Memory(mib), count) => {
            format!("{} of each of {count} GPUs", Bytes::mib(mib).human())
        }
    };
    let able = offered.gpus.iter().filter(|gpu| could(gpu, size));
    let best = able.max_by_key(|gpu| (gpu.room(), std::cmp::Reverse(&gpu.device)));
    let mut text = format!("waits for {wanted}: {}", number(gpus + places));
    match best {
        Some(gpu) => text.push_str(&format!("; {}", described(gpu, size, &pod.namespace))),
        None => text.push_str("; no shared GPU is large enough"),
    }
    if let Size::Memory(mib) = size {
        let places = offered.places.iter().filter(serves).count();
        if places > 0 {
            text.push_str(&format!(
                "; all slots for MIG instances of {} or more are taken",
                Bytes::mib(mib).human()
            ));
        }
    }
    Some(text)
}

fn number(gpus: usize) -> String {
    match gpus {
        0 => "no GPU has room for it".to_owned(),
        1 => "only 1 GPU has room for it".to_owned(),
        count => format!("only {count} GPUs have room for it"),
    }
}

fn need(gpu: &GpuCapacity, size: Size) -> Option<u64> {
    let memory = gpu.memory?;
    let least = slices::least(memory).get();
    Some(match size {
        Size::Whole => memory.get(),
        Size::Fraction(part) => least.max(part.mib_of(memory.get()) << 20),
        Size::Memory(mib) => least.max(mib << 20),
    })
}

/// Whether it would do if it were empty.
fn could(gpu: &GpuCapacity, size: Size) -> bool {
    let needed = need(gpu, size).zip(gpu.memory);
    size == Size::Whole || needed.is_some_and(|(needed, memory)| needed <= memory.get())
}

fn has_room(gpu: &GpuCapacity, size: Size) -> bool {
    match size {
        Size::Whole => gpu.is_empty(),
        _ => !gpu.withdrawn && need(gpu, size).is_some_and(|needed| needed <= gpu.room()),
    }
}

fn serves(place: &MigPlacementState, size: Size) -> bool {
    matches!(size, Size::Memory(mib) if place.memory >= Bytes::mib(mib))
}

/// `most free memory on node-a, gpu-1: 20.0 GiB of 80.0 GiB, but the pod needs 40.0 GiB; train holds 60.0 GiB`.
fn described(gpu: &GpuCapacity, size: Size, namespace: &str) -> String {
    let mut text = format!("most free memory on {}, {}", gpu.node, gpu.device);
    if let (Some(memory), Some(needed)) = (gpu.memory, need(gpu, size)) {
        let [free, needed] = Bytes::new(gpu.room()).human_beside(Bytes::new(needed));
        text.push_str(&format!(
            ": {free} of {}, but the pod needs {needed}",
            memory.human()
        ));
    }
    if gpu.withdrawn {
        text.push_str("; that GPU accepts no pods at the moment");
    }
    let own: Vec<_> = gpu
        .held
        .iter()
        .filter(|held| held.namespace == namespace)
        .collect();
    let mut holders: Vec<String> = own
        .iter()
        .take(NAMED)
        .map(|held| match gpu.memory {
            Some(memory) => format!(
                "{} holds {}",
                held.name,
                Bytes::new(held.bytes.min(memory.get())).human()
            ),
            None => format!("{} holds it", held.name),
        })
        .collect();
    let others = gpu.held.len() - own.len().min(NAMED);
    match others {
        0 => {}
        1 => holders.push("1 more claim holds a part of it".to_owned()),
        count => holders.push(format!("{count} more claims hold parts of it")),
    }
    if !holders.is_empty() {
        text.push_str(&format!("; {}", holders.join(", ")));
    }
    text
}

/// A claim that was made before the GPUs came that have room now: it can never take them.
fn outdated(
    claim: &ClaimFacts,
    counts: &BTreeMap<Size, usize>,
    offered: &Capacity,
) -> Option<String> {
    let sizes = &claim.sizes;
    if sizes.is_empty() {
        return None;
    }
    let known = |gpu: &&GpuCapacity| {
        let mib = gpu.memory.map(|memory| memory.get() >> 20);
        mib.is_some_and(|mib| {
            sizes
                .iter()
                .any(|(least, most)| (*least..=*most).contains(&mib))
        })
    };
    let parts = counts
        .iter()
        .filter(|(size, _)| matches!(size, Size::Fraction(_)));
    for (size, count) in parts {
        let fitting: Vec<&GpuCapacity> = offered
            .gpus
            .iter()
            .filter(|gpu| has_room(gpu, *size))
            .collect();
        if fitting.iter().copied().filter(|gpu| known(gpu)).count() >= *count {
            continue;
        }
        if let Some(memory) = fitting
            .iter()
            .find(|gpu| !known(gpu))
            .and_then(|gpu| gpu.memory)
        {
            return Some(format!(
                "GPUs of {} have room, but its claim is older than these GPUs and cannot use them; delete the pod and create it again",
                memory.human()
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
    use serde_json::{Value, json};

    use super::super::capacity::capacity;
    use super::*;
    use crate::base::pod_request::Fraction;

    fn part(device: &str, memory: &str) -> Value {
        json!({
            "name": device, "allowMultipleAllocations": true,
            "attributes": { "type": { "string": "fraction" } },
            "capacity": { "memory": { "value": memory } },
        })
    }

    fn slice(devices: Value) -> ResourceSlice {
        serde_json::from_value(json!({
            "metadata": { "name": "a" },
            "spec": {
                "driver": "gpu.divvy.dev", "nodeName": "node-a", "devices": devices,
                "pool": { "name": "node-a", "generation": 1, "resourceSliceCount": 1 },
            },
        }))
        .unwrap()
    }

    /// Made when all GPUs had 24 GiB.
    fn claim(namespace: &str, pod: &str, device: &str, memory: &str) -> ClaimFacts {
        let of_24 = Inventory {
            sizes: [Bytes::gib(24)].into(),
            ..Inventory::default()
        };
        let claim: ResourceClaim = serde_json::from_value(json!({
            "metadata": { "name": "c", "namespace": namespace },
            "spec": Template::of(&[half()], &of_24).unwrap().spec["spec"],
            "status": {
                "reservedFor": [{ "resource": "pods", "name": pod, "uid": "u" }],
                "allocation": { "devices": { "results": [{
                    "driver": "gpu.divvy.dev", "pool": "node-a", "device": device, "request": "gpu-0",
                    "consumedCapacity": { "memory": memory },
                }] } },
            },
        }))
        .unwrap();
        ClaimFacts::of(&claim).unwrap()
    }

    fn half() -> Size {
        Size::Fraction(Fraction::between_none_and_one("0.5").unwrap())
    }

    fn pod(asked: Vec<Size>) -> Pending {
        Pending {
            namespace: "team".into(),
            name: "p".into(),
            uid: "u".into(),
            template: "divvy-abc".into(),
            asked,
            claim: Some("p-claim".into()),
            has_no_place: true,
        }
    }

    fn reason(
        pod: &Pending,
        own: Option<&ClaimFacts>,
        slices: &[ResourceSlice],
        claims: &[ClaimFacts],
    ) -> Option<String> {
        let inventory = crate::base::slices::inventory_of(slices);
        why(pod, own, &capacity(slices, claims), &inventory)
    }

    #[test]
    fn a_full_gpu_is_told_with_its_figures_and_the_own_namespaces_holders() {
        let slices = [slice(json!([part("gpu-0", "80Gi"), part("gpu-1", "24Gi")]))];
        let claims = [
            claim("team", "train", "gpu-0", "40Gi"),
            claim("other", "secret", "gpu-0", "20Gi"),
            claim("team", "b", "gpu-1", "20Gi"),
        ];
        let said = reason(&pod(vec![half()]), None, &slices, &claims).unwrap();
        assert_eq!(
            said,
            "waits for 0.500 of a GPU: no GPU has room for it; most free memory on node-a, gpu-0: 20.0 GiB of 80.0 GiB, but the pod needs 40.0 GiB; train holds 40.0 GiB, 1 more claim holds a part of it"
        );
    }

    #[test]
    fn a_pod_for_which_there_is_room_waits_for_something_else() {
        let slices = [slice(json!([part("gpu-0", "80Gi")]))];
        assert_eq!(reason(&pod(vec![half()]), None, &slices, &[]), None);
        let unseen = Pending {
            has_no_place: false,
            ..pod(vec![half(), half()])
        };
        assert_eq!(
            reason(&unseen, None, &slices, &[]),
            None,
            "the scheduler has not looked"
        );
        assert!(
            reason(&pod(vec![half(), half()]), None, &slices, &[])
                .unwrap()
                .contains("each of 2 GPUs")
        );
    }

    #[test]
    fn a_claim_of_another_time_is_told_what_it_cannot_have() {
        let slices = [slice(json!([part("gpu-0", "24Gi"), part("gpu-1", "80Gi")]))];
        let old = claim("team", "p", "none", "0");
        let full = [claim("team", "b", "gpu-0", "20Gi")];
        let said = reason(&pod(vec![half()]), Some(&old), &slices, &full).unwrap();
        assert!(
            said.contains("80.0 GiB") && said.contains("delete the pod"),
            "{said}"
        );
    }

    #[test]
    fn a_pod_without_a_claim_learns_of_lost_gpus() {
        let unclaimed = Pending {
            claim: None,
            has_no_place: false,
            ..pod(vec![Size::Memory(90 << 10)])
        };
        let slices = [slice(json!([part("gpu-0", "80Gi")]))];
        assert!(
            reason(&unclaimed, None, &slices, &[])
                .unwrap()
                .contains("80.0 GiB")
        );
        assert!(
            reason(&pod(vec![half()]), None, &[], &[])
                .unwrap()
                .contains("no node publishes")
        );
    }

    #[test]
    fn places_that_overlap_what_is_held_are_taken() {
        let place = |name: &str, slices: &[u8]| {
            let counters: BTreeMap<String, Value> = slices
                .iter()
                .map(|slice| (format!("m{slice}"), json!({ "value": "1" })))
                .collect();
            json!({
                "name": name,
                "attributes": { "type": { "string": "mig" }, "profile": { "string": "2g.20gb" } },
                "capacity": { "memory": { "value": "19968Mi" } },
                "consumesCounters": [{ "counterSet": "gpu-0", "counters": counters }],
            })
        };
        let mut counted = slice(json!([]));
        counted.spec.shared_counters = serde_json::from_value(json!([
            { "name": "gpu-0", "counters": { "m0": { "value": "1" }, "m1": { "value": "1" }, "m2": { "value": "1" } } },
        ]))
        .unwrap();
        let slices = [
            counted,
            slice(json!([place("a", &[0, 1]), place("b", &[1, 2])])),
        ];
        let waits =
            |claims: &[ClaimFacts]| reason(&pod(vec![Size::Memory(15_000)]), None, &slices, claims);
        assert_eq!(waits(&[]), None);
        let said = waits(&[claim("team", "train", "a", "0")]).unwrap();
        assert!(
            said.contains("MIG instances") && said.contains("are taken"),
            "{said}"
        );
    }
}
