//! Commands of `divvy` on nodes: they run in the container `plugin` of the node pods, over the API server.
//!
//! One node cannot hold a view: each has a deadline, and so many are asked at the same time.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_api::v1::{Error, ErrorBody, ErrorCode};
use futures_util::StreamExt as _;
use futures_util::stream::iter;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams, PostParams};
use kube::client::UpgradeConnectionError;
use kube::{Client, ResourceExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use crate::base::cluster;
use crate::base::cluster::list_all;
use crate::base::error_output;

/// Labels of the node pods, by the chart.
const NODE_PODS: &str =
    "app.kubernetes.io/name=divvy,app.kubernetes.io/component in (node,enforcer)";
/// The container with the daemon's socket and the program `divvy`.
const CONTAINER: &str = "plugin";
/// Nodes that are asked at the same time. Each is a stream through the API server; 64 finish a thousand nodes in
/// sixteen rounds. Each is a stream through the API server, so more would load it; fewer would make a view of a
/// thousand nodes slow.
const AT_ONCE: usize = 64;
/// Most bytes of an answer; a board of 16 GPUs and 200 jobs has some 100 KB. So it is more than a hundred times that; a
/// larger answer is no board.
const MOST_BYTES: u64 = 16 << 20;

/// The end of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub code: u8,
    pub stdout: String,
    pub stderr: String,
}

/// A node pod of Divvy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePod {
    pub node: String,
    pub pod: String,
    /// Whether its container for commands runs.
    pub is_ready: bool,
}

/// The node pods in a namespace, by node. During an update a node can have two: the one that is ready counts.
///
/// # Errors
/// The cluster does not respond, or denies the list.
pub async fn node_pods(
    client: &Client,
    namespace: &str,
) -> Result<BTreeMap<String, NodePod>, Error> {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let what = format!("list pods in namespace {namespace}");
    let pods = list_all(&api, Some(NODE_PODS))
        .await
        .map_err(|error| error_output::of_kube(error, &what))?;
    Ok(by_node(&pods))
}

fn by_node(pods: &[Pod]) -> BTreeMap<String, NodePod> {
    let mut nodes: BTreeMap<String, NodePod> = BTreeMap::new();
    for pod in pods {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let Some(node) = node else { continue };
        let statuses = pod.status.as_ref();
        let statuses = statuses.and_then(|status| status.container_statuses.as_ref());
        let runs = statuses.into_iter().flatten().any(|status| {
            let state = status.state.as_ref();
            status.name == CONTAINER && state.is_some_and(|state| state.running.is_some())
        });
        let found = NodePod {
            node: node.clone(),
            pod: pod.name_any(),
            is_ready: runs && pod.metadata.deletion_timestamp.is_none(),
        };
        match nodes.get(&node) {
            Some(other) if other.is_ready || !found.is_ready => {}
            _ => _ = nodes.insert(node, found),
        }
    }
    nodes
}

/// Whether the caller may run commands in pods of a namespace.
///
/// # Errors
/// The cluster does not respond.
pub async fn is_allowed(client: &Client, namespace: &str) -> Result<bool, Error> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.to_owned()),
                verb: Some("create".to_owned()),
                resource: Some("pods".to_owned()),
                subresource: Some("exec".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(|error| error_output::of_kube(error, "check your rights"))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Runs `divvy WORDS…` on a node, to its end.
///
/// # Errors
/// The pod is not ready, the caller lacks the right, or there is no end in time.
pub async fn run(
    client: &Client,
    namespace: &str,
    pod: &NodePod,
    words: &[&str],
    patience: Duration,
) -> Result<Ended, Error> {
    let NodePod { node, pod, .. } = pod;
    let command = std::iter::once("divvy").chain(words.iter().copied());
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let ran = timeout(patience, to_end(&api, pod, command.collect())).await;
    match ran {
        Ok(Ok(ended)) => Ok(ended),
        Ok(Err(error)) => Err(of_exec(error, node, namespace)),
        Err(_) => {
            let message = format!("node {node} had no answer within {} s", patience.as_secs());
            Err(Error::new(ErrorCode::NoDaemon, message).hint(format!(
                "kubectl logs -n {namespace} {pod} -c agent; --timeout allows more time"
            )))
        }
    }
}

/// Why a command has no end.
#[derive(Debug, thiserror::Error)]
enum ExecError {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("cannot read the output")]
    Read(#[from] std::io::Error),
    #[error("the output has more than {} MiB", MOST_BYTES >> 20)]
    TooMuch,
    #[error("the connection ended before the command")]
    Cut,
    #[error("{0}")]
    NotStarted(String),
}

async fn to_end(api: &Api<Pod>, pod: &str, command: Vec<&str>) -> Result<Ended, ExecError> {
    let params = AttachParams::default()
        .container(CONTAINER)
        .stdin(false)
        .stdout(true)
        .stderr(true)
        .max_stdout_buf_size(64 << 10);
    let mut process = api.exec(pod, command, &params).await?;
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let status = process.take_status();
    let (stdout, stderr) = tokio::try_join!(whole(stdout), whole(stderr))?;
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    let code = exit_code(&status.ok_or(ExecError::Cut)?).map_err(ExecError::NotStarted)?;
    Ok(Ended {
        code,
        stdout,
        stderr,
    })
}

async fn whole(stream: Option<impl AsyncRead + Unpin>) -> Result<String, ExecError> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(MOST_BYTES + 1).read_to_end(&mut bytes).await?;
    }
    match u64::try_from(bytes.len()) {
        Ok(length) if length <= MOST_BYTES => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        _ => Err(ExecError::TooMuch),
    }
}

