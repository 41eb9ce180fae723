//! Facts for the checks, read from the cluster, each with the reason if it could not be read.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_api::v1::Error;
use hyper::Request;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::version;
use crate::base::claim::{DRIVER, TICKETS};
use crate::base::cluster;
use crate::base::error_output;
use crate::base::inject::OPT_IN;
use crate::base::pod_request::FRACTION;
use crate::carrier;
use crate::carrier::share::GpuShare;
use crate::extender;
use crate::teams::kueue::store::{Served, served};
use crate::teams::project;
use crate::tools::submit::object::is_held;
use crate::tools::views::node_exec;

/// The value, or the reason why it could not be read.
pub type Read<T> = Result<T, String>;

/// Time for one node's daemon. A healthy daemon answers within milliseconds; a hung one would hold up the report of all
/// nodes.
const PATIENCE: Duration = Duration::from_secs(5);

/// The facts from which the rows are made.
pub struct ClusterFacts {
    /// Where Divvy is installed.
    pub system: String,
    pub version: Read<Info>,
    pub gates: Read<BTreeMap<String, bool>>,
    pub nodes: Read<Vec<Node>>,
    pub daemon_sets: Read<Vec<DaemonSet>>,
    pub pods: Read<Vec<Pod>>,
    pub slices: Read<Vec<ResourceSlice>>,
    /// Of carrier mode; none where it is not installed.
    pub shares: Read<Vec<GpuShare>>,
    pub classes: Read<Vec<DeviceClass>>,
    pub webhooks: Read<Vec<MutatingWebhookConfiguration>>,
    pub namespaces: Read<Vec<Namespace>>,
    pub probe: Probe,
    /// Per node with a pod of Divvy: whether its daemon answers, or why not.
    pub daemons: Read<BTreeMap<String, Read<()>>>,
    pub access: Read<Vec<(Right, bool)>>,
    pub kueue: Read<Served>,
    pub kueue_configuration: Read<Option<Value>>,
    /// What the extender says of itself; none without an extender, before it has written, or if it may not be read.
    pub extender: Option<extender::Status>,
}

impl ClusterFacts {
    /// Whether some nodes, or all, share GPUs by carriers.
    pub fn by_carriers(&self) -> bool {
        self.shares.as_ref().is_ok_and(|shares| !shares.is_empty())
    }

    /// Whether nodes limit pods to the GPUs that other programs allocate.
    pub fn by_enforcer(&self) -> bool {
        self.has_slices(TICKETS)
    }

    /// Whether nodes share GPUs by claims: all of them, or some beside carriers and enforcers.
    pub fn by_claims(&self) -> bool {
        !(self.by_carriers() || self.by_enforcer()) || self.has_slices(DRIVER)
    }

    fn has_slices(&self, driver: &str) -> bool {
        let slices = self.slices.as_deref().unwrap_or_default();
        slices.iter().any(|slice| slice.spec.driver == driver)
    }
}

/// The result of the trial creation of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// There is no namespace to try it in.
    NoNamespace,
    /// It would have its claim, or its gate.
    Held,
    /// It would run as it came.
    Untouched,
    /// The webhook answered, with a refusal.
    Refused(String),
    /// The API server could not call the webhook.
    Unreachable(String),
    /// It could not be tried.
    Untried(String),
}

/// Something that one may be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    pub verb: &'static str,
    pub group: &'static str,
    pub resource: &'static str,
    pub subresource: &'static str,
    /// Which command does it.
    pub needed_by: &'static str,
}

const fn right(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    needed_by: &'static str,
) -> Right {
    Right {
        verb,
        group,
        resource,
        subresource,
        needed_by,
    }
}

/// The rights that the commands for people need.
const RIGHTS: [Right; 13] = [
    right("list", "", "nodes", "", "admin"),
    right("patch", "", "nodes", "", "admin set"),
    right(
        "list",
        "resource.k8s.io",
        "resourceslices",
        "",
        "admin nodes",
    ),
    right("list", "resource.k8s.io", "deviceclasses", "", "doctor"),
    right("list", "apps", "daemonsets", "", "doctor"),
    right("list", "", "pods", "", "doctor"),
    right("list", "", "namespaces", "", "doctor"),
    right(
        "list",
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "",
        "doctor",
    ),
    right("list", "resource.k8s.io", "resourceclaims", "", "gpus, ps"),
    right("create", "", "pods", "exec", "gpus, top, usage, admin gpu"),
    right("create", "", "pods", "", "submit"),
    right("create", "batch", "jobs", "", "submit --job"),
    right("get", "", "pods", "log", "submit --follow"),
];

