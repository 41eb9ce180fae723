//! The facts about a pod or a Job, read from the cluster. What the user may not read is absent.

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::units::Bytes;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::owned;
use crate::base::cluster;
use crate::base::error_output;
use crate::base::inject::CLAIM;
use crate::teams::kueue::objects::{Kind, Project};
use crate::teams::kueue::status::{self, Usage};
use crate::teams::kueue::store::{Kueue, Served, served};
use crate::tools::doctor::opted_in;

/// Events of one object that are read. Kubernetes merges repeated ones, so that 50 are days of a pod; only
/// [`super::explain()`]'s few are shown.
const EVENTS: u32 = 50;
/// Pods of a Job that are read, and objects of a kind that may own pods of another one. One page of a list (client-go),
/// so that a large Job costs one call.
pub(super) const PODS: u32 = 500;

/// What is asked about.
#[derive(Clone, Debug)]
pub enum Subject {
    Pod(Box<Pod>),
    Job(Box<Job>, Vec<Pod>),
    Workload(Value),
}

/// The project that a workload waits in.
#[derive(Clone, Debug)]
pub struct Quota {
    pub project: Project,
    pub usage: Usage,
    /// Projects of the same cohort that are over quota, with their thousandths.
    pub borrowers: Vec<(String, u64)>,
}

#[derive(Clone, Debug)]
pub struct Facts {
    pub namespace: String,
    pub subject: Subject,
    /// Whether the webhook serves the namespace; `None`: unknown.
    pub served: Option<bool>,
    pub kueue: Served,
    pub workload: Option<Value>,
    /// Whether the LocalQueue that the Workload names exists; `None`: unknown.
    pub queue_exists: Option<bool>,
    pub quota: Option<Quota>,
    pub claim: Option<ResourceClaim>,
    /// Whether the pod's claim template exists; `None`: it has none, or that is unknown.
    pub template_exists: Option<bool>,
    /// All claims of the cluster; `None`: the user may not read them.
    pub claims: Option<Vec<ResourceClaim>>,
    pub slices: Option<Vec<ResourceSlice>>,
    pub events: Vec<Event>,
    /// Why the pod's node is not ready; `None`: it is, or the user may not read nodes.
    pub node_problem: Option<String>,
}

/// # Errors
/// There is no such object, or the cluster does not respond.
pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<Facts, Error> {
    let kueue = served(client).await;
    let kueue = kueue
        .map_err(|error| error_output::of_kube(error, "read the API groups of the cluster"))?;
    let subject = subject(client, namespace, name, &kueue).await?;
    let pod = match &subject {
        Subject::Pod(pod) => Some((**pod).clone()),
        Subject::Job(_, pods) => super::explain::first_waiting(pods).cloned(),
        Subject::Workload(_) => None,
    };
    let of_namespace = Api::<Namespace>::all(client.clone())
        .get(namespace)
        .await
        .ok();
    let mut facts = Facts {
        namespace: namespace.to_owned(),
        served: of_namespace.map(|namespace| opted_in(&namespace).is_some()),
        kueue,
        workload: None,
        queue_exists: None,
        quota: None,
        claim: None,
        template_exists: None,
        claims: list(Api::<ResourceClaim>::all(client.clone())).await,
        slices: list(Api::<ResourceSlice>::all(client.clone())).await,
        events: events(
            client,
            namespace,
            pod.as_ref().and_then(|pod| pod.uid()).as_deref(),
        )
        .await,
        node_problem: None,
        subject,
    };
    if let Some(pod) = &pod {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        if let Some(node) = node {
            facts.node_problem = node_problem(client, node).await;
        }
        claim(client, namespace, pod, &mut facts).await;
    }
    if facts.kueue == Served::Ours {
        workload(
            &Kueue {
                client: client.clone(),
            },
            namespace,
            &mut facts,
        )
        .await?;
    }
    Ok(facts)
}

