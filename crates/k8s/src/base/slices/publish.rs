//! The publisher: keeps the node's ResourceSlices in the cluster; the only I/O of [`slices`](super).
//!
//! ```text
//!   agent's GPUs ──┐
//!   own Node ──────┼──► something changed ──► list what is there ──► steps ──► write
//!   own slices ────┘         (or a minute has gone by, or the last try failed)
//! ```
//!
//! A watch only triggers: the slices are listed anew each time. The kubelet deletes a node's slices when it starts and
//! half a minute after a driver has gone, and any user with the right may edit them; both show up here as events.
//! Nothing is deleted at the end: the kubelet does that, and a driver that is only restarted goes on.

mod backoff;

use std::fmt::Debug;
use std::pin::pin;

use divvy_api::v1;
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Node as NodeObject;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use backoff::Backoff;

use super::device::unregistered;
use super::diff::is_ours;
use super::offer::{Gpu, Withheld, gpus};
use super::{Node, Pool, SliceChange, Taints, pool, steps};
use crate::base::claim::DRIVER;
use crate::base::cluster::{chain, is_missing};
use crate::base::metrics::driver;
use crate::base::role::{self, Role};

/// Publishes the slices of one node.
pub struct Publisher {
    slices: Api<ResourceSlice>,
    nodes: Api<NodeObject>,
    name: String,
    /// The cluster's support for device taints.
    taints: Taints,
    /// The last logged reasons of GPUs that are not published.
    said: Vec<(u32, Withheld)>,
}

/// Why slices are not as they are to be.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("cannot list the node's ResourceSlices")]
    List(#[source] kube::Error),
    #[error("cannot write ResourceSlice {name}")]
    Write {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("cannot delete ResourceSlice {name}")]
    Delete {
        name: String,
        #[source]
        source: kube::Error,
    },
    /// Without it two pods would be promised the same memory.
    #[error(
        "the API server drops the fields of the feature gate {gate}: turn it on for GPU fractions and MIG, or upgrade to Kubernetes 1.36"
    )]
    Unsupported { gate: &'static str },
}

/// The known state of the own node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnNode {
    node: Node,
    role: Role,
}

impl Publisher {
    /// For the node of this name. Nothing is done before [`run`](Self::run).
    pub fn new(client: Client, node: impl Into<String>) -> Self {
        Self {
            slices: Api::all(client.clone()),
            nodes: Api::all(client),
            name: node.into(),
            taints: Taints::Known,
            said: Vec::new(),
        }
    }

