//! GPUs and pods of the cluster, from the objects of the API and the boards of the nodes. Pure.

use std::collections::BTreeMap;

use divvy_api::v1::{Board, BoardGpu, BoardJob};
use divvy_cli::render::Item;
use divvy_core::mig::MigProfile;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    Device, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice,
};
use kube::ResourceExt as _;
use serde::Serialize;

use super::fraction::{self, Held};
use super::objects::{Allocations, Objects};
use crate::base::claim::DRIVER;
use crate::base::inject::{ASKED, CLAIM, parse_request};
use crate::base::objects::{allocated, has_ended};
use crate::base::pod_request::Size;
use crate::base::slices::{FRACTION, MEMORY, MIG, TYPE, bytes};
use crate::controller::capacity::{capacity, held, newest};

/// Most letters of a job's name in the daemon (`LONGEST_NAME`); the name of a claim's job is cut there. It must be the
/// daemon's, so that both names are the same.
const LONGEST_JOB: usize = 200;

/// One GPU of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterGpu {
    pub node: String,
    /// Index on the node.
    pub gpu: Option<u32>,
    pub uuid: String,
    pub model: String,
    /// GPU mode: `shared`, `mig`, `exclusive` or `unmanaged`.
    pub mode: String,
    /// Memory for claims, in bytes; absent if the GPU is only allocated whole.
    pub memory_bytes: Option<u64>,
    /// Memory that claims hold; absent if the claims are unknown.
    pub allocated_bytes: Option<u64>,
    /// The part of the GPU that claims hold, as requested: `0.75`, or `2 instances`.
    pub allocated: Option<String>,
    /// Memory that the scheduler can still allocate, in bytes.
    pub free_bytes: Option<u64>,
    /// The largest request that the scheduler would place here: `0.25, 19.8 GiB`, `up to 3g.40gb`.
    pub free: Option<String>,
    /// Memory in use, according to the node's driver, in bytes.
    pub used_bytes: Option<u64>,
    pub utilization_percent: Option<u32>,
    /// Whether the scheduler places new pods here.
    pub healthy: bool,
    /// Taints, problems and holders' findings.
    pub problem: Option<String>,
    /// Claims that hold a part.
    pub holders: Vec<Holder>,
    /// The sum of their parts, in millionths: the sum of their memory lacks what was rounded off each.
    #[serde(skip)]
    pub parts: u64,
}

/// A claim that holds a part of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    pub namespace: String,
    pub claim: String,
    pub pods: Vec<String>,
    /// `0.25`, `1g.10gb`, `1`.
    pub part: String,
}

impl Item for ClusterGpu {
    const KIND: &'static str = "ClusterGpuList";

    fn name(&self) -> String {
        match self.gpu {
            Some(gpu) => format!("{}/{gpu}", self.node),
            None => format!("{}/{}", self.node, self.uuid),
        }
    }
}

/// A pod with GPUs, or one that waits for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterPod {
    pub namespace: String,
    pub pod: String,
    pub claim: Option<String>,
    pub node: Option<String>,
    /// The request, as typed: `0.25`, `2x0.5`, `4GiB`, `1g.10gb`.
    pub request: String,
    /// `waiting`, `starting`, `running` or `stopping`.
    pub state: &'static str,
    /// Time of its start, or of its creation while it waits.
    pub since: Option<Timestamp>,
    pub devices: Vec<PodDevice>,
    /// Why it waits.
    pub reason: Option<String>,
}

/// A part of a GPU that a pod has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodDevice {
    pub device: String,
    /// Index of the GPU on the node.
    pub gpu: Option<u32>,
    /// `0.25`, `1g.10gb@3`, `1`.
    pub part: String,
    pub memory_limit_bytes: Option<u64>,
    pub memory_used_bytes: Option<u64>,
}

impl Item for ClusterPod {
    const KIND: &'static str = "ClusterPodList";

    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }
}

/// A published device.
struct Published<'s> {
    kind: Option<&'s str>,
    uuid: &'s str,
    model: &'s str,
    index: Option<u32>,
    profile: Option<&'s str>,
    start: Option<i64>,
    memory: Option<u64>,
    /// `KEY:EFFECT`.
    taints: Vec<String>,
}

type Devices<'s> = BTreeMap<(&'s str, &'s str), Published<'s>>;

