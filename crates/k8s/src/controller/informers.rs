//! Informers: caches of what Divvy needs of cluster objects, kept by watches, and a signal for each change of them.
//!
//! ```text
//!   list in pages ──► each object ──► keep: Some(facts), or None ──► Informer: facts by namespace and name
//!   watch ──────────► each change ──┘
//! ```
//! An informer never holds an object: other programs' objects are many and large, and any user can create them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use kube::api::{Api, ApiResource};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::capacity::ClaimFacts;
use super::classes;
use super::pending::{Pending, PodFields};
use super::templates::TemplateFacts;
use crate::base::claim::DRIVER;
use crate::base::cluster::{MANAGED_BY, PAGE, chain};
use crate::base::slices;

/// Rings when something has changed.
pub type ChangeSignal = watch::Sender<u64>;
/// Namespace and name.
pub type Key = (String, String);

/// Returns a watch configuration whose lists come in pages of bounded size.
pub(crate) fn paged() -> Config {
    Config::default().page_size(PAGE)
}

/// The facts that a watch keeps of the objects of one kind.
pub struct Informer<V> {
    kept: RwLock<BTreeMap<Key, Arc<V>>>,
    listed: watch::Sender<bool>,
}

impl<V> Default for Informer<V> {
    fn default() -> Self {
        Self {
            kept: RwLock::default(),
            listed: watch::Sender::new(false),
        }
    }
}

impl<V> Informer<V> {
    /// Returns the first kept facts for which `is` holds.
    pub fn find(&self, is: impl Fn(&V) -> bool) -> Option<Arc<V>> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        kept.values().find(|facts| is(facts)).cloned()
    }

    pub fn state(&self) -> Vec<Arc<V>> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        kept.values().cloned().collect()
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<V>> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace.to_owned(), name.to_owned());
        kept.get(&key).cloned()
    }

    /// Counts the kept objects of a namespace.
    pub fn count_in(&self, namespace: &str) -> usize {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let from = (namespace.to_owned(), String::new());
        let inside = kept.range(from..);
        inside.take_while(|(key, _)| key.0 == namespace).count()
    }

    /// Whether every object has been listed since the start, or since [`distrust`](Self::distrust).
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// Records that the facts may be outdated until the next list.
    pub fn distrust(&self) {
        self.listed.send_replace(false);
    }

    /// Records that there are no objects: the cluster does not have the kind.
    pub fn set_absent(&self) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.clear();
        self.listed.send_replace(true);
    }

    /// Returns once every object has been listed.
    pub async fn wait_until_listed(&self) {
        // The sender lives as long as this.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }
}

/// Takes the events of one watch into an informer.
pub struct Intake<V, F> {
    informer: Arc<Informer<V>>,
    keep: F,
    /// The facts of a list in progress.
    listing: BTreeMap<Key, Arc<V>>,
}

impl<V: PartialEq, F> Intake<V, F> {
    pub fn new(informer: Arc<Informer<V>>, keep: F) -> Self {
        Self {
            informer,
            keep,
            listing: BTreeMap::new(),
        }
    }

    /// Returns whether the kept facts have changed.
    pub fn apply<K>(&mut self, event: Event<K>) -> bool
    where
        K: Resource,
        F: FnMut(K) -> Option<V>,
    {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        let kept = || {
            let kept = self.informer.kept.write();
            kept.unwrap_or_else(PoisonError::into_inner)
        };
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitApply(object) => {
                let key = key(&object);
                if let Some(facts) = (self.keep)(object) {
                    self.listing.insert(key, Arc::new(facts));
                }
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                *kept() = listed;
                self.informer.listed.send_replace(true);
                true
            }
            Event::Apply(object) => {
                let key = key(&object);
                match (self.keep)(object) {
                    Some(facts) => {
                        let mut kept = kept();
                        let is_known = kept.get(&key).is_some_and(|known| **known == facts);
                        if !is_known {
                            kept.insert(key, Arc::new(facts));
                        }
                        !is_known
                    }
                    None => kept().remove(&key).is_some(),
                }
            }
            Event::Delete(object) => kept().remove(&key(&object)).is_some(),
        }
    }
}

/// The caches of every replica, to answer the API server.
pub struct Cache {
    pub slices: Arc<Informer<ResourceSlice>>,
    pub templates: Arc<Informer<TemplateFacts>>,
}

/// The additional caches of the leader.
pub struct LeaderCache {
    pub pods: Arc<Informer<Pending>>,
    pub claims: Arc<Informer<ClaimFacts>>,
    pub classes: Arc<Informer<DeviceClass>>,
}

impl Cache {
    pub fn watch(client: &Client, bell: &ChangeSignal, tasks: &mut JoinSet<()>) -> Self {
        let (key, value) = MANAGED_BY;
        let ours = paged().labels(&format!("{key}={value}"));
        let drivers = paged().fields(&format!("spec.driver={DRIVER}"));
        let slices: Api<ResourceSlice> = Api::all(client.clone());
        let templates: Api<ResourceClaimTemplate> = Api::all(client.clone());
        Self {
            slices: spawn(slices, drivers, ring(bell), tasks, |slice| {
                Some(slices::stripped(slice))
            }),
            templates: spawn(templates, ours, ring(bell), tasks, |template| {
                TemplateFacts::of(&template)
            }),
        }
    }

