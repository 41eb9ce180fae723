//! One short-lived pod on each node: created, awaited for a bounded time, and deleted.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use divvy_api::v1::Error;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use crate::base::cluster::{is_already_exists, is_missing};
use crate::base::error_output;
use crate::tools::admin::nodes::is_ready;

/// Pods at the same time: a cluster may have thousands of nodes. Fifty finish a thousand nodes in twenty rounds, and do
/// not take the scheduler from other pods.
const AT_ONCE: usize = 50;
/// Between two looks at the pods. A pod takes some seconds; a shorter pause would list all pods more often.
const LOOK: Duration = Duration::from_secs(1);
/// Nodes that a text names; the others are counted. A longer list would not fit a screen.
const NAMED: usize = 20;
/// The label of the pods.
const LABEL: (&str, &str) = ("app.kubernetes.io/component", "uninstall");

/// What a pod does on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Removes the idle MIG instances that Divvy created, through the daemon.
    CollectInstances,
    /// Removes Divvy's files.
    RemoveFiles { keep_state: bool, kubelet: PathBuf },
}

/// The nodes to work on, and how.
pub struct OnNodes<'a> {
    pub client: Client,
    pub namespace: &'a str,
    pub image: &'a str,
    pub pull_policy: &'a str,
    pub pull_secrets: &'a [String],
    pub time: Duration,
    pub task: Task,
}

/// The result on each node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    what: &'static str,
    done: Vec<String>,
    /// With the reason.
    failed: BTreeMap<String, String>,
}

impl Task {
    fn word(&self) -> &'static str {
        match self {
            Self::CollectInstances => "mig",
            Self::RemoveFiles { .. } => "files",
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::CollectInstances => "idle MIG instances removed",
            Self::RemoveFiles { .. } => "files removed",
        }
    }

    /// The container's command, and the folders of the node that it sees: their path there, and in the container.
    fn container(&self) -> (Value, Vec<(String, String)>) {
        match self {
            Self::CollectInstances => (
                json!(["/usr/local/bin/divvy", "admin", "mig", "gc"]),
                vec![("/run/divvy".to_owned(), "/run/divvy".to_owned())],
            ),
            Self::RemoveFiles {
                keep_state,
                kubelet,
            } => {
                let kubelet = kubelet.display().to_string();
                let mut command = vec![
                    "/usr/local/bin/divvy-k8s".to_owned(),
                    "uninstall".to_owned(),
                    "node".to_owned(),
                    "--root=/host".to_owned(),
                    format!("--kubelet-dir={kubelet}"),
                ];
                if *keep_state {
                    command.push("--keep-state".to_owned());
                }
                let mut folders = vec!["/var/lib".to_owned(), "/run".to_owned()];
                if !kubelet.starts_with("/var/lib/") {
                    folders.push(kubelet);
                }
                let mounts = folders.into_iter().map(|folder| {
                    let inside = format!("/host{folder}");
                    (folder, inside)
                });
                (json!(command), mounts.collect())
            }
        }
    }
}