fn devices(slices: &[ResourceSlice]) -> Devices<'_> {
    let mut devices = Devices::new();
    for slice in newest(slices) {
        for device in slice.spec.devices.iter().flatten() {
            let key = (slice.spec.pool.name.as_str(), device.name.as_str());
            devices.insert(key, published(device));
        }
    }
    devices
}

fn published(device: &Device) -> Published<'_> {
    let attribute = |name: &str| device.attributes.as_ref()?.get(name);
    let text = |name: &str| attribute(name).and_then(|value| value.string.as_deref());
    let number = |name: &str| attribute(name).and_then(|value| value.int);
    let memory = device.capacity.as_ref().and_then(|all| all.get(MEMORY));
    let memory = memory.and_then(|memory| bytes(&memory.value));
    let taints = device.taints.iter().flatten();
    Published {
        kind: text(TYPE),
        uuid: text("uuid").unwrap_or_default(),
        model: text("model").unwrap_or_default(),
        index: number("index").and_then(|index| u32::try_from(index).ok()),
        profile: text("profile"),
        start: number("start"),
        memory: memory.map(|memory| memory.get()),
        taints: taints
            .map(|taint| format!("{}:{}", taint.key, taint.effect))
            .collect(),
    }
}

/// The claim's devices of this driver.
fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    allocated(claim).filter(|result| result.driver == DRIVER)
}

fn consumed(result: &DeviceRequestAllocationResult) -> Option<u64> {
    let consumed = result.consumed_capacity.as_ref()?.get(MEMORY)?;
    bytes(consumed).map(|bytes| bytes.get())
}

/// What a claim was given of a device; `None` for an unknown device.
fn amount(result: &DeviceRequestAllocationResult, devices: &Devices<'_>) -> Option<Held> {
    let device = devices.get(&(result.pool.as_str(), result.device.as_str()))?;
    Some(match (device.profile, consumed(result), device.memory) {
        (Some(_), _, memory) => (memory, None),
        (None, Some(bytes), Some(total)) => (Some(bytes), Some(total)),
        _ => (None, None),
    })
}

/// `0.25` of a shared GPU, `1g.10gb@3`, or `1`.
fn part(result: &DeviceRequestAllocationResult, device: Option<&Published<'_>>) -> String {
    let Some(device) = device else {
        return "-".to_owned();
    };
    match (device.profile, consumed(result), device.memory) {
        (Some(profile), ..) => match device.start {
            Some(start) => format!("{profile}@{start}"),
            None => profile.to_owned(),
        },
        (None, Some(memory), Some(total)) => fraction::text(memory, total),
        _ => "1".to_owned(),
    }
}

/// Names of the pods that a claim is reserved for.
fn pod_names(claim: &ResourceClaim) -> Vec<String> {
    let reserved = claim.status.as_ref();
    let reserved = reserved.and_then(|status| status.reserved_for.as_ref());
    let pods = reserved.into_iter().flatten();
    pods.filter(|consumer| consumer.resource == "pods")
        .map(|consumer| consumer.name.clone())
        .collect()
}

/// Every GPU, by node and index.
pub fn gpus(found: &Allocations<'_>) -> Vec<ClusterGpu> {
    let devices = devices(found.slices);
    let claims = found.claims.unwrap_or_default();
    let mut gpus = Gpus::new();
    for ((node, _), device) in &devices {
        let gpu = gpus
            .entry(key(node, device.uuid))
            .or_insert_with(|| ClusterGpu {
                node: (*node).to_owned(),
                gpu: device.index,
                uuid: device.uuid.to_owned(),
                model: device.model.to_owned(),
                healthy: true,
                allocated_bytes: found.claims.map(|_| 0),
                ..ClusterGpu::default()
            });
        gpu.mode = mode(device.kind).to_owned();
        if device.kind == Some(FRACTION) {
            gpu.memory_bytes = device.memory;
        }
        if let Some(taint) = device.taints.first() {
            gpu.healthy = false;
            gpu.problem = Some(format!("taint {taint}"));
        }
    }
    for claim in claims {
        for result in results(claim) {
            let Some(device) = devices.get(&(result.pool.as_str(), result.device.as_str())) else {
                continue;
            };
            let Some(gpu) = gpus.get_mut(&key(&result.pool, device.uuid)) else {
                continue;
            };
            let memory = consumed(result).or(device.memory).unwrap_or_default();
            gpu.allocated_bytes = gpu.allocated_bytes.map(|sum| sum.saturating_add(memory));
            let total = gpu.memory_bytes.unwrap_or(memory);
            gpu.parts += fraction::millionths(memory, total);
            gpu.holders.push(Holder {
                namespace: claim.namespace().unwrap_or_default(),
                claim: claim.name_any(),
                pods: pod_names(claim),
                part: part(result, Some(device)),
            });
        }
    }
    if found.claims.is_some() {
        add_free(&mut gpus, &devices, found.slices, claims);
    }
    let mut rows: Vec<ClusterGpu> = gpus.into_values().collect();
    add_boards(&mut rows, found);
    rows.sort_by(|a, b| (&a.node, a.gpu, &a.uuid).cmp(&(&b.node, b.gpu, &b.uuid)));
    rows
}