/// # Errors
/// Nothing answers: then there is nothing to say of the cluster.
pub async fn read(client: &Client, system: &str) -> Result<ClusterFacts, Error> {
    let version = match client.apiserver_version().await {
        Ok(info) => Ok(info),
        Err(error @ kube::Error::Api(_)) => Err(said(error)),
        Err(error) => return Err(error_output::of_kube(error, "read the cluster's version")),
    };
    let namespaces = list::<Namespace>(client).await;
    let probe = probe(client, &namespaces).await;
    Ok(ClusterFacts {
        system: system.to_owned(),
        version,
        gates: gates(client).await,
        nodes: list(client).await,
        daemon_sets: list(client).await,
        pods: list(client).await,
        slices: list(client).await,
        shares: shares(client).await,
        classes: list(client).await,
        webhooks: list(client).await,
        namespaces,
        probe,
        daemons: daemons(client, system).await,
        access: access(client).await,
        kueue: served(client).await.map_err(said),
        kueue_configuration: project::read_kueue_configuration(client, project::KUEUE_NAMESPACE)
            .await,
        extender: extender::written_status(client, system).await,
    })
}

async fn list<K>(client: &Client) -> Read<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone())
        .list(&ListParams::default())
        .await;
    all.map(|list| list.items).map_err(said)
}

async fn shares(client: &Client) -> Read<Vec<GpuShare>> {
    let api = Api::<GpuShare>::namespaced(client.clone(), carrier::NAMESPACE);
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(error) if cluster::is_missing(&error) => Ok(Vec::new()),
        Err(error) => Err(said(error)),
    }
}

fn said(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => cluster::chain(&other),
    }
}

async fn gates(client: &Client) -> Read<BTreeMap<String, bool>> {
    let request = Request::get("/metrics")
        .body(Vec::new())
        .map_err(|error| error.to_string())?;
    let text = client.request_text(request).await.map_err(said)?;
    let gates = version::gates(&text);
    if gates.is_empty() {
        Err("its metrics list no feature gates".to_owned())
    } else {
        Ok(gates)
    }
}

/// Has the API server admit a pod with a part of a GPU, without making it.
async fn probe(client: &Client, namespaces: &Read<Vec<Namespace>>) -> Probe {
    let all = match namespaces {
        Ok(all) => all,
        Err(why) => return Probe::Untried(why.clone()),
    };
    let Some(namespace) = all.iter().find_map(opted_in) else {
        return Probe::NoNamespace;
    };
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "divvy-doctor-",
            "namespace": namespace,
            "annotations": { FRACTION: "0.125" },
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 1000,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "main",
                "image": "none.invalid/none",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                },
            }],
        },
    });
    let pod: Pod = match serde_json::from_value(pod) {
        Ok(pod) => pod,
        Err(error) => return Probe::Untried(error.to_string()),
    };
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    match pods.create(&dry, &pod).await {
        Ok(pod) if is_held(&pod) => Probe::Held,
        Ok(_) => Probe::Untouched,
        Err(error) => judged(said(error)),
    }
}

/// The webhook's state by the API server's message (`k8s.io/apiserver` `plugin/webhook/errors`).
fn judged(message: String) -> Probe {
    if message.contains("failed calling webhook") || message.contains("failed to call webhook") {
        return Probe::Unreachable(message);
    }
    if message.contains("admission webhook") {
        Probe::Refused(message)
    } else {
        Probe::Untried(message)
    }
}

/// Its name, if it is opted in.
pub fn opted_in(namespace: &Namespace) -> Option<&str> {
    let labels = namespace.metadata.labels.as_ref()?;
    let is = labels.get(OPT_IN.0).is_some_and(|value| value == OPT_IN.1);
    is.then_some(namespace.metadata.name.as_deref()?)
}

/// Asks the daemon of each node, over its pod.
async fn daemons(client: &Client, system: &str) -> Read<BTreeMap<String, Read<()>>> {
    let is_allowed = node_exec::is_allowed(client, system).await;
    if !(is_allowed.map_err(|error| error.message)?) {
        return Err(format!(
            "you may not create pods/exec in namespace {system}"
        ));
    }
    let pods = node_exec::node_pods(client, system).await;
    let pods = pods.map_err(|error| error.message)?;
    let words = ["gpus", "-o", "name"];
    let answers = node_exec::run_on_all(client, system, &pods, &words, PATIENCE).await;
    let answers = answers.into_iter();
    Ok(answers
        .map(|(node, answer)| (node, answer.map(drop)))
        .collect())
}

