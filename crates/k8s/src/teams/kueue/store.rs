//! Kueue's objects in a cluster: read, applied and deleted.

use divvy_api::v1::{Error, ErrorCode};
use hyper::Request;
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::DynamicResourceScope;
use kube::{Client, Resource};
use serde_json::Value;

use super::objects::Kind;
use super::status::{self, Owner};
use super::{GROUP, MANAGER, VERSION};
use crate::base::claim::Inventory;
use crate::base::{cluster, error_output, slices};

/// Of a list in one call; a longer one comes in several.
const PAGE: u32 = 500;
/// Writes of one object while its status changes. Each try reads the object again; twenty lost ones in a row are a
/// fault of another controller. More than a race needs: each try reads the object again, so many lost ones in a row are
/// a fault of another controller.
const WRITES: usize = 20;
/// The most objects of a kind that are read: more are an error, not a partial answer. So 40 pages of a list
/// (client-go), and a bound of the memory.
const MOST: usize = 20_000;

/// Which of Kueue's API a cluster serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    Absent,
    /// Only these versions.
    Other(Vec<String>),
    Ours,
}

/// Returns which versions of Kueue's API the cluster serves. Every authenticated user may ask (`system:discovery`).
///
/// # Errors
/// The cluster does not respond.
pub async fn served(client: &Client) -> Result<Served, kube::Error> {
    let request = Request::get(format!("/apis/{GROUP}")).body(Vec::new());
    let request = request.map_err(|error| kube::Error::Service(error.into()))?;
    match client.request::<APIGroup>(request).await {
        Ok(group) => {
            let versions: Vec<String> = group.versions.into_iter().map(|one| one.version).collect();
            Ok(if versions.iter().any(|version| version == VERSION) {
                Served::Ours
            } else {
                Served::Other(versions)
            })
        }
        Err(error) if cluster::is_missing(&error) => Ok(Served::Absent),
        Err(error) => Err(error),
    }
}

/// A cluster with Kueue.
#[derive(Clone)]
pub struct Kueue {
    pub client: Client,
}

impl Kueue {
    /// # Errors
    /// Kueue is absent, or too old; the cluster does not respond.
    pub async fn of(client: &Client) -> Result<Self, Error> {
        let served = served(client).await;
        match served.map_err(|error| error_output::of_kube(error, "read the API groups of the cluster"))? {
            Served::Ours => Ok(Self { client: client.clone() }),
            Served::Absent => Err(Error::new(
                ErrorCode::NoDaemon,
                format!("Kueue is not installed in this cluster: it serves no {GROUP}"),
            )
            .hint("divvy-k8s project config > kueue-values.yaml; helm install kueue oci://registry.k8s.io/kueue/charts/kueue --version 0.19.2 -n kueue-system --create-namespace -f kueue-values.yaml")),
            Served::Other(versions) => Err(Error::new(
                ErrorCode::NoDaemon,
                format!(
                    "this Kueue is too old: it serves {GROUP} in {}, and projects need {VERSION}",
                    versions.join(", ")
                ),
            )
            .hint("update Kueue to 0.19 or newer")),
        }
    }

    pub fn api(&self, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
        api(&self.client, kind.as_str(), kind.plural(), namespace)
    }

    /// # Errors
    /// Reading failed; a missing object is `None`.
    pub async fn get(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, Error> {
        let found = self.api(kind, namespace).get_opt(name).await;
        let what = format!("read the {} {name}", kind.as_str());
        found
            .map_err(|error| error_output::of_kube(error, &what))?
            .map(value)
            .transpose()
    }

    /// All of a kind, with these labels.
    ///
    /// # Errors
    /// Reading failed, or there are too many.
    pub async fn list(&self, kind: Kind, labels: &str) -> Result<Vec<Value>, Error> {
        list(&self.api(kind, None), labels, kind.plural()).await
    }

    /// The Workloads of a namespace, or of all.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn workloads(&self, namespace: Option<&str>) -> Result<Vec<Value>, Error> {
        list(&workloads(&self.client, namespace), "", "workloads").await
    }

    /// Applies an object as the field manager [`MANAGER`]. With `version` only if it is still that one.
    ///
    /// # Errors
    /// The cluster refuses it; [`ErrorCode::Conflict`] if another client changed it.
    pub async fn apply(
        &self,
        kind: Kind,
        object: &Value,
        version: Option<&str>,
    ) -> Result<Value, Error> {
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        let mut object = object.clone();
        if let Some(version) = version {
            object["metadata"]["resourceVersion"] = version.into();
        }
        let parameters = PatchParams::apply(MANAGER).force();
        let api = self.api(kind, metadata["namespace"].as_str());
        let applied = api.patch(name, &parameters, &Patch::Apply(&object)).await;
        let what = format!("apply the {} {name}", kind.as_str());
        value(applied.map_err(|error| of_kueue(error, &what))?)
    }