/// GPUs by node and UUID.
type Gpus = BTreeMap<(String, String), ClusterGpu>;

fn key(node: &str, uuid: &str) -> (String, String) {
    (node.to_owned(), uuid.to_owned())
}

fn mode(kind: Option<&str>) -> &'static str {
    match kind {
        Some(FRACTION) => "shared",
        Some(MIG) => "mig",
        _ => "exclusive",
    }
}

/// What the scheduler can still allocate.
fn add_free(
    gpus: &mut Gpus,
    devices: &Devices<'_>,
    slices: &[ResourceSlice],
    claims: &[ResourceClaim],
) {
    let offered = capacity(slices, &held(claims));
    for of in &offered.gpus {
        let Some(device) = devices.get(&(of.node.as_str(), of.device.as_str())) else {
            continue;
        };
        let Some(gpu) = gpus.get_mut(&key(&of.node, device.uuid)) else {
            continue;
        };
        match of.memory {
            Some(memory) => {
                let (room, total) = (of.room(), memory.get());
                gpu.allocated = Some(fraction::decimal(gpu.parts.min(1_000_000)));
                gpu.free_bytes = Some(room);
                gpu.free = Some(match room {
                    0 => "–".to_owned(),
                    _ => {
                        let memory = divvy_cli::text::memory_down(room);
                        format!("{}, {memory}", fraction::text(room, total))
                    }
                });
            }
            None => {
                let is_free = of.is_empty();
                gpu.allocated = Some(if of.held.is_empty() { "0" } else { "1" }.to_owned());
                gpu.free = Some(if is_free { "1" } else { "–" }.to_owned());
            }
        }
    }
    let mut largest: BTreeMap<(String, String), (u64, MigProfile)> = BTreeMap::new();
    for place in offered.places.iter().filter(|place| place.free) {
        let Some(device) = devices.get(&(place.node.as_str(), place.device.as_str())) else {
            continue;
        };
        let found = (place.memory.get(), place.profile);
        let best = largest.entry(key(&place.node, device.uuid));
        let best = best.or_insert(found);
        *best = (*best).max(found);
    }
    for (of, gpu) in gpus.iter_mut().filter(|(_, gpu)| gpu.mode == "mig") {
        gpu.allocated = Some(match gpu.holders.len() {
            0 => "0".to_owned(),
            1 => "1 instance".to_owned(),
            count => format!("{count} instances"),
        });
        let best = largest.get(of);
        gpu.free_bytes = Some(best.map_or(0, |(memory, _)| *memory));
        gpu.free = Some(best.map_or_else(|| "–".to_owned(), |(_, name)| format!("up to {name}")));
    }
}

