//! What each source gives to a pod, from recorded objects.

use divvy_api::v1::ClaimDevice;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use super::grant::{Facts, Grant, Refused, given, of};
use super::kai::Misplaced;
use crate::base::pod_request::{FRACTION, MEMORY};

const UUID: &str = "GPU-d13f172e-4a74-4804-af73-6b498c993c34";
const GROUP: &str = "runai-gpu-group";
const GIB: u64 = 1 << 30;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn facts(pod: Value) -> Facts {
    let gpus = [(UUID, 81_050 << 20), ("GPU-other", 81_050 << 20)];
    Facts {
        node: "node-a".to_owned(),
        kai: "kai-scheduler".to_owned(),
        pod: object(pod),
        gpus: gpus.map(|(uuid, usable)| (uuid.to_owned(), usable)).into(),
        ..Facts::default()
    }
}

/// As KAI d5bc503 left it on Kubernetes 1.36.2.
fn of_kai() -> Facts {
    let recorded: Value = serde_json::from_str(include_str!("recorded.json")).unwrap();
    Facts {
        bind: Some(recorded["bindRequest"]["spec"].clone()),
        reservations: vec![object(recorded["reservation"].clone())],
        ..facts(recorded["pod"].clone())
    }
}

fn annotate(pod: &mut Pod, key: &str, value: Option<&str>) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.remove(key);
    annotations.extend(value.map(|value| (key.to_owned(), value.to_owned())));
}

fn held(grant: Result<Grant, Refused>) -> Vec<ClaimDevice> {
    let mut devices = grant.unwrap().devices;
    devices.sort_by(|one, other| one.gpu.cmp(&other.gpu));
    devices
}

#[test]
fn a_recorded_pod_of_kai_gets_its_fraction_of_the_reserved_gpu() {
    let mut facts = of_kai();
    for bind in [facts.bind.clone(), None] {
        facts.bind = bind;
        assert_eq!(held(of(&facts)), [ClaimDevice::part(UUID, 40_524 << 20)]);
    }
}

#[test]
fn memory_of_kai_is_exact_and_fractions_of_several_gpus_are_one_device_each() {
    let mut facts = of_kai();
    annotate(&mut facts.pod, FRACTION, None);
    annotate(&mut facts.pod, MEMORY, Some("4096"));
    let mut second = facts.reservations[0].clone();
    let labels = second.metadata.labels.get_or_insert_default();
    labels.insert(GROUP.to_owned(), "two".to_owned());
    annotate(
        &mut second,
        "run.ai/reserve_for_gpu_index",
        Some("GPU-other"),
    );
    facts.reservations.push(second);
    let groups = facts.bind.as_mut().unwrap();
    groups["selectedGPUGroups"] = json!([groups["selectedGPUGroups"][0].clone(), "two"]);
    let four = 4 * GIB;
    let both = [
        ClaimDevice::part(UUID, four),
        ClaimDevice::part("GPU-other", four),
    ];
    assert_eq!(held(of(&facts)), both);
}

#[test]
fn the_schedulers_group_counts_and_not_the_pods_label() {
    let mut facts = of_kai();
    let labels = facts.pod.metadata.labels.get_or_insert_default();
    labels.insert(GROUP.to_owned(), "another".to_owned());
    assert!(of(&facts).is_ok());
    facts.bind = None;
    let by_label = of(&facts);
    assert!(
        matches!(by_label, Err(Refused::Kai(Misplaced::NotReserved { .. }))),
        "{by_label:?}"
    );
}

#[test]
fn what_kai_has_not_placed_has_its_own_reason() {
    let with = |key: &str, value: &str| {
        let mut facts = of_kai();
        annotate(&mut facts.pod, FRACTION, None);
        annotate(&mut facts.pod, key, Some(value));
        of(&facts).unwrap_err()
    };
    assert!(matches!(
        with(FRACTION, "1.5"),
        Refused::Kai(Misplaced::Fraction(_))
    ));
    assert!(matches!(
        with(MEMORY, "2G"),
        Refused::Kai(Misplaced::Memory(_))
    ));
    let mut facts = of_kai();
    facts.node = "node-b".to_owned();
    assert!(matches!(
        of(&facts),
        Err(Refused::Kai(Misplaced::NotReserved { .. }))
    ));
    let mut facts = of_kai();
    facts.reservations[0].metadata.annotations = None;
    assert!(matches!(
        of(&facts),
        Err(Refused::Kai(Misplaced::NoUuid(_)))
    ));
    let mut facts = of_kai();
    (facts.bind, facts.pod.metadata.labels) = (None, None);
    assert_eq!(of(&facts), Err(Refused::Kai(Misplaced::NoGroup)));
    let mut facts = of_kai();
    facts.gpus.clear();
    assert_eq!(of(&facts), Err(Refused::UnknownGpu(UUID.to_owned())));
}

