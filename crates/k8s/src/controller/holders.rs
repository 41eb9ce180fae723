//! Holders of claim templates: workloads whose pods are yet to come, such as a Job that a queue holds back.
//!
//! A watch of the metadata of every kind that the webhook mutates, only of objects with its label. Operators' kinds may be
//! absent, and come later. Until each kind is listed or absent, the controller removes no template.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Store, reflector};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Client, ResourceExt as _};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::informers::ChangeSignal;
use super::templates::Key;
use crate::cluster::{chain, is_missing};
use crate::inject::{CLAIM_TEMPLATES, recorded_claims};
use crate::pod_request::Size;
use crate::workload::{WORKLOADS, Workload};

/// How long a kind that the cluster does not have, or does not let us read, is left alone.
const ABSENT: Duration = Duration::from_secs(60);

/// Until a failed list or watch is tried again.
const RETRY: Duration = Duration::from_secs(5);

type Metadata = PartialObjectMeta<DynamicObject>;

/// The workloads of every kind.
pub struct Holders(Vec<KindOfHolder>);

struct KindOfHolder {
    seen: Store<Metadata>,
    /// Listed at least once, or known to be absent.
    known: Arc<AtomicBool>,
}

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
            is_complete: self.0.iter().all(|kind| kind.known.load(Ordering::Acquire)),
        };
        for object in self.0.iter().flat_map(|kind| kind.seen.state()) {
            let Some(namespace) = object.namespace() else {
                continue;
            };
            let recorded = object.annotations().get(CLAIM_TEMPLATES);
            let claims = recorded.map(|text| recorded_claims(text));
            for (name, asked) in claims.unwrap_or_default() {
                held.templates.insert((namespace.clone(), name), asked);
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
) -> KindOfHolder {
    let kind = GroupVersionKind::gvk(workload.group, workload.version, workload.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, workload.resource);
    let api: Api<Metadata> = Api::all_with(client.clone(), &resource);
    let writer = Writer::new(resource);
    let (seen, known) = (writer.as_reader(), Arc::new(AtomicBool::new(false)));
    tasks.spawn(follow(api, writer, bell.clone(), Arc::clone(&known)));
    KindOfHolder { seen, known }
}

async fn follow(
    api: Api<Metadata>,
    writer: Writer<Metadata>,
    bell: ChangeSignal,
    known: Arc<AtomicBool>,
) {
    let kind = api.resource_url().to_owned();
    let ours = Config::default().labels(&format!("{CLAIM_TEMPLATES}=true"));
    let mut changes = pin!(reflector(writer, watcher(api, ours)));
    while let Some(change) = changes.next().await {
        match change {
            Ok(Event::InitDone) => {
                known.store(true, Ordering::Release);
                bell.send_modify(|rung| *rung += 1);
            }
            Ok(_) => bell.send_modify(|rung| *rung += 1),
            Err(error) if is_absent(&error) => {
                tracing::debug!(kind, "the cluster does not have this kind");
                known.store(true, Ordering::Release);
                sleep(ABSENT).await;
            }
            // A watch that ends is started again where it was; nothing has been missed.
            Err(watcher::Error::WatchFailed(_) | watcher::Error::WatchError(_)) => {
                sleep(RETRY).await;
            }
            Err(error) => {
                // What is known may be old from here on; nothing is removed until it has been listed again.
                known.store(false, Ordering::Release);
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