/// What the nodes know, and GPUs that they do not publish.
fn add_boards(rows: &mut Vec<ClusterGpu>, found: &Allocations<'_>) {
    for (node, board) in found.boards {
        for gpu in &board.gpus {
            let row = rows
                .iter_mut()
                .find(|row| row.node == *node && row.gpu == Some(gpu.index));
            match row {
                Some(row) => add_board(row, gpu),
                None => {
                    let is_shared = gpu.mode == "shared";
                    let part = fraction::text(gpu.allocated_bytes, gpu.usable_bytes);
                    let mut row = ClusterGpu {
                        node: node.clone(),
                        gpu: Some(gpu.index),
                        model: gpu.model.clone(),
                        mode: gpu.mode.clone(),
                        // In carrier mode no claims hold it: the daemon's own figures.
                        allocated_bytes: is_shared.then_some(gpu.allocated_bytes),
                        allocated: is_shared.then_some(part),
                        problem: Some("not published".to_owned()),
                        ..ClusterGpu::default()
                    };
                    add_board(&mut row, gpu);
                    rows.push(row);
                }
            }
        }
    }
    for row in rows.iter_mut() {
        if let Some(why) = found.silent.get(&row.node) {
            let why = format!("no figures: {why}");
            row.problem = Some(match &row.problem {
                Some(problem) => format!("{problem}; {why}"),
                None => why,
            });
        }
    }
}

fn add_board(row: &mut ClusterGpu, gpu: &BoardGpu) {
    row.used_bytes = Some(gpu.used_bytes);
    row.utilization_percent = gpu.utilization_percent;
    row.memory_bytes = row.memory_bytes.or(Some(gpu.usable_bytes));
    if let Some(problem) = &gpu.problem {
        row.problem = Some(match &row.problem {
            Some(other) => format!("{other}; {problem}"),
            None => problem.clone(),
        });
    }
}

/// Pods with GPUs by namespace and name, then those that wait.
pub fn pods(found: &Objects, now: Timestamp) -> Vec<ClusterPod> {
    let devices = devices(found.slices.as_deref().unwrap_or_default());
    let claims = found.claims.as_deref().unwrap_or_default();
    let by_name: BTreeMap<(String, String), &ResourceClaim> = claims
        .iter()
        .map(|claim| {
            let namespace = claim.namespace().unwrap_or_default();
            ((namespace, claim.name_any()), claim)
        })
        .collect();
    let mut rows: Vec<ClusterPod> = Vec::new();
    for pod in &found.pods {
        let namespace = pod.namespace().unwrap_or_default();
        let of_pod = claim_names(pod).filter_map(|name| {
            let claim = by_name.get(&(namespace.clone(), name))?;
            is_ours(claim).then_some(*claim)
        });
        let of_pod: Vec<&ResourceClaim> = of_pod.collect();
        let claims_later = is_made_later(pod);
        if let Some(row) = row(pod, &of_pod, claims_later, &devices, found) {
            rows.push(row);
        }
    }
    let is_waiting = |row: &ClusterPod| row.state == "waiting";
    rows.sort_by(|a, b| {
        let key = |row: &ClusterPod| {
            let waits = is_waiting(row);
            (waits, waits.then(|| row.since.unwrap_or(now)))
        };
        (key(a), &a.namespace, &a.pod).cmp(&(key(b), &b.namespace, &b.pod))
    });
    rows
}

/// The claims of a pod: named, made from templates, and made by the scheduler for limits such as `nvidia.com/mig-1g.10gb`.
fn claim_names(pod: &Pod) -> impl Iterator<Item = String> {
    let spec = pod.spec.as_ref();
    let named = spec.and_then(|spec| spec.resource_claims.as_ref());
    let named = named.into_iter().flatten();
    let named = named.filter_map(|claim| claim.resource_claim_name.clone());
    let status = pod.status.as_ref();
    let made = status.and_then(|status| status.resource_claim_statuses.as_ref());
    let made = made.into_iter().flatten();
    let made = made.filter_map(|claim| claim.resource_claim_name.clone());
    let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    let extended = extended.map(|claim| claim.resource_claim_name.clone());
    named.chain(made).chain(extended)
}

/// Whether Kubernetes still has to make the pod's claim from the template of the webhook.
fn is_made_later(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let named = spec.and_then(|spec| spec.resource_claims.as_ref());
    let ours = named.into_iter().flatten().any(|claim| claim.name == CLAIM);
    ours && claim_names(pod).next().is_none()
}

/// Whether a claim has, or asks for, a device of this driver.
fn is_ours(claim: &ResourceClaim) -> bool {
    let devices = claim.spec.devices.as_ref();
    let requests = devices.and_then(|devices| devices.requests.as_ref());
    let mut classes = requests.into_iter().flatten().flat_map(|request| {
        let exact = request.exactly.iter().map(|one| &one.device_class_name);
        let first = request.first_available.iter().flatten();
        exact.chain(first.map(|one| &one.device_class_name))
    });
    results(claim).next().is_some() || classes.any(|class| class.ends_with(DRIVER))
}