async fn subject(
    client: &Client,
    namespace: &str,
    name: &str,
    kueue: &Served,
) -> Result<Subject, Error> {
    let (kind, name) = match name.split_once('/') {
        Some((kind, name)) => (kind, name),
        None => ("", name),
    };
    let failed = |error| error_output::of_kube(error, &format!("read {name} in {namespace}"));
    if matches!(kind, "" | "pod" | "pods" | "po") {
        let pod = Api::<Pod>::namespaced(client.clone(), namespace)
            .get_opt(name)
            .await
            .map_err(failed)?;
        if let Some(pod) = pod {
            return Ok(Subject::Pod(Box::new(pod)));
        }
    }
    if matches!(kind, "" | "job" | "jobs" | "job.batch") {
        let job = Api::<Job>::namespaced(client.clone(), namespace)
            .get_opt(name)
            .await
            .map_err(failed)?;
        if let Some(job) = job {
            let of_job = ListParams::default()
                .labels(&format!("batch.kubernetes.io/job-name={name}"))
                .limit(PODS);
            let pods = Api::<Pod>::namespaced(client.clone(), namespace)
                .list(&of_job)
                .await
                .map_err(failed)?;
            return Ok(Subject::Job(Box::new(job), pods.items));
        }
    }
    if matches!(kind, "" | "workload" | "workloads") && *kueue == Served::Ours {
        let workloads: Api<DynamicObject> =
            crate::teams::kueue::store::workloads(client, Some(namespace));
        if let Some(workload) = workloads.get_opt(name).await.map_err(failed)? {
            let workload = serde_json::to_value(workload);
            return workload.map(Subject::Workload).map_err(|error| {
                Error::new(
                    ErrorCode::Internal,
                    format!("a Workload is not JSON: {error}"),
                )
            });
        }
    }
    let missing = |what: &str, list: &str| {
        Error::new(
            ErrorCode::NotFound,
            format!("the namespace {namespace} has no {what} {name}"),
        )
        .hint(format!("kubectl get {list} -n {namespace}"))
    };
    match (kind, owned::kind(kind)) {
        ("", _) => Err(missing("pod, Job or Workload", "pods,jobs")),
        ("pod" | "pods" | "po" | "job" | "jobs" | "job.batch" | "workload" | "workloads", _) => {
            Err(missing(kind, "pods,jobs"))
        }
        (_, Some(known)) => {
            let found = owned::subject(client, namespace, (known, name), kueue).await?;
            found.ok_or_else(|| missing(kind, known.resource))
        }
        _ => Err(error_output::usage(
            format!(
                "{kind}/{name}: not a pod, a Workload or a kind that the webhook gives claims to"
            ),
            "give the name of a pod, or KIND/NAME, such as job/NAME or jobset/NAME",
        )),
    }
}

/// The message of the node's condition Ready, unless it is true.
async fn node_problem(client: &Client, name: &str) -> Option<String> {
    let node = Api::<Node>::all(client.clone()).get(name).await.ok()?;
    let conditions = node.status.and_then(|status| status.conditions);
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready")?;
    (ready.status != "True").then(|| {
        let message = ready.message.unwrap_or_default();
        let message = message.trim_end_matches('.');
        if message.is_empty() {
            ready.reason.unwrap_or_default()
        } else {
            message.to_owned()
        }
    })
}

/// What may be unreadable for good reasons: then the explanation does without it.
async fn list<K>(api: Api<K>) -> Option<Vec<K>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    api.list(&ListParams::default())
        .await
        .ok()
        .map(|list| list.items)
}

async fn events(client: &Client, namespace: &str, uid: Option<&str>) -> Vec<Event> {
    let Some(uid) = uid else { return Vec::new() };
    let of_object = ListParams::default()
        .fields(&format!("involvedObject.uid={uid}"))
        .limit(EVENTS);
    let events = Api::<Event>::namespaced(client.clone(), namespace)
        .list(&of_object)
        .await;
    events.map(|list| list.items).unwrap_or_default()
}