    /// Publishes the agent's GPUs until the channel closes. Before the first list, as after a start, the published
    /// slices stay: an agent that is briefly away is not one without GPUs.
    pub async fn run(mut self, mut listed: watch::Receiver<Option<Vec<v1::Gpu>>>) {
        let mut slices = pin!(events(self.slices.clone(), self.of_node()));
        let named = format!("metadata.name={}", self.name);
        let mut nodes = pin!(events(self.nodes.clone(), named));
        let mut own: Option<OwnNode> = None;
        let mut offered: Option<Vec<Gpu>> = None;
        let mut pace = Backoff::new(Instant::now());
        listed.mark_changed();
        loop {
            tokio::select! {
                changed = listed.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = listed.borrow_and_update().as_deref().map(gpus);
                    if now.is_some() && now != offered {
                        offered = now;
                        pace.now(Instant::now());
                    }
                }
                Some(event) = nodes.next() => {
                    let found = own_of(event).filter(|found| own.as_ref() != Some(found));
                    if found.is_some() {
                        own = found;
                        pace.now(Instant::now());
                    }
                }
                Some(_) = slices.next() => pace.soon(Instant::now()),
                () = sleep_until(pace.due) => {}
            }
            if Instant::now() < pace.due {
                continue;
            }
            let (Some(gpus), Some(own)) = (&offered, &own) else {
                pace.settled(Instant::now());
                continue;
            };
            match self.reconcile(gpus, own).await {
                Ok(0) => pace.settled(Instant::now()),
                Ok(written) => {
                    tracing::info!(node = %self.name, written, "published ResourceSlices");
                    pace.wrote(Instant::now());
                }
                Err(error) => {
                    tracing::warn!(node = %self.name, "cannot publish ResourceSlices: {}", chain(&error));
                    pace.failed(Instant::now());
                }
            }
        }
    }

    /// Makes the node's slices what they are to be; says how many were written or deleted.
    async fn reconcile(&mut self, gpus: &[Gpu], own: &OwnNode) -> Result<usize, PublishError> {
        loop {
            let pool = pool(gpus, &own.role, self.taints);
            self.say(&pool);
            let found = self.list().await?;
            let steps = steps(&pool, &own.node, &found);
            match self.apply(&steps).await? {
                None => {
                    let slices = published(found.len(), &steps);
                    driver::METRICS.published(slices, pool.devices.len());
                    return Ok(steps.len());
                }
                Some(TAINTS) => {
                    tracing::warn!(
                        "the cluster does not support {TAINTS}; unhealthy GPUs are not published instead"
                    );
                    self.taints = Taints::Unknown;
                }
                Some(gate) => {
                    self.withdraw().await?;
                    return Err(PublishError::Unsupported { gate });
                }
            }
        }
    }

    /// Does these, until the API server keeps less of a slice than it was sent: then the feature gate that it lacks.
    async fn apply(&self, steps: &[SliceChange]) -> Result<Option<&'static str>, PublishError> {
        for step in steps {
            let how = PostParams::default();
            let (slice, kept) = match step {
                SliceChange::Create(slice) => (slice, self.slices.create(&how, slice).await),
                SliceChange::Replace(slice) => {
                    let kept = self.slices.replace(&name(slice), &how, slice).await;
                    (slice, kept)
                }
                SliceChange::Delete(slice) => {
                    self.delete(slice).await?;
                    continue;
                }
            };
            let kept = kept.map_err(|source| PublishError::Write {
                name: name(slice),
                source,
            })?;
            if let Some(gate) = dropped(slice, &kept) {
                return Ok(Some(gate));
            }
        }
        Ok(None)
    }

    /// Keeps new pods from the devices of this node. The next publication takes this back.
    ///
    /// # Errors
    /// The API server does not respond, or denies it.
    pub async fn suspend(&self) -> Result<(), PublishError> {
        for mut slice in self.list().await? {
            for device in slice.spec.devices.iter_mut().flatten() {
                let taints = device.taints.get_or_insert_default();
                let unregistered = unregistered();
                if !taints.iter().any(|taint| taint.key == unregistered.key) {
                    taints.push(unregistered);
                }
            }
            let name = name(&slice);
            let written = self
                .slices
                .replace(&name, &PostParams::default(), &slice)
                .await;
            written.map_err(|source| PublishError::Write { name, source })?;
        }
        Ok(())
    }

    /// Takes back everything of this node.
    ///
    /// # Errors
    /// The API server does not respond, or denies it.
    pub async fn withdraw(&self) -> Result<(), PublishError> {
        for slice in self.list().await? {
            self.delete(&slice).await?;
        }
        Ok(())
    }

    /// This driver's slices of this node.
    ///
    /// # Errors
    /// The API server does not respond, or denies it.
    pub async fn list(&self) -> Result<Vec<ResourceSlice>, PublishError> {
        let of_node = ListParams::default().fields(&self.of_node());
        let listed = self.slices.list(&of_node).await;
        let mut items = listed.map_err(PublishError::List)?.items;
        items.retain(|slice| is_ours(slice, &self.name));
        Ok(items)
    }

    /// Deletes the slice that was seen, and no other of its name. One that is gone is gone.
    async fn delete(&self, slice: &ResourceSlice) -> Result<(), PublishError> {
        let seen = DeleteParams::default().preconditions(Preconditions {
            resource_version: slice.metadata.resource_version.clone(),
            uid: slice.metadata.uid.clone(),
        });
        match self.slices.delete(&name(slice), &seen).await {
            Ok(_) => Ok(()),
            Err(gone) if is_missing(&gone) => Ok(()),
            Err(source) => Err(PublishError::Delete {
                name: name(slice),
                source,
            }),
        }
    }

    /// Says, once, of which GPUs nothing is published and why.
    fn say(&mut self, pool: &Pool) {
        if self.said == pool.withheld {
            return;
        }
        for (index, why) in &pool.withheld {
            tracing::warn!(node = %self.name, gpu = index, "GPU {index} is not published: {}", chain(why));
        }
        self.said.clone_from(&pool.withheld);
    }

    /// The field selector of this node's slices.
    fn of_node(&self) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={}", self.name)
    }
}

/// The number of ResourceSlices after these steps.
fn published(before: usize, steps: &[SliceChange]) -> usize {
    steps.iter().fold(before, |count, step| match step {
        SliceChange::Create(_) => count + 1,
        SliceChange::Replace(_) => count,
        SliceChange::Delete(_) => count.saturating_sub(1),
    })
}

/// Says that something happened, for as long as the API server can be reached; what goes wrong is tried again, ever slower.
fn events<K>(api: Api<K>, fields: String) -> impl Stream<Item = watcher::Event<K>>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let chosen = watcher::Config::default().fields(&fields);
    let told = watcher(api, chosen).default_backoff();
    told.filter_map(|event| async {
        event
            .inspect_err(|error| tracing::debug!("a watch failed and restarts: {}", chain(error)))
            .ok()
    })
}

fn own_of(event: watcher::Event<NodeObject>) -> Option<OwnNode> {
    let (watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = event else {
        return None;
    };
    Some(OwnNode {
        role: role::of(node.metadata.labels.as_ref()),
        node: Node {
            name: node.metadata.name?,
            uid: node.metadata.uid?,
        },
    })
}

const TAINTS: &str = "DRADeviceTaints";

/// The feature gate without which the API server did not keep all of a slice: it drops the fields of those that are off.
fn dropped(sent: &ResourceSlice, kept: &ResourceSlice) -> Option<&'static str> {
    let devices = |slice: &ResourceSlice, has: fn(&Device) -> bool| {
        let devices = slice.spec.devices.iter().flatten();
        devices.filter(|device| has(device)).count()
    };
    let lost = |has| devices(kept, has) < devices(sent, has);
    if lost(|device| device.allow_multiple_allocations == Some(true)) {
        Some("DRAConsumableCapacity")
    } else if lost(|device| device.consumes_counters.is_some())
        || (sent.spec.shared_counters.is_some() && kept.spec.shared_counters.is_none())
    {
        Some("DRAPartitionableDevices")
    } else if lost(|device| device.taints.is_some()) {
        Some(TAINTS)
    } else {
        None
    }
}

fn name(slice: &ResourceSlice) -> String {
    slice.metadata.name.clone().unwrap_or_default()
}
