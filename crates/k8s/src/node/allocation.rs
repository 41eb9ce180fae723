//! The allocation of a claim on this node: the request to the agent, and the answer to kubelet. Pure.
//!
//! Limits of memory come from the devices of `status.allocation` and nowhere else: a user who may write a claim may not
//! write its status. The author's opaque configuration of the claim may have one parameter, the division of compute time;
//! everything else in it is ignored, and listed for the report.

use std::collections::BTreeMap;

use divvy_api::v1;
use divvy_core::units::Bytes;
use divvy_core::{Compute, ComputeMode};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use serde_json::Value;

use crate::base::claim::{COMPUTE_PARAMETER, DRIVER, TICKETS};
use crate::base::objects::allocated;
use crate::base::slices::{self, DeviceAllocation, MEMORY, NoDevice};
use crate::node::protocol::dra;

/// `strict=0.125`, with room for digits that mean nothing.
const LONGEST_COMPUTE: usize = 32;

/// The allocation of a claim on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// The claim for the agent to hold.
    pub claim: v1::Claim,
    /// The devices for kubelet, without the CDI device, which the agent names.
    devices: Vec<dra::Device>,
    /// Where it has configuration for this driver that counts for nothing: `FromClaim`, `FromClass`.
    pub ignored: Vec<String>,
}

/// Why a claim cannot be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unprepared {
    #[error("the claim was replaced: its uid is {found}, but kubelet requests {asked}")]
    Replaced { found: String, asked: String },
    #[error("the claim is not allocated")]
    NotAllocated,
    #[error("the claim's allocation has no device of {0}")]
    NotOurs(String),
    #[error("device {device} is in pool {pool}, but this node's pool is {node}")]
    Elsewhere {
        device: String,
        pool: String,
        node: String,
    },
    #[error(
        "request {0} has adminAccess, which {DRIVER} does not support; on the node, `divvy gpus` shows all GPUs"
    )]
    Administrative(String),
    #[error("device {device} has {quantity} of memory, which is not a number of bytes")]
    NoBytes { device: String, quantity: String },
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
}

/// The allocation of `claim` on this node's GPUs; `asked` is the uid in kubelet's call.
///
/// # Errors
/// It is another claim, it is not allocated here, or the node has not what it was given.
pub fn of(
    claim: &ResourceClaim,
    asked: &str,
    node: &str,
    gpus: &[slices::Gpu],
) -> Result<Allocation, Unprepared> {
    let metadata = &claim.metadata;
    is_same(claim, asked)?;
    let results = results(claim, &[DRIVER])?;
    let mut held = Vec::new();
    for result in &results {
        held.push(of_device(result, node, gpus)?);
    }
    let (compute, ignored) = configuration(claim);
    let devices = merged(held);
    // An instance has compute units of its own, and the agent refuses a share of them.
    let is_instance = devices.iter().any(|device| device.mig.is_some());
    let compute = compute.filter(|_| !is_instance);
    Ok(Allocation {
        claim: v1::Claim {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            pods: pods(claim),
            devices,
            compute: compute.map(|compute| compute.to_string()),
            ..v1::Claim::default()
        },
        devices: results.into_iter().map(dra_device).collect(),
        ignored,
    })
}

/// Whether it is the claim with the uid in kubelet's call.
///
/// # Errors
/// It is another one of its name.
pub fn is_same(claim: &ResourceClaim, asked: &str) -> Result<(), Unprepared> {
    let found = claim.metadata.uid.as_deref().unwrap_or_default();
    if found == asked {
        return Ok(());
    }
    Err(Unprepared::Replaced {
        found: found.to_owned(),
        asked: asked.to_owned(),
    })
}

impl Allocation {
    /// What a ticket stands for: these devices, which other programs allocated to the pod.
    ///
    /// # Errors
    /// The claim has no ticket of this node.
    pub fn of_ticket(
        claim: &ResourceClaim,
        node: &str,
        devices: Vec<v1::ClaimDevice>,
    ) -> Result<Self, Unprepared> {
        let mut tickets = results(claim, &[TICKETS])?;
        tickets.retain(|ticket| ticket.pool == node);
        if tickets.is_empty() {
            return Err(Unprepared::NotOurs(TICKETS.to_owned()));
        }
        let metadata = &claim.metadata;
        Ok(Self {
            claim: v1::Claim {
                namespace: metadata.namespace.clone().unwrap_or_default(),
                name: metadata.name.clone().unwrap_or_default(),
                pods: pods(claim),
                devices,
                ..v1::Claim::default()
            },
            devices: tickets.into_iter().map(dra_device).collect(),
            ignored: Vec::new(),
        })
    }