impl OnNodes<'_> {
    /// Works on all nodes that are ready. One that is not, or that takes too long, is in the report with the reason.
    ///
    /// # Errors
    /// The cluster does not respond, or denies the pods.
    pub async fn run(&self, nodes: &[Node]) -> Result<Report, Error> {
        let mut report = Report {
            what: self.task.title(),
            ..Report::default()
        };
        let mut waiting = Vec::new();
        for node in nodes {
            let name = node.metadata.name.clone().unwrap_or_default();
            if is_ready(node) {
                waiting.push(name)
            } else {
                report
                    .failed
                    .insert(name, "the node is not ready".to_owned());
            }
        }
        waiting.sort();
        waiting.reverse();
        let until = Instant::now() + self.time;
        let mut running: BTreeMap<String, String> = BTreeMap::new();
        while !(waiting.is_empty() && running.is_empty()) {
            while running.len() < AT_ONCE
                && let Some(node) = waiting.pop()
            {
                let pod = self.create(&node).await?;
                running.insert(pod, node);
            }
            let pods = self.pods().await?;
            let is_late = Instant::now() >= until;
            for (pod, node) in running.clone() {
                let Some(end) = ended(pods.get(&pod), is_late) else {
                    continue;
                };
                self.delete(&pod).await?;
                running.remove(&pod);
                match end {
                    Ok(()) => report.done.push(node),
                    Err(why) => _ = report.failed.insert(node, why),
                }
            }
            if is_late {
                let late = waiting.drain(..);
                let why = || "its turn did not come in time".to_owned();
                report.failed.extend(late.map(|node| (node, why())));
                break;
            }
            sleep(LOOK).await;
        }
        Ok(report)
    }

    async fn create(&self, node: &str) -> Result<String, Error> {
        let pod = self.pod(node);
        let name = pod["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let pod: Pod = serde_json::from_value(pod).map_err(|error| {
            Error::new(
                divvy_api::v1::ErrorCode::Internal,
                format!("the pod {name}: {error}"),
            )
        })?;
        match self.api().create(&PostParams::default(), &pod).await {
            Err(error) if !is_already_exists(&error) => Err(error_output::of_kube(
                error,
                &format!("create the pod {name}"),
            )),
            // One of an uninstall that was interrupted does the same.
            _ => Ok(name),
        }
    }

    async fn pods(&self) -> Result<BTreeMap<String, Pod>, Error> {
        let ours = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
        let listed = self.api().list(&ours).await;
        let pods = listed.map_err(|error| error_output::of_kube(error, "list pods"))?;
        let named = pods.items.into_iter();
        Ok(named
            .filter_map(|pod| Some((pod.metadata.name.clone()?, pod)))
            .collect())
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        match self.api().delete(name, &DeleteParams::default()).await {
            Err(error) if !is_missing(&error) => Err(error_output::of_kube(
                error,
                &format!("delete the pod {name}"),
            )),
            _ => Ok(()),
        }
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    fn pod(&self, node: &str) -> Value {
        let digest = Sha256::digest(node.as_bytes());
        let short: String = digest[..6]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let (command, mounts) = self.task.container();
        let name = |at: usize| format!("host-{at}");
        let volumes = mounts.iter().enumerate().map(|(at, (folder, _))| {
            json!({ "name": name(at), "hostPath": { "path": folder, "type": "DirectoryOrCreate" } })
        });
        let inside = mounts
            .iter()
            .enumerate()
            .map(|(at, (_, inside))| json!({ "name": name(at), "mountPath": inside }));
        let secrets = self.pull_secrets.iter().map(|name| json!({ "name": name }));
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("divvy-uninstall-{}-{short}", self.task.word()),
                "namespace": self.namespace,
                "labels": { "app.kubernetes.io/name": "divvy", (LABEL.0): LABEL.1 },
            },
            "spec": {
                // The scheduler would not place it on a node that is cordoned.
                "nodeName": node,
                "tolerations": [{ "operator": "Exists" }],
                // The client finds the system's daemon by the holder of its lock (proc(5), locks).
                "hostPID": true,
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 0,
                "activeDeadlineSeconds": self.time.as_secs(),
                "imagePullSecrets": secrets.collect::<Vec<_>>(),
                "containers": [{
                    "name": "uninstall",
                    "image": self.image,
                    "imagePullPolicy": self.pull_policy,
                    "command": command,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    // With SELinux only a privileged container may write what the daemon wrote.
                    "securityContext": { "privileged": true, "runAsUser": 0 },
                    "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
                    "volumeMounts": inside.collect::<Vec<_>>(),
                }],
                "volumes": volumes.collect::<Vec<_>>(),
            },
        })
    }
}

/// How a pod ended; `None` while it may still end by itself.
fn ended(pod: Option<&Pod>, is_late: bool) -> Option<Result<(), String>> {
    let Some(pod) = pod else {
        return Some(Err("its pod was deleted".to_owned()));
    };
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let state = containers
        .and_then(|all| all.first())
        .and_then(|one| one.state.as_ref());
    match phase {
        Some("Succeeded") => Some(Ok(())),
        Some("Failed") => {
            let terminated = state.and_then(|state| state.terminated.as_ref());
            let message = terminated
                .and_then(|end| end.message.clone())
                .or_else(|| status.and_then(|status| status.message.clone()));
            Some(Err(plain(
                &message.unwrap_or_else(|| "its pod failed".to_owned()),
            )))
        }
        _ if is_late => {
            let waiting = state.and_then(|state| state.waiting.as_ref());
            let reason = waiting.and_then(|waiting| waiting.reason.clone());
            let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            Some(Err(format!("its pod did not end in time{reason}")))
        }
        _ => None,
    }
}

/// One line of a bounded length.
fn plain(message: &str) -> String {
    let mut text = message.split_whitespace().collect::<Vec<_>>().join(" ");
    text.truncate(text.floor_char_boundary(300));
    text
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {} nodes", self.what, self.done.len())?;
        for (node, why) in self.failed.iter().take(NAMED) {
            write!(out, "\nnot on {node}: {why}")?;
        }
        match self.failed.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(out, "\nnot on {more} more nodes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &Value) -> Pod {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": {}, "status": status });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_that_never_ends_is_given_up_with_its_reason() {
        let pulling = json!({ "phase": "Pending", "containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ImagePullBackOff" } },
        }] });
        assert_eq!(ended(Some(&pod(&pulling)), false), None);
        let why = ended(Some(&pod(&pulling)), true).unwrap().unwrap_err();
        assert_eq!(why, "its pod did not end in time: ImagePullBackOff");
        assert_eq!(
            ended(Some(&pod(&json!({ "phase": "Succeeded" }))), true),
            Some(Ok(()))
        );
        assert!(ended(None, false).unwrap().is_err());
    }

    #[test]
    fn a_report_names_a_bounded_number_of_nodes() {
        let mut report = Report {
            what: "files removed",
            done: vec!["a".to_owned()],
            ..Report::default()
        };
        assert_eq!(report.to_string(), "files removed: 1 nodes");
        for at in 0..1000 {
            let why = "the node is not ready".to_owned();
            report.failed.insert(format!("node-{at:04}"), why);
        }
        let text = report.to_string();
        assert!(
            text.contains("\nnot on node-0000: the node is not ready\n"),
            "{text}"
        );
        assert!(text.ends_with("\nnot on 980 more nodes"), "{text}");
        assert!(plain(&"ä\n".repeat(1000)).len() <= 300);
    }
}
