//! Keeps a node's slices in the cluster as they are to be: the one part of [`slices`](super) that talks to anybody.
//!
//! ```text
//!   agent's GPUs ──┐
//!   own Node ──────┼──► something changed ──► list what is there ──► steps ──► write
//!   own slices ────┘         (or a minute has gone by, or the last try failed)
//! ```
//!
//! A watch only says when to look: what is there is listed anew each time. The kubelet deletes a node's slices when it starts and
//! half a minute after a driver has gone, and anybody with the right may edit them; both show up here as events. Nothing is
//! deleted at the end: the kubelet does that, and a driver that is only restarted goes on.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

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

use super::change::is_ours;
use super::offer::{Gpu, Withheld, gpus};
use super::{Node, Pool, Step, Taints, pool, steps};
use crate::claim::DRIVER;
use crate::role::{self, Role};

/// A watch can lose what it should have told. Chosen so that nobody waits long for it and nobody notices the list.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// From one try to the next, while they fail or while somebody keeps undoing what is written: doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Publishes the slices of one node.
pub struct Publisher {
    slices: Api<ResourceSlice>,
    nodes: Api<NodeObject>,
    name: String,
    /// What the cluster turned out to know.
    taints: Taints,
    /// What was said last of GPUs that are not published.
    said: Vec<(u32, Withheld)>,
}

/// Why slices are not as they are to be.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("the node's slices cannot be listed")]
    List(#[source] kube::Error),
    #[error("slice {name} cannot be written")]
    Write {
        name: String,
        #[source]
        source: kube::Error,
    },
    #[error("slice {name} cannot be deleted")]
    Delete {
        name: String,
        #[source]
        source: kube::Error,
    },
    /// Without it two pods would be promised the same memory.
    #[error(
        "the API server keeps nothing of {gate}: parts of GPUs and MIG need Kubernetes 1.36, or that feature gate"
    )]
    Unsupported { gate: &'static str },
}

/// What is known of the own node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Own {
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

    /// Publishes what the agent says of its GPUs, until nobody can say any more. While it has said nothing, as after a start,
    /// what is published stays; an agent that is away for a while is not one without GPUs, so let the last word stand.
    pub async fn run(mut self, mut listed: watch::Receiver<Option<Vec<v1::Gpu>>>) {
        let mut slices = pin!(events(self.slices.clone(), self.of_node()));
        let named = format!("metadata.name={}", self.name);
        let mut nodes = pin!(events(self.nodes.clone(), named));
        let mut own: Option<Own> = None;
        let mut offered: Option<Vec<Gpu>> = None;
        let mut pace = Pace::new(Instant::now());
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
            match self.settle(gpus, own).await {
                Ok(0) => pace.settled(Instant::now()),
                Ok(written) => {
                    tracing::info!(node = %self.name, written, "published resource slices");
                    pace.wrote(Instant::now());
                }
                Err(error) => {
                    tracing::warn!(node = %self.name, "cannot publish resource slices: {}", chain(&error));
                    pace.failed(Instant::now());
                }
            }
        }
    }

    /// Makes the node's slices what they are to be; says how many were written or deleted.
    async fn settle(&mut self, gpus: &[Gpu], own: &Own) -> Result<usize, PublishError> {
        loop {
            let pool = pool(gpus, &own.role, self.taints);
            self.say(&pool);
            let found = self.found().await?;
            let steps = steps(&pool, &own.node, &found);
            match self.apply(&steps).await? {
                None => return Ok(steps.len()),
                Some(TAINTS) => {
                    tracing::warn!(
                        "the cluster does not know {TAINTS}: GPUs that are not well are left out instead"
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
    async fn apply(&self, steps: &[Step]) -> Result<Option<&'static str>, PublishError> {
        for step in steps {
            let how = PostParams::default();
            let (slice, kept) = match step {
                Step::Create(slice) => (slice, self.slices.create(&how, slice).await),
                Step::Replace(slice) => {
                    let kept = self.slices.replace(&name(slice), &how, slice).await;
                    (slice, kept)
                }
                Step::Delete(slice) => {
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

    /// Takes back everything of this node.
    async fn withdraw(&self) -> Result<(), PublishError> {
        for slice in self.found().await? {
            self.delete(&slice).await?;
        }
        Ok(())
    }

    /// This driver's slices of this node.
    async fn found(&self) -> Result<Vec<ResourceSlice>, PublishError> {
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
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
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
            tracing::warn!(node = %self.name, gpu = index, "nothing of GPU {index} is published: {}", chain(why));
        }
        self.said.clone_from(&pool.withheld);
    }

    /// What of all slices these are, for the API server to choose by.
    fn of_node(&self) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={}", self.name)
    }
}

/// When to look next.
struct Pace {
    due: Instant,
    /// Until then only a change of what is to be published is a reason to write.
    quiet: Instant,
    pause: Duration,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self {
            due: now,
            quiet: now,
            pause: FIRST_PAUSE,
        }
    }

    /// What is to be published has changed.
    fn now(&mut self, now: Instant) {
        self.due = now;
    }

    /// What is published has changed.
    fn soon(&mut self, now: Instant) {
        self.due = self.due.min(self.quiet.max(now));
    }

    fn settled(&mut self, now: Instant) {
        self.due = now + LOOK_AGAIN;
    }

    fn wrote(&mut self, now: Instant) {
        self.slow_down(now);
        self.due = now + LOOK_AGAIN;
    }

    fn failed(&mut self, now: Instant) {
        self.slow_down(now);
        self.due = self.quiet;
    }

    fn slow_down(&mut self, now: Instant) {
        let calm = self.quiet + LOOK_AGAIN < now;
        self.pause = match calm {
            true => FIRST_PAUSE,
            false => (self.pause * 2).min(LONGEST_PAUSE),
        };
        self.quiet = now + self.pause;
    }
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
            .inspect_err(|error| tracing::debug!("a watch broke off: {}", chain(error)))
            .ok()
    })
}

fn own_of(event: watcher::Event<NodeObject>) -> Option<Own> {
    let (watcher::Event::Apply(node) | watcher::Event::InitApply(node)) = event else {
        return None;
    };
    Some(Own {
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

/// What went wrong, and why.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_keeps_undoing_is_put_back_ever_more_slowly() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..10 {
            pace.wrote(now);
            // Undone at once.
            pace.soon(now);
            pauses.push(pace.due - now);
            now = pace.due;
        }
        assert!(pauses[0] < Duration::from_secs(1), "{pauses:?}");
        assert!(pauses.windows(2).all(|two| two[0] <= two[1]), "{pauses:?}");
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
        // After a while without trouble it is quick again.
        now += LOOK_AGAIN * 2;
        pace.soon(now);
        assert!(pace.due <= now);
        pace.wrote(now);
        pace.soon(now);
        assert_eq!(pace.due - now, FIRST_PAUSE);
    }

    #[test]
    fn what_is_to_be_published_does_not_wait() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        pace.failed(now);
        assert!(pace.due > now);
        pace.now(now);
        assert_eq!(pace.due, now);
    }
}