    /// The answer to kubelet: the CDI devices of the claim, for each of its devices.
    ///
    /// A container that names several requests of a claim gets it once: kubelet's list has it several times, and what it
    /// stands for is the same.
    pub fn devices(&self, cdi_devices: &[String]) -> Vec<dra::Device> {
        let mut devices = self.devices.clone();
        for device in &mut devices {
            device.cdi_device_ids = cdi_devices.to_vec();
        }
        devices
    }
}

/// The claim's allocated devices of these drivers, on any node.
pub(super) fn results<'c>(
    claim: &'c ResourceClaim,
    drivers: &[&'static str],
) -> Result<Vec<&'c DeviceRequestAllocationResult>, Unprepared> {
    let allocation = claim.status.as_ref().and_then(|it| it.allocation.as_ref());
    allocation.ok_or(Unprepared::NotAllocated)?;
    let ours: Vec<_> = allocated(claim)
        .filter(|result| drivers.contains(&result.driver.as_str()))
        .collect();
    if ours.is_empty() {
        Err(Unprepared::NotOurs(drivers.join(" or ")))
    } else {
        Ok(ours)
    }
}

fn of_device(
    result: &DeviceRequestAllocationResult,
    node: &str,
    gpus: &[slices::Gpu],
) -> Result<DeviceAllocation, Unprepared> {
    if result.pool != node {
        return Err(Unprepared::Elsewhere {
            device: result.device.clone(),
            pool: result.pool.clone(),
            node: node.to_owned(),
        });
    }
    if result.admin_access == Some(true) {
        return Err(Unprepared::Administrative(result.request.clone()));
    }
    let consumed = match result.consumed_capacity.as_ref() {
        Some(consumed) => consumed.get(MEMORY).map(|memory| bytes(result, memory)),
        None => None,
    };
    Ok(slices::resolve_device(
        &result.device,
        consumed.transpose()?,
        gpus,
    )?)
}

fn bytes(result: &DeviceRequestAllocationResult, quantity: &Quantity) -> Result<Bytes, Unprepared> {
    slices::bytes(quantity).ok_or_else(|| Unprepared::NoBytes {
        device: result.device.clone(),
        quantity: quantity.0.clone(),
    })
}

/// One slice has one limit on each GPU, so parts of the same one are added up.
fn merged(held: Vec<DeviceAllocation>) -> Vec<v1::ClaimDevice> {
    let mut parts: BTreeMap<String, u64> = BTreeMap::new();
    let mut devices = Vec::new();
    for one in held {
        match one {
            DeviceAllocation::Part { gpu, memory } => {
                *parts.entry(gpu).or_default() += memory.get()
            }
            DeviceAllocation::Mig {
                gpu,
                profile,
                start,
            } => devices.push(v1::ClaimDevice::instance(gpu, profile.to_string(), start)),
            DeviceAllocation::Whole { gpu } => devices.push(v1::ClaimDevice::whole(gpu)),
        }
    }
    let parts = parts.into_iter();
    devices.extend(parts.map(|(gpu, memory)| v1::ClaimDevice::part(gpu, memory)));
    devices
}

fn dra_device(result: &DeviceRequestAllocationResult) -> dra::Device {
    // `gpu-0/of-24576mi`: which alternative it became is not what kubelet knows a request by.
    let request = result.request.split('/').next().unwrap_or_default();
    dra::Device {
        request_names: vec![request.to_owned()],
        pool_name: result.pool.clone(),
        device_name: result.device.clone(),
        cdi_device_ids: Vec::new(),
        share_id: result.share_id.clone(),
    }
}

/// Pods for which the claim is reserved, by uid.
pub(super) fn pods(claim: &ResourceClaim) -> Vec<String> {
    let reserved = claim.status.as_ref();
    let reserved = reserved.and_then(|status| status.reserved_for.as_deref());
    let pods = reserved.unwrap_or_default().iter();
    pods.filter(|consumer| consumer.resource == "pods")
        .map(|consumer| consumer.uid.clone())
        .collect()
}

