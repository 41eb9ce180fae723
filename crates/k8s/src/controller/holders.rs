//! Holders of claim templates: workloads whose pods are yet to come, such as a Job that a queue holds back.
//!
//! A watch of the metadata of every kind that the webhook mutates, only of objects with its label. Operators' kinds may be
//! absent, and come later. Until each kind is listed or absent, the controller removes no template.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher::{self, watcher};
use kube::{Client, ResourceExt as _};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::informers::{ChangeSignal, Informer, Intake, Key, paged};
use crate::base::cluster::{chain, is_missing};
use crate::base::inject::{CLAIM_TEMPLATES, recorded_claims};
use crate::base::pod_request::Size;
use crate::base::workload::{WORKLOADS, Workload};

/// How long a kind that the cluster does not have, or does not let us read, is left alone. A cluster without the six kinds
/// of operators costs two calls a minute so. A template that a new kind needs lives for an hour without any pod.
const ABSENT: Duration = Duration::from_secs(300);

/// Until a failed list or watch is tried again. An API server restarts in tens of seconds: more tries of all nodes
/// would slow its start.
const RETRY: Duration = Duration::from_secs(5);

type Metadata = PartialObjectMeta<DynamicObject>;

/// The claim templates of a workload, each with the request that it serves.
type Claims = BTreeMap<String, Vec<Size>>;

/// The workloads of every kind. A kind that is absent counts as listed.
pub struct Holders(Vec<Arc<Informer<HeldBy>>>);

/// The namespace of a workload, and its claim templates.
type HeldBy = (String, Claims);

/// The claim templates that workloads need, each with the request that it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub templates: BTreeMap<Key, Vec<Size>>,
    /// Whether that is all of them.
    pub is_complete: bool,
}

impl Holders {
    pub fn watch(client: &Client, bell: &ChangeSignal, tasks: &mut JoinSet<()>) -> Self {
        let kinds = WORKLOADS.iter();
        Self(
            kinds
                .map(|workload| watch(client, workload, bell, tasks))
                .collect(),
        )
    }

    pub fn held(&self) -> Held {
        let mut held = Held {
            templates: BTreeMap::new(),
            is_complete: self.0.iter().all(|kind| kind.is_listed()),
        };
        for workload in self.0.iter().flat_map(|kind| kind.state()) {
            let (namespace, claims) = &*workload;
            for (name, asked) in claims {
                let key = (namespace.clone(), name.clone());
                held.templates.insert(key, asked.clone());
            }
        }
        held
    }
}

fn watch(
    client: &Client,
    workload: &Workload,
    bell: &ChangeSignal,
    tasks: &mut JoinSet<()>,
) -> Arc<Informer<HeldBy>> {
    let kind = GroupVersionKind::gvk(workload.group, workload.version, workload.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, workload.resource);
    let api: Api<Metadata> = Api::all_with(client.clone(), &resource);
    let informer = Arc::default();
    tasks.spawn(follow(api, Arc::clone(&informer), bell.clone()));
    informer
}

/// The claim templates in a workload's metadata.
fn held_by(object: &Metadata) -> Option<HeldBy> {
    let recorded = object.annotations().get(CLAIM_TEMPLATES)?;
    let claims = recorded_claims(recorded);
    (!claims.is_empty()).then_some((object.namespace()?, claims))
}

async fn follow(api: Api<Metadata>, informer: Arc<Informer<HeldBy>>, bell: ChangeSignal) {
    let kind = api.resource_url().to_owned();
    let ours = paged().labels(&format!("{CLAIM_TEMPLATES}=true"));
    let mut intake = Intake::new(Arc::clone(&informer), |object| held_by(&object));
    let mut changes = pin!(watcher(api, ours));
    while let Some(change) = changes.next().await {
        match change {
            Ok(event) => {
                if intake.apply(event) {
                    bell.send_modify(|rung| *rung += 1);
                }
            }
            Err(error) if is_absent(&error) => {
                tracing::debug!(kind, "the cluster does not have this kind");
                informer.set_absent();
                sleep(ABSENT).await;
            }
            // A watch that ends is started again where it was; nothing has been missed.
            Err(watcher::Error::WatchFailed(_) | watcher::Error::WatchError(_)) => {
                sleep(RETRY).await;
            }
            Err(error) => {
                // What is known may be old from here on; nothing is removed until it has been listed again.
                informer.distrust();
                tracing::warn!(
                    kind,
                    error = chain(&error),
                    "cannot watch this kind, so unused claim templates stay; retrying"
                );
                sleep(RETRY).await;
            }
        }
    }
}

fn is_absent(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            is_missing(error)
        }
        _ => false,
    }
}