async fn access(client: &Client) -> Read<Vec<(Right, bool)>> {
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let mut all = Vec::new();
    for right in RIGHTS {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: text(right.verb),
                    group: text(right.group),
                    resource: text(right.resource),
                    subresource: text(right.subresource),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = api
            .create(&PostParams::default(), &review)
            .await
            .map_err(said)?;
        all.push((right, answer.status.is_some_and(|status| status.allowed)));
    }
    Ok(all)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::claim::{FRACTION_CLASS, MEMORY_CLASS};

    pub fn node(name: &str, kubelet: &str, runtime: &str, gpus: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name },
            "status": {
                "allocatable": { "nvidia.com/gpu": gpus },
                "conditions": [{ "type": "Ready", "status": "True" }],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
                    "kubeletVersion": kubelet, "containerRuntimeVersion": runtime,
                },
            },
        }))
        .unwrap()
    }

    pub fn node_part(node: &str, ready: bool) -> Pod {
        let ready = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": { "name": format!("divvy-node-{node}"), "namespace": "divvy-system", "labels": {
                "app.kubernetes.io/name": "divvy", "app.kubernetes.io/component": "node",
            } },
            "spec": { "nodeName": node, "containers": [] },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    pub fn slice(node: &str, driver: &str, generation: i64, of: i64) -> ResourceSlice {
        serde_json::from_value(json!({
            "metadata": { "name": format!("{node}-{driver}") },
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": { "name": node, "generation": generation, "resourceSliceCount": of },
                "devices": [{ "name": "gpu-0", "allowMultipleAllocations": true,
                    "attributes": { "type": { "string": "fraction" }, "uuid": { "string": "GPU-0" } },
                    "capacity": { "memory": { "value": "80Gi" } } }],
            },
        }))
        .unwrap()
    }

    /// A GPU of a node in carrier mode.
    pub fn share(node: &str, carrier: Option<&str>) -> GpuShare {
        serde_json::from_value(json!({
            "apiVersion": "divvy.dev/v1alpha1", "kind": "GpuShare",
            "metadata": { "name": format!("gpu-of-{node}") },
            "spec": { "node": node, "gpu": format!("GPU-of-{node}") },
            "status": { "memoryBytes": 80_u64 << 30, "carrier": carrier },
        }))
        .unwrap()
    }

    pub fn webhook(bundle: &str, policy: &str) -> MutatingWebhookConfiguration {
        let mut object = json!({ "metadata": { "name": "divvy" }, "webhooks": [{
            "name": "pods.divvy.dev", "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun",
            "failurePolicy": policy, "clientConfig": {},
        }] });
        object["webhooks"][0]["clientConfig"]["caBundle"] =
            serde_json::to_value(k8s_openapi::ByteString(bundle.as_bytes().to_vec())).unwrap();
        serde_json::from_value(object).unwrap()
    }

    /// A cluster in which all is well.
    pub fn facts() -> ClusterFacts {
        ClusterFacts {
            system: "divvy-system".to_owned(),
            version: Ok(Info {
                git_version: "v1.36.2".to_owned(),
                ..Info::default()
            }),
            gates: Err("forbidden".to_owned()),
            nodes: Ok(vec![node("a", "v1.36.2", "containerd://2.1.0", "0")]),
            daemon_sets: Ok(Vec::new()),
            pods: Ok(vec![node_part("a", true)]),
            slices: Ok(vec![slice("a", DRIVER, 1, 1)]),
            shares: Ok(Vec::new()),
            classes: Ok([FRACTION_CLASS, MEMORY_CLASS]
                .map(|name| {
                    let class = json!({ "metadata": { "name": name }, "spec": {} });
                    serde_json::from_value(class).unwrap()
                })
                .into()),
            webhooks: Ok(vec![webhook("-----BEGIN CERTIFICATE-----", "Fail")]),
            namespaces: Ok(vec![
                serde_json::from_value(json!({
                    "metadata": { "name": "team", "labels": { "divvy.dev/inject": "enabled" } },
                }))
                .unwrap(),
            ]),
            probe: Probe::Held,
            daemons: Ok([("a".to_owned(), Ok(()))].into()),
            access: Ok(RIGHTS.iter().map(|right| (*right, true)).collect()),
            kueue: Ok(Served::Absent),
            kueue_configuration: Ok(None),
            extender: None,
        }
    }

    #[test]
    fn a_webhook_that_is_not_there_is_told_from_one_that_refuses() {
        let judged = |text: &str| judged(text.to_owned());
        assert!(matches!(
            judged("Internal error occurred: failed calling webhook \"x\": connection refused"),
            Probe::Unreachable(_)
        ));
        assert!(matches!(
            judged("admission webhook \"x\" denied the request: no node offers parts of GPUs yet"),
            Probe::Refused(_)
        ));
        assert!(matches!(judged("pods is forbidden"), Probe::Untried(_)));
    }
}