async fn claim(client: &Client, namespace: &str, pod: &Pod, facts: &mut Facts) {
    let status = pod.status.as_ref();
    let made = status
        .and_then(|status| status.resource_claim_statuses.as_ref())
        .into_iter()
        .flatten();
    let made = made.filter_map(|made| made.resource_claim_name.as_deref());
    let own = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.resource_claims.as_ref())
        .into_iter()
        .flatten();
    let named: Vec<_> = own.collect();
    let given = named
        .iter()
        .filter_map(|claim| claim.resource_claim_name.as_deref());
    if let Some(name) = made.chain(given).next() {
        let claims = Api::<ResourceClaim>::namespaced(client.clone(), namespace);
        facts.claim = claims.get_opt(name).await.ok().flatten();
    }
    let template = named
        .iter()
        .find(|claim| claim.name == CLAIM)
        .or(named.first());
    if let Some(template) = template.and_then(|claim| claim.resource_claim_template_name.as_deref())
    {
        let templates = Api::<ResourceClaimTemplate>::namespaced(client.clone(), namespace);
        facts.template_exists = match templates.get(template).await {
            Ok(_) => Some(true),
            Err(error) if cluster::is_missing(&error) => Some(false),
            Err(_) => None,
        };
    }
}

/// Whether one of these objects, by uid, owns a Workload.
pub(super) fn is_of(workload: &Value, owners: &[String]) -> bool {
    let references = workload["metadata"]["ownerReferences"].as_array();
    let mut references = references.into_iter().flatten();
    references.any(|one| owners.iter().any(|uid| one["uid"] == uid.as_str()))
}

/// The Workload that an object with this uid owns, or that is named.
async fn workload(kueue: &Kueue, namespace: &str, facts: &mut Facts) -> Result<(), Error> {
    let owners: Vec<String> = match &facts.subject {
        Subject::Workload(workload) => {
            facts.workload = Some(workload.clone());
            Vec::new()
        }
        Subject::Job(job, _) => job.uid().into_iter().collect(),
        Subject::Pod(pod) => {
            let references = pod.owner_references().iter().map(|owner| owner.uid.clone());
            pod.uid().into_iter().chain(references).collect()
        }
    };
    if facts.workload.is_none() {
        let all = match kueue.workloads(Some(namespace)).await {
            Ok(all) => all,
            Err(error) if error.code == ErrorCode::NotAllowed => return Ok(()),
            Err(error) => return Err(error),
        };
        facts.workload = all.into_iter().find(|workload| is_of(workload, &owners));
    }
    let Some(workload) = &facts.workload else {
        return Ok(());
    };
    let queue = status::text(&workload["spec"]["queueName"]);
    let local = match kueue.get(Kind::LocalQueue, Some(namespace), queue).await {
        Ok(local) => local,
        Err(error) if error.code == ErrorCode::NotAllowed => return Ok(()),
        Err(error) => return Err(error),
    };
    facts.queue_exists = Some(local.is_some());
    let Some(local) = local else { return Ok(()) };
    let Ok(Some(of_project)) = kueue
        .get(
            Kind::ClusterQueue,
            None,
            status::text(&local["spec"]["clusterQueue"]),
        )
        .await
    else {
        return Ok(());
    };
    let Some(project) = status::project(&of_project) else {
        return Ok(());
    };
    let others = kueue.list(Kind::ClusterQueue, "").await.unwrap_or_default();
    let mut borrowers: Vec<(String, u64)> = others
        .iter()
        .filter_map(status::project)
        .filter(|other| other.name != project.name)
        .filter_map(|other| {
            let queue = others
                .iter()
                .find(|queue| status::name(queue) == other.name)?;
            let borrowed = status::usage(queue, other.gpu_memory).borrowed;
            (borrowed > 0).then_some((other.name, borrowed))
        })
        .collect();
    borrowers.sort_by_key(|(name, borrowed)| (std::cmp::Reverse(*borrowed), name.clone()));
    let usage = status::usage(&of_project, project.gpu_memory);
    facts.quota = Some(Quota {
        project,
        usage,
        borrowers,
    });
    Ok(())
}

/// The GPU memory of a project, or of nothing.
pub fn in_gpus(quota: Option<&Quota>, memory: Bytes) -> String {
    match quota {
        Some(quota) => crate::teams::kueue::quota::words(crate::teams::kueue::quota::thousandths(
            memory,
            quota.project.gpu_memory,
        )),
        None => memory.human(),
    }
}