/// A pod with the claims of these names, of which its container has those that are in `named`.
fn pod(claims: &[&str], named: &[&str], limits: Value) -> Value {
    let name = |name: &&str| json!({ "name": name });
    let claims: Vec<Value> = claims.iter().chain(&["divvy-limit"]).map(name).collect();
    let named: Vec<Value> = named.iter().chain(&["divvy-limit"]).map(name).collect();
    json!({
        "metadata": { "namespace": "team", "name": "train", "uid": "pod-1" },
        "spec": {
            "resourceClaims": claims,
            "containers": [{ "name": "c", "resources": { "claims": named, "limits": limits } }],
        },
    })
}

/// A claim that was allocated a device, and so much of its capacities.
fn claim(driver: &str, device: &str, consumed: Value) -> ResourceClaim {
    object(json!({
        "metadata": { "namespace": "team", "name": "train-gpu", "uid": "claim-1" },
        "spec": {},
        "status": {
            "allocation": { "devices": { "results": [{
                "request": "gpu", "driver": driver, "pool": "node-a", "device": device,
                "shareID": "c0ffee", "consumedCapacity": consumed,
            }] } },
            "reservedFor": [{ "resource": "pods", "name": "train", "uid": "pod-1" }],
        },
    }))
}

fn of_nvidia(claims: &[(&str, ResourceClaim)], named: &[&str]) -> Facts {
    let names: Vec<&str> = claims.iter().map(|(name, _)| *name).collect();
    let device = |name: &str, kind: &str, uuid: &str, capacity: Value| {
        json!({
            "name": name, "allowMultipleAllocations": kind == "gpu",
            "attributes": { "type": { "string": kind }, "uuid": { "string": uuid } },
            "capacity": capacity,
        })
    };
    let memory = json!({ "memory": { "value": "80Gi" } });
    let shares = json!({ "memory": { "value": "80Gi" }, "shares": { "value": "4" } });
    Facts {
        claims: claims
            .iter()
            .map(|(name, claim)| ((*name).to_owned(), claim.clone()))
            .collect(),
        slices: vec![object(json!({
            "metadata": {},
            "spec": {
                "driver": "gpu.nvidia.com", "nodeName": "node-a",
                "pool": { "name": "node-a", "generation": 1, "resourceSliceCount": 1 },
                "devices": [
                    device("gpu-0", "gpu", UUID, memory.clone()),
                    device("gpu-1", "gpu", "GPU-other", shares),
                    device("gpu-0-mig-1g10gb-19-0", "mig", "MIG-1", memory),
                ],
            },
        }))],
        ..facts(pod(&names, named, Value::Null))
    }
}

fn gpu(device: &str, consumed: Value) -> ResourceClaim {
    claim("gpu.nvidia.com", device, consumed)
}

#[test]
fn a_claim_of_nvidias_driver_is_the_same_share_of_the_usable_memory() {
    // The scheduler packs 80 GiB, and 81050 MiB of them can be allocated: what it packed fits.
    for (asked, mib) in [("4Gi", 4052), ("40Gi", 40_524)] {
        let facts = of_nvidia(&[("gpu", gpu("gpu-0", json!({ "memory": asked })))], &[]);
        assert_eq!(held(of(&facts)), [ClaimDevice::part(UUID, mib << 20)]);
    }
    let all = of_nvidia(&[("gpu", gpu("gpu-0", json!({ "memory": "80Gi" })))], &[]);
    assert_eq!(held(of(&all)), [ClaimDevice::whole(UUID)]);
    let share = of_nvidia(
        &[("gpu", gpu("gpu-1", json!({ "memory": "0", "shares": "1" })))],
        &[],
    );
    assert_eq!(
        held(of(&share)),
        [ClaimDevice::part("GPU-other", 20_262 << 20)]
    );
}

