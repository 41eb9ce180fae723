//! Why a pod waits, beyond its own status: the word of Kueue for a gated pod, and the events of a pod that a node or the
//! scheduler cannot get on with.
//!
//! Both are optional: without the rights, or without Kueue, the pod's own status counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::Value;

use super::objects::Objects;
use super::pod_status::{PodState, TaskPodStatus};

/// The gate of Kueue's pod integration (`AdmissionGate`, pkg/controller/jobs/pod).
pub const KUEUE_GATE: &str = "kueue.x-k8s.io/admission";

/// Polls between two looks at events and workloads, which are lists of the whole namespace. A look at each poll would
/// quadruple these calls; a reason that is some polls late still helps.
const EVERY: u32 = 4;

/// An event this old says nothing of the present: kubelet and controllers repeat theirs within minutes.
const OLD: i64 = 600;

/// Letters of a reason. Events have up to 1024 (`NoteLengthLimit`, events.k8s.io).
const LONGEST: usize = 1024;

/// The reasons of the pods of one namespace, by the pod's uid.
#[derive(Debug, Default)]
pub struct Reasons {
    at: Option<Instant>,
    events: BTreeMap<String, String>,
    workloads: BTreeMap<String, String>,
}

impl Reasons {
    /// Asks the cluster again, if one of these pods waits and the last answer is old.
    pub async fn refresh<'a>(
        &mut self,
        objects: &Objects,
        poll: Duration,
        pods: impl Iterator<Item = &'a Pod>,
    ) {
        let (mut waits, mut gated) = (false, false);
        for pod in pods.filter(|pod| is_pending(pod)) {
            waits = true;
            gated |= is_gated(pod);
        }
        if !waits || self.at.is_some_and(|at| at.elapsed() < poll * EVERY) {
            return;
        }
        self.at = Some(Instant::now());
        self.events = match objects.events().await {
            Ok(events) => latest(&events, Timestamp::now()),
            Err(error) => {
                tracing::debug!(%error, "cannot list events; waiting tasks show the pod's status alone");
                BTreeMap::new()
            }
        };
        self.workloads = if gated {
            match objects.workloads().await {
                Ok(workloads) => quota_reasons(&workloads),
                Err(error) => {
                    tracing::debug!(%error, "cannot list Kueue's workloads; waiting tasks show the gate alone");
                    BTreeMap::new()
                }
            }
        } else {
            BTreeMap::new()
        };
    }

    /// The state of a pod, with the best known reason if it waits.
    pub fn explain(&self, pod: &Pod, mut status: TaskPodStatus) -> TaskPodStatus {
        let PodState::Waits(said) = &mut status.state else {
            return status;
        };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let better = match gates(pod).next() {
            Some(_) => self.workloads.get(uid).map(|why| format!("Kueue: {why}")),
            // Divvy's own event names the GPU and its holders; the scheduler's counts nodes.
            None => self.events.get(uid).cloned(),
        };
        *said = better.or(said.take()).map(|why| cut(&why));
        status
    }
}

fn is_pending(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, None | Some("Pending"))
}

fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref());
    gates.into_iter().flatten().map(|gate| gate.name.as_str())
}

fn is_gated(pod: &Pod) -> bool {
    gates(pod).any(|gate| gate == KUEUE_GATE)
}

/// The latest warning of each pod. Divvy's `WaitsForGpu` comes before the scheduler's own word for the same.
fn latest(events: &[Event], now: Timestamp) -> BTreeMap<String, String> {
    let mut best: BTreeMap<&str, ((bool, i64), String)> = BTreeMap::new();
    for event in events {
        let (Some(uid), Some(reason)) = (
            event.involved_object.uid.as_deref(),
            event.reason.as_deref(),
        ) else {
            continue;
        };
        let is_divvys = reason == "WaitsForGpu";
        let at = seen(event);
        // The scheduler's is the pod's condition, without its age.
        let says_more =
            is_divvys || event.type_.as_deref() == Some("Warning") && reason != "FailedScheduling";
        if !says_more || now.as_second() - at > OLD {
            continue;
        }
        let rank = (is_divvys, at);
        if best.get(uid).is_none_or(|(known, _)| *known <= rank) {
            let text = event
                .message
                .as_deref()
                .map(str::trim)
                .filter(|text| !text.is_empty());
            let why = text.map_or_else(|| reason.to_owned(), |text| format!("{reason}: {text}"));
            best.insert(uid, (rank, why));
        }
    }
    best.into_iter()
        .map(|(uid, (_, why))| (uid.to_owned(), why))
        .collect()
}

/// When an event was last seen, seconds since 1970. Both APIs of events write other fields.
fn seen(event: &Event) -> i64 {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    let times = [
        series.map(|time| time.0.as_second()),
        event.last_timestamp.as_ref().map(|time| time.0.as_second()),
        event.event_time.as_ref().map(|time| time.0.as_second()),
        event
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0.as_second()),
    ];
    times.into_iter().flatten().max().unwrap_or_default()
}

/// Why Kueue holds each pod: the Workload of a pod has it as its owner.
fn quota_reasons(workloads: &[DynamicObject]) -> BTreeMap<String, String> {
    let reasons = workloads.iter().filter_map(|workload| {
        let owners = workload.metadata.owner_references.iter().flatten();
        let pod = owners.clone().find(|owner| owner.kind == "Pod")?;
        Some((pod.uid.clone(), quota_reason(&workload.data)?))
    });
    reasons.collect()
}

/// Kueue's condition `QuotaReserved`, or what else holds a Workload (workload_types.go).
fn quota_reason(workload: &Value) -> Option<String> {
    if workload["spec"]["active"] == false {
        return Some("the Workload is deactivated".to_owned());
    }
    let conditions = workload["status"]["conditions"].as_array()?;
    let says = |kind: &str, status: &str| {
        let found = conditions
            .iter()
            .find(|one| one["type"] == kind && one["status"] == status)?;
        found["message"].as_str().filter(|text| !text.is_empty())
    };
    let why = says("QuotaReserved", "False").or_else(|| says("Admitted", "False"))?;
    Some(
        match says("Preempted", "True").or_else(|| says("Evicted", "True")) {
            Some(before) => format!("{why} (it ran before: {before})"),
            None => why.to_owned(),
        },
    )
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
