//! An object of a kind that the webhook gives claims to: its Workload of Kueue, or its first pod that waits.

use divvy_api::v1::{Error, ErrorCode};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Client, Resource, ResourceExt as _};

use super::explain::first_waiting;
use super::facts::{PODS, Subject};
use crate::base::cluster::is_missing;
use crate::base::error_output;
use crate::base::workload::{WORKLOADS, Workload};
use crate::teams::kueue::status::{WorkloadState, workload_state};
use crate::teams::kueue::store::{Kueue, Served};

/// Kinds between an object and its pods.
const BETWEEN: [&str; 4] = ["jobs", "replicasets", "statefulsets", "rayclusters"];

/// The kind that a user names, such as `jobset`, `jobsets` or `jobsets.jobset.x-k8s.io`.
pub(super) fn kind(word: &str) -> Option<&'static Workload> {
    let (name, group) = match word.split_once('.') {
        Some((name, group)) => (name, Some(group)),
        None => (word, None),
    };
    WORKLOADS.iter().find(|kind| {
        let is_named = name == kind.resource || name == kind.kind.to_lowercase();
        is_named && group.is_none_or(|group| group == kind.group)
    })
}

/// What holds the pods of an object; `None` if there is no such object.
///
/// # Errors
/// The API server does not respond, or denies it, or the object has no pods yet.
pub(super) async fn subject(
    client: &Client,
    namespace: &str,
    (kind, name): (&Workload, &str),
    kueue: &Served,
) -> Result<Option<Subject>, Error> {
    let failed = |error| error_output::of_kube(error, &format!("read {name} in {namespace}"));
    let object = match api(client, namespace, kind).get(name).await {
        Ok(object) => object,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut owners: Vec<String> = object.uid().into_iter().collect();
    let workload = match kueue {
        Served::Ours => workload(client, namespace, &owners).await?,
        Served::Absent | Served::Other(_) => None,
    };
    if let Some(workload) = &workload
        && !matches!(
            workload_state(workload),
            WorkloadState::Admitted | WorkloadState::Finished
        )
    {
        return Ok(Some(Subject::Workload(workload.clone())));
    }
    let some = ListParams::default().limit(PODS);
    for between in WORKLOADS
        .iter()
        .filter(|kind| BETWEEN.contains(&kind.resource))
    {
        // Kinds of operators that are not installed, and those that the user may not read.
        let Ok(all) = api(client, namespace, between).list(&some).await else {
            continue;
        };
        let owned = all.items.iter().filter(|one| is_owned(*one, &owners));
        let owned: Vec<String> = owned.filter_map(|one| one.uid()).collect();
        owners.extend(owned);
    }
    let pods = Api::<Pod>::namespaced(client.clone(), namespace)
        .list(&some)
        .await
        .map_err(failed)?;
    let mut pods = pods.items;
    pods.retain(|pod| is_owned(pod, &owners));
    match (first_waiting(&pods), workload, pods.first()) {
        (Some(pod), ..) | (None, None, Some(pod)) => Ok(Some(Subject::Pod(Box::new(pod.clone())))),
        (None, Some(workload), _) => Ok(Some(Subject::Workload(workload))),
        (None, None, None) => Err(Error::new(
            ErrorCode::NotFound,
            format!("{} {name} has no pods in {namespace}", kind.kind),
        )
        .hint(format!(
            "kubectl describe {} {name} -n {namespace}",
            kind.resource
        ))),
    }
}

fn api(client: &Client, namespace: &str, kind: &Workload) -> Api<DynamicObject> {
    let named = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
    let resource = ApiResource::from_gvk_with_plural(&named, kind.resource);
    Api::namespaced_with(client.clone(), namespace, &resource)
}

async fn workload(
    client: &Client,
    namespace: &str,
    owners: &[String],
) -> Result<Option<serde_json::Value>, Error> {
    let kueue = Kueue {
        client: client.clone(),
    };
    match kueue.workloads(Some(namespace)).await {
        Ok(all) => Ok(all.into_iter().find(|one| super::facts::is_of(one, owners))),
        Err(error) if error.code == ErrorCode::NotAllowed => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_owned(object: &impl Resource, owners: &[String]) -> bool {
    let references = object.meta().owner_references.iter().flatten();
    references
        .into_iter()
        .any(|owner| owners.contains(&owner.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_workload_has_its_names_and_others_none() {
        for known in WORKLOADS {
            let lower = known.kind.to_lowercase();
            for word in [known.resource, &lower] {
                assert_eq!(kind(word), Some(known), "{word}");
            }
        }
        let full = kind("jobsets.jobset.x-k8s.io").map(|known| known.kind);
        assert_eq!(full, Some("JobSet"));
        for word in ["jobset.example.com", "pod", "", "node"] {
            assert_eq!(kind(word), None, "{word}");
        }
    }
}