fn row(
    pod: &Pod,
    claims: &[&ResourceClaim],
    claims_later: bool,
    devices: &Devices<'_>,
    found: &Objects,
) -> Option<ClusterPod> {
    if claims.is_empty() && !claims_later {
        return None;
    }
    if has_ended(pod) {
        return None;
    }
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let has_devices = claims.iter().any(|claim| results(claim).next().is_some());
    let state = match phase {
        _ if pod.metadata.deletion_timestamp.is_some() => "stopping",
        Some("Running") => "running",
        _ if has_devices => "starting",
        _ => "waiting",
    };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let mut parts = Vec::new();
    for claim in claims {
        let board = results(claim)
            .next()
            .and_then(|result| found.boards.get(&result.pool));
        let job = board.and_then(|board| job(board, claim));
        parts.extend(results(claim).map(|result| {
            let device = devices.get(&(result.pool.as_str(), result.device.as_str()));
            pod_device(result, device, job)
        }));
    }
    let asked = pod.annotations().get(ASKED);
    let asked = asked.and_then(|text| parse_request(text));
    let held = claims.iter().flat_map(|claim| results(claim));
    let held = held.map(|result| amount(result, devices));
    // Unknown without the right to list ResourceSlices.
    let held: Option<Vec<Held>> = held.collect();
    let agrees = |gpus: &[Size]| {
        held.as_ref()
            .is_none_or(|held| held.is_empty() || fraction::is_allocation(gpus, held))
    };
    let request = match asked {
        // The annotation of a claim by hand may say anything, and the pod has what the claim was given.
        Some(gpus) if agrees(&gpus) => fraction::request(&gpus),
        _ if parts.is_empty() => "-".to_owned(),
        _ => {
            let parts = parts.iter().map(|part| {
                let name = part.part.split('@').next().unwrap_or_default();
                name.to_owned()
            });
            parts.collect::<Vec<_>>().join(",")
        }
    };
    let created = pod.metadata.creation_timestamp.as_ref();
    let started = status.and_then(|status| status.start_time.as_ref());
    let since = match state {
        "waiting" => created,
        _ => started.or(created),
    };
    Some(ClusterPod {
        namespace: pod.namespace().unwrap_or_default(),
        pod: pod.name_any(),
        claim: claims.first().map(|claim| claim.name_any()),
        node,
        request,
        state,
        since: since.map(|time| time.0),
        devices: parts,
        reason: match state {
            "waiting" => reason(pod, found),
            _ => None,
        },
    })
}

/// The job that stands for a claim on its node.
fn job<'b>(board: &'b Board, claim: &ResourceClaim) -> Option<&'b BoardJob> {
    let label = format!(
        "{}/{}",
        claim.namespace().unwrap_or_default(),
        claim.name_any()
    );
    board.jobs.iter().find(|job| {
        job.name == label || (job.name.len() + 4 > LONGEST_JOB && label.starts_with(&job.name))
    })
}

fn pod_device(
    result: &DeviceRequestAllocationResult,
    device: Option<&Published<'_>>,
    job: Option<&BoardJob>,
) -> PodDevice {
    let index = device.and_then(|device| device.index);
    let slices = job.map(|job| job.slices.as_slice()).unwrap_or_default();
    let slice = slices.iter().find(|slice| Some(slice.gpu) == index);
    let limit = consumed(result).or_else(|| device.and_then(|device| device.memory));
    PodDevice {
        device: result.device.clone(),
        gpu: index,
        part: part(result, device),
        memory_limit_bytes: slice.map(|slice| slice.limit_bytes).or(limit),
        memory_used_bytes: slice.map(|slice| slice.used_bytes),
    }
}

/// Why a pod waits: the controller's event, else the scheduler's condition.
fn reason(pod: &Pod, found: &Objects) -> Option<String> {
    let uid = pod.uid().unwrap_or_default();
    let of_scheduler = || {
        let status = pod.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        let placed = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False");
        placed.and_then(|placed| placed.message.clone().or_else(|| placed.reason.clone()))
    };
    found.reasons.get(&uid).cloned().or_else(of_scheduler)
}

#[cfg(test)]
mod tests;
