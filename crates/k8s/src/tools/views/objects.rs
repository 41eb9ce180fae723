//! What a view reads: objects of the API, and the boards of the nodes. A missing right leaves its part out, with a note.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_api::v1::{Board, Error, ErrorCode, List};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

use super::{Nodes, node_exec};
use crate::base::claim::DRIVER;
use crate::base::cluster::{LIST_PAGE, list_all};
use crate::base::error_output::few;
use crate::base::error_output::of_kube;

/// What to read.
pub struct Wanted {
    nodes: Nodes,
    /// Of pods and claims; `None`: all.
    namespace: Option<String>,
    /// Pods and their events, besides claims.
    pods: bool,
}

impl Wanted {
    /// GPUs and their holders.
    pub fn all(nodes: &Nodes) -> Self {
        Self {
            nodes: nodes.clone(),
            namespace: None,
            pods: false,
        }
    }

    /// Pods of a namespace, or of all.
    pub fn pods(nodes: &Nodes, namespace: Option<String>) -> Self {
        Self {
            namespace,
            pods: true,
            ..Self::all(nodes)
        }
    }
}

/// What was read.
#[derive(Debug, Default)]
pub struct Objects {
    /// `None`: the caller may not list them.
    pub slices: Option<Vec<ResourceSlice>>,
    pub claims: Option<Vec<ResourceClaim>>,
    pub pods: Vec<Pod>,
    /// The newest reason of `WaitsForGpu`, by the pod's uid.
    pub reasons: BTreeMap<String, String>,
    pub boards: BTreeMap<String, Board>,
    /// The nodes of which there is no board, each with the cause.
    pub silent: BTreeMap<String, String>,
    /// What is missing, a line each.
    pub notes: Vec<String>,
}

/// Published slices and claims, for a view that needs both.
pub struct Allocations<'o> {
    pub slices: &'o [ResourceSlice],
    /// `None`: the caller may not list them.
    pub claims: Option<&'o [ResourceClaim]>,
    pub boards: &'o BTreeMap<String, Board>,
    pub silent: &'o BTreeMap<String, String>,
}

impl Objects {
    /// # Errors
    /// The caller may not list ResourceSlices: there is nothing to say of GPUs.
    pub fn require_slices(&self) -> Result<Allocations<'_>, Error> {
        let slices = self.slices.as_deref().ok_or_else(|| {
            let message = "cannot list ResourceSlices: you may not list resourceslices";
            Error::new(ErrorCode::NotAllowed, message)
                .hint("ask the cluster's administrator for this right; `divvy-k8s ps`, `project ls` and `usage` need only rights in your namespace")
        })?;
        Ok(Allocations {
            slices,
            claims: self.claims.as_deref(),
            boards: &self.boards,
            silent: &self.silent,
        })
    }
}

/// Reads everything, all at the same time.
///
/// # Errors
/// The cluster does not respond, or denies the pods or claims that the view is about.
pub async fn read(client: &Client, wanted: &Wanted) -> Result<Objects, Error> {
    let namespace = wanted.namespace.as_deref();
    let (slices, claims, pods, reasons, boards) = tokio::join!(
        async { list_all::<ResourceSlice>(&Api::all(client.clone()), None).await },
        async { list_all::<ResourceClaim>(&api(client, namespace), None).await },
        async {
            if wanted.pods {
                list_all::<Pod>(&api(client, namespace), None).await
            } else {
                Ok(Vec::new())
            }
        },
        async {
            if wanted.pods {
                reasons(client, namespace).await
            } else {
                BTreeMap::new()
            }
        },
        boards(client, &wanted.nodes),
    );
    let mut objects = Objects::default();
    if let Some(slices) = readable(slices, "list ResourceSlices", &mut objects.notes)? {
        let ours = slices.into_iter();
        objects.slices = Some(ours.filter(|slice| slice.spec.driver == DRIVER).collect());
    }
    let of = namespace.map_or_else(
        || "of all namespaces".to_owned(),
        |name| format!("in namespace {name}"),
    );
    if wanted.pods {
        // The view is about them.

        let what = format!("list ResourceClaims {of}");
        let narrower = |error: Error| match (error.code, namespace) {
            (ErrorCode::NotAllowed, None) => {
                error.hint("name a namespace of yours with -n NAMESPACE")
            }
            _ => error,
        };
        let claims = claims.map_err(|error| narrower(of_kube(error, &what)))?;
        objects.claims = Some(claims);
        let what = format!("list pods {of}");
        objects.pods = pods.map_err(|error| narrower(of_kube(error, &what)))?;
    } else {
        let what = format!("list ResourceClaims {of}");
        objects.claims = readable(claims, &what, &mut objects.notes)?;
    }
    objects.reasons = reasons;
    match boards {
        Ok((boards, mut silent)) => {
            let published = objects.slices.iter().flatten();
            for slice in published {
                let node = slice.spec.pool.name.as_str();
                if !boards.contains_key(node) && !silent.contains_key(node) {
                    let system = &wanted.nodes.divvy_namespace;
                    let why = format!("it has no pod of Divvy in namespace {system}");
                    silent.insert(node.to_owned(), why);
                }
            }
            let names: Vec<String> = silent
                .iter()
                .map(|(node, why)| format!("node {node}: {why}"))
                .collect();
            if !names.is_empty() {
                let nodes = match names.len() {
                    1 => "1 node".to_owned(),
                    count => format!("{count} nodes"),
                };
                let note = format!("no figures of {nodes}: {}", few(&names));
                objects.notes.push(note);
            }
            (objects.boards, objects.silent) = (boards, silent);
        }
        Err(note) => objects.notes.push(note),
    }
    Ok(objects)
}

