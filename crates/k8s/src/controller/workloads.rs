//! The waiting Workloads of Kueue, watched while the cluster has Kueue.
//!
//! ```text
//!   discovery: no Kueue ──(each minute)──► Kueue ──► watch ──► waiting: what each Workload's owner waits for
//!        ▲                                              │
//!        └───────────────── its API is gone ◄───────────┘
//! ```
//! The controller needs no Kueue. Of a Workload only its owner and its conditions are kept, since its pod templates may be
//! large.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::Api;
use kube::core::Object;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watcher;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::sleep;
use tracing::{info, warn};

use super::informers::{ChangeSignal, Informer, Intake, paged};
use super::pending::SpecFields;
use crate::base::cluster::chain;
use crate::base::inject::CLAIM;
use crate::teams::kueue::status::{WorkloadState, text, workload_memory, workload_state};
use crate::teams::kueue::store::{Served, served, workloads};

/// How soon an installed Kueue is noticed.
const LOOK: Duration = Duration::from_secs(60);

/// A Workload that waits, and that requests GPUs of Divvy.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingWorkload {
    /// The pod, Job or other object that it is for.
    pub owner: ObjectReference,
    pub text: String,
}

/// The fields of a Workload that show whether it waits, and for what. A watch decodes no others.
type WorkloadFields = Object<WorkloadSpec, Value>;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadSpec {
    queue_name: Option<String>,
    active: Option<bool>,
    pod_sets: Option<Vec<PodSet>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PodSet {
    template: Option<PodTemplate>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PodTemplate {
    spec: Option<SpecFields>,
}

/// The waiting Workloads.
#[derive(Default)]
pub struct WaitingWorkloads(Arc<Informer<WaitingWorkload>>);

impl WaitingWorkloads {
    pub fn all(&self) -> Vec<Arc<WaitingWorkload>> {
        self.0.state()
    }

    /// Watches until the task is aborted.
    pub async fn watch(&self, client: &Client, bell: &ChangeSignal) {
        loop {
            match served(client).await {
                Ok(Served::Ours) => {
                    info!("Kueue is installed: events name what its Workloads wait for");
                    self.follow(client, bell).await;
                    self.0.set_absent();
                }
                Ok(Served::Absent | Served::Other(_)) => {}
                Err(error) => warn!(
                    error = chain(&error),
                    "cannot read the API groups of the cluster"
                ),
            }
            sleep(LOOK).await;
        }
    }

    /// Follows the Workloads until their API is gone, or may not be read.
    async fn follow(&self, client: &Client, bell: &ChangeSignal) {
        let api: Api<WorkloadFields> = workloads(client, None);
        let mut intake = Intake::new(Arc::clone(&self.0), waiting);
        let mut changes = pin!(watcher(api, paged()).default_backoff());
        while let Some(change) = changes.next().await {
            match change {
                Ok(event) => {
                    if intake.apply(event) {
                        bell.send_modify(|rung| *rung += 1);
                    }
                }
                Err(error) => {
                    warn!(
                        error = chain(&error),
                        "the watch of Kueue's Workloads failed"
                    );
                    if is_final(&error) {
                        return;
                    }
                }
            }
        }
    }
}

/// Whether a watch cannot go on: the API is gone, or the role lacks the right.
fn is_final(error: &kube::runtime::watcher::Error) -> bool {
    use kube::runtime::watcher::Error;
    let code = match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status)) => status.code,
        Error::WatchError(status) => status.code,
        _ => return false,
    };
    matches!(code, 403 | 404)
}

/// What a Workload waits for; `None` for one that does not wait, or requests nothing of Divvy.
fn waiting(object: WorkloadFields) -> Option<WaitingWorkload> {
    let object = serde_json::to_value(object).ok()?;
    let text = match workload_state(&object) {
        WorkloadState::Pending {
            message, evicted, ..
        } => {
            let queue = text(&object["spec"]["queueName"]);
            let mut words = format!("waits for quota in the queue {queue} (Kueue)");
            if let Some(evicted) = evicted.filter(|text| !text.is_empty()) {
                words += &format!("; it was stopped: {evicted}");
            }
            if !message.is_empty() {
                words += &format!("; {message}");
            }
            words
        }
        WorkloadState::Reserved { message } => {
            format!("has quota, and waits for an admission check (Kueue); {message}")
        }
        WorkloadState::Deactivated => "its Workload was deactivated (Kueue)".to_owned(),
        WorkloadState::Admitted | WorkloadState::Stopping { .. } | WorkloadState::Finished => {
            return None;
        }
    };
    if !is_ours(&object) {
        return None;
    }
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    let owner = owners
        .iter()
        .find(|one| one["controller"] == true)
        .or(owners.first())?;
    let part = |field: &str| owner[field].as_str().map(str::to_owned);
    Some(WaitingWorkload {
        owner: ObjectReference {
            api_version: part("apiVersion"),
            kind: part("kind"),
            name: part("name"),
            uid: part("uid"),
            namespace: object["metadata"]["namespace"].as_str().map(str::to_owned),
            ..ObjectReference::default()
        },
        // An event has room for 1024 characters (`NoteLengthLimit`, events.k8s.io).
        text: text.chars().take(1000).collect(),
    })
}

/// Whether it claims a part of a GPU, or Kueue has counted GPU memory for it.
fn is_ours(workload: &Value) -> bool {
    let sets = workload["spec"]["podSets"].as_array().into_iter().flatten();
    let claims = |set: &Value| {
        let claims = set["template"]["spec"]["resourceClaims"]
            .as_array()
            .into_iter()
            .flatten();
        claims.into_iter().any(|claim| claim["name"] == CLAIM)
    };
    workload_memory(workload).is_some() || sets.into_iter().any(claims)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(claim: &str, conditions: &Value) -> WorkloadFields {
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": { "name": "job-train", "namespace": "vision", "uid": "w", "ownerReferences": [
                { "apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": true },
            ] },
            "spec": { "queueName": "default", "podSets": [
                { "name": "main", "template": { "spec": { "resourceClaims": [{ "name": claim }] } } },
            ] },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn a_workload_without_quota_waits_for_its_owner() {
        let pending = json!([{ "type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "10Gi more needed" }]);
        let found = waiting(object(CLAIM, &pending)).unwrap();
        assert_eq!(
            found.text,
            "waits for quota in the queue default (Kueue); 10Gi more needed"
        );
        assert_eq!(
            (found.owner.kind.as_deref(), found.owner.uid.as_deref()),
            (Some("Job"), Some("j"))
        );
        assert_eq!(waiting(object("other", &pending)), None);
        let admitted = json!([{ "type": "QuotaReserved", "status": "True" }, { "type": "Admitted", "status": "True" }]);
        assert_eq!(waiting(object(CLAIM, &admitted)), None);
        let long =
            json!([{ "type": "QuotaReserved", "status": "False", "message": "x".repeat(9000) }]);
        assert_eq!(waiting(object(CLAIM, &long)).unwrap().text.len(), 1000);
    }
}