    /// Applies an object that was read as `before`, unless another client has changed it since. Kueue writes the status
    /// all the time, so the version alone says too little: generation and annotations are what Divvy writes.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub async fn apply_over(
        &self,
        kind: Kind,
        object: &Value,
        before: &Value,
    ) -> Result<Value, Error> {
        let name = status::name(object);
        for attempt in 1.. {
            let now = self.get(kind, None, &name).await?.unwrap_or_default();
            if !is_unchanged(before, &now) {
                break;
            }
            match self
                .apply(kind, object, now["metadata"]["resourceVersion"].as_str())
                .await
            {
                Err(error) if error.code == ErrorCode::Conflict && attempt < WRITES => {}
                applied => return applied,
            }
        }
        Err(Error::new(
            ErrorCode::Conflict,
            format!(
                "another client changed the {} {name} at the same time",
                kind.as_str()
            ),
        )
        .hint("divvy-k8s project ls, then repeat the command"))
    }

    /// Creates an object, which must not exist.
    ///
    /// # Errors
    /// [`ErrorCode::Conflict`] if it exists.
    pub async fn create(&self, kind: Kind, object: &Value) -> Result<Value, Error> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let what = format!("create the {} {name}", kind.as_str());
        let object: DynamicObject =
            serde_json::from_value(object.clone()).map_err(|error| internal(&error))?;
        let parameters = PostParams {
            field_manager: Some(format!("{MANAGER}-create")),
            ..PostParams::default()
        };
        let created = self.api(kind, None).create(&parameters, &object).await;
        value(created.map_err(|error| of_kueue(error, &what))?)
    }

    /// Has Kueue evict the workloads of a ClusterQueue, and admit no more.
    ///
    /// # Errors
    /// The cluster refuses it.
    pub async fn drain(&self, name: &str) -> Result<(), Error> {
        let stop = serde_json::json!({ "spec": { "stopPolicy": "HoldAndDrain" } });
        let queues = self.api(Kind::ClusterQueue, None);
        let stopped = queues
            .patch(name, &PatchParams::default(), &Patch::Merge(&stop))
            .await;
        stopped
            .map(drop)
            .map_err(|error| of_kueue(error, &format!("stop the ClusterQueue {name}")))
    }

    /// Deletes an object; a missing one is deleted already.
    ///
    /// # Errors
    /// The cluster refuses it.
    pub async fn delete(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<(), Error> {
        match self
            .api(kind, namespace)
            .delete(name, &DeleteParams::default())
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if cluster::is_missing(&error) => Ok(()),
            Err(error) => Err(of_kueue(
                error,
                &format!("delete the {} {name}", kind.as_str()),
            )),
        }
    }
}

/// Whether what Divvy writes is as it was; the status may be another one.
fn is_unchanged(before: &Value, now: &Value) -> bool {
    let of = |field: &str| {
        (
            before["metadata"][field].clone(),
            now["metadata"][field].clone(),
        )
    };
    [
        "uid",
        "generation",
        "annotations",
        "labels",
        "deletionTimestamp",
    ]
    .into_iter()
    .map(of)
    .all(|(before, now)| before == now)
        && before["spec"] == now["spec"]
}

/// The objects of a kind, in all namespaces.
pub fn objects(client: &Client, kind: Kind) -> Api<DynamicObject> {
    api(client, kind.as_str(), kind.plural(), None)
}

/// The Workloads of a namespace, or of all.
pub fn workloads<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    api(client, "Workload", "workloads", namespace)
}

fn api<K>(client: &Client, kind: &str, plural: &str, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    let resource = ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: format!("{GROUP}/{VERSION}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

async fn list(api: &Api<DynamicObject>, labels: &str, plural: &str) -> Result<Vec<Value>, Error> {
    let mut all = Vec::new();
    let mut parameters = ListParams::default().labels(labels).limit(PAGE);
    loop {
        let page = api.list(&parameters).await;
        let page = page.map_err(|error| error_output::of_kube(error, &format!("list {plural}")))?;
        for object in page.items {
            all.push(value(object)?);
        }
        if all.len() > MOST {
            return Err(Error::new(
                ErrorCode::TooMany,
                format!("the cluster has more than {MOST} {plural}"),
            ));
        }
        match page.metadata.continue_ {
            Some(next) if !next.is_empty() => parameters = parameters.continue_token(&next),
            _ => return Ok(all),
        }
    }
}

fn value(object: DynamicObject) -> Result<Value, Error> {
    serde_json::to_value(object).map_err(|error| internal(&error))
}

fn internal(error: &serde_json::Error) -> Error {
    Error::new(
        ErrorCode::Internal,
        format!("an object of Kueue is not JSON: {error}"),
    )
}

/// As [`error_output::of_kube`]; a webhook of Kueue that does not answer has its own hint.
fn of_kueue(error: kube::Error, what: &str) -> Error {
    let unreachable = matches!(&error, kube::Error::Api(status) if status.message.contains("failed calling webhook"));
    let error = error_output::of_kube(error, what);
    if unreachable {
        error.hint("check with `kubectl get pods -n kueue-system` that Kueue runs, then repeat the command")
    } else {
        error
    }
}

/// The error for an object that is not Divvy's, or that its chart owns.
pub fn foreign(kind: Kind, name: &str, owner: &Owner) -> Error {
    let what = kind.as_str();
    match owner {
        Owner::Chart(release) => Error::new(
            ErrorCode::Conflict,
            format!("the {what} {name} belongs to the Helm release {release}"),
        )
        .hint(format!(
            "change the value `kueue` of the chart, then run `helm upgrade {release}`"
        )),
        Owner::Divvy | Owner::Other => Error::new(
            ErrorCode::Conflict,
            format!("the {what} {name} exists already, and Divvy did not create it"),
        )
        .hint(format!(
            "choose another name, or delete it: kubectl get {} {name}",
            kind.plural()
        )),
    }
}

/// Returns the GPUs that the nodes publish, and the memory of all of them that are shared.
///
/// # Errors
/// ResourceSlices cannot be read.
pub async fn inventory(client: &Client) -> Result<(Inventory, u64), Error> {
    let slices = Api::<ResourceSlice>::all(client.clone())
        .list(&ListParams::default())
        .await;
    let slices = slices
        .map_err(|error| error_output::of_kube(error, "list ResourceSlices"))?
        .items;
    Ok((slices::inventory_of(&slices), slices::total_memory(&slices)))
}