#[test]
fn a_recorded_claim_of_nvidias_driver_gets_what_it_consumed() {
    let recorded: Value = serde_json::from_str(include_str!("nvidia.json")).unwrap();
    let claim: ResourceClaim = object(recorded["claim"].clone());
    let facts = Facts {
        claims: [("gpu".to_owned(), claim)].into(),
        slices: vec![object(recorded["slice"].clone())],
        ..facts(recorded["pod"].clone())
    };
    // 8 GiB of 80 GiB.
    assert_eq!(held(of(&facts)), [ClaimDevice::part(UUID, 8104 << 20)]);
}

#[test]
fn claims_of_one_pod_on_one_gpu_are_one_limit() {
    let four = gpu("gpu-0", json!({ "memory": "4Gi" }));
    let facts = of_nvidia(&[("one", four.clone()), ("two", four)], &[]);
    assert_eq!(held(of(&facts)), [ClaimDevice::part(UUID, 8104 << 20)]);
}

#[test]
fn a_mig_instance_of_nvidias_driver_gets_its_own_cdi_device() {
    let mig = gpu("gpu-0-mig-1g10gb-19-0", Value::Null);
    let facts = of_nvidia(&[("mig", mig.clone())], &[]);
    let grant = of(&facts).unwrap();
    let device = "k8s.gpu.nvidia.com/claim=claim-1-gpu-0-mig-1g10gb-19-0";
    assert_eq!(
        (grant.devices, grant.passed),
        (vec![], vec![device.to_owned()])
    );
    let part = gpu("gpu-0", json!({ "memory": "4Gi" }));
    let both = of_nvidia(&[("mig", mig), ("part", part)], &[]);
    assert_eq!(of(&both), Err(Refused::Mixed));
}

#[test]
fn a_claim_that_cannot_be_limited_is_refused_by_name() {
    let four = gpu("gpu-0", json!({ "memory": "4Gi" }));
    let direct = of(&of_nvidia(&[("gpu", four.clone())], &["gpu"]));
    assert!(matches!(direct, Err(Refused::Direct { claim, .. }) if claim == "gpu"));
    let nic = claim("nic.example", "eth0", Value::Null);
    let hidden = of(&of_nvidia(
        &[("gpu", four.clone()), ("nic", nic.clone())],
        &[],
    ));
    assert!(matches!(hidden, Err(Refused::Hidden { driver, .. }) if driver == "nic.example"));
    let named = of_nvidia(&[("gpu", four.clone()), ("nic", nic)], &["nic"]);
    assert_eq!(held(of(&named)).len(), 1);
    let mut shared = four;
    let pods = shared
        .status
        .as_mut()
        .and_then(|status| status.reserved_for.as_mut())
        .unwrap();
    pods.push(pods[0].clone());
    let shared = of(&of_nvidia(&[("gpu", shared)], &[]));
    assert_eq!(
        shared,
        Err(Refused::Shared {
            claim: "gpu".into(),
            pods: 2
        })
    );
    let nothing = of(&of_nvidia(
        &[("gpu", gpu("gpu-0", json!({ "memory": "0" })))],
        &[],
    ));
    assert_eq!(nothing, Err(Refused::NoMemory("gpu-0".into())));
    let unknown = of(&of_nvidia(&[("gpu", gpu("gpu-9", Value::Null))], &[]));
    assert_eq!(unknown, Err(Refused::UnknownDevice("gpu-9".into())));
    // Kubelet itself gives NVIDIA's device to a container with an extended resource.
    let mut extended = facts(pod(&[], &[], json!({ "nvidia.com/gpu": "1" })));
    extended.slices = of_nvidia(&[], &[]).slices;
    extended.extended = Some(gpu("gpu-0", json!({ "memory": "4Gi" })));
    assert!(matches!(of(&extended), Err(Refused::Direct { .. })));
    extended.extended = Some(gpu("gpu-0", json!({ "memory": "80Gi" })));
    assert_eq!(of(&extended), Ok(Grant::default()));
}

fn of_plugin(ids: &[&str]) -> Facts {
    let owned = |id: &&str| (*id).to_owned();
    let all = (0..4).flat_map(|at| [format!("{UUID}::{at}"), format!("GPU-other::{at}")]);
    Facts {
        ids: ids.iter().map(owned).collect(),
        allocatable: all.collect(),
        ..facts(pod(&[], &[], json!({ "nvidia.com/gpu.shared": "1" })))
    }
}