/// The division of compute time that the claim's author asks for, and the sources of all other configuration.
fn configuration(claim: &ResourceClaim) -> (Option<Compute>, Vec<String>) {
    let allocation = claim.status.as_ref().and_then(|it| it.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let config = devices.and_then(|devices| devices.config.as_deref());
    let mut compute = None;
    let mut ignored = Vec::new();
    for config in config.unwrap_or_default() {
        let opaque = config.opaque.as_ref();
        let Some(opaque) = opaque.filter(|opaque| opaque.driver == DRIVER) else {
            continue;
        };
        let is_claims = config.source == "FromClaim";
        let is_for_all = config.requests.as_ref().is_none_or(Vec::is_empty);
        let asked = compute_of(&opaque.parameters.0).filter(|_| is_claims && is_for_all);
        match (asked, compute) {
            (Some(asked), None) => compute = Some(asked),
            _ => ignored.push(config.source.clone()),
        }
    }
    (compute, ignored)
}

/// The parameter of `{"compute": "fair=0.5"}`; `None` for anything else, other fields beside it too. A slice without leases
/// (`none`) would take the time of its neighbours, so a claim cannot ask for it.
fn compute_of(parameters: &Value) -> Option<Compute> {
    let fields = parameters.as_object().filter(|fields| fields.len() == 1)?;
    let text = fields.get(COMPUTE_PARAMETER)?.as_str()?;
    let text = (text.len() <= LONGEST_COMPUTE).then_some(text)?;
    let compute: Compute = text.parse().ok()?;
    (compute.mode != ComputeMode::None).then_some(compute)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::slices::{Gpu, Health, Offer};

    const A: &str = "gpu-aaaa";
    const B: &str = "gpu-bbbb";

    fn gpus() -> Vec<Gpu> {
        let gpu = |uuid: &str, index, offer| Gpu {
            uuid: uuid.to_owned(),
            index,
            model: "H100".to_owned(),
            memory: Bytes::gib(80),
            offer,
            health: Health::Well,
        };
        vec![
            gpu("GPU-AAAA", 0, Offer::Parts(None)),
            gpu("GPU-bbbb", 1, Offer::Parts(None)),
        ]
    }

    fn claim(results: Value) -> ResourceClaim {
        serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": { "namespace": "team", "name": "train-fgpu", "uid": "1" },
            "spec": {},
            "status": {
                "allocation": { "devices": { "results": results } },
                "reservedFor": [
                    { "resource": "pods", "name": "train", "uid": "pod-1" },
                    { "apiGroup": "x.example", "resource": "robots", "name": "r", "uid": "r-1" },
                ],
            },
        }))
        .unwrap()
    }

    fn part(request: &str, device: &str, memory: &str) -> Value {
        json!({
            "request": request, "driver": DRIVER, "pool": "node-a", "device": device,
            "shareID": "9", "consumedCapacity": { "memory": memory },
        })
    }

    fn of_results(results: Value) -> Result<Allocation, Unprepared> {
        of(&claim(results), "1", "node-a", &gpus())
    }

    #[test]
    fn a_part_is_what_the_scheduler_consumed_and_kubelet_knows_the_request_without_its_alternative()
    {
        let allocation = of_results(json!([part("gpu-0/of-81920mi", A, "20Gi")])).unwrap();
        assert_eq!(
            allocation.claim,
            v1::Claim {
                namespace: "team".into(),
                name: "train-fgpu".into(),
                pods: vec!["pod-1".into()],
                devices: vec![v1::ClaimDevice::part("GPU-AAAA", 20 << 30)],
                ..v1::Claim::default()
            }
        );
        assert_eq!(
            allocation.devices(&["divvy.dev/slice=7".into()]),
            [dra::Device {
                request_names: vec!["gpu-0".into()],
                pool_name: "node-a".into(),
                device_name: A.into(),
                cdi_device_ids: vec!["divvy.dev/slice=7".into()],
                share_id: Some("9".into()),
            }]
        );
    }

    #[test]
    fn parts_of_one_gpu_are_one_limit_and_each_is_told() {
        let results = json!([
            part("a", B, "1Gi"),
            part("b", A, "2Gi"),
            part("c", B, "3Gi")
        ]);
        let allocation = of_results(results).unwrap();
        assert_eq!(
            allocation.claim.devices,
            [
                v1::ClaimDevice::part("GPU-AAAA", 2 << 30),
                v1::ClaimDevice::part("GPU-bbbb", 4 << 30),
            ]
        );
        assert_eq!(allocation.devices(&["x".into()]).len(), 3);
    }

    #[test]
    fn all_of_a_gpu_is_a_whole_one() {
        let allocation = of_results(json!([part("a", A, "80Gi")])).unwrap();
        assert_eq!(
            allocation.claim.devices,
            [v1::ClaimDevice::whole("GPU-AAAA")]
        );
    }

    #[test]
    fn other_drivers_devices_are_theirs() {
        let theirs =
            json!({ "request": "nic", "driver": "nic.example", "pool": "node-b", "device": "n" });
        let both = of_results(json!([theirs, part("a", A, "1Gi")])).unwrap();
        assert_eq!(both.claim.devices.len(), 1);
        assert_eq!(
            of_results(json!([theirs])),
            Err(Unprepared::NotOurs(DRIVER.to_owned()))
        );
    }

    #[test]
    fn what_a_claims_author_tells_the_driver_is_listed_and_changes_nothing() {
        let mut claim = claim(json!([part("a", A, "1Gi")]));
        let plain = of(&claim, "1", "node-a", &gpus()).unwrap();
        let config = json!([
            { "source": "FromClaim", "opaque": { "driver": DRIVER, "parameters": { "memory": "80Gi" } } },
            { "source": "FromClass", "opaque": { "driver": DRIVER, "parameters": {} } },
            { "source": "FromClaim", "opaque": { "driver": "nic.example", "parameters": {} } },
        ]);
        let status = claim.status.as_mut().unwrap();
        let devices = status.allocation.as_mut().unwrap().devices.as_mut();
        devices.unwrap().config = serde_json::from_value(config).unwrap();
        let told = of(&claim, "1", "node-a", &gpus()).unwrap();
        assert_eq!(told.ignored, ["FromClaim", "FromClass"]);
        assert_eq!(told.claim, plain.claim);
    }

    #[test]
    fn a_claim_may_ask_for_a_part_of_the_compute_time_and_for_nothing_else() {
        let with = |config: Value| {
            let mut claim = claim(json!([part("a", A, "1Gi")]));
            let status = claim.status.as_mut().unwrap();
            let devices = status.allocation.as_mut().unwrap().devices.as_mut();
            devices.unwrap().config = serde_json::from_value(config).unwrap();
            of(&claim, "1", "node-a", &gpus()).unwrap()
        };
        let of_claim = |parameters: Value| json!({ "source": "FromClaim", "opaque": { "driver": DRIVER, "parameters": parameters } });
        for (text, read) in [
            ("fair=0.50", "fair=0.5"),
            ("strict=0.125", "strict=0.125"),
            ("strict", "strict"),
        ] {
            let told = with(json!([of_claim(json!({ "compute": text }))]));
            assert_eq!(told.claim.compute.as_deref(), Some(read));
            assert_eq!(told.ignored, Vec::<String>::new());
            assert_eq!(
                told.claim.devices,
                [v1::ClaimDevice::part("GPU-AAAA", 1 << 30)]
            );
        }
        for parameters in [
            json!({ "compute": "none" }),
            json!({ "compute": "fair=1.5" }),
            json!({ "compute": "fair=0" }),
            json!({ "compute": "fair=0.5", "memory": "80Gi" }),
            json!({ "compute": 0.5 }),
            json!({ "compute": format!("fair=0.5{}", "0".repeat(64)) }),
            json!({ "memory": "80Gi" }),
            json!("fair=0.5"),
        ] {
            let told = with(json!([of_claim(parameters.clone())]));
            assert_eq!(told.claim.compute, None, "{parameters}");
            assert_eq!(told.ignored, ["FromClaim"], "{parameters}");
        }
        // The first counts, and none of a class or for a single request.
        let mut of_class = of_claim(json!({ "compute": "fair=0.25" }));
        of_class["source"] = json!("FromClass");
        let mut of_one = of_claim(json!({ "compute": "fair=0.25" }));
        of_one["requests"] = json!(["a"]);
        let half = of_claim(json!({ "compute": "fair=0.5" }));
        let told = with(json!([of_class, of_one, half, half]));
        assert_eq!(told.claim.compute.as_deref(), Some("fair=0.5"));
        assert_eq!(told.ignored, ["FromClass", "FromClaim", "FromClaim"]);
    }

    #[test]
    fn what_is_not_this_nodes_or_not_this_claims_is_refused() {
        let good = claim(json!([part("a", A, "1Gi")]));
        assert!(matches!(
            of(&good, "2", "node-a", &gpus()),
            Err(Unprepared::Replaced { .. })
        ));
        assert!(matches!(
            of(&good, "1", "node-b", &gpus()),
            Err(Unprepared::Elsewhere { .. })
        ));
        let mut unallocated = good;
        unallocated.status = None;
        assert_eq!(
            of(&unallocated, "1", "node-a", &gpus()),
            Err(Unprepared::NotAllocated)
        );
        let mut admin = part("a", A, "1Gi");
        admin["adminAccess"] = json!(true);
        assert_eq!(
            of_results(json!([admin])),
            Err(Unprepared::Administrative("a".into()))
        );
        assert!(matches!(
            of_results(json!([part("a", "gpu-cccc", "1Gi")])),
            Err(Unprepared::NoDevice(_))
        ));
        for memory in ["-1", "much", "100m"] {
            let refused = of_results(json!([part("a", A, memory)]));
            assert!(
                matches!(refused, Err(Unprepared::NoBytes { .. })),
                "{memory}: {refused:?}"
            );
        }
    }
}
