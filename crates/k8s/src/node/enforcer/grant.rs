//! The GPU memory that a pod was given by programs other than Divvy: by which, on which GPUs, and how much. Pure.
//!
//! ```text
//!   pod, claims, kubelet's devices ──► one source ──► parts of GPUs ──► added up by GPU ──► what the agent holds
//! ```
//! Each source has a function from the same facts to parts. What becomes of the parts does not depend on the source.

use std::collections::BTreeMap;

use divvy_api::v1::ClaimDevice;
use divvy_core::units::Bytes;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use serde_json::Value;

use super::{hami, kai, nvidia};
use crate::base::objects;
use crate::base::pod_request::Fraction;
use crate::base::slices::STEP;

/// The pod's claim that makes kubelet call the enforcer, and its template.
pub const TICKET: &str = "divvy-limit";

/// What is known of a pod on this node.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub node: String,
    pub pod: Pod,
    /// The pod's claims other than its ticket, by their name in the pod.
    pub claims: BTreeMap<String, ResourceClaim>,
    /// The claim of extended resources that the scheduler made for the pod.
    pub extended: Option<ResourceClaim>,
    /// ResourceSlices of NVIDIA's driver on this node.
    pub slices: Vec<ResourceSlice>,
    /// Ids of NVIDIA's device plugin that kubelet gave to the pod.
    pub ids: Vec<String>,
    /// All ids of such devices that kubelet may give out here.
    pub allocatable: Vec<String>,
    /// The `spec` of KAI's BindRequest.
    pub bind: Option<Value>,
    /// The name of KAI's scheduler.
    pub kai: String,
    /// KAI's reservation pods on this node.
    pub reservations: Vec<Pod>,
    /// Usable bytes of the daemon's GPUs, by UUID.
    pub gpus: BTreeMap<String, u64>,
}

/// How much of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Fraction(Fraction),
    Mebibytes(u64),
    /// So many of so many equal units.
    Share(u64, u64),
}

/// A part of a GPU, as a source gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub gpu: String,
    pub amount: Amount,
}

/// What a pod gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// What the agent holds.
    pub devices: Vec<ClaimDevice>,
    /// CDI devices of NVIDIA's driver that need no limit: MIG instances.
    pub passed: Vec<String>,
}

/// Why a pod cannot be limited, so that it does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Kai(#[from] kai::Misplaced),
    #[error("the annotation {key} is not what HAMi writes: {text:?}")]
    Hami { key: &'static str, text: String },
    #[error("HAMi gave the pod a part of a MIG instance ({0}), which Divvy cannot limit")]
    HamiInstance(String),
    #[error("HAMi placed the pod on node {0}, and not here")]
    HamiElsewhere(String),
    #[error(
        "the GPU {0} is none of this node's daemon: it must be managed by Divvy, and be named by UUID"
    )]
    UnknownGpu(String),
    #[error("no ResourceSlice of NVIDIA's driver on this node has the device {0}")]
    UnknownDevice(String),
    #[error(
        "the claim takes no memory of the device {0}, so that there is no limit; request its capacity `memory`"
    )]
    NoMemory(String),
    #[error("kubelet lists no replicas of GPU {0}; is NVIDIA's device plugin running?")]
    NoReplicas(String),
    #[error(
        "the claim {claim} is for {pods} pods: each would get the limit of all; use a ResourceClaimTemplate"
    )]
    Shared { claim: String, pods: usize },
    #[error(
        "container {container} names the claim {claim} of NVIDIA's driver itself, and so would get the GPU without a \
         limit; remove the claim from the annotation {}",
        nvidia::OTHERS
    )]
    Direct { container: String, claim: String },
    #[error(
        "no container has the claim {claim}, which is of the driver {driver}; list {claim} in the annotation {}",
        nvidia::OTHERS
    )]
    Hidden { claim: String, driver: String },
    #[error("kubelet gave the pod a replica of a MIG instance ({0}), which Divvy cannot limit")]
    SharedInstance(String),
    #[error("the pod has MIG instances beside parts of GPUs: Divvy limits a pod with one of them")]
    Mixed,
    #[error(
        "the pod requests {0}, but kubelet shows no such device of it, so there is nothing to limit"
    )]
    NoDevice(String),
}

/// What the pod gets for its ticket.
///
/// # Errors
/// It cannot be limited to what it was given.
pub fn of(facts: &Facts) -> Result<Grant, Refused> {
    nvidia::check_names(facts)?;
    given(facts)
}

/// The same of a pod without a ticket.
///
/// # Errors
/// As [`of`].
pub fn given(facts: &Facts) -> Result<Grant, Refused> {
    let (mut parts, mut passed, mut untouched) = (Vec::new(), Vec::new(), false);
    if kai::places(&facts.pod, &facts.kai) {
        parts = kai::parts(facts)?;
    } else if let Some(found) = hami::parts(facts)? {
        parts = found;
    } else {
        let claims = nvidia::claims(facts)?;
        let replicas = nvidia::replicas(facts)?;
        untouched = replicas.instances;
        parts.extend(claims.parts);
        parts.extend(replicas.parts);
        passed = claims.passed;
    }
    let devices = devices(parts, &facts.gpus)?;
    if !devices.is_empty() && (!passed.is_empty() || untouched) {
        return Err(Refused::Mixed);
    }
    Ok(Grant { devices, passed })
}

/// The parts added up by GPU, as the agent holds them. All of a GPU is a whole one.
fn devices(parts: Vec<Part>, gpus: &BTreeMap<String, u64>) -> Result<Vec<ClaimDevice>, Refused> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for Part { gpu, amount } in parts {
        let usable = *(gpus.get(&gpu)).ok_or_else(|| Refused::UnknownGpu(gpu.clone()))?;
        let sum = sums.entry(gpu).or_default();
        *sum = sum.saturating_add(amount.of(usable));
    }
    let device = |(gpu, bytes): (String, u64)| match gpus.get(&gpu) {
        Some(usable) if bytes < *usable => ClaimDevice::part(gpu, bytes),
        _ => ClaimDevice::whole(gpu),
    };
    Ok(sums.into_iter().map(device).collect())
}

impl Amount {
    fn of(self, usable: u64) -> u64 {
        match self {
            Self::Fraction(part) => part.mib_of(usable) << 20,
            Self::Mebibytes(mebibytes) => mebibytes.saturating_mul(1 << 20),
            Self::Share(units, all) if units >= all => usable,
            Self::Share(units, all) => {
                let part = u128::from(usable) * u128::from(units) / u128::from(all);
                let part = Bytes::new(u64::try_from(part).unwrap_or(usable));
                part.round_down(STEP).get()
            }
        }
    }
}

/// The containers of a pod.
pub(super) fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(objects::containers)
}

/// An annotation of the pod.
pub(super) fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(key)).map(String::as_str)
}

/// Whether the pod has a ticket.
pub(super) fn has_ticket(pod: &Pod) -> bool {
    let mut claims = pod
        .spec
        .iter()
        .flat_map(|spec| spec.resource_claims.iter().flatten());
    claims.any(|claim| claim.name == TICKET)
}