#[test]
fn a_replica_is_one_part_of_as_many_as_the_gpu_has() {
    let one = format!("{UUID}::3");
    assert_eq!(
        held(of(&of_plugin(&[&one]))),
        [ClaimDevice::part(UUID, 20_262 << 20)]
    );
    let two = [one.as_str(), &format!("{UUID}::0"), "GPU-other::1"];
    let both = [
        ClaimDevice::part(UUID, 40_524 << 20),
        ClaimDevice::part("GPU-other", 20_262 << 20),
    ];
    assert_eq!(held(of(&of_plugin(&two))), both);
    assert_eq!(held(of(&of_plugin(&[UUID]))), [ClaimDevice::whole(UUID)]);
    let mut annotated = of_plugin(&[&one]);
    annotate(&mut annotated.pod, MEMORY, Some("4096"));
    assert_eq!(held(of(&annotated)), [ClaimDevice::part(UUID, 4 * GIB)]);
}

#[test]
fn a_replica_that_cannot_be_limited_is_refused_by_name() {
    assert_eq!(
        of(&of_plugin(&["MIG-1::0"])),
        Err(Refused::SharedInstance("MIG-1::0".into()))
    );
    assert_eq!(of(&of_plugin(&["MIG-1"])), Ok(Grant::default()));
    let one = format!("{UUID}::3");
    assert_eq!(of(&of_plugin(&["MIG-1", &one])), Err(Refused::Mixed));
    let none = of(&of_plugin(&[]));
    assert_eq!(none, Err(Refused::NoDevice("nvidia.com/gpu.shared".into())));
    let mut gone = of_plugin(&[&one]);
    gone.allocatable.clear();
    assert_eq!(of(&gone), Err(Refused::NoReplicas(UUID.into())));
    let index = of(&of_plugin(&["0"]));
    assert_eq!(index, Err(Refused::UnknownGpu("0".into())));
}

fn of_hami(text: &str, node: &str) -> Facts {
    let mut facts = of_plugin(&["GPU-other-7"]);
    annotate(&mut facts.pod, "hami.io/vgpu-devices-allocated", Some(text));
    annotate(&mut facts.pod, "hami.io/vgpu-node", Some(node));
    facts
}

#[test]
fn hamis_allocation_is_exact_and_counts_above_kubelets_ids() {
    let text = format!("{UUID},NVIDIA,3000,30:;GPU-other,NVIDIA,1024,0:;;");
    let both = [
        ClaimDevice::part(UUID, 3000 << 20),
        ClaimDevice::part("GPU-other", GIB),
    ];
    assert_eq!(held(of(&of_hami(&text, "node-a"))), both);
    let elsewhere = of(&of_hami(&text, "node-b"));
    assert_eq!(elsewhere, Err(Refused::HamiElsewhere("node-b".into())));
    for broken in [
        "GPU-1",
        "GPU-1,NVIDIA,x,0:;",
        "GPU-1,NVIDIA,0,0:;",
        "GPU-1,NVIDIA:;",
    ] {
        let refused = of(&of_hami(broken, "node-a"));
        assert!(
            matches!(refused, Err(Refused::Hami { .. })),
            "{broken}: {refused:?}"
        );
    }
    let instance = of(&of_hami("GPU-1[0-1],NVIDIA,3000,0:;", "node-a"));
    assert!(matches!(instance, Err(Refused::HamiInstance(_))));
    // Without an id of HAMi's plugin, an annotation is the words of the pod's user.
    let mut forged = of_hami(&text, "node-a");
    forged.ids.clear();
    assert!(matches!(of(&forged), Err(Refused::NoDevice(_))));
    let mut forged = of_hami(&text, "node-a");
    forged.ids = of_plugin(&["GPU-other::1"]).ids;
    assert_eq!(
        held(of(&forged)),
        [ClaimDevice::part("GPU-other", 20_262 << 20)]
    );
}

#[test]
fn a_pod_without_a_gpu_gets_nothing_and_one_without_a_ticket_is_seen() {
    let nic = claim("nic.example", "eth0", Value::Null);
    assert_eq!(
        of(&of_nvidia(&[("nic", nic)], &["nic"])),
        Ok(Grant::default())
    );
    let four = gpu("gpu-0", json!({ "memory": "4Gi" }));
    let direct = of_nvidia(&[("gpu", four)], &["gpu"]);
    assert_eq!(held(given(&direct)), [ClaimDevice::part(UUID, 4052 << 20)]);
}
