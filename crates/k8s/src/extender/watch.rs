//! The watches: each object goes into the view as it comes.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::DeviceClass;
use kube::api::Api;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::Extender;
use super::pod::PodFacts;
use super::view::View;
use crate::base::claim::DRIVER;
use crate::controller::informers::{Key, follow, paged};
use crate::extender::metrics::METRICS;

/// The kinds that are watched. The extender is ready when all of them are listed. It must be the number of rows of the
/// watches.
pub const KINDS: usize = 5;

/// Starts the watches.
pub fn start(client: &Client, extender: &Arc<Extender>, tasks: &mut JoinSet<()>) {
    let slices = paged().fields(&format!("spec.driver={DRIVER}"));
    // An ended pod leaves this list, as a deleted one does.
    let pods = paged().fields("status.phase!=Succeeded,status.phase!=Failed");
    let all = paged;
    watch(
        client,
        extender,
        tasks,
        all(),
        View::put_node,
        |view, key| {
            view.remove_node(&key.1);
        },
    );
    watch(
        client,
        extender,
        tasks,
        slices,
        View::put_slice,
        |view, key| {
            view.remove_slice(&key.1);
        },
    );
    watch(
        client,
        extender,
        tasks,
        all(),
        |view, class: DeviceClass| view.put_class(&class),
        |view, key| view.remove_class(&key.1),
    );
    watch(
        client,
        extender,
        tasks,
        all(),
        View::put_claim,
        View::remove_claim,
    );
    watch(client, extender, tasks, pods, put_pod, View::remove_pod);
}

fn put_pod(view: &mut View, pod: Pod) {
    let Some(facts) = PodFacts::of(&pod).filter(PodFacts::is_needed) else {
        return view.remove_pod(&key(&pod));
    };
    if let Some(is_chosen) = view.put_pod(facts).and_then(|seen| seen.is_chosen) {
        METRICS.bound(is_chosen);
    }
}

fn key<K: Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn watch<K>(
    client: &Client,
    extender: &Arc<Extender>,
    tasks: &mut JoinSet<()>,
    config: Config,
    put: impl Fn(&mut View, K) + Send + 'static,
    remove: impl Fn(&mut View, &Key) + Send + 'static,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default + Eq + Hash + Clone,
{
    let extender = Arc::clone(extender);
    let mut relist = Relist::default();
    let api = Api::<K>::all(client.clone());
    let kind = api.resource_url().to_owned();
    tasks.spawn(follow(kind, watcher(api, config), move |event| {
        extender.with_view(|view| relist.apply(event, view, &put, &remove));
        if std::mem::take(&mut relist.is_first_end) {
            extender.listed();
        }
    }));
}

/// What was there before a watch began anew: what a new list lacks has gone meanwhile.
#[derive(Default)]
struct Relist {
    known: BTreeSet<Key>,
    listed: Option<BTreeSet<Key>>,
    was_listed: bool,
    is_first_end: bool,
}

impl Relist {
    fn apply<K: Resource>(
        &mut self,
        event: Event<K>,
        view: &mut View,
        put: impl Fn(&mut View, K),
        remove: impl Fn(&mut View, &Key),
    ) {
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitApply(object) => {
                if let Some(listed) = &mut self.listed {
                    listed.insert(key(&object));
                }
                put(view, object);
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                for gone in self.known.difference(&listed) {
                    remove(view, gone);
                }
                self.known = listed;
                self.is_first_end = !std::mem::replace(&mut self.was_listed, true);
            }
            Event::Apply(object) => {
                self.known.insert(key(&object));
                put(view, object);
            }
            Event::Delete(object) => {
                let gone = key(&object);
                self.known.remove(&gone);
                remove(view, &gone);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod
    }

    #[test]
    fn what_a_new_list_lacks_is_removed() {
        let (mut relist, mut view) = (Relist::default(), View::default());
        let removed = std::cell::RefCell::new(Vec::new());
        let mut apply = |event| {
            let remove = |_: &mut View, key: &Key| removed.borrow_mut().push(key.1.clone());
            relist.apply(event, &mut view, |_, _| {}, remove);
            std::mem::take(&mut relist.is_first_end)
        };
        assert!(!apply(Event::Init));
        assert!(!apply(Event::InitApply(pod("a"))));
        assert!(apply(Event::InitDone), "listed for the first time");
        apply(Event::Apply(pod("b")));
        apply(Event::Apply(pod("c")));
        apply(Event::Delete(pod("c")));
        apply(Event::Init);
        apply(Event::InitApply(pod("b")));
        assert!(!apply(Event::InitDone));
        assert_eq!(*removed.borrow(), ["c", "a"]);
    }
}