    /// Returns once both are listed.
    pub async fn wait_until_synced(&self) {
        self.slices.wait_until_listed().await;
        self.templates.wait_until_listed().await;
    }
}

impl LeaderCache {
    pub fn watch(client: &Client, bell: &ChangeSignal, tasks: &mut JoinSet<()>) -> Self {
        let waiting = paged().fields("status.phase=Pending");
        let pods = Api::<PodFields>::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
        let claims: Api<ResourceClaim> = Api::all(client.clone());
        let classes = Api::all(client.clone());
        Self {
            pods: spawn(pods, waiting, ring(bell), tasks, |pod| Pending::of(&pod)),
            claims: spawn(claims, paged(), ring(bell), tasks, |claim| {
                ClaimFacts::of(&claim)
            }),
            classes: spawn(classes, paged(), ring(bell), tasks, classes::kept),
        }
    }

    pub async fn wait_until_synced(&self) {
        self.pods.wait_until_listed().await;
        self.claims.wait_until_listed().await;
        self.classes.wait_until_listed().await;
    }
}

/// Rings the bell.
fn ring(bell: &ChangeSignal) -> impl Fn() + Send + 'static {
    let bell = bell.clone();
    move || bell.send_modify(|rung| *rung += 1)
}

/// Starts a watch that keeps of each object what `keep` returns, and calls `changed` when that changes.
pub(crate) fn spawn<K, V>(
    api: Api<K>,
    config: Config,
    changed: impl Fn() + Send + 'static,
    tasks: &mut JoinSet<()>,
    keep: impl FnMut(K) -> Option<V> + Send + 'static,
) -> Arc<Informer<V>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    V: PartialEq + Send + Sync + 'static,
{
    let informer = Arc::new(Informer::default());
    let mut intake = Intake::new(Arc::clone(&informer), keep);
    let kind = api.resource_url().to_owned();
    tasks.spawn(follow(kind, watcher(api, config), move |event| {
        if intake.apply(event) {
            changed();
        }
    }));
    informer
}

/// Hands each event of a watch to `each`, for as long as the process lives. A watch that fails is logged and restarts.
pub(crate) async fn follow<K>(
    kind: String,
    changes: impl Stream<Item = watcher::Result<Event<K>>>,
    mut each: impl FnMut(Event<K>),
) {
    let mut changes = pin!(changes.default_backoff());
    while let Some(change) = changes.next().await {
        match change {
            Ok(event) => each(event),
            Err(error) => {
                tracing::warn!(kind, error = chain(&error), "the watch failed and restarts");
            }
        }
    }
}
#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio::task::yield_now;

    use super::*;

    fn map(name: &str, value: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.data = Some([("value".to_owned(), value.to_owned())].into());
        map
    }

    /// Of each map its value; nothing of a map whose value is `foreign`.
    fn value(map: ConfigMap) -> Option<String> {
        let value = map.data?.remove("value")?;
        (value != "foreign").then_some(value)
    }

    #[test]
    fn an_informer_keeps_the_facts_of_what_is_there_and_nothing_of_foreign_objects() {
        let informer = Arc::new(Informer::default());
        let mut intake = Intake::new(Arc::clone(&informer), value);
        let mut apply = |event| intake.apply(event);
        assert!(!apply(Event::Init));
        for (name, kept) in [("a", "1"), ("b", "2"), ("c", "foreign")] {
            assert!(!apply(Event::InitApply(map(name, kept))));
        }
        assert!(
            informer.state().is_empty(),
            "an unfinished list shows nothing"
        );
        assert!(apply(Event::InitDone));
        let kept = || {
            let all = informer.state();
            all.iter()
                .map(|facts| facts.as_str().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(kept(), ["1", "2"]);
        assert!(
            !apply(Event::Apply(map("a", "1"))),
            "no fact of it has changed"
        );
        assert!(!apply(Event::Apply(map("d", "foreign"))));
        assert!(!apply(Event::Delete(map("d", "foreign"))));
        assert!(apply(Event::Apply(map("a", "3"))));
        assert!(apply(Event::Apply(map("b", "foreign"))), "it left");
        assert_eq!(kept(), ["3"]);
        // A new list replaces all.
        assert!(!apply(Event::Init));
        assert!(!apply(Event::InitApply(map("e", "5"))));
        assert_eq!(kept(), ["3"]);
        assert!(apply(Event::InitDone));
        assert_eq!(kept(), ["5"]);
        assert!(apply(Event::Delete(map("e", "5"))));
        assert!(kept().is_empty() && informer.is_listed());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn every_waiter_learns_that_the_informer_has_listed() {
        let informer = Arc::new(Informer::<String>::default());
        let mut intake = Intake::new(Arc::clone(&informer), value);
        let waiting = [(); 3].map(|()| {
            let informer = Arc::clone(&informer);
            tokio::spawn(async move { informer.wait_until_listed().await })
        });
        yield_now().await;
        assert!(waiting.iter().all(|one| !one.is_finished()));
        intake.apply(Event::<ConfigMap>::InitDone);
        for one in waiting {
            one.await.unwrap();
        }
    }
}
