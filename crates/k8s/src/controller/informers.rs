//! Informers: caches of cluster objects kept by watches, and a signal for each change of them.

use std::fmt::Debug;
use std::hash::Hash;
use std::pin::pin;

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use kube::api::Api;
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::sync::watch::Sender;
use tokio::task::JoinSet;

use crate::claim::DRIVER;
use crate::cluster::{MANAGED_BY, chain};

/// Rings when something has changed.
pub type ChangeSignal = Sender<u64>;

/// The caches of every replica, to answer the API server.
pub struct Cache {
    pub slices: Store<ResourceSlice>,
    pub templates: Store<ResourceClaimTemplate>,
    /// Held while waiting: of several tasks that wait for a store at once, kube wakes only the last one.
    waits: Mutex<()>,
}

/// The additional caches of the leader.
pub struct LeaderCache {
    pub pods: Store<Pod>,
    pub claims: Store<ResourceClaim>,
    pub classes: Store<DeviceClass>,
}

impl Cache {
    pub fn watch(client: &Client, bell: &ChangeSignal, tasks: &mut JoinSet<()>) -> Self {
        let (key, value) = MANAGED_BY;
        let ours = Config::default().labels(&format!("{key}={value}"));
        let drivers = Config::default().fields(&format!("spec.driver={DRIVER}"));
        Self {
            slices: spawn_reflector(Api::all(client.clone()), drivers, bell, tasks),
            templates: spawn_reflector(Api::all(client.clone()), ours, bell, tasks),
            waits: Mutex::default(),
        }
    }

    /// Returns once every store has synced, for any number of waiting tasks.
    pub async fn wait_until_synced(&self) {
        let _turn = self.waits.lock().await;
        // Err says that the watch has ended, with the process.
        let _ = self.slices.wait_until_ready().await;
        let _ = self.templates.wait_until_ready().await;
    }
}

impl LeaderCache {
    pub fn watch(client: &Client, bell: &ChangeSignal, tasks: &mut JoinSet<()>) -> Self {
        let waiting = Config::default().fields("status.phase=Pending");
        Self {
            pods: spawn_reflector(Api::all(client.clone()), waiting, bell, tasks),
            claims: spawn_reflector(Api::all(client.clone()), Config::default(), bell, tasks),
            classes: spawn_reflector(Api::all(client.clone()), Config::default(), bell, tasks),
        }
    }

    pub async fn wait_until_synced(&self) {
        let _ = self.pods.wait_until_ready().await;
        let _ = self.claims.wait_until_ready().await;
        let _ = self.classes.wait_until_ready().await;
    }
}

fn spawn_reflector<K>(
    api: Api<K>,
    config: Config,
    bell: &ChangeSignal,
    tasks: &mut JoinSet<()>,
) -> Store<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone,
{
    let (seen, writer) = store();
    let bell = bell.clone();
    let changes = reflector(writer, watcher(api, config));
    tasks.spawn(follow(changes, move |_| {
        bell.send_modify(|rung| *rung += 1)
    }));
    seen
}

/// Hands each event of a watch to `each`, for as long as the process lives. A watch that fails is logged and restarts.
pub(crate) async fn follow<K>(
    changes: impl Stream<Item = watcher::Result<Event<K>>>,
    mut each: impl FnMut(Event<K>),
) where
    K: Resource,
    K::DynamicType: Default,
{
    let mut changes = pin!(changes.default_backoff());
    while let Some(change) = changes.next().await {
        match change {
            Ok(event) => each(event),
            Err(error) => {
                let kind = K::kind(&K::DynamicType::default()).into_owned();
                tracing::warn!(kind, error = chain(&error), "the watch failed and restarts");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn every_waiter_learns_that_the_caches_have_synced() {
        let (slices, mut of_slices) = store();
        let (templates, mut of_templates) = store();
        let seen = Arc::new(Cache {
            slices,
            templates,
            waits: Mutex::default(),
        });
        let waiting = [(); 3].map(|()| {
            let seen = Arc::clone(&seen);
            tokio::spawn(async move { seen.wait_until_synced().await })
        });
        yield_now().await;
        of_slices.apply_watcher_event(&Event::InitDone);
        of_templates.apply_watcher_event(&Event::InitDone);
        // One after the other.
        for _ in &waiting {
            yield_now().await;
        }
        assert!(waiting.iter().all(|one| one.is_finished()));
    }
}