/// The exit code in the status that ends an exec (`k8s.io/apimachinery` `remotecommand`: reason `NonZeroExitCode`, with
/// the cause `ExitCode`), or the reason why the command was not started.
fn exit_code(status: &Status) -> Result<u8, String> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let details = status.details.as_ref();
    let causes = details.and_then(|details| details.causes.as_ref());
    let mut causes = causes.into_iter().flatten();
    let code = causes.find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|code| code.message.as_ref()?.parse::<u8>().ok());
    code.ok_or_else(|| status.message.clone().unwrap_or_default())
}

fn of_exec(error: ExecError, node: &str, namespace: &str) -> Error {
    let what = format!("cannot run a command on node {node}");
    let refused = match &error {
        ExecError::Kube(kube::Error::UpgradeConnection(
            UpgradeConnectionError::ProtocolSwitch(code),
        )) => Some(code.as_u16()),
        ExecError::Kube(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    };
    match refused {
        Some(401) => Error::new(ErrorCode::NotAllowed, format!("{what}: not logged in"))
            .hint("log in to the cluster again"),
        Some(403) => Error::new(
            ErrorCode::NotAllowed,
            format!("{what}: you may not create pods/exec in namespace {namespace}"),
        )
        .hint("ask the cluster's administrator for this right"),
        _ => {
            // Kubelet's own words: the text of a `Status` repeats them among its fields.
            let why = match &error {
                ExecError::Kube(kube::Error::Api(status)) => status.message.clone(),
                error => cluster::chain(error),
            };
            Error::new(ErrorCode::NoDaemon, format!("{what}: {why}")).hint(format!(
                "kubectl get pods -n {namespace} -l {NODE_PODS} --field-selector spec.nodeName={node}"
            ))
        }
    }
}

/// Runs the same command on every node, and gives what each said, in no order.
pub async fn run_on_all(
    client: &Client,
    namespace: &str,
    pods: &BTreeMap<String, NodePod>,
    words: &[&str],
    patience: Duration,
) -> Vec<(String, Result<String, String>)> {
    let asked = pods.values().map(|pod| async move {
        let text = if pod.is_ready {
            match run(client, namespace, pod, words, patience).await {
                Ok(Ended {
                    code: 0, stdout, ..
                }) => Ok(stdout),
                Ok(ended) => Err(spoken(&ended)),
                Err(error) => {
                    let of_node = format!("node {} ", pod.node);
                    let message = error.message.strip_prefix(&of_node);
                    Err(message.unwrap_or(&error.message).to_owned())
                }
            }
        } else {
            Err("its pod of Divvy is not ready".to_owned())
        };
        (pod.node.clone(), text)
    });
    iter(asked).buffer_unordered(AT_ONCE).collect().await
}

/// The message of a command that failed with `-o json`, else its last line.
fn spoken(ended: &Ended) -> String {
    let json = serde_json::from_str::<ErrorBody>(ended.stderr.trim());
    match json {
        Ok(body) => body.error.message,
        Err(_) => {
            let last = ended.stderr.lines().next_back().unwrap_or_default();
            format!("`divvy` ended with code {}: {last}", ended.code)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, node: &str, runs: bool, leaves: bool) -> Pod {
        let state = if runs {
            json!({ "running": {} })
        } else {
            json!({ "waiting": { "reason": "CrashLoopBackOff" } })
        };
        let leaves = leaves.then_some("2026-01-02T03:04:05Z");
        serde_json::from_value(json!({
            "metadata": { "name": name, "deletionTimestamp": leaves },
            "spec": { "nodeName": node, "containers": [] },
            "status": { "containerStatuses": [{
                "name": "plugin", "ready": runs, "restartCount": 0, "image": "", "imageID": "", "state": state,
            }] },
        }))
        .unwrap()
    }

    #[test]
    fn the_pod_that_runs_answers_for_its_node_while_another_leaves_or_fails() {
        let pods = [
            pod("a-old", "a", true, true),
            pod("a-new", "a", true, false),
            pod("b-new", "b", true, false),
            pod("b-broken", "b", false, false),
            pod("c", "c", false, false),
        ];
        let found = by_node(&pods);
        let of: Vec<_> = found
            .values()
            .map(|pod| (&*pod.node, &*pod.pod, pod.is_ready))
            .collect();
        assert_eq!(
            of,
            [
                ("a", "a-new", true),
                ("b", "b-new", true),
                ("c", "c", false)
            ]
        );
    }

    #[test]
    fn the_exit_code_is_the_commands_own() {
        let status = |value: Value| serde_json::from_value::<Status>(value).unwrap();
        assert_eq!(exit_code(&status(json!({ "status": "Success" }))), Ok(0));
        // As kubelet 1.36 answers.
        let failed = json!({
            "status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with non-zero exit code",
            "details": { "causes": [{ "reason": "ExitCode", "message": "3" }] },
        });
        assert_eq!(exit_code(&status(failed)), Ok(3));
        let missing =
            json!({ "status": "Failure", "message": "executable file not found in $PATH" });
        assert_eq!(
            exit_code(&status(missing)),
            Err("executable file not found in $PATH".to_owned())
        );
    }

    #[test]
    fn a_failure_of_the_node_is_said_in_its_own_words() {
        let ended = |stderr: &str| Ended {
            code: 7,
            stderr: stderr.to_owned(),
            ..Ended::default()
        };
        let error = Error::new(ErrorCode::NoDaemon, "no daemon");
        let json = error.render(true, str::to_owned);
        assert_eq!(spoken(&ended(&json)), "no daemon");
        assert_eq!(spoken(&ended("a\nb")), "`divvy` ended with code 7: b");
    }
}