/// `None` with a note, where the caller lacks the right.
fn readable<T>(
    read: Result<T, kube::Error>,
    what: &str,
    notes: &mut Vec<String>,
) -> Result<Option<T>, Error> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            notes.push(format!("you may not {what}"));
            Ok(None)
        }
        Err(error) => Err(of_kube(error, what)),
    }
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// The reasons that the controller wrote on waiting pods. Without the right to read events the scheduler's word stays.
async fn reasons(client: &Client, namespace: Option<&str>) -> BTreeMap<String, String> {
    let api: Api<Event> = api(client, namespace);
    let about = ListParams::default()
        .fields("reason=WaitsForGpu")
        .limit(LIST_PAGE * 4);
    let events = api.list(&about).await.map(|list| list.items);
    let mut newest: BTreeMap<String, (String, String)> = BTreeMap::new();
    for event in events.unwrap_or_default() {
        let (Some(pod), Some(note)) = (&event.regarding, &event.note) else {
            continue;
        };
        let version = event.resource_version().unwrap_or_default();
        // Versions are numbers of any length.
        let version = format!("{version:0>20}");
        let uid = pod.uid.clone().unwrap_or_default();
        let is_newer = newest.get(&uid).is_none_or(|(other, _)| *other < version);
        if is_newer {
            newest.insert(uid, (version, note.clone()));
        }
    }
    let newest = newest.into_iter();
    newest.map(|(uid, (_, note))| (uid, note)).collect()
}

type Boards = (BTreeMap<String, Board>, BTreeMap<String, String>);

/// The board of each node, and the cause where there is none; or a note that there are none at all.
async fn boards(client: &Client, nodes: &Nodes) -> Result<Boards, String> {
    let namespace = nodes.divvy_namespace.as_str();
    let unknown = "so memory in use and utilisation are unknown";
    match node_exec::is_allowed(client, namespace).await {
        Ok(true) => {}
        Ok(false) => {
            return Err(format!(
                "you may not create pods/exec in namespace {namespace}, {unknown}"
            ));
        }
        Err(error) => return Err(format!("{}, {unknown}", error.message)),
    }
    let pods = node_exec::node_pods(client, namespace).await;
    let pods = pods.map_err(|error| format!("{}, {unknown}", error.message))?;
    let words = ["top", "-1", "-o", "json"];
    let patience: Duration = nodes.patience();
    let answers = node_exec::run_on_all(client, namespace, &pods, &words, patience).await;
    let (mut boards, mut silent) = Boards::default();
    for (node, answer) in answers {
        match answer.and_then(|text| board(&text)) {
            Ok(board) => _ = boards.insert(node, board),
            Err(why) => _ = silent.insert(node, why),
        }
    }
    Ok((boards, silent))
}

/// The board in the output of `divvy top -1 -o json`.
fn board(text: &str) -> Result<Board, String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("cannot read its answer: {error}");
    let list: List<Board> = serde_json::from_str(text).map_err(|error| unreadable(&error))?;
    let mut boards = list.items.into_iter();
    boards.next().ok_or_else(|| unreadable(&"no board in it"))
}
