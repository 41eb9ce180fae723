//! Reports of pods that hold a part of a GPU and have no ticket, and so no limit: they are outside the namespaces
//! that the chart names, or older than the enforcer.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use tokio::time::sleep;

use super::grant::{self, has_ticket};
use super::{EnforceError, Enforcer, usable};
use crate::base::cluster;
use crate::base::objects::has_ended;
use crate::node::agent::Agent;
use crate::node::events::{EventTarget, Events, Kind};

/// Between two looks at the node's pods. They run without a limit until a person acts, so half would double the
/// calls of every node for nothing.
const AGAIN: Duration = Duration::from_secs(60);

/// Looks again and again. A pod is reported once.
pub(super) async fn run(enforcer: &Enforcer, agent: &Agent, events: &Events) {
    let mut told = BTreeSet::new();
    loop {
        match look(enforcer, agent).await {
            Ok(found) => {
                for (pod, why) in &found {
                    let uid = pod.metadata.uid.clone().unwrap_or_default();
                    if !told.contains(&uid) {
                        tell(events, pod, why).await;
                    }
                }
                // Only pods that are there are kept, so the node's number of pods bounds it.
                told = found
                    .into_iter()
                    .filter_map(|(pod, _)| pod.metadata.uid)
                    .collect();
            }
            Err(error) => tracing::debug!("cannot look for pods without a limit: {error}"),
        }
        sleep(AGAIN).await;
    }
}

/// Pods of this node with parts of GPUs and no ticket, and what they hold.
async fn look(enforcer: &Enforcer, agent: &Agent) -> Result<Vec<(Pod, String)>, EnforceError> {
    let of_node = ListParams::default().fields(&format!("spec.nodeName={}", enforcer.node));
    let pods: Api<Pod> = Api::all(enforcer.client.clone());
    let pods = pods
        .list(&of_node)
        .await
        .map_err(super::unread("the node's pods"))?;
    let gpus = usable(agent).await?;
    let mut found = Vec::new();
    for pod in pods
        .items
        .into_iter()
        .filter(|pod| !has_ended(pod) && !has_ticket(pod))
    {
        let facts = match enforcer.facts(pod.clone(), gpus.clone()).await {
            Ok(facts) => facts,
            Err(error) => {
                tracing::debug!("cannot look into a pod: {}", cluster::chain(&error));
                continue;
            }
        };
        let held = match grant::given(&facts) {
            Ok(grant) => {
                let parts = grant.devices.iter().filter(|device| !device.whole);
                let parts: Vec<String> = parts.map(|device| device.gpu.clone()).collect();
                parts.join(", ")
            }
            Err(why) => why.to_string(),
        };
        if !held.is_empty() {
            found.push((pod, held));
        }
    }
    Ok(found)
}

async fn tell(events: &Events, pod: &Pod, held: &str) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let metadata = &pod.metadata;
    let (namespace, name, uid) = (
        text(&metadata.namespace),
        text(&metadata.name),
        text(&metadata.uid),
    );
    let about = EventTarget {
        kind: Kind::Pod,
        namespace: &namespace,
        name: &name,
        uid: &uid,
    };
    let note = format!(
        "the pod runs without a limit of GPU memory ({held}): list its namespace in the chart's enforcer.namespaces, \
         and make the pod again"
    );
    events.warn(about, "NotLimited", "Enforce", note).await;
}
